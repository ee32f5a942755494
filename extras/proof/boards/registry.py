"""All properties of the room."""

from __future__ import annotations

from collections.abc import Iterator

from weft.extras.proof.boards import axi_bridge, axi_gate, bus, framing, sdram
from weft.extras.proof.hardware.property import Property


def properties() -> Iterator[Property]:
    """All properties of units of `weft.boards`."""
    for module in (axi_bridge, axi_gate, bus, framing, sdram):
        yield from module.properties()
