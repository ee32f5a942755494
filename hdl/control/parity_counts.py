"""Counts of words with wrong parity."""

from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.isa.memmap import ParityMemory

COUNTS = data.ArrayLayout(8, len(ParityMemory))
"""The register PARITY."""


class ParityCounts(wiring.Component):
    """Counts what was read with wrong parity, up to 255 of each memory.

    Members
    -------
    clear : In(1)
    wrong : In(len(ParityMemory))
        A word of that memory was wrong, in this cycle.
    counts : Out(COUNTS)
        Since `clear`.
    error : Out(1)
        Some word was wrong in the cycle before.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "clear": In(1),
                "wrong": In(len(ParityMemory)),
                "counts": Out(COUNTS),
                "error": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        wrong = Signal(len(ParityMemory))  # a register, as parity comes late in a cycle
        m.d.sync += wrong.eq(self.wrong)
        m.d.comb += self.error.eq(wrong.any())
        for memory in ParityMemory:
            with m.If(wrong[memory] & ~self.counts[memory].all()):
                m.d.sync += self.counts[memory].eq(self.counts[memory] + 1)
        with m.If(self.clear):
            m.d.sync += self.counts.as_value().eq(0)
        return m
