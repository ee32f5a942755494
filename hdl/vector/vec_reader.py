"""The first stage of the vector unit: the sequence of an instruction's reads."""

from __future__ import annotations

from amaranth.hdl import Const, Module, Mux, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.isa import PARAMETER_VECTORS, SEMAPHORES, Source, Vec
from weft.hdl.isa.config import Config
from weft.hdl.isa.operands import READ_LATENCY
from weft.hdl.lib import ports
from weft.hdl.lib.loopnest import LoopNest
from weft.hdl.lib.queues import SkidBuffer
from weft.hdl.vector.requantise import LATENCY, settings_layout
from weft.hdl.vector.vec_streams import (
    VecSequence,
    arrival_layout,
    as_vec,
    bytewise,
    element_layout,
    index_range,
    instruction_layout,
    is_kind,
    is_one_of,
    loop_nest,
    note_layout,
    second_width,
    unbounded,
    vector_kinds,
    without_parameters,
)

_TAKEN = ("source", "h", "w", "pad", "signal")
SETTLING = PARAMETER_VECTORS + READ_LATENCY
"""Cycles behind an instruction that was accepted early in which the later stages still work on the one before it: as
many as until its own first element could be two cycles from them. The other's last one has left requantisation."""
assert SETTLING >= READ_LATENCY + LATENCY - 1


def _request_layout(config: Config) -> data.StructLayout:
    """The element to read next: what to ask for, where, and what travels with it."""
    source = max(config.widths.scratchpad_address, config.widths.accumulator_address)
    return data.StructLayout(
        {
            "valid": 1,
            "ask_second": 1,
            "ask_source": 1,
            "second": second_width(config),
            "source": source,
            "element": element_layout(config),
        }
        | ({"note": note_layout(config)} if config.softmax else {})
    )


