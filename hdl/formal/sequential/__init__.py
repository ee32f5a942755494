"""Properties of the sequential core."""

from __future__ import annotations

from collections.abc import Iterator

from weft.hdl.formal.property import Property
from weft.hdl.formal.sequential import multiplier, processor, registers, rows


def properties() -> Iterator[Property]:
    """All of them."""
    for module in (rows, processor, registers, multiplier):
        yield from module.properties()
