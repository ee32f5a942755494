"""The vector unit: executes the instructions of the VEC queue. This file issues reads and gathers results; the
arithmetic between is in `weft.hdl.vector.requantise`, and what there is with softmax only in
`weft.hdl.vector.vec_softmax`."""

from __future__ import annotations

from functools import reduce
from operator import or_

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.isa import BASES, PARAMETER_VECTORS, SEMAPHORES, Reduce, Source, Table, Vec
from weft.hdl.isa.config import Config
from weft.hdl.isa.latencies import READ_LATENCY
from weft.hdl.isa.parameters import BIAS, MANTISSA, SHIFT
from weft.hdl.lib import ports
from weft.hdl.lib.loopnest import LoopNest
from weft.hdl.lib.multipliers import INFERRED, Multipliers
from weft.hdl.lib.skid_buffer import SkidBuffer
from weft.hdl.vector.requantise import Requantise, settings_layout
from weft.hdl.vector.requantise_serial import requantiser
from weft.hdl.vector.vec_kinds import as_vec, is_kind, without_parameters
from weft.hdl.vector.vec_nest import layouts, loop_nest
from weft.hdl.vector.vec_softmax import VecSoftmax

_HELD = {"source": 1, "h": 16, "w": 16, "pad": signed(8), "signal": SEMAPHORES}
"""Fields of an instruction that are needed until its last write, settings of the arithmetic apart; the loop nest keeps
the others."""


