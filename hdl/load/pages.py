"""Paged loads: adds what the page table says to the addresses of load instructions."""

from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from weft.hdl.isa import Load
from weft.hdl.isa.config import Config
from weft.hdl.lib.ports import bus_read
from weft.hdl.lib.registers import register_port, register_value

ENTRY_BYTES = 4
OUTSTANDING = 2
"""Entries on their way or waiting, at most: that of the instruction in the register and that of the one behind it."""


class PageReader(wiring.Component):
    """A register for one instruction, between the queue and what executes it.

    The entry of a paged instruction is requested while it still stands at the input, so two entries can be on their
    way while the instruction before them loads. They are taken off the bus as soon as they come, and so never stand
    in the way of data that a load waits for.

    Parameters
    ----------
    config : Config
        With softmax.

    Members
    -------
    instruction : In(stream of Load)
    bases or values
        See `weft.hdl.lib.registers.register_port`.
    bus : Out(bus_read(config))
    located : Out(stream of Load)
        The instructions, with the entry as part of ``offset``.
    busy : Out(1)
        There is an instruction in the register.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        super().__init__(
            {
                "instruction": In(stream.Signature(Load.layout())),
                **register_port(Load, config),
                "bus": Out(bus_read(config)),
                "located": Out(stream.Signature(Load.layout())),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.entries = entries = SyncFIFO(width=8 * ENTRY_BYTES, depth=OUTSTANDING)
        op, located = self.instruction.payload, self.located.payload
        asked = Signal()  # for the entry of the instruction at the input
        held, lacks = Signal(), Signal()  # an instruction is in the register; it lacks its entry
        accept, add = Signal(), Signal()
        self._ask(m, asked, accept, entries)
        m.d.comb += [
            self.busy.eq(held),
            self.located.valid.eq(held & ~lacks),
            accept.eq(self.instruction.valid & (asked | ~op.paged) & (~held | (~lacks & self.located.ready))),
            self.instruction.ready.eq(accept),
            add.eq(lacks & entries.r_rdy),
            entries.r_en.eq(add),
        ]
        with m.If(accept):
            m.d.sync += [held.eq(1), lacks.eq(op.paged), located.eq(op)]
        with m.Elif(add):
            m.d.sync += [lacks.eq(0), located.offset.eq(located.offset + entries.r_data)]
        with m.Elif(self.located.ready & ~lacks):
            m.d.sync += held.eq(0)
        return m

    def _ask(self, m: Module, asked: Signal, accept: Signal, entries: SyncFIFO) -> None:
        """Request the word with the entry, and pick the entry out of it when it comes."""
        op, request, beat = self.instruction.payload, self.bus.request, self.bus.beat
        address = Signal(32)
        align, word = (self.config.bus_bytes - 1).bit_length(), (ENTRY_BYTES - 1).bit_length()
        issue = Signal()
        m.d.comb += [
            address.eq(register_value(self, Load, "table", op.table, self.config) + (op.page << word)),
            issue.eq(self.instruction.valid & op.paged & ~asked & ~request.valid),
            request.payload.beats.eq(1),
            beat.ready.eq(1),  # there is room for all that is outstanding
            entries.w_en.eq(beat.valid),
        ]
        with m.If(issue):
            m.d.sync += [
                asked.eq(1),
                request.valid.eq(1),
                request.payload.address.eq(address[align:] << align),
            ]
        with m.Else():
            with m.If(accept):
                m.d.sync += asked.eq(0)
            with m.If(request.ready):
                m.d.sync += request.valid.eq(0)
        if align == word:
            m.d.comb += entries.w_data.eq(beat.payload)
            return
        m.submodules.places = places = SyncFIFO(width=align - word, depth=OUTSTANDING)
        m.d.comb += [
            places.w_en.eq(issue),
            places.w_data.eq(address[word:align]),
            places.r_en.eq(beat.valid),
            entries.w_data.eq(beat.payload.word_select(places.r_data, 8 * ENTRY_BYTES)),
        ]
