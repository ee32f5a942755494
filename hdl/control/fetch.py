"""Instruction fetch: reads a program from memory and hands its instructions to the queues."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, ResetInserter, Signal
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from weft.hdl.isa import WORD_BITS, Instruction, Opcode, Queue, kinds_of
from weft.hdl.isa.config import Config
from weft.hdl.lib.block_fifo import BlockFifo
from weft.hdl.lib.ports import bus_read, part_layout
from weft.hdl.lib.skid_buffer import SkidBuffer

BURST_BYTES = 128
"""Bytes of a burst at most (one bus word where that is more)."""
BURSTS = 4
"""Bursts that the prefetch buffer holds."""
BLOCK_DEPTH = 64
"""Words from which on the prefetch buffer is block memory: shallower ones are wide, and better off distributed."""
PAGE = 4096
"""Memory is a whole number of pages, so that reading on to the end of END's page never leaves it."""


def queue_kinds(config: Config) -> dict[Queue, tuple[type[Instruction], ...]]:
    """The instructions that go to each queue of an accelerator."""
    return {queue: kinds_of(queue, config) for queue in Queue}


class Fetch(wiring.Component):
    """Streams a program, in order, from memory to the four queues until END or an unknown opcode.

    It requests only what its prefetch buffer has room for, so it accepts every beat at once and never holds
    up other readers of the bus; and it crosses to the next page of 4 KiB only once all earlier words have
    been used, so it never reads a page that holds no instruction before END.

    Parameters
    ----------
    config : Config

    Members
    -------
    start : In(1)
        Start at `program`; only while `idle`.
    program : In(32)
        Byte address of the first instruction, a multiple of the bus width (lower bits are ignored).
    idle : Out(1)
        No program is being fetched, and no beat is outstanding.
    error : Out(1)
        For one cycle: stopped at an unknown opcode.
    bus : Out(bus_read)
    load, mm, vec, store : Out(stream of part_layout(config))
        Instructions, part after part; all parts of one go to the same queue.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._kinds = queue_kinds(config)
        queues = {queue.name.lower(): Out(stream.Signature(part_layout(config))) for queue in self._kinds}
        super().__init__(
            {
                "start": In(1),
                "program": In(32),
                "idle": Out(1),
                "error": Out(1),
                "bus": Out(bus_read(config)),
                **queues,
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.parts = parts = _Parts(self._config)
        # A full queue must not reach back to the buffer in the same cycle.
        routed = data.StructLayout({"part": part_layout(self._config), "queue": len(self._kinds)})
        m.submodules.skid = part = ResetInserter(self.start)(SkidBuffer(routed))
        m.d.comb += [
            part.i.payload.part.eq(parts.part.payload),
            part.i.payload.queue.eq(self._queue_of(m, parts.part.payload)),
            part.i.valid.eq(parts.part.valid),
            parts.part.ready.eq(part.i.ready),
        ]
        burst = max(BURST_BYTES // self._config.bus_bytes, 1)
        prefetched = self._buffer(m, burst * BURSTS)

        running = Signal()  # requesting and handing out; otherwise what still arrives is discarded
        pending = Signal(range(burst * BURSTS + 1))  # beats requested and not yet taken from the buffer
        address = Signal(32)
        drained = pending == 0
        m.d.comb += [
            self.idle.eq(~running & drained),
            parts.clear.eq(self.start),
            self.bus.beat.ready.eq(1),
            parts.beat.payload.eq(prefetched.payload),
            parts.beat.valid.eq(prefetched.valid & running),
            prefetched.ready.eq(parts.beat.ready | ~running),
        ]

        # A burst runs to the next multiple of its size, so it never crosses a page.
        request = self.bus.request
        shift = (self._config.bus_bytes - 1).bit_length()
        beats = Signal(range(burst + 1))
        room = Signal()
        m.d.comb += [
            beats.eq(burst - address[shift : shift + burst.bit_length() - 1]),
            room.eq(pending <= burst * (BURSTS - 1)),
        ]
        new_page = address[: PAGE.bit_length() - 1] == 0
        issue = Signal()
        m.d.comb += issue.eq(
            running & ~request.valid & room & (~new_page | (drained & ~parts.part.valid & ~part.o.valid)),
        )
        m.d.sync += pending.eq(pending + Mux(issue, beats, 0) - (prefetched.valid & prefetched.ready))
        with m.If(request.ready):
            m.d.sync += request.valid.eq(0)
        with m.If(issue):
            m.d.sync += [
                request.valid.eq(1),
                request.payload.address.eq(address),
                request.payload.beats.eq(beats),
                address[shift:].eq(address[shift:] + beats),
            ]
        with m.If(self.start):
            m.d.sync += [running.eq(1), address[shift:].eq(self.program[shift:])]

        self._dispatch(m, part.o, running)
        return m

    def _buffer(self, m: Module, depth: int) -> stream.Interface:
        """Beats from the bus, as they come out of the prefetch buffer. `elaborate` keeps it from overflow."""
        width, beat = self._config.widths.bus, self.bus.beat
        if depth >= BLOCK_DEPTH:
            m.submodules.buffer = block = BlockFifo(width, depth)
            m.d.comb += [block.i.payload.eq(beat.payload), block.i.valid.eq(beat.valid)]
            return block.o
        m.submodules.buffer = buffer = SyncFIFO(width=width, depth=depth)
        m.d.comb += [buffer.w_data.eq(beat.payload), buffer.w_en.eq(beat.valid)]
        return buffer.r_stream

    def _queue_of(self, m: Module, part: data.View) -> Signal:
        """The queue of a part, one-hot, and 0 for none. Parts come in order, and stand for any number of cycles."""
        queue_of, held = Signal(len(self._kinds)), Signal(len(self._kinds))
        m.d.comb += queue_of.eq(held)
        with m.If(part.index == 0), m.Switch(part.data[:8]):
            for number, kinds in enumerate(self._kinds.values()):
                with m.Case(*(kind.OPCODE.value for kind in kinds)):
                    m.d.comb += queue_of.eq(1 << number)
            with m.Default():
                m.d.comb += queue_of.eq(0)
        m.d.sync += held.eq(queue_of)
        return queue_of

    def _dispatch(self, m: Module, parts: wiring.PureInterface, running: Signal) -> None:
        part, queue_of = parts.payload.part, parts.payload.queue
        with m.If(running & parts.valid & ~queue_of.any()):
            m.d.comb += self.error.eq(part.data[:8] != Opcode.END.value)
            m.d.sync += running.eq(0)
        for number, queue in enumerate(self._kinds):
            port = getattr(self, queue.name.lower())
            m.d.comb += [port.payload.eq(part), port.valid.eq(running & parts.valid & queue_of[number])]
            with m.If(queue_of[number]):
                m.d.comb += parts.ready.eq(port.ready)


class _Parts(wiring.Component):
    """Bus beats to parts of instructions: numbers the beats, or splits one in several instructions.

    A part stands in a register, as beats may come straight from a block memory.
    """

    def __init__(self, config: Config) -> None:
        self._bus = config.widths.bus
        super().__init__(
            {
                "clear": In(1),
                "beat": In(stream.Signature(self._bus)),
                "part": Out(stream.Signature(part_layout(config))),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        part = self.part.payload
        held = Signal(self._bus)
        splits = max(self._bus // WORD_BITS, 1)
        left = Signal(range(splits + 1))  # parts left in `held`
        taken = self.part.valid & self.part.ready
        m.d.comb += [
            part.data.eq(held),
            self.part.valid.eq(left != 0),
            self.beat.ready.eq((left == 0) | (taken & (left == 1))),
        ]
        with m.If(self.beat.valid & self.beat.ready):
            m.d.sync += [held.eq(self.beat.payload), left.eq(splits)]
        with m.Elif(taken):
            m.d.sync += [held.eq(held >> WORD_BITS), left.eq(left - 1)]
        if self._bus < WORD_BITS:
            m.d.sync += part.index.eq(part.index + taken)
        with m.If(self.clear):
            m.d.sync += [left.eq(0), part.index.eq(0)]
        return m
