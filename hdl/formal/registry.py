"""All properties of the room."""

from __future__ import annotations

from collections.abc import Iterator

from weft.hdl.formal import loops, matrix, pairs, queues
from weft.hdl.formal.property import Property


def properties() -> Iterator[Property]:
    """All properties of units of `weft.hdl`."""
    for module in (queues, loops, matrix, pairs):
        yield from module.properties()
