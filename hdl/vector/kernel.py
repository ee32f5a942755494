"""The kernel engine of the vector unit: runs kernels of micro-operations on rows of vectors."""

from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.isa import SEMAPHORES, Kernel, Vec
from weft.hdl.isa.config import Config
from weft.hdl.lib import ports
from weft.hdl.lib.skid_buffer import SkidBuffer
from weft.hdl.vector.kernel_lanes import KernelLanes, table_members
from weft.hdl.vector.kernel_sequence import KernelSequence, request_layout
from weft.hdl.vector.vec_kinds import view
from weft.hdl.vector.vec_streams import index_range, results_layout


class KernelEngine(wiring.Component):
    """A sequence of slots, a register for the one that reads next, and lanes behind it that never wait.

    Parameters
    ----------
    config : Config
        With the kernel engine.

    Members
    -------
    instruction : In(stream of instructions)
        `Kernel` and `Microcode` only; accepted when there is none.
    active : Out(1)
        There is an instruction.
    finish : In(1)
        There is none any more from the next cycle on.
    mask : Out(SEMAPHORES)
        What the last instruction signals.
    accumulator : Out(ports.accumulator_read(config))
    scratchpad : Out(ports.scratchpad_read(config))
    stall_port : Out(1)
        A read waits for its grant.
    group, vectors, rows
        Lane groups of what is read: see `weft.hdl.vector.kernel_lanes.KernelLanes`.
    results : Out(results_layout(config))
        Vectors to write, lane group by lane group; ``end`` with the last result of an instruction.
    index, table, entries
        See `weft.hdl.vector.kernel_lanes.KernelLanes`; with look-up tables only.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        super().__init__(
            {
                "instruction": In(stream.Signature(Vec.layout())),
                "active": Out(1),
                "finish": In(1),
                "mask": Out(SEMAPHORES),
                "accumulator": Out(ports.accumulator_read(config)),
                "scratchpad": Out(ports.scratchpad_read(config)),
                "stall_port": Out(1),
                "group": Out(index_range(config)),
                "vectors": In(8 * config.lanes),
                "rows": In(32 * config.lanes),
                "results": Out(results_layout(config)),
                **table_members(config),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.sequence = sequence = KernelSequence(self.config)
        m.submodules.lanes = lanes = KernelLanes(self.config)
        payload, load, source = self.instruction.payload, Signal(), Signal()
        m.d.comb += [
            self.instruction.ready.eq(~self.active),
            load.eq(self.instruction.valid & self.instruction.ready),
            sequence.load.eq(load),
            sequence.payload.eq(payload),
            lanes.source.eq(source),
            lanes.vectors.eq(self.vectors),
            lanes.rows.eq(self.rows),
            self.group.eq(lanes.group),
            self.results.eq(lanes.results),
        ]
        with m.If(sequence.loaded):
            m.d.comb += self.results.end.eq(1)
        with m.If(self.finish):
            m.d.sync += self.active.eq(0)
        with m.If(load):
            m.d.sync += [
                self.active.eq(1),
                self.mask.eq(payload.signal),
                source.eq(payload.source),
                lanes.tail.eq(view(Kernel, payload).tail),
            ]
        self._ask(m, sequence, lanes)
        if self.config.lookup_tables:
            m.d.comb += [
                self.index.eq(lanes.index),
                self.table.eq(lanes.table),
                lanes.entries.eq(self.entries),
            ]
        return m

    def _ask(self, m: Module, sequence: KernelSequence, lanes: KernelLanes) -> None:
        """Read for the next slot, which comes by way of a skid buffer: a refusal reaches no further in its cycle."""
        request, valid, granted, ready = Signal(request_layout(self.config)), Signal(), Signal(), Signal()
        m.submodules.skid = ahead = SkidBuffer(request.shape())
        m.d.comb += [
            ahead.i.valid.eq(sequence.valid),
            ahead.i.payload.eq(sequence.slot),
            sequence.ready.eq(ahead.i.ready),
            ahead.o.ready.eq(~valid | granted),
            self.scratchpad.valid.eq(valid & request.ask_scratchpad),
            self.scratchpad.address.eq(request.address),
            self.accumulator.valid.eq(valid & request.ask_accumulator),
            self.accumulator.address.eq(request.address),
            ready.eq(
                (self.scratchpad.ready | ~request.ask_scratchpad)
                & (self.accumulator.ready | ~request.ask_accumulator)
            ),
            granted.eq(valid & ready),
            self.stall_port.eq(valid & ~ready),
            lanes.issue.eq(request.issue),
            lanes.issue.valid.eq(granted & request.issue.valid),
        ]
        with m.If(ahead.o.ready):
            m.d.sync += valid.eq(ahead.o.valid)
        with m.If(ahead.o.valid & ahead.o.ready):
            m.d.sync += request.eq(ahead.o.payload)
