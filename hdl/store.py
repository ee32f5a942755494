"""The store unit, which copies data from the scratchpad to DRAM.

Requests run ahead of data, and data ahead of confirmations.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.fifo import SyncFIFO
from amaranth.lib.wiring import In, Out

from weft.hdl.bus.axi import PAGE, BurstSplitter, block_beats, run_layout
from weft.hdl.isa import SEMAPHORES, Store
from weft.hdl.isa.config import Config
from weft.hdl.isa.operands import READ_LATENCY
from weft.hdl.lib.loopnest import LoopNest
from weft.hdl.lib.pipeline import pass_registers, register_port, register_value
from weft.hdl.lib.ports import bus_write, bus_write_data, scratchpad_read, unit
from weft.hdl.lib.queues import SkidBuffer, register_or_fifo


def vector_layout(config: Config) -> data.StructLayout:
    """Return the layout of a vector on its way to DRAM.

    Its low ``count`` bytes are written from ``pointer`` on, an address modulo a page. ``last``: the last vector of its
    run.
    """
    return data.StructLayout(
        {
            "pointer": (PAGE - 1).bit_length(),
            "count": (config.n - 1).bit_length() + 1,
            "last": 1,
            "data": config.widths.vector,
        }
    )


def _rotated_layout(config: Config) -> data.StructLayout:
    """Return the layout of a vector that is rotated to its place in the beat.

    ``lanes``: mask of the bytes that it fills. ``here``: mask of the bytes from its first byte to the end of the beat.
    ``full``: it reaches the end of the beat. ``spill``: it continues in the next beat.
    """
    flags = dict.fromkeys(("full", "spill", "last", "block_end"), 1)
    width = config.bus_bytes
    return data.StructLayout({"data": 8 * width, "lanes": width, "here": width, **flags})


class Packer(wiring.Component):
    """Packer of runs of vectors into write beats: one vector in and one beat out a cycle.

    It takes one more cycle if the last vector of a run crosses into another beat. The vectors of a run are contiguous
    in memory.

    Parameters
    ----------
    config : Config

    Members
    -------
    vector : In(stream of vector_layout(config))
    beat : Out(stream of bus_write_data(config))
        Cut into the bursts into which `weft.hdl.bus.axi.BurstSplitter` cuts the runs.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        super().__init__(
            {
                "vector": In(stream.Signature(vector_layout(config))),
                "beat": Out(stream.Signature(bus_write_data(config))),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        width = self.config.bus_bytes
        align = (width - 1).bit_length()
        vector, beat = self.vector.payload, self.beat.payload
        offset = vector.pointer[:align]

        # First stage: rotate the vector to its place in the beat; bytes past the end wrap into the next beat.
        m.submodules.stage = stage = SkidBuffer(_rotated_layout(self.config))
        wide = stage.i.payload
        mask = Cat(*(vector.count > lane for lane in range(self.config.n)))
        end = offset + vector.count
        m.d.comb += [
            stage.i.valid.eq(self.vector.valid),
            self.vector.ready.eq(stage.i.ready),
            wide.data.eq(self._rotate(m, "data", vector.data, offset, 8)),
            wide.lanes.eq(self._rotate(m, "mask", mask, offset, 1)),
            wide.here.eq(Cat(*(offset <= byte for byte in range(width)))),
            wide.full.eq(end >= width),
            wide.spill.eq(end > width),
            wide.last.eq(vector.last),
            wide.block_end.eq((vector.pointer >> align)[: (block_beats(self.config) - 1).bit_length()].all()),
        ]
        rotated, lanes, here = stage.o.payload.data, stage.o.payload.lanes, stage.o.payload.here
        full, spill, last = stage.o.payload.full, stage.o.payload.spill, stage.o.payload.last
        valid = stage.o.valid
        block_end = stage.o.payload.block_end
        taken = Signal()
        m.d.comb += stage.o.ready.eq(taken)

        # Second stage: merge the rotated bytes with the bytes of earlier vectors in the same beat.
        residue = Signal(8 * width)
        strobe = Signal(width)
        flush = Signal()
        joined = Signal(8 * width)
        select = Cat(*(bit.replicate(8) for bit in here))
        m.d.comb += [
            joined.eq((rotated & select) | (residue & ~select)),
            self.beat.valid.eq(flush | (valid & (full | last))),
            taken.eq(valid & ~flush & (self.beat.ready | ~(full | last))),
            beat.data.eq(Mux(flush, residue, joined)),
            beat.strobe.eq(strobe | Mux(flush, 0, lanes & here)),
            beat.last.eq(flush | block_end | (last & ~spill)),
        ]
        with m.If(taken):
            m.d.sync += [
                # The bytes that wrapped past the end of a full beat begin the next beat.
                residue.eq(Mux(full, rotated, joined)),
                strobe.eq(Mux(full, lanes & ~here, Mux(last, 0, strobe | (lanes & here)))),
                flush.eq(last & spill),
            ]
        with m.Elif(flush & self.beat.ready):
            m.d.sync += [flush.eq(0), strobe.eq(0)]
        return m

    def _rotate(self, m: Module, name: str, value: Value, offset: Value, unit: int) -> Value:
        """Return `value` in a bus word, rotated up by `offset` units of `unit` bits."""
        size = unit * self.config.bus_bytes
        for bit in range(len(offset)):
            extended = Signal(size, name=f"{name}_in{bit}")
            stage = Signal(size, name=f"{name}_out{bit}")
            m.d.comb += [
                extended.eq(value),
                stage.eq(Mux(offset[bit], extended.rotate_left(unit << bit), extended)),
            ]
            value = stage
        return value


DESCRIPTORS = 4
"""Instructions whose requests may run ahead of their data, unless `Config.queue_depth` is less."""
UNCONFIRMED = 8
"""Instructions that may wait for memory to confirm them, unless twice `Config.queue_depth` is less."""
BURSTS = 32
"""Maximum number of unconfirmed bursts."""
READS = READ_LATENCY + 2
"""Vectors in flight from the scratchpad; covers the read latency and the queue after it."""

_POINTER = (PAGE - 1).bit_length()
_TAG = 1 + SEMAPHORES
"""Bits of a run's tag: the flag of an instruction's last run, and the signal mask of the instruction."""


def read_layout(config: Config) -> data.StructLayout:
    """Return the layout of the reader's descriptor of one instruction.

    ``merged``: each row is one run; otherwise each pixel is. ``tail``: lanes of a pixel's last vector. ``pointer``:
    DRAM address modulo a page, to which vectors are aligned.
    """
    loops, address = ("rows", "pixels", "vectors"), config.widths.scratchpad_address
    return data.StructLayout(
        {
            "merged": 1,
            "tail": (config.n - 1).bit_length() + 1,
            "rows": 12,
            "pixels": 16,
            "vectors": 16,
            "src": address,
        }
        | {f"src_{loop}": address for loop in loops}
        | {"pointer": _POINTER}
        | {f"pointer_{loop}": _POINTER for loop in loops}
    )


class StoreRequests(wiring.Component):
    """Converter of store instructions into runs of bytes for the bus and descriptors for the reader.

    Parameters
    ----------
    config : Config

    Members
    -------
    instruction : In(stream of Store)
    bases or values
        See `weft.hdl.lib.pipeline.register_port`.
    run : Out(stream of run_layout(17))
        In an instruction's last run, bit 0 of the tag is 1 and the bits above are the signal mask. Otherwise it is 0.
    read : Out(stream of read_layout(config))
    busy : Out(1)
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        super().__init__(
            {
                "instruction": In(stream.Signature(Store.layout())),
                **register_port(Store, config),
                "run": Out(stream.Signature(run_layout(_TAG))),
                "read": Out(stream.Signature(read_layout(config))),
                "busy": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.nest = nest = LoopNest(
            {"rows": 12, "pixels": 16}, {"address": (32, {"rows": 32, "pixels": 17})}
        )
        op, run = self.instruction.payload, self.run
        first = Signal(32)
        merged = Signal()
        m.d.comb += [
            first.eq(register_value(self, Store, "base", op.base, self.config) + op.offset),
            merged.eq((op.pitch == op.length) | (op.pixels == 1)),
        ]
        # The bytes of a row, pixels * length, by shifting and adding: it needs no multiplier, and data hides its time.
        factor = Signal(16)
        counted = Signal()  # factor == 0
        addend = Signal(32)
        signal = Signal(SEMAPHORES)
        accept = self.instruction.valid & self.instruction.ready
        m.d.comb += [
            self.busy.eq(nest.active),
            self.instruction.ready.eq(~nest.active & self.read.ready),
            self.read.valid.eq(~nest.active & self.instruction.valid),
            nest.load.eq(accept),
            nest.counts.rows.eq(op.rows),
            nest.counts.pixels.eq(Mux(merged, 1, op.pixels)),
            nest.bases.address.eq(first),
            nest.strides.address.rows.eq(op.row_pitch),
            nest.strides.address.pixels.eq(op.pitch),
            run.valid.eq(nest.active & counted),
            run.payload.address.eq(nest.values.address),
            run.payload.tag.eq(Mux(nest.last_all, Cat(1, signal), 0)),
            nest.step.eq(run.valid & run.ready),
        ]
        with m.If(accept):
            m.d.sync += [
                factor.eq(Mux(merged, op.pixels, 1)),
                counted.eq(0),
                addend.eq(op.length),
                run.payload.bytes.eq(0),
                signal.eq(op.signal),
            ]
        with m.Elif(~counted):
            m.d.sync += [
                factor.eq(factor >> 1),
                counted.eq(factor[1:] == 0),
                addend.eq(addend << 1),
                run.payload.bytes.eq(run.payload.bytes + Mux(factor[0], addend, 0)),
            ]
        self._describe(m, first, merged)
        return m

    def _describe(self, m: Module, first: Signal, merged: Signal) -> None:
        op, read = self.instruction.payload, self.read.payload
        shift = (self.config.n - 1).bit_length()
        m.d.comb += [
            read.merged.eq(merged),
            read.tail.eq((op.length - 1)[:shift] + 1),
            read.rows.eq(op.rows),
            read.pixels.eq(op.pixels),
            read.vectors.eq(((op.length - 1)[:16] >> shift) + 1),
            read.src.eq(op.src),
            read.src_rows.eq(op.src_row),
            read.src_pixels.eq(op.src_pixel),
            read.src_vectors.eq(op.src_vector),
            read.pointer.eq(first),
            read.pointer_rows.eq(op.row_pitch),
            read.pointer_pixels.eq(op.pitch),
            read.pointer_vectors.eq(self.config.n),
        ]


class StoreReader(wiring.Component):
    """Reader of an instruction's vectors from the scratchpad, one vector a cycle, for the packer.

    Parameters
    ----------
    config : Config

    Members
    -------
    read : In(stream of read_layout(config))
    scratchpad : Out(scratchpad_read(config))
    vector : Out(stream of vector_layout(config))
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        super().__init__(
            {
                "read": In(stream.Signature(read_layout(config))),
                "scratchpad": Out(scratchpad_read(config)),
                "vector": Out(stream.Signature(vector_layout(config))),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        loops = {"rows": 12, "pixels": 16, "vectors": 16}
        widths = {"src": self.config.widths.scratchpad_address, "pointer": _POINTER}
        m.submodules.nest = nest = LoopNest(
            loops, {name: (width, dict.fromkeys(loops, width)) for name, width in widths.items()}
        )
        layout = vector_layout(self.config)
        m.submodules.queue = queue = SyncFIFO(width=layout.size, depth=READS)
        op = Signal(read_layout(self.config))
        port = self.scratchpad
        credits = Signal(range(READS + 1), init=READS)  # places in the queue that no read in flight will take
        granted, taken = port.valid & port.ready, self.vector.valid & self.vector.ready
        m.d.sync += credits.eq(credits - granted + taken)
        # Back-pressure of a refused read must not reach the address generator in the same cycle.
        request = data.StructLayout({"address": len(port.address), "vector": layout})
        m.submodules.skid = ahead = SkidBuffer(request)
        stage = Signal(layout)
        go = Signal()  # take the next descriptor; a register because of its fan-out
        m.d.comb += [
            ahead.i.valid.eq(nest.active),
            ahead.i.payload.address.eq(nest.values.src),
            ahead.i.payload.vector.pointer.eq(nest.values.pointer),
            ahead.i.payload.vector.count.eq(Mux(nest.last.vectors, op.tail, self.config.n)),
            ahead.i.payload.vector.last.eq(nest.last.vectors & (nest.last.pixels | ~op.merged)),
            nest.step.eq(nest.active & ahead.i.ready),
            self.read.ready.eq(go),
            nest.load.eq(go),
            *nest.take(self.read.payload),
            port.valid.eq(ahead.o.valid & (credits != 0)),
            port.address.eq(ahead.o.payload.address),
            ahead.o.ready.eq(port.ready & (credits != 0)),
            stage.eq(ahead.o.payload.vector),
        ]
        # The nest does not step while `go` is 1.
        m.d.sync += go.eq(~go & self.read.valid & (~nest.active | (nest.step & nest.last_all)))
        with m.If(go):
            m.d.sync += op.eq(self.read.payload)

        # Delay the vector's description by the latency of its read.
        valid = granted
        for index in range(READ_LATENCY):
            following = Signal(layout, name=f"stage{index}")
            following_valid = Signal(name=f"valid{index}")
            m.d.sync += [following.eq(stage), following_valid.eq(valid)]
            stage, valid = following, following_valid
        arrived = Signal(layout)
        m.d.comb += [
            arrived.eq(stage),
            arrived.data.eq(port.data),
            queue.w_data.eq(arrived),
            queue.w_en.eq(valid),
            self.vector.payload.eq(queue.r_data),
            self.vector.valid.eq(queue.r_rdy),
            queue.r_en.eq(self.vector.ready),
        ]
        return m


class StoreUnit(wiring.Component):
    """Store unit: executes `Store` instructions, which copy rows of the scratchpad to DRAM.

    An instruction is signalled when memory has confirmed all of its bursts. Later instructions run in the meantime.

    Parameters
    ----------
    config : Config

    Members
    -------
    instruction, signal, busy
        See `weft.hdl.lib.ports.unit`.
    bases or values
        See `weft.hdl.lib.pipeline.register_port`; read when an instruction is accepted.
    scratchpad : Out(scratchpad_read(config))
    bus : Out(bus_write(config))
        The beats of a burst follow its request. Confirmations must arrive in the order of requests.
    stall_memory, stall_port : Out(1)
        The unit waits for the bus, or for a scratchpad bank, in this cycle.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        super().__init__(
            unit(Store)
            | register_port(Store, config)
            | {
                "scratchpad": Out(scratchpad_read(config)),
                "bus": Out(bus_write(config)),
                "stall_memory": Out(1),
                "stall_port": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.requests = requests = StoreRequests(self.config)
        m.submodules.splitter = splitter = BurstSplitter(self.config, tag=_TAG)
        m.submodules.reader = reader = StoreReader(self.config)
        m.submodules.packer = packer = Packer(self.config)
        depth = min(DESCRIPTORS, self.config.queue_depth)
        m.submodules.queue = queue = register_or_fifo(read_layout(self.config).size, depth)
        wiring.connect(m, wiring.flipped(self.instruction), requests.instruction)
        wiring.connect(m, requests.run, splitter.run)
        wiring.connect(m, wiring.flipped(self.scratchpad), reader.scratchpad)
        m.submodules.vectors = vectors = SkidBuffer(vector_layout(self.config))
        wiring.connect(m, reader.vector, vectors.i)
        wiring.connect(m, vectors.o, packer.vector)
        finishing = self._bus(m, splitter, packer)
        waits = (packer.beat.valid & ~packer.beat.ready) | (
            finishing & ~queue.r_rdy & ~reader.scratchpad.valid
        )
        m.d.comb += [
            pass_registers(self, requests, self.config),
            queue.w_data.eq(requests.read.payload),
            queue.w_en.eq(requests.read.valid),
            requests.read.ready.eq(queue.w_rdy),
            reader.read.payload.eq(queue.r_data),
            reader.read.valid.eq(queue.r_rdy),
            queue.r_en.eq(reader.read.ready),
            self.busy.eq(requests.busy | ~splitter.idle | finishing | self.signal.any()),
            self.stall_memory.eq(waits),
            self.stall_port.eq(self.scratchpad.valid & ~self.scratchpad.ready),
        ]
        return m

    def _bus(self, m: Module, splitter: BurstSplitter, packer: Packer) -> Signal:
        """Connect requests, beats and confirmations. Returns a flag: an instruction waits for confirmations."""
        # At most `BURSTS` bursts are unconfirmed, so counters may wrap at twice as many.
        counter = range(2 * BURSTS)
        unconfirmed = min(UNCONFIRMED, 2 * self.config.queue_depth)
        layout = data.StructLayout({"burst": counter, "signal": SEMAPHORES})
        m.submodules.done = queue = SyncFIFO(width=layout.size, depth=unconfirmed)
        request, beat = self.bus.request, self.bus.beat
        asked = Signal(counter)
        confirmed = Signal(counter)
        ahead = Signal(counter)  # requested bursts whose data is not yet complete
        some = Signal()  # ahead != 0
        after = Signal(counter)
        # Both comparisons are one cycle old, so each leaves one place in reserve.
        few = Signal()
        space = Signal()
        allowed = Signal()
        ends = Signal()
        # `send`: a burst is requested. `sent`: its last beat has left.
        send, sent = request.valid & request.ready, beat.valid & beat.ready & beat.payload.last
        m.d.comb += [
            after.eq(asked + 1),
            ends.eq(splitter.tag[0] & splitter.last),
            allowed.eq(few & (space | ~ends)),
            request.payload.eq(splitter.request.payload),
            request.valid.eq(splitter.request.valid & allowed),
            splitter.request.ready.eq(request.ready & allowed),
            queue.w_data.eq(Cat(after, splitter.tag[1:])),
            queue.w_en.eq(send & ends),
            beat.payload.eq(packer.beat.payload),
            beat.valid.eq(packer.beat.valid & some),
            packer.beat.ready.eq(beat.ready & some),
        ]
        m.d.sync += [
            few.eq((asked - confirmed)[: len(asked)] < BURSTS - 1),
            space.eq(queue.level < unconfirmed - 1),
            asked.eq(asked + send),
            confirmed.eq(confirmed + self.bus.confirmed),
            ahead.eq(ahead + send - sent),
        ]
        with m.If(send ^ sent):
            m.d.sync += some.eq(send | (ahead != 1))
        # The oldest instruction is done when as many bursts are confirmed as were requested up to its end.
        head = Signal(layout)
        m.d.comb += [
            head.eq(queue.r_data),
            queue.r_en.eq(queue.r_rdy & ~(confirmed - head.burst)[len(asked) - 1]),  # confirmed >= burst
        ]
        m.d.sync += self.signal.eq(Mux(queue.r_en, head.signal, 0))
        return queue.r_rdy
