"""Properties of the kernel engine."""

from __future__ import annotations

from collections.abc import Iterator

from weft.hdl.formal.kernel import (
    addresses,
    division,
    lanes,
    memories,
    microcode,
    order,
    share,
    spacing,
    unit,
)
from weft.hdl.formal.property import Property


def properties() -> Iterator[Property]:
    """All of them."""
    for module in (lanes, division, order, spacing, addresses, microcode, unit, share, memories):
        yield from module.properties()
