"""The first stage of the vector unit, which generates the sequence of an instruction's reads."""

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
    bytewise_kinds,
    element_layout,
    index_range,
    instruction_layout,
    is_kind,
    is_one_of,
    kinds_without_parameters,
    loop_nest,
    note_layout,
    second_width,
    unbounded_kinds,
    vector_kinds,
)

_COPIED_FIELDS = ("source", "h", "w", "pad", "signal")
SETTLING = PARAMETER_VECTORS + READ_LATENCY
"""Cycles after an early acceptance for which the later stages keep the settings of the previous instruction.

After them, the first element of the accepted instruction is at least two cycles away from the later stages, and the
last element of the previous instruction has left requantisation."""
assert SETTLING >= READ_LATENCY + LATENCY - 1


def _request_layout(config: Config) -> data.StructLayout:
    """Return the layout of the next read: which ports, their addresses, and the data that accompanies the element."""
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
    """Read stage: reads an instruction's parameter block, then one source row or vector a cycle.

    With ``add`` it reads the second operand first, once for each output or when its address changes.

    A `Vec` that reads nothing but its parameters from the scratchpad is accepted early, when all reads of the previous
    `Vec` are done. Its parameters delay its first element long enough for the later stages to change their settings in
    between.

    Parameters
    ----------
    config : Config
    serial : bool
        After the last element of a reduction, wait for `resume` before the next read.

    Members
    -------
    instruction : In(stream of instructions)
        Accepted when the unit is idle, or early, as described above.
    current : Out(instruction_layout(config))
        The instruction of the elements in the later stages; changes after an early acceptance with a delay.
    signal : Out(SEMAPHORES)
        Signal mask of the instruction that finishes next.
    active : Out(1)
        There is an instruction.
    finish : In(1)
        The last results of an instruction are written.
    resume : In(1)
        The result of a reduction is complete.
    sequence : Out(Sequence(config))
        For stages that follow the reads.
    accumulator : Out(ports.accumulator_read(config))
    scratchpad : Out(ports.scratchpad_read(config))
        Parameters, second operand, and source vectors. The data of both ports is for the next stage.
    stall_port : Out(1)
        A read waits for its grant.
    arrival : Out(arrival_layout(config))
        Describes the data at the ports in this cycle.
    approaching : Out(index_range(config))
        Lane group of `arrival` in the next cycle.
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
        early = Signal()
        read = Signal()
        self._accept(m, nest, instruction, early)
        self._overlap(m, nest.load, instruction, early, read)
        # The next read is registered, so that address and range check are not on the path of the arbiters.
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

    def _accept(self, m: Module, nest: LoopNest, accepted: data.View, early: Signal) -> None:
        """Accept an instruction when the stage is idle, or `early`, and store its settings in `accepted`."""
        payload, groups = self.instruction.payload, self.config.groups
        instruction, bounded, by_bytes = payload, Const(1), Const(0)
        if vector_kinds(self.config) != [Vec]:
            bounded = ~is_one_of(unbounded_kinds(self.config), payload)
            by_bytes = is_one_of(bytewise_kinds(self.config), payload)
            groups = Mux(by_bytes, self.config.n, groups)
            instruction = as_vec(m, payload, self.config)
        m.d.comb += [
            self.instruction.ready.eq(~self.active | early),
            nest.load.eq(self.instruction.valid & self.instruction.ready),
            *nest.take(instruction, g=groups),
        ]
        with m.If(nest.load):
            m.d.sync += [accepted.bounded.eq(bounded), accepted.bytewise.eq(by_bytes)]
            m.d.sync += [accepted[name].eq(instruction[name]) for name in _COPIED_FIELDS]
            m.d.sync += [
                accepted.settings[name].eq(instruction[name]) for name, _ in settings_layout(self.config)
            ]
            m.d.sync += [
                accepted.second.eq(instruction.add),
                accepted.same_row.eq(instruction.b_oy == 0),
                accepted.same_column.eq(instruction.b_ox == 0),
            ]
            if self.config.multiply:
                m.d.sync += [
                    accepted.multiply.eq(instruction.multiply),
                    accepted.settings.add.eq(instruction.add & ~instruction.multiply),
                ]
            if self.config.lookup_tables:
                m.d.sync += [
                    accepted.lookup.eq(is_kind(Vec, payload) & payload.lookup),
                    accepted.table.eq(payload.table),
                ]

    def _overlap(self, m: Module, load: Signal, accepted: data.View, early: Signal, read: Signal) -> None:
        """Decide early acceptance, and delay the settings of the later stages.

        Drives `early`: all reads of the previous instruction are done (`read`) and the instruction at the input may be
        accepted. Drives `signal` with the mask of the instruction that finishes next, and `current` with `accepted`.
        """
        payload = self.instruction.payload
        offered = Signal()  # the instruction at the input may be accepted early
        plain = Signal()  # the current instruction is a `Vec`
        behind = Signal()  # the previous instruction has not finished
        before = Signal(SEMAPHORES)  # its signal mask
        settling = Signal(range(SETTLING + 1))
        if not self.serial:
            is_vec = is_kind(Vec, payload)
            reads_none = (payload.source == Source.ACCUMULATOR) & ~payload.add
            # A register is possible because the instruction stays at the input until it is accepted.
            m.d.sync += offered.eq(self.instruction.valid & ~self.instruction.ready & is_vec & reads_none)
            m.d.comb += early.eq(read & offered & plain & ~behind & (settling == 0))
            with m.If(load):
                m.d.sync += plain.eq(is_vec)
        m.d.comb += self.signal.eq(Mux(behind, before, accepted.signal))
        with m.If(self.finish):
            m.d.sync += behind.eq(0)
            with m.If(~behind):
                m.d.sync += self.active.eq(0)
        with m.If(settling == 0):
            m.d.sync += self.current.eq(accepted)
        with m.Else():
            m.d.sync += settling.eq(settling - 1)
        with m.If(load):
            m.d.sync += [self.active.eq(1), behind.eq(self.active & ~self.finish), before.eq(accepted.signal)]
            with m.If(self.active):
                m.d.sync += settling.eq(SETTLING)

    def _ask(self, m: Module, request: data.View, load: Value, source: Value) -> data.View:
        """Request parameters and the read in `request`. Returns the grant of this cycle."""
        scratchpad, accumulator = self.scratchpad, self.accumulator
        left = Signal(range(PARAMETER_VECTORS + 1))
        address = Signal.like(scratchpad.address)
        loading = Signal()
        turn = Signal()
        from_scratchpad = Signal()
        pause = Signal()
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
        if without := kinds_without_parameters(self.config):
            vectors = Mux(is_one_of(without, payload), 0, PARAMETER_VECTORS)
        with m.If(load):
            m.d.sync += [left.eq(vectors), address.eq(payload.params)]
        with m.Elif(granted.parameter):
            m.d.sync += [left.eq(left - 1), address.eq(address + 1)]
        return granted

    def _fill(
        self, m: Module, nest: LoopNest, request: data.View, granted: data.View, instruction: data.View
    ) -> None:
        """Advance the loop nest into `request`, by way of a skid buffer, whenever `request` is free."""
        # Back-pressure of a refused read must not reach the loop nest in the same cycle.
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
        """Drive `coming` with the request for the current element of the loop nest."""
        y, x, first, last = nest.values.y, nest.values.x, nest.first, nest.last
        config, element = self.config, coming.element
        grouped = "g" in nest.loops
        in_range = Signal()
        starts = Signal()
        ends = Signal()
        moved = Signal()
        # Current lane group; its low bits are the lane if vectors may be read bytewise. Wraps to 0 after a vector.
        by_bytes = bool(bytewise_kinds(config))
        lane_bits = (config.lanes - 1).bit_length() if by_bytes else 0
        bits = lane_bits + (config.groups - 1).bit_length()
        # No signal of 0 bits, because Verilog would declare it as [-1:0], with two bits.
        index = Signal(bits, name="index") if bits else Const(0, 0)
        stride = Mux(current.bytewise, 1, config.lanes) if by_bytes else 1
        m.d.comb += [
            # Coordinates wrap: a negative one has its top bit set.
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
        """Drive `sequence`, for the stages that follow the reads."""
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
