"""The load unit, which copies data from DRAM to the scratchpad.

Requests run ahead of unpacking, also across instructions.
"""

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
OUTSTANDING_ENTRIES = 2
"""Entries requested and not yet used: of the instruction in the register, and of the instruction at the input."""


class PageReader(wiring.Component):
    """Register between queue and execution that adds page-table entries to the addresses of load instructions.

    The entry of a paged instruction is requested while the instruction is still at the input, so that two entries can
    be outstanding while earlier instructions load. Entries are accepted from the bus as soon as they arrive, and so
    never block data that a load waits for.

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
        The instructions, with the entry added to ``offset``.
    busy : Out(1)
        The register holds an instruction.
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
        m.submodules.entries = entries = SyncFIFO(width=8 * ENTRY_BYTES, depth=OUTSTANDING_ENTRIES)
        op, located = self.instruction.payload, self.located.payload
        asked = Signal()  # the entry of the instruction at the input has been requested
        held = Signal()  # the register holds an instruction
        lacks = Signal()  # the instruction in the register waits for its entry
        accept = Signal()
        add = Signal()
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
        """Request the bus word that contains the entry, and extract the entry when the word arrives."""
        op, request, beat = self.instruction.payload, self.bus.request, self.bus.beat
        address = Signal(32)
        align, word = (self.config.bus_bytes - 1).bit_length(), (ENTRY_BYTES - 1).bit_length()
        issue = Signal()
        m.d.comb += [
            address.eq(register_value(self, Load, "table", op.table, self.config) + (op.page << word)),
            issue.eq(self.instruction.valid & op.paged & ~asked & ~request.valid),
            request.payload.beats.eq(1),
            beat.ready.eq(1),  # the queue has room for all outstanding entries
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
        # The bus is wider than an entry: store the position of each requested entry in its bus word.
        m.submodules.places = places = SyncFIFO(width=align - word, depth=OUTSTANDING_ENTRIES)
        m.d.comb += [
            places.w_en.eq(issue),
            places.w_data.eq(address[word:align]),
            places.r_en.eq(beat.valid),
            entries.w_data.eq(beat.payload.word_select(places.r_data, 8 * ENTRY_BYTES)),
        ]


DESCRIPTORS = 4
"""Instructions whose data may be outstanding, unless `Config.queue_depth` is less."""
BURST_BEATS = 64
"""Short enough that an instruction fetch does not wait for long behind a load."""
AHEAD_BEATS = 128
"""Outstanding beats from which on no further burst is requested; covers the latency of memory."""


class LoadRequests(wiring.Component):
    """Converter of load instructions into runs of bytes for the bus and descriptors for the unpacker.

    If pixels of more than one vector overlap, the unpacker would have to go back in the run at each pixel. Instead
    every row is read once for each vector of a pixel, and unpacked with pixels as the inner loop.

    Parameters
    ----------
    config : Config

    Members
    -------
    instruction : In(stream of Load)
    bases : In(32).array(8)
        Base registers, read when an instruction is accepted. Only without loops; with loops, ``offset`` already
        includes the base register's value.
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
        pitch = Signal(32)  # bytes to the next row of the line
        jump = Signal(32)  # bytes to the first row of the next line
        # Rows, rows of the line and passes that follow the current one.
        rows = Signal(12)
        line = Signal(12)
        line_reload = Signal(12)
        passes = Signal(16)
        passes_reload = Signal(16)
        m.d.comb += [
            # The descriptor leaves in the cycle in which its instruction is accepted, before the first run.
            self.instruction.ready.eq(~self.run.valid & self.unpack.ready),
            self.unpack.valid.eq(~self.run.valid & self.instruction.valid),
            self.run.payload.address.eq(address),
        ]
        # One run for each row; if pixels overlap, one for each vector of a pixel.
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
        rest = Signal(16)  # bytes of a pixel in all vectors but the last
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
            # At the end of a pixel its vectors have moved by `rest`. A pass of `split` ends there instead.
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
        """Drive the size of the run: in bytes, or for values of 4 bits rounded up to whole words."""
        op, unpack = self.instruction.payload, self.unpack.payload
        size, last = op.run, op.run - 1
        if self.config.int4:
            align = (self.config.bus_bytes - 1).bit_length()
            # Each byte of the bus becomes two. The run's last word is widened completely, whatever part of it is used.
            words = Cat(Const(-1, align + 1), last[align : len(op.run)])
            size, last = Mux(op.int4, op.run << 1, op.run), Mux(op.int4, words, last)
            m.d.comb += unpack.int4.eq(op.int4)
        if self.config.blocks:
            m.d.comb += unpack.blocks.eq(op.blocks)
        m.d.comb += [unpack.end.eq(op.before + size), unpack.run_last.eq(last)]


class LoadUnit(wiring.Component):
    """Load unit: executes `Load` instructions, which copy rows of DRAM to the scratchpad.

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
        For entries of page tables. Only with softmax.
    scratchpad : Out(scratchpad_write(config))
    stall_memory, stall_port : Out(1)
        The unit waits for a beat, or for a scratchpad bank, in this cycle.
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
        # Distributed memory, so that `ready` of the unpacker advances an index instead of enabling a bus word.
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
        # Limit the beats that are requested but not yet received.
        ahead = Signal(range(AHEAD_BEATS + 2 * BURST_BEATS + 1))
        request = self.bus.request
        allowed = Signal()
        m.d.sync += allowed.eq(ahead < AHEAD_BEATS)  # one cycle old, so one burst too many may pass
        asked = Mux(request.valid & request.ready, request.payload.beats, 0)
        m.d.sync += ahead.eq(ahead + asked - (self.bus.beat.valid & self.bus.beat.ready))
        m.d.comb += [
            request.payload.eq(splitter.request.payload),
            request.valid.eq(splitter.request.valid & allowed),
            splitter.request.ready.eq(request.ready & allowed),
        ]
        return m

    def _instructions(self, m: Module, requests: LoadRequests) -> Value:
        """Connect instructions to `requests`, by way of page tables. Returns a flag: an instruction is on the way."""
        instruction = self._add_base(m) if self.config.loops else wiring.flipped(self.instruction)
        if not self.config.softmax:
            wiring.connect(m, instruction, requests.instruction)
            return Const(0)
        m.submodules.pages = pages = PageReader(self.config)
        wiring.connect(m, instruction, pages.instruction)
        wiring.connect(m, pages.located, requests.instruction)
        wiring.connect(m, wiring.flipped(self.page), pages.bus)
        m.d.comb += pass_registers(self, pages, self.config)
        return pages.busy

    def _add_base(self, m: Module) -> stream.Interface:
        """Return the instructions with the value of their base register added to ``offset``."""
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
        """Connect beats to the unpacker, by way of a widener if LOAD has values of 4 bits."""
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
        """Connect the stream `vector` to the scratchpad. Returns a flag: a vector or a signal is on the way."""
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
