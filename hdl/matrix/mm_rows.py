"""The sequencers of the matrix unit: issue of the rows of A, and loading of the tiles of B."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, ShapeLike, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.isa import SEMAPHORES, Mm
from weft.hdl.isa.config import Config
from weft.hdl.isa.operands import READ_LATENCY, rmw_latency
from weft.hdl.lib import ports
from weft.hdl.lib.loopnest import LoopNest, Walk
from weft.hdl.lib.queues import SkidBuffer

ROW_LATENCY = READ_LATENCY + 1
"""Cycles from the issue of a row to its entry into the array: the scratchpad's latency, and one cycle to insert padding
and subtract the zero point."""

WALK = Walk(Mm, ("nt", "ky", "kx", "kc", "oy", "ox"), ("a", "c"))


def destination(config: Config) -> data.StructLayout:
    """Return the layout of a row's destination: accumulator row, `overwrite`, and for an instruction's last row `last`
    and the signal mask."""
    return data.StructLayout(
        {"address": config.widths.accumulator_address, "overwrite": 1, "last": 1, "signal": SEMAPHORES}
    )


def _row(config: Config) -> data.StructLayout:
    """Return the layout of a row of A from the address generator.

    ``inside``: the row is in the tensor; otherwise it is ``fill``. ``first``: it is the first row of a tile of B.
    """
    layout: dict[str, ShapeLike] = {
        "inside": 1,
        "first": 1,
        "address": config.widths.scratchpad_address,
        "fill": signed(8),
        "destination": destination(config),
    }
    if config.wide_activations:
        layout["zero"] = signed(8)
    if config.depthwise_taps:
        layout |= {"depthwise": 1, "start": 1}
    if config.softmax:
        layout |= {"aligned": 1, "alignment": range(config.alignments)}
    return data.StructLayout(layout)


class RowIssuer(wiring.Component):
    """Issuer of the rows of A, in two stages: address generator, and behind a skid buffer a register of the next row.

    A row is issued in a cycle in which three conditions hold. Its scratchpad read is granted (padding needs no read).
    If it is the first row of a tile, the weights are ready. If it adds to a row of C, no row to the same row of C was
    issued in the last `rmw_latency` - 1 cycles. The row enters the array `ROW_LATENCY` cycles later.

    Parameters
    ----------
    config : Config

    Members
    -------
    instruction : In(Mm.layout())
    load : In(1)
        Take `instruction`. Only while `free`.
    free : Out(1)
        The address generator has no instruction, or finishes it in this cycle.
    weights : In(1)
        The first row of a tile may be issued.
    swap : Out(1)
        The first row of a tile is issued.
    read : Out(ports.scratchpad_read(config))
    issued : Out(1)
        A row is issued, whose row of C goes to `destination`.
    destination : Out(destination(config))
    a : Out(config.widths.activation * N)
    a_swap, a_valid : Out(1)
        Row of A, for the array.
    a_depthwise, a_start : Out(1)
        Only with `Config.depthwise_taps`: the instruction's `depthwise`; the row is the first row of a line.
    alignments : Out(ports.alignment_read(config))
        Only with softmax.
    alignment : Out(signed(6))
        Only with softmax: alignment of the row issued `READ_LATENCY` cycles ago, 0 if the instruction has none.
    stall_weights, stall_port : Out(1)
        A row waits for weights; or for any other reason.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        members = {
            "instruction": In(Mm.layout()),
            "load": In(1),
            "free": Out(1),
            "weights": In(1),
            "swap": Out(1),
            "read": Out(ports.scratchpad_read(config)),
            "issued": Out(1),
            "destination": Out(destination(config)),
            "a": Out(config.widths.activation * config.n),
            "a_swap": Out(1),
            "a_valid": Out(1),
            "stall_weights": Out(1),
            "stall_port": Out(1),
        }
        if config.depthwise_taps:
            members |= {"a_depthwise": Out(1), "a_start": Out(1)}
        if config.softmax:
            members["alignments"] = Out(ports.alignment_read(config))
            members["alignment"] = Out(signed(ports.ALIGNMENT_BITS))
        super().__init__(members)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.nest = nest = LoopNest(WALK.counters(self.config), WALK.trackers(self.config))
        h = Signal(16)
        w = Signal(16)
        pad = Signal(signed(8))
        signal = Signal(SEMAPHORES)
        accumulate = Signal()
        settings = {"h": h, "w": w, "pad": pad, "accumulate": accumulate, "signal": signal}
        if self.config.wide_activations:
            zero = Signal(signed(8))
            settings["zero"] = zero
        if self.config.depthwise_taps:
            depthwise = Signal()
            settings["depthwise"] = depthwise
        m.d.comb += [*nest.take(self.instruction), nest.load.eq(self.load)]
        with m.If(self.load):
            m.d.sync += [register.eq(self.instruction[name]) for name, register in settings.items()]

        # Back-pressure of a refused row must not reach the address generator in the same cycle.
        m.submodules.skid = ahead = SkidBuffer(_row(self.config))
        m.d.comb += [
            ahead.i.valid.eq(nest.active),
            nest.step.eq(nest.active & ahead.i.ready),
            self.free.eq(~nest.active | (nest.step & nest.last_all)),
            # Coordinates are unsigned: negative coordinates are large, and so outside as well.
            ahead.i.payload.inside.eq((nest.values.y < h) & (nest.values.x < w)),
            ahead.i.payload.first.eq(nest.first.oy & nest.first.ox),
            ahead.i.payload.address.eq(nest.values.a),
            ahead.i.payload.fill.eq(pad),
            ahead.i.payload.destination.address.eq(nest.values.c),
            ahead.i.payload.destination.overwrite.eq(
                ~accumulate & nest.first.ky & nest.first.kx & nest.first.kc
            ),
            ahead.i.payload.destination.last.eq(nest.last_all),
            ahead.i.payload.destination.signal.eq(Mux(nest.last_all, signal, 0)),
        ]
        if self.config.wide_activations:
            m.d.comb += ahead.i.payload.zero.eq(zero)
        if self.config.depthwise_taps:
            m.d.comb += [
                ahead.i.payload.depthwise.eq(depthwise),
                ahead.i.payload.start.eq(nest.first.ox),
            ]
        valid = Signal()
        step = Signal()
        row = Signal(_row(self.config))
        following = ahead.o.payload
        m.d.comb += [
            ahead.o.ready.eq(~valid | self.issued),
            step.eq(ahead.o.valid & ahead.o.ready),
            self.destination.eq(row.destination),
        ]
        with m.If(step):
            m.d.sync += [valid.eq(1), row.eq(following)]
        with m.Elif(self.issued):
            m.d.sync += valid.eq(0)
        inside, first = row.inside, row.first

        # Issue: padding needs no grant. `swap` accompanies the first row of a tile.
        clear = Signal()
        m.d.comb += [
            clear.eq(valid & ~self._revisit(m, step, following.destination) & (self.weights | ~first)),
            self.read.valid.eq(clear & inside),
            self.read.address.eq(row.address),
            self.issued.eq(clear & (self.read.ready | ~inside)),
            self.swap.eq(self.issued & first),
            self.stall_weights.eq(valid & first & ~self.weights),
            self.stall_port.eq(valid & ~self.issued & ~self.stall_weights),
        ]
        self._fetch(m, row)
        if self.config.softmax:
            self._align(m, nest, ahead, valid, row)
        return m

    def _revisit(self, m: Module, step: Signal, following: data.View) -> Signal:
        """Return a flag: the row to issue adds to a row of C that is still in the accumulator's pipeline.

        Addresses are compared when the row enters the issue register, off the critical path. Bit d of `near`: the row
        of C was issued d + 1 cycles ago. `any_near` registers the OR of all bits.
        """
        latency = rmw_latency(self.config)
        near = Signal(latency - 1)
        following_near = Signal(latency - 1)
        any_near = Signal()
        current, c = self.destination.address, following.address
        matches = [self.issued & (c == current)]
        issued, target = self.issued, current
        for age in range(1, latency - 1):
            past = Signal(name=f"past{age}")
            past_target = Signal.like(current, name=f"past_target{age}")
            m.d.sync += [past.eq(issued), past_target.eq(target)]
            issued, target = past, past_target
            matches.append(past & (c == past_target))
        m.d.comb += following_near.eq(Mux(step, Mux(following.overwrite, 0, Cat(*matches)), near << 1))
        m.d.sync += [near.eq(following_near), any_near.eq(following_near.any())]
        return any_near

    def _fetch(self, m: Module, row: data.View) -> None:
        """Delay the issued row by the latency of its read, replace padding, and subtract ``zero``."""
        wide, taps = self.config.wide_activations, self.config.depthwise_taps
        along = Cat(row.depthwise, row.start) if taps else Cat()
        source: Value = Cat(self.issued, self.swap, row.inside, row.fill, along, row.zero if wide else Cat())
        for stage in range(READ_LATENCY):
            flight = Signal(len(source), name=f"flight{stage}")
            m.d.sync += flight.eq(source)
            source = flight
        issued, swap, inside, fill, optional = source[0], source[1], source[2], source[3:11], source[11:]
        along, zero = optional[: len(along)], optional[len(along) :]
        m.d.sync += [self.a_valid.eq(issued), self.a_swap.eq(swap)]
        if taps:
            m.d.sync += Cat(self.a_depthwise, self.a_start).eq(along)
        vector = Mux(inside, self.read.data, fill.replicate(self.config.n))
        if wide:
            elements = [vector.word_select(k, 8).as_signed() - zero.as_signed() for k in range(self.config.n)]
            vector = Cat(*elements)
        m.d.sync += self.a.eq(vector)

    def _align(self, m: Module, nest: LoopNest, ahead: SkidBuffer, valid: Signal, row: data.View) -> None:
        """Read the alignment of the row to issue, in every cycle until it is issued: the grant is not on the path.

        `entry` counts with the loop nest, and restarts at each output tile.
        """
        width = len(self.alignments.address)
        start = Signal(width)
        entry = Signal(width)
        align = Signal()
        again = Cat(*(nest.last[loop] for loop in WALK.loops if loop != "nt")).all()
        with m.If(self.load):
            m.d.sync += [
                Cat(start, entry).eq(self.instruction.alignment[:width].replicate(2)),
                align.eq(self.instruction.align),
            ]
        with m.Elif(nest.step):
            m.d.sync += entry.eq(Mux(again, start, entry + 1))
        # Rows without alignment get 0; the flag is delayed by the latency of the read.
        flights = Signal(READ_LATENCY)
        m.d.sync += flights.eq(Cat(row.aligned, flights))
        m.d.comb += [
            Cat(ahead.i.payload.aligned, ahead.i.payload.alignment).eq(Cat(align, entry)),
            self.alignments.valid.eq(valid & row.aligned),
            self.alignments.address.eq(row.alignment),
            self.alignment.eq(Mux(flights[-1], self.alignments.data, 0)),
        ]


