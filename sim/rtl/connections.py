"""What of a flat module is connected with what, bit by bit, for what works with Yosys' library."""

from __future__ import annotations

from typing import Any

Bit = tuple[str, int]
"""The name of a wire, and which of its bits."""


def is_memory(cell: Any) -> bool:
    return str(cell.type).startswith("$mem")


def is_register(cell: Any) -> bool:
    return "dff" in str(cell.type)


def bits_of(signal: Any) -> list[Bit | None]:
    """The bits of a signal; None for constants."""
    return [(str(bit.wire.name), bit.offset) if bit.is_wire() else None for bit in signal.to_sigbit_vector()]


class Connections:
    """The wires of a module that are only other names of others."""

    def __init__(self, module: Any) -> None:
        self._behind = {
            left: right
            for one, other in module.connections_
            for left, right in zip(bits_of(one), bits_of(other), strict=True)
        }

    def source(self, bit: Bit | None) -> Bit | None:
        """The bit that another one is a name of."""
        while bit in self._behind:
            bit = self._behind[bit]
        return bit

    def sources(self, signal: Any) -> list[Bit | None]:
        return [self.source(bit) for bit in bits_of(signal)]
