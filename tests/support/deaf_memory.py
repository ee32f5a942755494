"""Memories that stop answering: at a core's AXI port, and on a board."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from weft.boards.bus.port import memory_port
from weft.boards.top import Top


class DeafCore(wiring.Component):
    """A core whose memory stops answering from some byte addresses on.

    Parameters
    ----------
    core : Core or SequentialCore
    silent : int
        First address at which it accepts reads but sends no word.
    closed : int
        First address at which it accepts no read; writes are not accepted from `silent` on.
    """

    def __init__(self, core: Any, silent: int, closed: int) -> None:
        self.core, self.silent, self.closed = core, silent, closed
        super().__init__(core.signature)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.core = core = self.core
        for name, member in core.signature.members.items():
            ours, theirs = getattr(self, name), getattr(core, name)
            m.d.comb += ours.eq(theirs) if member.flow is Out else theirs.eq(ours)
        with m.If(core.m_axi_arvalid & (core.m_axi_araddr >= self.silent)):
            m.d.comb += [self.m_axi_arvalid.eq(0), core.m_axi_arready.eq(core.m_axi_araddr < self.closed)]
        with m.If(core.m_axi_awvalid & (core.m_axi_awaddr >= self.silent)):
            m.d.comb += [self.m_axi_awvalid.eq(0), core.m_axi_awready.eq(0)]
        return m


class DeafMemory(wiring.Component):
    """A board's memory that accepts a command at or above `above`, and none after it."""

    def __init__(self, memory: Any, bus_bytes: int, above: int) -> None:
        self.memory, self.above = memory, above
        super().__init__({"bus": In(memory_port(bus_bytes))})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.memory = memory = self.memory
        bus = self.bus
        stuck, deaf = Signal(), Signal()
        wiring.connect(m, wiring.flipped(bus), memory.bus)
        m.d.comb += deaf.eq(bus.command.payload.address >= self.above)
        with m.If(bus.command.valid & bus.command.ready & deaf):
            m.d.sync += stuck.eq(1)
        with m.If(deaf | stuck):
            m.d.comb += [memory.bus.command.valid.eq(0), bus.command.ready.eq(~stuck)]
        return m


def deaf_top(above: int) -> type[Top]:
    """Return the top component of boards with a `DeafMemory`."""

    class DeafTop(Top):
        def _memory(self) -> Any:
            return DeafMemory(super()._memory(), self.config.bus_bytes, above)

    return DeafTop