class VecUnit(wiring.Component):
    """A sequencer, and a pipeline that never waits once a read is granted.

    An instruction first reads its parameter block. Then it reads one source row or vector a cycle: all elements of an
    output's reduction for the first `lanes` columns, again for the next ones, and so on; with ``add``, the second
    operand is read once per output, ahead of them. An instruction starts reading when the one before it has written
    its last output, so it may read what that one wrote.

    With softmax, Softmax and Normalise run through the same sequencer and the same arithmetic. Normalise has no
    parameter block: what it multiplies by comes from a divider, which works a row ahead. Table reads every vector as
    often as it has bytes, and takes another one each time.

    Parameters
    ----------
    config : Config
    multipliers : Multipliers
        See `weft.hdl.vector.requantise_serial.requantiser`.

    Members
    -------
    instruction, signal, busy
        See `ports.unit`; the opcode tells the other kinds apart.
    accumulator : Out(ports.accumulator_read(config))
    scratchpad : Out(ports.scratchpad_read(config))
        Parameters, second operand, and source vectors.
    write : Out(ports.scratchpad_write(config))
        Must be granted in every cycle, ``ready`` is not looked at.
    stall_port : Out(1)
        A read waits for its grant.
    alignment_read : Out(ports.alignment_read(config)), alignment_write : Out(ports.alignment_write(config))
        Always granted, ``ready`` is not looked at. With softmax only.
    bases : In(BASES x 32)
        Base registers. With softmax only.
    """

    def __init__(self, config: Config, multipliers: Multipliers = INFERRED) -> None:
        self.config = config
        self.multipliers = multipliers
        self._tag, self._element, self._request, self._queue = layouts(config)
        softmax = {
            "alignment_read": Out(ports.alignment_read(config)),
            "alignment_write": Out(ports.alignment_write(config)),
            "bases": In(data.ArrayLayout(32, BASES)),
        }
        super().__init__(
            {
                **ports.unit(Vec),
                **(softmax if config.softmax else {}),
                "accumulator": Out(ports.accumulator_read(config)),
                "scratchpad": Out(ports.scratchpad_read(config)),
                "write": Out(ports.scratchpad_write(config)),
                "stall_port": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.nest = nest = loop_nest(self.config)
        m.submodules.requantise = requantise = requantiser(self.config, self._tag, self.multipliers)
        settings = settings_layout(self.config)
        active, held = Signal(), Signal(data.StructLayout(_HELD | {"settings": settings}))
        instruction, groups = self.instruction.payload, self.config.groups
        softmax = None
        if self.config.softmax:
            m.submodules.softmax = softmax = VecSoftmax(self.config)
            groups = Mux(is_kind(Table, self.instruction.payload), self.config.n, groups)
            instruction = as_vec(m, self.instruction.payload)
        m.d.comb += [
            self.instruction.ready.eq(~active),
            nest.load.eq(self.instruction.valid & self.instruction.ready),
            *nest.take(instruction, g=groups),
            requantise.settings.eq(held.settings),
        ]
        with m.If(nest.load):
            m.d.sync += active.eq(1)
            m.d.sync += [held[name].eq(instruction[name]) for name in _HELD]
            m.d.sync += [held.settings[name].eq(instruction[name]) for name, _ in settings]

        # The element to read next, so that neither address nor range check comes before or behind an arbiter.
        queue = Signal(self._queue)
        granted = self._ask(m, held, queue, nest.load, requantise)
        self._fill(m, nest, held, queue, granted, softmax)
        arrival = granted
        for stage in range(READ_LATENCY):
            following = Signal(self._request, name=f"arrival_{stage}")
            m.d.sync += following.eq(arrival)
            arrival = following
        self._arrive(m, requantise, held, arrival, softmax)
        self._gather(m, requantise, held, active, softmax)
        if softmax is not None:
            self._connect(m, softmax, nest, queue, granted, requantise)
        return m

    def _ask(
        self, m: Module, held: data.View, queue: data.View, load: Value, requantise: Requantise
    ) -> data.View:
        """Ask for parameters and for what stands in `queue`; returns what is granted in this cycle."""
        scratchpad, accumulator = self.scratchpad, self.accumulator
        left, address = Signal(range(PARAMETER_VECTORS + 1)), Signal.like(scratchpad.address)
        loading, turn, from_scratchpad, pause = Signal(), Signal(), Signal(), Signal()
        granted = Signal(self._request)
        source_ready = Mux(from_scratchpad, scratchpad.ready, accumulator.ready)
        m.d.comb += [
            from_scratchpad.eq(held.source == Source.SCRATCHPAD),
            loading.eq(left.any()),
            turn.eq(queue.valid & ~loading & ~queue.ask_second & ~pause),
            scratchpad.valid.eq(
                loading | queue.valid & (queue.ask_second | queue.ask_source & from_scratchpad & ~pause)
            ),
            scratchpad.address.eq(Mux(loading, address, Mux(queue.ask_second, queue.second, queue.source))),
            accumulator.valid.eq(turn & queue.ask_source & ~from_scratchpad),
            accumulator.address.eq(queue.source),
            self.stall_port.eq(scratchpad.valid & ~scratchpad.ready | accumulator.valid & ~accumulator.ready),
            granted.parameter.eq(loading & scratchpad.ready),
            granted.second.eq(queue.valid & ~loading & queue.ask_second & scratchpad.ready),
            granted.valid.eq(turn & (~queue.ask_source | source_ready)),
            granted.element.eq(queue.element),
        ]
        if requantise.serial:
            with m.If(granted.valid & queue.element.last):
                m.d.sync += pause.eq(1)
            with m.Elif(requantise.result_valid):
                m.d.sync += pause.eq(0)
        payload, vectors = self.instruction.payload, PARAMETER_VECTORS
        if self.config.softmax:
            without = (is_kind(kind, payload) for kind in without_parameters())
            vectors = Mux(reduce(or_, without), 0, PARAMETER_VECTORS)
        with m.If(load):
            m.d.sync += [left.eq(vectors), address.eq(payload.params)]
        with m.Elif(granted.parameter):
            m.d.sync += [left.eq(left - 1), address.eq(address + 1)]
        return granted

    def _fill(
        self,
        m: Module,
        nest: LoopNest,
        held: data.View,
        queue: data.View,
        granted: data.View,
        softmax: VecSoftmax | None,
    ) -> None:
        """Step the loop nest into `queue`, by way of a skid buffer, whenever that is free."""
        y, x, first, last = nest.values.y, nest.values.x, nest.first, nest.last
        config = self.config
        grouped = "g" in nest.loops
        in_range, starts, ends = Signal(), Signal(), Signal()
        everywhere, hold, stride = Const(0), Const(0), 1
        # The lane group that the nest stands on, with softmax preceded by the lane; ends where it began.
        lane_bits = (config.lanes - 1).bit_length() if config.softmax else 0
        index = Signal(lane_bits + (config.groups - 1).bit_length())
        if softmax is not None:
            everywhere, hold = softmax.softmax | softmax.normalise | softmax.table, softmax.hold
            stride = Mux(softmax.table, 1, config.lanes)
        # A refused read must not reach back to the loop nest in the same cycle.
        m.submodules.skid = ahead = SkidBuffer(self._queue)
        coming = ahead.i.payload
        element = coming.element
        m.d.comb += [
            in_range.eq(~y[-1] & (y < held.h) & ~x[-1] & (x < held.w) | everywhere),
            starts.eq(first.ry & first.rx),
            ends.eq(last.ry & last.rx),
            ahead.i.valid.eq(nest.active & ~hold),
            nest.step.eq(ahead.i.valid & ahead.i.ready),
            coming.valid.eq(1),
            coming.ask_second.eq(held.settings.add & starts & (first.g if grouped else 1)),
            coming.ask_source.eq(in_range),
            coming.source.eq(nest.values.src),
            coming.second.eq(nest.values.b),
            element.in_range.eq(in_range),
            element.first.eq(starts),
            element.last.eq(ends),
            element.tag.index.eq(index[lane_bits:]),
            element.tag.last.eq(last.g if grouped else 1),
            element.tag.end.eq(nest.last_all),
            element.tag.dst.eq(nest.values.dst),
            ahead.o.ready.eq(~queue.valid | granted.valid),
        ]
        if softmax is not None:
            m.d.comb += [
                element.row.eq(softmax.place.first_ox & softmax.place.first_g),
                element.lane.eq(index[:lane_bits]),
                coming.note.eq(softmax.note),
                softmax.may_step.eq(nest.active & ahead.i.ready),
            ]
        if grouped:
            with m.If(nest.step):
                m.d.sync += index.eq(index + Mux(ends, stride, 0))
        with m.If(granted.second):
            m.d.sync += queue.ask_second.eq(0)
        with m.If(ahead.o.ready):
            m.d.sync += queue.valid.eq(ahead.o.valid)
        with m.If(ahead.o.valid & ahead.o.ready):
            m.d.sync += queue.eq(ahead.o.payload)

    def _arrive(
        self,
        m: Module,
        requantise: Requantise,
        held: data.View,
        arrival: data.View,
        softmax: VecSoftmax | None,
    ) -> None:
        """Keep parameters and second operand, and choose the columns of the element's lane group."""
        width, element = self.config.widths.vector, arrival.element
        planes = Signal(data.ArrayLayout(width, PARAMETER_VECTORS), reset_less=True)
        second = Signal(width, reset_less=True)
        with m.If(arrival.parameter):
            m.d.sync += planes.as_value().eq(Cat(planes.as_value()[width:], self.scratchpad.data))
        with m.If(arrival.second):
            m.d.sync += second.eq(self.scratchpad.data)

        # A cycle to choose lanes, one to choose among sources.
        rows, vectors = (
            Signal(bits * self.config.lanes, name=name, reset_less=True)
            for bits, name in ((32, "rows"), (8, "vectors"))
        )
        near, nearer = Signal(), Signal(self._element, name="nearer")
        nearer_second = Signal(8 * self.config.lanes, reset_less=True)
        m.d.sync += [
            nearer_second.eq(self._lanes(m, second, element.tag.index)),
            rows.eq(self._lanes(m, self.accumulator.data, element.tag.index)),
            vectors.eq(self._lanes(m, self.scratchpad.data, element.tag.index)),
            near.eq(arrival.valid),
            nearer.eq(element),
        ]
        pad = Signal(signed(32))
        m.d.comb += pad.eq(Mux(held.settings.reduce == Reduce.MAX, -(1 << 31), held.pad))
        elements = Signal.like(requantise.elements, reset_less=True)
        for lane in range(self.config.lanes):
            vector, row = vectors.word_select(lane, 8).as_signed(), rows.word_select(lane, 32).as_signed()
            if softmax is not None:
                vector = self._probability(vector, softmax.normalise)
            read = Mux(held.source == Source.SCRATCHPAD, vector, row)
            m.d.sync += elements[lane].eq(Mux(nearer.in_range, read, pad))
        valid, chosen = Signal(), Signal(self._element, name="chosen")
        chosen_second = Signal.like(nearer_second)
        m.d.sync += [valid.eq(near), chosen.eq(nearer), chosen_second.eq(nearer_second)]

        m.d.comb += [
            requantise.valid.eq(valid),
            requantise.first.eq(chosen.first),
            requantise.last.eq(chosen.last),
            requantise.tag.eq(chosen.tag),
            requantise.elements.eq(elements),
            requantise.second.eq(chosen_second),
        ]
        self._columns(m, requantise, planes, chosen.tag.index, softmax)
        if softmax is not None:
            with m.If(softmax.load):
                m.d.sync += planes.eq(0)
            m.d.sync += softmax.row.eq(softmax.normalise & arrival.valid & element.row)
            m.d.comb += [
                softmax.byte_valid.eq(valid),
                softmax.byte.eq(elements[chosen.lane][:8]),
            ]

    def _columns(
        self, m: Module, requantise: Requantise, planes: data.View, index: Value, softmax: VecSoftmax | None
    ) -> None:
        """Parameters of the lane group `index`, or those softmax sets."""
        parts = [self._lanes(m, plane, index) for plane in planes]
        for lane in range(self.config.lanes):
            word = Signal(8 * PARAMETER_VECTORS, name=f"word_{lane}")
            column = requantise.columns[lane]
            named = {"bias": BIAS, "mantissa": MANTISSA, "shift": SHIFT}
            m.d.comb += word.eq(Cat(part.word_select(lane, 8) for part in parts))
            m.d.comb += [column[name].eq(word[part.bits]) for name, part in named.items()]
            if softmax is not None:  # one of the two is 0
                m.d.comb += [
                    column[name].eq(word[part.bits] | softmax.scale[name]) for name, part in named.items()
                ]

    def _gather(
        self, m: Module, requantise: Requantise, held: data.View, active: Signal, softmax: VecSoftmax | None
    ) -> None:
        """Assemble the results of all lane groups to a vector, write it, and signal after the last one."""
        tag, vector = requantise.result_tag, Signal(self.config.widths.vector, reset_less=True)
        ended, signalled = Signal(), Signal()
        results, at, dst = requantise.results.as_value(), tag.index, tag.dst
        write, end = requantise.result_valid & tag.last, requantise.result_valid & tag.end
        if softmax is not None:
            # With 8 bits, probabilities are stored less 128.
            offset = 0x80 if self.config.probability_bits == 8 else 0
            own, last = softmax.softmax, softmax.p_index == self.config.groups - 1
            results = Mux(own, Cat(p ^ offset for p in softmax.p), results)
            at, dst = Mux(own, softmax.p_index, at), Mux(own, softmax.dst_written, dst)
            write = Mux(own, softmax.p_valid & last, write & ~softmax.table)
            end = Mux(own, softmax.ended, end)
        with m.Switch(at):
            for index in range(self.config.groups):
                with m.Case(index):
                    m.d.sync += vector.word_select(index, 8 * self.config.lanes).eq(results)
        m.d.sync += [
            self.write.valid.eq(write),
            self.write.address.eq(dst),
            ended.eq(end),
            signalled.eq(ended),
            self.signal.eq(Mux(ended, held.signal, 0)),
        ]
        with m.If(end):
            m.d.sync += active.eq(0)
        m.d.comb += [self.write.data.eq(vector), self.busy.eq(active | ended | signalled)]

    def _connect(
        self,
        m: Module,
        softmax: VecSoftmax,
        nest: LoopNest,
        queue: data.View,
        granted: data.View,
        requantise: Requantise,
    ) -> None:
        """The sequence of reads to the softmax side, and results of the arithmetic."""
        tag, always = queue.element.tag, Const(1)
        m.d.comb += [
            softmax.load.eq(nest.load),
            softmax.payload.eq(self.instruction.payload),
            softmax.bases.eq(self.bases),
            softmax.step.eq(nest.step),
            softmax.place.first_ob.eq(nest.first.ob),
            softmax.place.first_ox.eq(nest.first.ox),
            softmax.place.first_g.eq(nest.first.g if "g" in nest.loops else always),
            softmax.place.last_oy.eq(nest.last.oy),
            softmax.place.last_ox.eq(nest.last.ox),
            softmax.place.last_g.eq(nest.last.g if "g" in nest.loops else always),
            softmax.granted.eq(granted.valid),
            softmax.granted_note.eq(queue.note),
            softmax.dst.eq(tag.dst),
            softmax.alignment.eq(queue.second),
            softmax.first.eq(tag.index == 0),
            softmax.last.eq(tag.last),
            softmax.end.eq(tag.end),
            softmax.scores_valid.eq(requantise.result_valid),
            softmax.scores_last.eq(requantise.result_tag.last),
            softmax.scores_index.eq(requantise.result_tag.index),
            softmax.scores.eq(requantise.scores),
        ]
        for name in ("alignment_read", "alignment_write"):
            wiring.connect(m, getattr(softmax, name), wiring.flipped(getattr(self, name)))

    def _probability(self, vector: Value, normalise: Value) -> Value:
        """A byte of the scratchpad as an element; for Normalise it is a probability, stored less 128 or not at all."""
        if self.config.probability_bits == 7:
            return vector
        return Cat(vector[:7], vector[7] ^ normalise, (vector[7] & ~normalise)).as_signed()

    def _lanes(self, m: Module, value: Value, index: Value) -> Value:
        """The part of `value` (N equal fields) that belongs to lane group `index`."""
        width = len(value) // self.config.groups
        if self.config.groups == 1:
            return value
        part = Signal(width, name="part")
        with m.Switch(index):
            for group in range(self.config.groups):
                with m.Case(group):
                    m.d.comb += part.eq(value.word_select(group, width))
        return part
