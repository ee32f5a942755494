"""Instruction fetch from memory into the queues."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, ResetInserter, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from weft.hdl.control.sequencer import CONTROL_INSTRUCTIONS, Sequencer
from weft.hdl.isa import BASES, WORD_BITS, WORD_BYTES, Instruction, Opcode, Queue, kinds_of
from weft.hdl.isa.config import Config
from weft.hdl.isa.loops import READ_BYTES
from weft.hdl.isa.memmap import ParityMemory
from weft.hdl.lib.arithmetic import Coding
from weft.hdl.lib.pipeline import queued_layout
from weft.hdl.lib.ports import bus_read, part_layout
from weft.hdl.lib.queues import BlockFifo, SkidBuffer

BURST_BYTES = 128
"""Maximum size of a burst, unless a bus word is larger."""
BURSTS = 4
"""Capacity of the prefetch buffer in bursts."""
BLOCK_DEPTH = 64
"""Depth in words from which the prefetch buffer is block RAM. Shallower buffers are wide and fit distributed RAM."""
PAGE = 4096
"""Size of a memory page. Memory has whole pages, so prefetching to the end of END's page never leaves it."""


def queue_kinds(config: Config) -> dict[Queue, tuple[type[Instruction], ...]]:
    """Return the instruction classes of each queue."""
    return {queue: kinds_of(queue, config) for queue in Queue}


