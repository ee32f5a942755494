"""Registry of the properties of `weft.boards`."""

from __future__ import annotations

from collections.abc import Iterator

from weft.extras.proof import boards
from weft.extras.proof.hardware.property import Property
from weft.extras.proof.hardware.registry import collect


def properties() -> Iterator[Property]:
    """Yield all properties of units of `weft.boards`."""
    return collect(boards)
