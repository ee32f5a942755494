"""Properties of the sequential core."""

from __future__ import annotations

from collections.abc import Iterator

from weft.extras.proof.hardware.property import Property
from weft.extras.proof.hardware.sequential import multiplier, processor, registers, rows


def properties() -> Iterator[Property]:
    """All of them."""
    for module in (rows, processor, registers, multiplier):
        yield from module.properties()