class Fetch(wiring.Component):
    """Fetch unit, which streams a program from memory to the four queues until END or an unknown opcode.

    With loops, a `weft.hdl.control.sequencer.Sequencer` executes the instructions without a queue, and its jumps change
    the order.

    Fetch requests only beats that fit its prefetch buffer, so it accepts every beat at once and never stalls other
    readers of the bus. It requests a word of the next 4 KiB page only when all earlier words have been used, so it
    never reads a page without an instruction before END. A jump discards all outstanding beats: they are counted and
    dropped as they arrive, while fetch continues at the target.

    Parameters
    ----------
    config : Config

    Members
    -------
    start : In(1)
        Start at `program`; only while `idle`.
    stop : In(1)
        End, and send no instruction from the next cycle on. Not with `start`.
    program : In(32)
        Byte address of the first instruction, a multiple of the bus width (lower bits are ignored).
    bases : In(32).array(8)
        Base registers at the start. With loops only.
    idle : Out(1)
        No program is being fetched, and no beat is outstanding.
    error : Out(1)
        For one cycle: fetch has stopped at an unknown opcode.
    wrong : Out(1)
        With `parity` only, for one cycle: the word that left the prefetch buffer one cycle earlier had wrong parity.
    bus : Out(bus_read)
    load, mm, vec, store : Out(stream of queued_layout(config))
        Instructions for each queue, part after part.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._coding = Coding(config, 32)  # of words in the prefetch buffer
        self._kinds = queue_kinds(config)
        self._routes = [*self._kinds.values(), *((kind,) for kind in CONTROL_INSTRUCTIONS if config.loops)]
        queues = {queue.name.lower(): Out(stream.Signature(queued_layout(config))) for queue in self._kinds}
        super().__init__(
            {
                "start": In(1),
                "stop": In(1),
                "program": In(32),
                "idle": Out(1),
                "error": Out(1),
                "bus": Out(bus_read(config)),
                **queues,
            }
            | ({"bases": In(data.ArrayLayout(32, BASES))} if config.loops else {})
            | ({"wrong": Out(1)} if config.parity else {})
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        sequencer = Sequencer(self._config) if self._config.loops else None
        void: Value = self.start if sequencer is None else self.start | sequencer.jump
        m.submodules.parts = parts = _Parts(self._config)
        # Breaks the combinational path from a full queue to the prefetch buffer.
        routed = data.StructLayout({"part": part_layout(self._config), "queue": len(self._routes)})
        m.submodules.skid = part = ResetInserter(void)(SkidBuffer(routed))
        m.d.comb += [
            part.i.payload.part.eq(parts.part.payload),
            part.i.payload.queue.eq(self._route_of(m, parts.part.payload)),
            part.i.valid.eq(parts.part.valid),
            parts.part.ready.eq(part.i.ready),
        ]
        burst = max(BURST_BYTES // self._config.bus_bytes, 1)
        # With loops only:
        wanted = Signal()  # no jump has discarded the arriving beat
        none = Signal()  # no beat is outstanding
        space = Signal()  # the counter of outstanding beats has room for another burst
        prefetched = self._buffer(m, burst * BURSTS, sequencer, wanted)

        running = Signal()  # requesting and sending; while it is 0, arriving beats are discarded
        pending = Signal(range(burst * BURSTS + 1))  # beats requested and not yet taken from the buffer
        address = Signal(32)
        drained = pending == 0
        m.d.comb += [
            self.idle.eq(~running & drained if sequencer is None else ~running & drained & none),
            parts.clear.eq(void),
            self.bus.beat.ready.eq(1),
            parts.beat.payload.eq(self._check_parity(m, prefetched, running)),
            parts.beat.valid.eq(prefetched.valid & running),
            prefetched.ready.eq(parts.beat.ready | ~running),
        ]

        # A burst ends at the next multiple of its maximum size, so it never crosses a page.
        request = self.bus.request
        shift = (self._config.bus_bytes - 1).bit_length()
        beats = Signal(range(burst + 1))
        room = Signal()
        m.d.comb += [
            beats.eq(burst - address[shift : shift + burst.bit_length() - 1]),
            room.eq(pending <= burst * (BURSTS - 1)),
        ]
        # The first burst of a page waits until buffer, parts and skid buffer are empty, because they may hold END.
        new_page = address[: PAGE.bit_length() - 1] == 0
        issue = Signal()
        asked = Signal()  # with loops only: a burst was requested since the last jump
        may = running & ~request.valid & room & (~new_page | (drained & ~parts.part.valid & ~part.o.valid))
        m.d.comb += issue.eq(
            may if sequencer is None else may & space & ~sequencer.jump & ~(sequencer.reads & asked)
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
        with m.If(self.stop):
            m.d.sync += running.eq(0)

        if sequencer is None:
            self._dispatch(m, part.o, part.o.payload.part, part.o.payload.queue, running)
            return m
        m.submodules.sequencer = sequencer
        # READ takes one burst of its own size. Its address is aligned to that size, so the burst crosses no page.
        with m.If(sequencer.reads):
            m.d.comb += beats.eq(max(READ_BYTES // self._config.bus_bytes, 1))
        m.d.sync += asked.eq(~sequencer.jump & (asked | issue))
        # The jump empties the prefetch buffer; `_count` tracks the beats that memory still owes.
        with m.If(sequencer.jump):
            m.d.sync += [pending.eq(0), address[shift:].eq(sequencer.target[shift:])]
        self._count(m, sequencer.jump, Mux(issue, beats, 0), wanted, none, space)
        self._sequence(m, sequencer, part.o, parts, running)
        self._dispatch(m, sequencer.queued, sequencer.queued.payload, sequencer.queue, running)
        return m

    def _count(
        self, m: Module, jump: Signal, asked: Value, wanted: Signal, none: Signal, space: Signal
    ) -> None:
        """Count the outstanding beats, and among them the beats that a jump has discarded.

        `space` limits the count, because jumps may follow each other faster than memory answers.
        """
        burst = max(BURST_BYTES // self._config.bus_bytes, 1)
        most = burst * BURSTS
        coming = Signal(range(2 * most + 1))
        void = Signal(range(2 * most + 1))
        left = Signal.like(coming)
        m.d.comb += [
            left.eq(coming - self.bus.beat.valid),
            wanted.eq(void == 0),
            none.eq(coming == 0),
            space.eq(coming <= 2 * most - burst),
        ]
        m.d.sync += [
            coming.eq(left + asked),
            # No burst is issued in the cycle of a jump, so the jump discards everything outstanding.
            void.eq(Mux(jump, left, void - (self.bus.beat.valid & ~wanted))),
        ]

    def _sequence(
        self, m: Module, sequencer: Sequencer, part: wiring.PureInterface, parts: _Parts, running: Signal
    ) -> None:
        m.d.comb += [
            sequencer.start.eq(self.start),
            sequencer.program.eq(self.program),
            sequencer.bases.eq(self.bases),
            sequencer.parts.payload.eq(part.payload),
            sequencer.parts.valid.eq(part.valid & running),
            part.ready.eq(sequencer.parts.ready),
        ]
        if self._config.bus_bytes > WORD_BYTES:
            m.d.comb += parts.second.eq(sequencer.jump & sequencer.target[(WORD_BYTES - 1).bit_length()])

    def _buffer(self, m: Module, depth: int, sequencer: Sequencer | None, wanted: Signal) -> stream.Interface:
        """Add the prefetch buffer and return its output.

        `elaborate` prevents overflow. With loops, a jump empties the buffer, and only `wanted` beats enter it.
        """
        beat = self.bus.beat
        width, word = self._coding.width(self._config.widths.bus), self._coding.encode(beat.payload)
        comes = beat.valid if sequencer is None else beat.valid & wanted
        if depth >= BLOCK_DEPTH:
            block = BlockFifo(width, depth)
            m.submodules.buffer = block if sequencer is None else ResetInserter(sequencer.jump)(block)
            m.d.comb += [block.i.payload.eq(word), block.i.valid.eq(comes)]
            return block.o
        buffer = SyncFIFO(width=width, depth=depth)
        m.submodules.buffer = buffer if sequencer is None else ResetInserter(sequencer.jump)(buffer)
        m.d.comb += [buffer.w_data.eq(word), buffer.w_en.eq(comes)]
        return buffer.r_stream

    def _check_parity(self, m: Module, prefetched: stream.Interface, running: Signal) -> Value:
        """Return the decoded word at the output of the prefetch buffer, and check its parity."""
        word, changed = self._coding.decode(prefetched.payload)
        if self._coding.checked:
            m.d.sync += self.wrong.eq(changed & prefetched.valid & prefetched.ready & running)
        return word

    def _route_of(self, m: Module, part: data.View) -> Signal:
        """Return the one-hot destination of a part: a queue or, with loops, an instruction of the sequencer; else 0.

        The first part of an instruction has the opcode; the other parts use the stored destination.
        """
        queue_of = Signal(len(self._routes))
        held = Signal(len(self._routes))
        m.d.comb += queue_of.eq(held)
        with m.If(part.index == 0), m.Switch(part.data[:8]):
            for number, kinds in enumerate(self._routes):
                with m.Case(*(kind.OPCODE.value for kind in kinds)):
                    m.d.comb += queue_of.eq(1 << number)
            with m.Default():
                m.d.comb += queue_of.eq(0)
        m.d.sync += held.eq(queue_of)
        return queue_of

    def _dispatch(
        self, m: Module, parts: wiring.PureInterface, part: data.View, queue_of: Value, running: Signal
    ) -> None:
        with m.If(running & parts.valid & ~queue_of.any()):
            m.d.comb += self.error.eq(part.data[:8] != Opcode.END.value)
            m.d.sync += running.eq(0)
        for number, queue in enumerate(self._kinds):
            port = getattr(self, queue.name.lower())
            m.d.comb += [port.payload.eq(part), port.valid.eq(running & parts.valid & queue_of[number])]
            with m.If(queue_of[number]):
                m.d.comb += parts.ready.eq(port.ready)


class _Parts(wiring.Component):
    """Converter from bus beats to parts of instructions: numbers narrow beats, and splits wide ones.

    Beats may come directly from block RAM, so parts are registered. `clear` discards the contents. With loops, a bus
    that is wider than an instruction word has `second`: with `clear`, it discards the first half of the next beat too.
    """

    def __init__(self, config: Config) -> None:
        self._bus = config.widths.bus
        self._splits = max(self._bus // WORD_BITS, 1)
        self._jumps = bool(config.loops and self._splits > 1)
        super().__init__(
            {
                "clear": In(1),
                "beat": In(stream.Signature(self._bus)),
                "part": Out(stream.Signature(part_layout(config))),
            }
            | ({"second": In(1)} if self._jumps else {})
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        part = self.part.payload
        held = Signal(self._bus)
        left = Signal(range(self._splits + 1))  # parts left in `held`
        taken = self.part.valid & self.part.ready
        m.d.comb += [
            part.data.eq(held),
            self.part.valid.eq(left != 0),
            self.beat.ready.eq((left == 0) | (taken & (left == 1))),
        ]
        with m.If(self.beat.valid & self.beat.ready):
            m.d.sync += [held.eq(self.beat.payload), left.eq(self._splits)]
            if self._jumps:
                second = Signal()
                m.d.sync += second.eq(0)
                with m.If(second):
                    m.d.sync += [held.eq(self.beat.payload >> WORD_BITS), left.eq(self._splits - 1)]
        with m.Elif(taken):
            m.d.sync += [held.eq(held >> WORD_BITS), left.eq(left - 1)]
        if self._bus < WORD_BITS:
            m.d.sync += part.index.eq(part.index + taken)
        # After the assignments above, so that it also discards a beat that is taken in this cycle.
        with m.If(self.clear):
            m.d.sync += [left.eq(0), part.index.eq(0)]
            if self._jumps:
                m.d.sync += second.eq(self.second)
        return m


COUNTS = data.ArrayLayout(8, len(ParityMemory))
"""Layout of the register PARITY."""


class ParityCounts(wiring.Component):
    """Saturating counters of words with wrong parity, 8 bits for each memory.

    Members
    -------
    clear : In(1)
    wrong : In(len(ParityMemory))
        A word of the memory has wrong parity, in this cycle.
    counts : Out(COUNTS)
        Counts since `clear`.
    error : Out(1)
        A word had wrong parity in the previous cycle.
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
        wrong = Signal(len(ParityMemory))  # registered because parity arrives late in the cycle
        m.d.sync += wrong.eq(self.wrong)
        m.d.comb += self.error.eq(wrong.any())
        for memory in ParityMemory:
            with m.If(wrong[memory] & ~self.counts[memory].all()):
                m.d.sync += self.counts[memory].eq(self.counts[memory] + 1)
        with m.If(self.clear):
            m.d.sync += self.counts.as_value().eq(0)
        return m