WEIGHTS_WALK = Walk(Mm, ("nt", "ky", "kx", "kc", "row"), ("b",))


class WeightLoader(wiring.Component):
    """Loader of weights: reads the N words of each tile of B in consecutive cycles and sends them to the array.

    Word 0 of a tile is requested at the earliest in the cycle after the swap of the previous tile. A swap may be issued
    from the cycle on in which the last word is requested. A row of A enters the array one cycle more after its issue
    than a word of B, so this is as tight as the array allows: N cycles a tile.

    Parameters
    ----------
    config : Config

    Members
    -------
    instruction : In(Mm.layout())
    load : In(1)
        Take `instruction`. Only while `free`.
    free : Out(1)
        There is no instruction, or its last word is requested in this cycle.
    ready : Out(1)
        A swap to the next tile may be issued in this cycle.
    swap : In(1)
        A swap to the next tile is issued.
    read : Out(ports.scratchpad_read(config))
        Reads must be granted in every cycle: `ready` is ignored.
    b : Out(8 * N)
    latch : Out(1)
        For the array.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        super().__init__(
            {
                "instruction": In(Mm.layout()),
                "load": In(1),
                "free": Out(1),
                "ready": Out(1),
                "swap": In(1),
                "read": Out(ports.scratchpad_read(config)),
                "b": Out(8 * config.n),
                "latch": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        n = self.config.n
        m.submodules.nest = nest = LoopNest(
            WEIGHTS_WALK.counters(self.config), WEIGHTS_WALK.trackers(self.config)
        )
        loaded = Signal()  # a whole tile waits for its swap
        latches = Signal(READ_LATENCY)
        last = Signal()
        m.d.comb += [
            *nest.take(self.instruction, row=n),
            nest.load.eq(self.load),
            # From registers only: `swap` depends on the grant of the row's read, which depends on this request.
            self.read.valid.eq(nest.active & ~(nest.first.row & loaded)),
            self.read.address.eq(nest.values.b),
            nest.step.eq(self.read.valid),
            # A tile has at least two words, so its last word never waits.
            last.eq(nest.active & nest.last.row),
            self.free.eq(~nest.active | nest.last_all),
            self.ready.eq(loaded | last),
            self.b.eq(self.read.data),
            self.latch.eq(latches[-1]),
        ]
        m.d.sync += latches.eq((latches << 1) | (self.read.valid & nest.first.row))
        with m.If(self.swap):
            m.d.sync += loaded.eq(0)
        with m.Elif(last):
            m.d.sync += loaded.eq(1)
        return m