class VecReader(wiring.Component):
    """Takes an instruction, reads its parameter block, then one source row or vector a cycle; with ``add``, the second
    operand ahead of them: once per output, or where it moves.

    A `Vec` that reads no vectors of the scratchpad but its parameters is accepted when everything of the `Vec` before
    it has been read. Its own elements come so much later, behind the parameters, that the settings of the later stages
    can change in between.

    Parameters
    ----------
    config : Config
    serial : bool
        Whether nothing may be read behind the last element of a reduction until `resume`.

    Members
    -------
    instruction : In(stream of instructions)
        Accepted when there is none, or early, as above.
    current : Out(instruction_layout(config))
        The instruction, as far as the stages behind the arrival are concerned: one that is accepted early comes later.
    signal : Out(SEMAPHORES)
        The signal mask of the instruction that will finish next.
    active : Out(1)
        There is an instruction.
    finish : In(1)
        The results of an instruction are out.
    resume : In(1)
        The result of a reduction is there.
    sequence : Out(Sequence(config))
        For stages that follow the reads.
    accumulator : Out(ports.accumulator_read(config))
    scratchpad : Out(ports.scratchpad_read(config))
        Parameters, second operand, and source vectors. The data of both ports is for the next stage.
    stall_port : Out(1)
        A read waits for its grant.
    arrival : Out(arrival_layout(config))
        What the data is that stands at the ports in this cycle.
    approaching : Out(index_range(config))
        The lane group of that in the next one.
    """

    def __init__(self, config: Config, serial: bool) -> None:
        self.config = config
        self.serial = serial
        super().__init__(
            {
                "instruction": In(stream.Signature(Vec.layout())),
                "current": Out(instruction_layout(config)),
                "signal": Out(SEMAPHORES),
                "active": Out(1),
                "finish": In(1),
                "resume": In(1),
                "sequence": Out(VecSequence(config)),
                "accumulator": Out(ports.accumulator_read(config)),
                "scratchpad": Out(ports.scratchpad_read(config)),
                "stall_port": Out(1),
                "arrival": Out(arrival_layout(config)),
                "approaching": Out(index_range(config)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.nest = nest = loop_nest(self.config)
        instruction = Signal(instruction_layout(self.config))
        early, read = Signal(), Signal()
        self._accept(m, nest, instruction, early)
        self._overlap(m, nest.load, instruction, early, read)
        # The element to read next, so that neither address nor range check comes before or behind an arbiter.
        request = Signal(_request_layout(self.config))
        granted = self._ask(m, request, nest.load, instruction.source)
        with m.If(nest.load):
            m.d.sync += read.eq(0)
        with m.Elif(granted.valid & granted.element.tag.end):
            m.d.sync += read.eq(1)
        self._fill(m, nest, request, granted, instruction)
        self._follow(m, nest, request, granted)
        arrivals = [granted]
        for stage in range(READ_LATENCY):
            following = Signal(granted.shape(), name=f"arrival_{stage}")
            m.d.sync += following.eq(arrivals[-1])
            arrivals.append(following)
        m.d.comb += [
            self.arrival.eq(arrivals[-1]),
            self.approaching.eq(arrivals[-2].element.tag.index),
        ]
        return m

    def _accept(self, m: Module, nest: LoopNest, taken: data.View, early: Signal) -> None:
        """Take an instruction when there is none, or if it may come `early`; what is `taken` of it stays."""
        payload, groups = self.instruction.payload, self.config.groups
        instruction, bounded, by_bytes = payload, Const(1), Const(0)
        if vector_kinds(self.config) != [Vec]:
            bounded = ~is_one_of(unbounded(self.config), payload)
            by_bytes = is_one_of(bytewise(self.config), payload)
            groups = Mux(by_bytes, self.config.n, groups)
            instruction = as_vec(m, payload, self.config)
        m.d.comb += [
            self.instruction.ready.eq(~self.active | early),
            nest.load.eq(self.instruction.valid & self.instruction.ready),
            *nest.take(instruction, g=groups),
        ]
        with m.If(nest.load):
            m.d.sync += [taken.bounded.eq(bounded), taken.bytewise.eq(by_bytes)]
            m.d.sync += [taken[name].eq(instruction[name]) for name in _TAKEN]
            m.d.sync += [
                taken.settings[name].eq(instruction[name]) for name, _ in settings_layout(self.config)
            ]
            m.d.sync += [
                taken.second.eq(instruction.add),
                taken.same_row.eq(instruction.b_oy == 0),
                taken.same_column.eq(instruction.b_ox == 0),
            ]
            if self.config.multiply:
                m.d.sync += [
                    taken.multiply.eq(instruction.multiply),
                    taken.settings.add.eq(instruction.add & ~instruction.multiply),
                ]
            if self.config.lookup_tables:
                m.d.sync += [
                    taken.lookup.eq(is_kind(Vec, payload) & payload.lookup),
                    taken.table.eq(payload.table),
                ]

    def _overlap(self, m: Module, load: Signal, taken: data.View, early: Signal, read: Signal) -> None:
        """Tell whether the instruction that is offered may come `early`, as that before it was `read`; which of two
        finishes; and what the later stages see of what was `taken`."""
        payload = self.instruction.payload
        offered, plain, behind = Signal(), Signal(), Signal()
        before = Signal(SEMAPHORES)
        settling = Signal(range(SETTLING + 1))
        if not self.serial:
            is_vec = is_kind(Vec, payload)
            reads_none = (payload.source == Source.ACCUMULATOR) & ~payload.add
            # From a register: what is offered stands until it is accepted.
            m.d.sync += offered.eq(self.instruction.valid & ~self.instruction.ready & is_vec & reads_none)
            m.d.comb += early.eq(read & offered & plain & ~behind & (settling == 0))
            with m.If(load):
                m.d.sync += plain.eq(is_vec)
        m.d.comb += self.signal.eq(Mux(behind, before, taken.signal))
        with m.If(self.finish):
            m.d.sync += behind.eq(0)
            with m.If(~behind):
                m.d.sync += self.active.eq(0)
        with m.If(settling == 0):
            m.d.sync += self.current.eq(taken)
        with m.Else():
            m.d.sync += settling.eq(settling - 1)
        with m.If(load):
            m.d.sync += [self.active.eq(1), behind.eq(self.active & ~self.finish), before.eq(taken.signal)]
            with m.If(self.active):
                m.d.sync += settling.eq(SETTLING)

    def _ask(self, m: Module, request: data.View, load: Value, source: Value) -> data.View:
        """Ask for parameters and for what stands in `request`; returns what is granted in this cycle."""
        scratchpad, accumulator = self.scratchpad, self.accumulator
        left, address = Signal(range(PARAMETER_VECTORS + 1)), Signal.like(scratchpad.address)
        loading, turn, from_scratchpad, pause = Signal(), Signal(), Signal(), Signal()
        granted = Signal(arrival_layout(self.config))
        source_ready = Mux(from_scratchpad, scratchpad.ready, accumulator.ready)
        ask_source = request.ask_source & from_scratchpad & ~pause
        m.d.comb += [
            from_scratchpad.eq(source == Source.SCRATCHPAD),
            loading.eq(left.any()),
            turn.eq(request.valid & ~loading & ~request.ask_second & ~pause),
            scratchpad.valid.eq(loading | request.valid & (request.ask_second | ask_source)),
            scratchpad.address.eq(
                Mux(loading, address, Mux(request.ask_second, request.second, request.source))
            ),
            accumulator.valid.eq(turn & request.ask_source & ~from_scratchpad),
            accumulator.address.eq(request.source),
            self.stall_port.eq(scratchpad.valid & ~scratchpad.ready | accumulator.valid & ~accumulator.ready),
            granted.parameter.eq(loading & scratchpad.ready),
            granted.second.eq(request.valid & ~loading & request.ask_second & scratchpad.ready),
            granted.valid.eq(turn & (~request.ask_source | source_ready)),
            granted.element.eq(request.element),
        ]
        if self.serial:
            with m.If(granted.valid & request.element.last):
                m.d.sync += pause.eq(1)
            with m.Elif(self.resume):
                m.d.sync += pause.eq(0)
        payload, vectors = self.instruction.payload, PARAMETER_VECTORS
        if without := without_parameters(self.config):
            vectors = Mux(is_one_of(without, payload), 0, PARAMETER_VECTORS)
        with m.If(load):
            m.d.sync += [left.eq(vectors), address.eq(payload.params)]
        with m.Elif(granted.parameter):
            m.d.sync += [left.eq(left - 1), address.eq(address + 1)]
        return granted

    def _fill(
        self, m: Module, nest: LoopNest, request: data.View, granted: data.View, instruction: data.View
    ) -> None:
        """Step the loop nest into `request`, by way of a skid buffer, whenever that is free."""
        # A refused read must not reach back to the loop nest in the same cycle.
        m.submodules.skid = ahead = SkidBuffer(request.shape())
        m.d.comb += [
            ahead.i.valid.eq(nest.active & ~self.sequence.hold),
            nest.step.eq(ahead.i.valid & ahead.i.ready),
            self.sequence.may_step.eq(nest.active & ahead.i.ready),
            ahead.o.ready.eq(~request.valid | granted.valid),
        ]
        self._element(m, nest, ahead.i.payload, instruction)
        with m.If(granted.second):
            m.d.sync += request.ask_second.eq(0)
        with m.If(ahead.o.ready):
            m.d.sync += request.valid.eq(ahead.o.valid)
        with m.If(ahead.o.valid & ahead.o.ready):
            m.d.sync += request.eq(ahead.o.payload)

    def _element(self, m: Module, nest: LoopNest, coming: data.View, current: data.View) -> None:
        """The request for the element that the loop nest stands on."""
        y, x, first, last = nest.values.y, nest.values.x, nest.first, nest.last
        config, element = self.config, coming.element
        grouped = "g" in nest.loops
        in_range, starts, ends, moved = Signal(), Signal(), Signal(), Signal()
        # The lane group that the nest stands on, preceded by the lane if that may count; ends where it began.
        by_bytes = bool(bytewise(config))
        lane_bits = (config.lanes - 1).bit_length() if by_bytes else 0
        bits = lane_bits + (config.groups - 1).bit_length()
        index = Signal(bits) if bits else Const(0, 0)  # in Verilog a signal without bits has two
        stride = Mux(current.bytewise, 1, config.lanes) if by_bytes else 1
        m.d.comb += [
            in_range.eq(~y[-1] & (y < current.h) & ~x[-1] & (x < current.w)),
            starts.eq(first.ry & first.rx),
            ends.eq(last.ry & last.rx),
            coming.valid.eq(1),
            moved.eq(~current.same_column | first.ox & (~current.same_row | first.oy)),
            coming.ask_second.eq(current.second & moved & starts & (first.g if grouped else 1)),
            coming.ask_source.eq(element.in_range),
            coming.source.eq(nest.values.src),
            coming.second.eq(nest.values.b),
            element.in_range.eq(in_range | ~current.bounded),
            element.first.eq(starts),
            element.last.eq(ends),
            element.tag.index.eq(index[lane_bits:]),
            element.tag.last.eq(last.g if grouped else 1),
            element.tag.end.eq(nest.last_all),
            element.tag.dst.eq(nest.values.dst),
        ]
        if config.softmax:
            m.d.comb += [
                coming.note.eq(self.sequence.note),
                element.row.eq(first.ox & (first.g if grouped else 1)),
            ]
        if by_bytes:
            m.d.comb += element.lane.eq(index[:lane_bits])
        if grouped:
            with m.If(nest.step):
                m.d.sync += index.eq(index + Mux(ends, stride, 0))

    def _follow(self, m: Module, nest: LoopNest, request: data.View, granted: data.View) -> None:
        """Tell the sequence to stages that follow it."""
        sequence, tag = self.sequence, request.element.tag
        place, grant = sequence.place, sequence.grant
        m.d.comb += [
            sequence.load.eq(nest.load),
            sequence.payload.eq(self.instruction.payload),
            sequence.step.eq(nest.step),
            *(place[f"first_{loop}"].eq(nest.first[loop]) for loop in ("ob", "ox")),
            *(place[f"last_{loop}"].eq(nest.last[loop]) for loop in ("oy", "ox")),
            place.first_g.eq(nest.first.g if "g" in nest.loops else 1),
            place.last_g.eq(nest.last.g if "g" in nest.loops else 1),
            grant.granted.eq(granted.valid),
            grant.dst.eq(tag.dst),
            grant.first.eq(tag.index == 0),
            grant.last.eq(tag.last),
            grant.end.eq(tag.end),
        ]
        if self.config.softmax:
            m.d.comb += [grant.note.eq(request.note), grant.alignment.eq(request.second)]
