"""The vector unit: executes `Vec` instructions. This file issues reads and gathers results; the arithmetic between
is in `weft.hdl.requantise`."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import Out

from weft.hdl import ports
from weft.hdl.config import Config
from weft.hdl.isa import PARAMETER_VECTORS, SEMAPHORES, Reduce, Source, Vec
from weft.hdl.loopnest import LoopNest
from weft.hdl.requantise import Requantise, settings_layout

OVERHEAD = 21
"""Cycles from accepting an instruction to accepting the next one, beyond one for each read that it issues and each
element that is out of range, when no read is refused."""

_HELD = {"source": 1, "h": 16, "w": 16, "pad": signed(8), "signal": SEMAPHORES}
"""Fields of an instruction that are needed until its last write, settings of the arithmetic apart; the loop nest keeps
the others."""


def _nest(config: Config) -> LoopNest:
    vector = config.widths.scratchpad_address
    outputs = dict.fromkeys(("ob", "oy", "ox"), 16)
    groups = {"g": config.groups.bit_length()} if config.groups > 1 else {}
    return LoopNest(
        {"ob": 12, "oy": 12, "ox": 12, **groups, "ry": 12, "rx": 12},
        {
            "src": (max(vector, config.widths.accumulator_address), outputs | {"ry": 16, "rx": 16}),
            "y": (16, {"oy": 8, "ry": 8}),
            "x": (16, {"ox": 8, "rx": 8}),
            "dst": (vector, outputs),
            "b": (vector, outputs),
        },
    )


class VecUnit(wiring.Component):
    """A sequencer, and a pipeline that never waits once a read is granted.

    An instruction first reads its parameter block. Then it reads one source row or vector a cycle: all elements of an
    output's reduction for the first `lanes` columns, again for the next ones, and so on; with ``add``, the second
    operand is read once per output, ahead of them. An instruction starts reading when the one before it has written
    its last output, so it may read what that one wrote.

    Parameters
    ----------
    config : Config

    Members
    -------
    instruction, signal, busy
        See `ports.unit`.
    accumulator : Out(ports.accumulator_read(config))
    scratchpad : Out(ports.scratchpad_read(config))
        Parameters, second operand, and source vectors.
    write : Out(ports.scratchpad_write(config))
        Must be granted in every cycle, ``ready`` is not looked at.
    stall_port : Out(1)
        A read waits for its grant.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        lane_group = {"index": range(max(config.groups, 2)), "last": 1, "end": 1}
        self._tag = data.StructLayout(lane_group | {"dst": config.widths.scratchpad_address})
        self._element = data.StructLayout({"in_range": 1, "first": 1, "last": 1, "tag": self._tag})
        self._request = data.StructLayout({"parameter": 1, "second": 1, "valid": 1, "element": self._element})
        super().__init__(
            {
                **ports.unit(Vec),
                "accumulator": Out(ports.accumulator_read(config)),
                "scratchpad": Out(ports.scratchpad_read(config)),
                "write": Out(ports.scratchpad_write(config)),
                "stall_port": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.nest = nest = _nest(self.config)
        m.submodules.requantise = requantise = Requantise(self.config, self._tag)
        settings = settings_layout(self.config)
        active, held = Signal(), Signal(data.StructLayout(_HELD | {"settings": settings}))
        instruction = self.instruction.payload
        m.d.comb += [
            self.instruction.ready.eq(~active),
            nest.load.eq(self.instruction.valid & self.instruction.ready),
            *nest.take(instruction, g=self.config.groups),
            requantise.settings.eq(held.settings),
        ]
        with m.If(nest.load):
            m.d.sync += active.eq(1)
            m.d.sync += [held[name].eq(instruction[name]) for name in _HELD]
            m.d.sync += [held.settings[name].eq(instruction[name]) for name, _ in settings]

        arrival = self._issue(m, nest, held)
        for stage in range(ports.READ_LATENCY):
            following = Signal(self._request, name=f"arrival_{stage}")
            m.d.sync += following.eq(arrival)
            arrival = following
        self._arrive(m, requantise, held, arrival)
        self._gather(m, requantise, held, active)
        return m

    def _issue(self, m: Module, nest: LoopNest, held: data.View) -> data.View:
        """Ask for parameters, second operands and elements; returns what is granted in this cycle."""
        scratchpad, accumulator = self.scratchpad, self.accumulator
        parameters_left, parameters = Signal(range(PARAMETER_VECTORS + 1)), Signal.like(scratchpad.address)
        loading = Signal()
        # The element to read next, so that neither address nor range check comes behind an arbiter or before one.
        queued, ask_second, ask_source = Signal(), Signal(), Signal()
        element, source, second = (
            Signal(self._element),
            Signal.like(nest.values.src),
            Signal.like(nest.values.b),
        )
        granted = Signal(self._request)
        from_scratchpad = held.source == Source.SCRATCHPAD
        source_turn = queued & ~loading & ~ask_second
        m.d.comb += [
            loading.eq(parameters_left.any()),
            scratchpad.valid.eq(loading | queued & (ask_second | ask_source & from_scratchpad)),
            scratchpad.address.eq(Mux(loading, parameters, Mux(ask_second, second, source))),
            accumulator.valid.eq(source_turn & ask_source & ~from_scratchpad),
            accumulator.address.eq(source),
            self.stall_port.eq(scratchpad.valid & ~scratchpad.ready | accumulator.valid & ~accumulator.ready),
            granted.parameter.eq(loading & scratchpad.ready),
            granted.second.eq(queued & ~loading & ask_second & scratchpad.ready),
            granted.valid.eq(
                source_turn & (~ask_source | Mux(from_scratchpad, scratchpad.ready, accumulator.ready))
            ),
            granted.element.eq(element),
            nest.step.eq(nest.active & (~queued | granted.valid)),
        ]
        with m.If(nest.load):
            m.d.sync += [
                parameters_left.eq(PARAMETER_VECTORS),
                parameters.eq(self.instruction.payload.params),
            ]
        with m.Elif(granted.parameter):
            m.d.sync += [parameters_left.eq(parameters_left - 1), parameters.eq(parameters + 1)]

        y, x, last = nest.values.y, nest.values.x, nest.last
        in_range = ~y[-1] & (y < held.h) & ~x[-1] & (x < held.w)
        group_starts, group_ends = nest.first.ry & nest.first.rx, last.ry & last.rx
        grouped = self.config.groups > 1
        index = Signal.like(element.tag.index)  # the lane group that the nest stands on; ends where it began
        with m.If(granted.second):
            m.d.sync += ask_second.eq(0)
        with m.If(granted.valid):
            m.d.sync += queued.eq(0)
        with m.If(nest.step):
            m.d.sync += [
                queued.eq(1),
                ask_source.eq(in_range),
                ask_second.eq(held.settings.add & group_starts & (nest.first.g if grouped else 1)),
                Cat(source, second).eq(Cat(nest.values.src, nest.values.b)),
                Cat(element.in_range, element.first, element.last).eq(
                    Cat(in_range, group_starts, group_ends)
                ),
                Cat(element.tag.index, element.tag.dst).eq(Cat(index, nest.values.dst)),
                element.tag.last.eq(last.g if grouped else 1),
                element.tag.end.eq(nest.last_all),
            ]
            if grouped:
                m.d.sync += index.eq(index + group_ends)
        return granted

    def _arrive(self, m: Module, requantise: Requantise, held: data.View, arrival: data.View) -> None:
        """Keep parameters and second operand, and choose the columns of the element's lane group."""
        lanes, element = self.config.lanes, arrival.element
        planes = Signal(data.ArrayLayout(self.config.widths.vector, PARAMETER_VECTORS), reset_less=True)
        second = Signal(self.config.widths.vector, reset_less=True)
        with m.If(arrival.parameter):
            m.d.sync += planes.as_value().eq(
                Cat(planes.as_value()[self.config.widths.vector :], self.scratchpad.data)
            )
        with m.If(arrival.second):
            m.d.sync += second.eq(self.scratchpad.data)

        rows = self._lanes(m, self.accumulator.data, element.tag.index)
        vectors = self._lanes(m, self.scratchpad.data, element.tag.index)
        lowest = held.settings.reduce == Reduce.MAX
        pad = Signal(signed(32))
        m.d.comb += pad.eq(Mux(lowest, -(1 << 31), held.pad))
        elements = Signal.like(requantise.elements, reset_less=True)
        for lane in range(lanes):
            vector, row = vectors.word_select(lane, 8).as_signed(), rows.word_select(lane, 32).as_signed()
            read = Mux(held.source == Source.SCRATCHPAD, vector, row)
            m.d.sync += elements[lane].eq(Mux(element.in_range, read, pad))
        valid, chosen = Signal(), Signal(self._element, name="chosen")
        m.d.sync += [valid.eq(arrival.valid), chosen.eq(element)]

        index = chosen.tag.index
        bytes_of = [self._lanes(m, plane, index) for plane in planes]
        for lane in range(lanes):
            word = Cat(*(plane.word_select(lane, 8) for plane in bytes_of))
            column = requantise.columns[lane]
            m.d.comb += [
                column.bias.eq(word[:32]),
                column.mantissa.eq(word[32:56]),
                column.shift.eq(word[56:62]),
            ]
        m.d.comb += [
            requantise.valid.eq(valid),
            requantise.first.eq(chosen.first),
            requantise.last.eq(chosen.last),
            requantise.tag.eq(chosen.tag),
            requantise.elements.eq(elements),
            requantise.second.eq(self._lanes(m, second, index)),
        ]

    def _gather(self, m: Module, requantise: Requantise, held: data.View, active: Signal) -> None:
        """Assemble the results of all lane groups to a vector, write it, and signal after the last one."""
        tag, vector = requantise.result_tag, Signal(self.config.widths.vector, reset_less=True)
        ended, signalled = Signal(), Signal()
        with m.Switch(tag.index):
            for index in range(self.config.groups):
                with m.Case(index):
                    m.d.sync += vector.word_select(index, 8 * self.config.lanes).eq(requantise.results)
        m.d.sync += [
            self.write.valid.eq(requantise.result_valid & tag.last),
            self.write.address.eq(tag.dst),
            ended.eq(requantise.result_valid & tag.end),
            signalled.eq(ended),
            self.signal.eq(Mux(ended, held.signal, 0)),
        ]
        with m.If(requantise.result_valid & tag.end):
            m.d.sync += active.eq(0)
        m.d.comb += [self.write.data.eq(vector), self.busy.eq(active | ended | signalled)]

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
