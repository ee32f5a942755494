"""The load unit: DRAM to scratchpad. Requests run ahead of unpacking, across instructions."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from weft.hdl.bus.axi import BurstSplitter, run_layout
from weft.hdl.isa import Load
from weft.hdl.isa.config import Config
from weft.hdl.isa.encoding import FACTORS_SHIFT
from weft.hdl.lib.pipeline import pass_registers, register_port, register_value
from weft.hdl.lib.ports import bus_read, scratchpad_write, unit
from weft.hdl.lib.queues import register_or_fifo
from weft.hdl.load.transpose import Transposer, Widener
from weft.hdl.load.unpack import Unpacker, unpack_layout

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
        See `weft.hdl.lib.pipeline.register_port`.
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


DESCRIPTORS = 4
"""Instructions whose data may be on its way, where queues are that deep."""
BURST_BEATS = 64
"""Short enough that an instruction fetch is not kept waiting for long behind a load."""
AHEAD_BEATS = 128
"""Beats on their way above which no further burst is asked for; covers the latency of memory."""


class LoadRequests(wiring.Component):
    """Turns load instructions into runs of bytes for the bus and descriptors for the unpacker.

    When pixels of more than one vector overlap, the unpacker would have to go back in the run for each pixel. Instead
    every row is read once per vector of a pixel, and unpacked with pixels as the inner loop.

    Parameters
    ----------
    config : Config

    Members
    -------
    instruction : In(stream of Load)
    bases : In(32).array(8)
        Base registers, read when an instruction is accepted. Without loops only; with them ``offset`` has what the base
        register holds added.
    run : Out(stream of run_layout())
    unpack : Out(stream of unpack_layout(config))
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        super().__init__(
            {
                "instruction": In(stream.Signature(Load.layout())),
                **({} if config.loops else register_port(Load, config)),
                "run": Out(stream.Signature(run_layout())),
                "unpack": Out(stream.Signature(unpack_layout(config))),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m, config = Module(), self.config
        op = self.instruction.payload
        first = Signal(32)
        if config.loops:
            m.d.comb += first.eq(op.offset)
        else:
            m.d.comb += first.eq(register_value(self, Load, "base", op.base, self.config) + op.offset)

        address = Signal(32)
        pitch, jump = Signal(32), Signal(32)  # to the next row, of this line and of the next
        rows, line, line_reload = Signal(12), Signal(12), Signal(12)  # after the current one, as are passes
        passes = Signal(16)
        passes_reload = Signal(16)
        m.d.comb += [
            self.instruction.ready.eq(~self.run.valid & self.unpack.ready),
            self.unpack.valid.eq(~self.run.valid & self.instruction.valid),
            self.run.payload.address.eq(address),
        ]
        overlap = self._describe(m, first)
        factors = Mux(op.blocks, op.run >> FACTORS_SHIFT, 0) if config.blocks else 0
        with m.If(self.instruction.valid & self.instruction.ready):
            again = Mux(overlap, (op.length - 1)[:16] >> self._shift, 0)
            m.d.sync += [
                self.run.valid.eq(1),
                self.run.payload.bytes.eq(op.run + factors),
                address.eq(first),
                pitch.eq(op.row_pitch),
                jump.eq(op.row_pitch + op.skip),
                rows.eq(op.rows - 1),
                Cat(line, line_reload).eq((op.line - 1)[:12].replicate(2)),
                Cat(passes, passes_reload).eq(Cat(again, Const(0, 16))[:16].replicate(2)),
            ]
        with m.Elif(self.run.valid & self.run.ready):
            with m.If(passes != 0):
                m.d.sync += passes.eq(passes - 1)
            with m.Else():
                m.d.sync += [
                    passes.eq(passes_reload),
                    address.eq(address + Mux(line == 0, jump, pitch)),
                    rows.eq(rows - 1),
                    line.eq(Mux(line == 0, line_reload, line - 1)),
                    self.run.valid.eq(rows != 0),
                ]
        return m

    @property
    def _shift(self) -> int:
        return (self.config.n - 1).bit_length()

    def _describe(self, m: Module, first: Signal) -> Signal:
        op, unpack, n = self.instruction.payload, self.unpack.payload, self.config.n
        shift = self._shift
        rest = Signal(16)  # bytes of a pixel in vectors before the last
        vectors = Signal(16)
        overlap = Signal()
        m.d.comb += [
            vectors.eq(((op.length - 1)[:16] >> shift) + 1),
            rest.eq(((op.length - 1)[:16] >> shift) << shift),
            overlap.eq((op.pitch < op.length) & (rest != 0) & (op.pixels != 1)),
            unpack.signal.eq(op.signal),
            unpack.align.eq(first),
            unpack.align_row.eq(op.row_pitch),
            unpack.align_line.eq(op.row_pitch + op.skip),
            unpack.line_last.eq(op.line - 1),
            unpack.before.eq(op.before),
            unpack.fill.eq(op.fill),
            unpack.tail.eq((op.length - 1)[:shift] + 1),
            unpack.split.eq(overlap),
            unpack.split_last.eq(Mux(overlap, rest, 0)),
            unpack.step_inner.eq(Mux(overlap, op.pitch, n)),
            unpack.step_outer.eq(op.pitch - rest),
            unpack.rows.eq(op.rows),
            unpack.outer.eq(Mux(overlap, vectors, op.pixels)),
            unpack.inner.eq(Mux(overlap, op.pixels, vectors)),
            unpack.dst.eq(op.dst),
            unpack.dst_rows.eq(op.dst_row),
            unpack.dst_outer.eq(Mux(overlap, op.dst_vector, op.dst_pixel)),
            unpack.dst_inner.eq(Mux(overlap, op.dst_pixel, op.dst_vector)),
        ]
        if self.config.softmax:
            m.d.comb += unpack.transpose.eq(op.transpose)
        self._describe_run(m)
        return overlap

    def _describe_run(self, m: Module) -> None:
        """The run in bytes of the row, and for values of 4 bits in whole words."""
        op, unpack = self.instruction.payload, self.unpack.payload
        size, last = op.run, op.run - 1
        if self.config.int4:
            align = (self.config.bus_bytes - 1).bit_length()
            words = Cat(Const(-1, align + 1), last[align : len(op.run)])
            size, last = Mux(op.int4, op.run << 1, op.run), Mux(op.int4, words, last)
            m.d.comb += unpack.int4.eq(op.int4)
        if self.config.blocks:
            m.d.comb += unpack.blocks.eq(op.blocks)
        m.d.comb += [unpack.end.eq(op.before + size), unpack.run_last.eq(last)]


class LoadUnit(wiring.Component):
    """Executes `Load` instructions.

    Parameters
    ----------
    config : Config

    Members
    -------
    instruction, signal, busy
        See `weft.hdl.lib.ports.unit`.
    bases or values
        See `weft.hdl.lib.pipeline.register_port`; read when an instruction is accepted.
    bus : Out(bus_read(config))
    page : Out(bus_read(config))
        For entries of page tables; with softmax only.
    scratchpad : Out(scratchpad_write(config))
    stall_memory, stall_port : Out(1)
        The unit waits in this cycle for a beat, for a scratchpad bank.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        super().__init__(
            unit(Load)
            | register_port(Load, config)
            | {
                "bus": Out(bus_read(config)),
                "scratchpad": Out(scratchpad_write(config)),
                "stall_memory": Out(1),
                "stall_port": Out(1),
            }
            | ({"page": Out(bus_read(config))} if config.softmax else {})
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.requests = requests = LoadRequests(self.config)
        m.submodules.splitter = splitter = BurstSplitter(self.config, beats=BURST_BEATS)
        m.submodules.unpacker = unpacker = Unpacker(self.config)
        depth = min(DESCRIPTORS, self.config.queue_depth)
        m.submodules.queue = queue = register_or_fifo(unpack_layout(self.config).size, depth)
        # In distributed memory, where the unpacker's asking for a beat moves an index instead of a bus word.
        m.submodules.beats = beats = SyncFIFO(width=self.config.widths.bus, depth=2)
        wiring.connect(m, requests.run, splitter.run)
        waiting = self._instructions(m, requests)
        leaving = self._vectors(m, unpacker.vector)
        m.d.comb += [
            *([] if self.config.loops else [requests.bases.eq(self.bases)]),
            queue.w_data.eq(requests.unpack.payload),
            queue.w_en.eq(requests.unpack.valid),
            requests.unpack.ready.eq(queue.w_rdy),
            unpacker.unpack.payload.eq(queue.r_data),
            unpacker.unpack.valid.eq(queue.r_rdy),
            queue.r_en.eq(unpacker.unpack.ready),
            self.busy.eq(waiting | requests.run.valid | queue.r_rdy | unpacker.busy | leaving),
            beats.w_data.eq(self.bus.beat.payload),
            beats.w_en.eq(self.bus.beat.valid),
            self.bus.beat.ready.eq(beats.w_rdy),
            self.stall_memory.eq(unpacker.stall_memory),
            self.stall_port.eq(self.scratchpad.valid & ~self.scratchpad.ready),
        ]

        self._widen(m, beats, unpacker)
        ahead = Signal(range(AHEAD_BEATS + 2 * BURST_BEATS + 1))
        request, allowed = self.bus.request, Signal()
        m.d.sync += allowed.eq(ahead < AHEAD_BEATS)  # a cycle old: one burst may slip through
        asked = Mux(request.valid & request.ready, request.payload.beats, 0)
        m.d.sync += ahead.eq(ahead + asked - (self.bus.beat.valid & self.bus.beat.ready))
        m.d.comb += [
            request.payload.eq(splitter.request.payload),
            request.valid.eq(splitter.request.valid & allowed),
            splitter.request.ready.eq(request.ready & allowed),
        ]
        return m

    def _instructions(self, m: Module, requests: LoadRequests) -> Value:
        """Bring instructions to `requests`, with their addresses from page tables; returns whether one is held up."""
        instruction = self._based(m) if self.config.loops else wiring.flipped(self.instruction)
        if not self.config.softmax:
            wiring.connect(m, instruction, requests.instruction)
            return Const(0)
        m.submodules.pages = pages = PageReader(self.config)
        wiring.connect(m, instruction, pages.instruction)
        wiring.connect(m, pages.located, requests.instruction)
        wiring.connect(m, wiring.flipped(self.page), pages.bus)
        m.d.comb += pass_registers(self, pages, self.config)
        return pages.busy

    def _based(self, m: Module) -> stream.Interface:
        """The instructions, with what their base register holds as part of ``offset``."""
        based = stream.Signature(Load.layout()).create(path=("based",))
        op = self.instruction.payload
        first = register_value(self, Load, "base", op.base, self.config)
        m.d.comb += [
            based.payload.eq(op),
            based.payload.offset.eq(op.offset + first),
            based.valid.eq(self.instruction.valid),
            self.instruction.ready.eq(based.ready),
        ]
        return based

    def _widen(self, m: Module, beats: SyncFIFO, unpacker: Unpacker) -> None:
        """Bring beats to the unpacker, which says of each whether it holds values of 4 bits."""
        if not self.config.int4:
            m.d.comb += [
                unpacker.beat.payload.eq(beats.r_data),
                unpacker.beat.valid.eq(beats.r_rdy),
                beats.r_en.eq(unpacker.beat.ready),
            ]
            return
        m.submodules.widener = widener = Widener(self.config)
        wiring.connect(m, widener.wide, unpacker.beat)
        if self.config.blocks:
            m.d.comb += [widener.blocks.eq(unpacker.blocks), widener.wanted.eq(unpacker.wanted)]
        m.d.comb += [
            widener.narrow.eq(unpacker.narrow),
            widener.beat.payload.eq(beats.r_data),
            widener.beat.valid.eq(beats.r_rdy),
            beats.r_en.eq(widener.beat.ready),
        ]

    def _vectors(self, m: Module, vector: wiring.PureInterface) -> Value:
        """Bring the stream `vector` to the scratchpad; returns whether one, or a signal, is on the way."""
        port = self.scratchpad
        if self.config.softmax:
            m.submodules.transposer = transposer = Transposer(self.config)
            wiring.connect(m, vector, transposer.vector)
            wiring.connect(m, wiring.flipped(port), transposer.scratchpad)
            m.d.comb += self.signal.eq(transposer.signal)
            return transposer.busy
        m.d.comb += [
            port.valid.eq(vector.valid),
            port.address.eq(vector.payload.address),
            port.data.eq(vector.payload.data),
            vector.ready.eq(port.ready),
        ]
        m.d.sync += self.signal.eq(Mux(port.valid & port.ready, vector.payload.signal, 0))
        return self.signal.any()
