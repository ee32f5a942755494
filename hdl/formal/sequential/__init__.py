"""Properties of the sequential core."""

from __future__ import annotations

from collections.abc import Iterator

from weft.hdl.formal.property import Property
from weft.hdl.formal.sequential import processor, registers, rows


def properties() -> Iterator[Property]:
    """All of them."""
    for module in (rows, processor, registers):
        yield from module.properties()
