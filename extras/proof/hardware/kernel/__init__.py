"""Properties of the kernel engine."""

from __future__ import annotations

from collections.abc import Iterator

from weft.extras.proof.hardware.kernel import (
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
from weft.extras.proof.hardware.property import Property


def properties() -> Iterator[Property]:
    """All of them."""
    for module in (lanes, division, order, spacing, addresses, microcode, unit, share, memories):
        yield from module.properties()
