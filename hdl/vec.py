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
        source = max(config.widths.scratchpad_address, config.widths.accumulator_address)
        self._queue = data.StructLayout(
            {
                "valid": 1,
                "ask_second": 1,
                "ask_source": 1,
                "second": config.widths.scratchpad_address,
                "source": source,
                "element": self._element,
            }
        )
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

        # The element to read next, so that neither address nor range check comes before or behind an arbiter.
        queue = Signal(self._queue)
        granted = self._ask(m, held, queue, nest.load)
        self._fill(m, nest, held, queue, granted)
        arrival = granted
        for stage in range(ports.READ_LATENCY):
            following = Signal(self._request, name=f"arrival_{stage}")
            m.d.sync += following.eq(arrival)
            arrival = following
        self._arrive(m, requantise, held, arrival)
        self._gather(m, requantise, held, active)
        return m

    def _ask(self, m: Module, held: data.View, queue: data.View, load: Value) -> data.View:
        """Ask for parameters and for what stands in `queue`; returns what is granted in this cycle."""
        scratchpad, accumulator = self.scratchpad, self.accumulator
        left, address = Signal(range(PARAMETER_VECTORS + 1)), Signal.like(scratchpad.address)
        loading, turn, from_scratchpad = Signal(), Signal(), Signal()
        granted = Signal(self._request)
        source_ready = Mux(from_scratchpad, scratchpad.ready, accumulator.ready)
        m.d.comb += [
            from_scratchpad.eq(held.source == Source.SCRATCHPAD),
            loading.eq(left.any()),
            turn.eq(queue.valid & ~loading & ~queue.ask_second),
            scratchpad.valid.eq(
                loading | queue.valid & (queue.ask_second | queue.ask_source & from_scratchpad)
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
        with m.If(load):
            m.d.sync += [left.eq(PARAMETER_VECTORS), address.eq(self.instruction.payload.params)]
        with m.Elif(granted.parameter):
            m.d.sync += [left.eq(left - 1), address.eq(address + 1)]
        return granted

    def _fill(self, m: Module, nest: LoopNest, held: data.View, queue: data.View, granted: data.View) -> None:
        """Step the loop nest into `queue` whenever that is free."""
        y, x, first, last = nest.values.y, nest.values.x, nest.first, nest.last
        grouped = self.config.groups > 1
        in_range, starts, ends = Signal(), Signal(), Signal()
        element = queue.element
        index = Signal.like(element.tag.index)  # the lane group that the nest stands on; ends where it began
        m.d.comb += [
            in_range.eq(~y[-1] & (y < held.h) & ~x[-1] & (x < held.w)),
            starts.eq(first.ry & first.rx),
            ends.eq(last.ry & last.rx),
            nest.step.eq(nest.active & (~queue.valid | granted.valid)),
        ]
        with m.If(granted.second):
            m.d.sync += queue.ask_second.eq(0)
        with m.If(granted.valid):
            m.d.sync += queue.valid.eq(0)
        with m.If(nest.step):
            m.d.sync += [
                queue.valid.eq(1),
                queue.ask_second.eq(held.settings.add & starts & (first.g if grouped else 1)),
                queue.ask_source.eq(in_range),
                queue.source.eq(nest.values.src),
                queue.second.eq(nest.values.b),
                element.in_range.eq(in_range),
                element.first.eq(starts),
                element.last.eq(ends),
                element.tag.index.eq(index),
                element.tag.last.eq(last.g if grouped else 1),
                element.tag.end.eq(nest.last_all),
                element.tag.dst.eq(nest.values.dst),
            ]
            if grouped:
                m.d.sync += index.eq(index + ends)

    def _arrive(self, m: Module, requantise: Requantise, held: data.View, arrival: data.View) -> None:
        """Keep parameters and second operand, and choose the columns of the element's lane group."""
        width, element = self.config.widths.vector, arrival.element
        planes = Signal(data.ArrayLayout(width, PARAMETER_VECTORS), reset_less=True)
        second = Signal(width, reset_less=True)
        with m.If(arrival.parameter):
            m.d.sync += planes.as_value().eq(Cat(planes.as_value()[width:], self.scratchpad.data))
        with m.If(arrival.second):
            m.d.sync += second.eq(self.scratchpad.data)

        rows = self._lanes(m, self.accumulator.data, element.tag.index)
        vectors = self._lanes(m, self.scratchpad.data, element.tag.index)
        pad = Signal(signed(32))
        m.d.comb += pad.eq(Mux(held.settings.reduce == Reduce.MAX, -(1 << 31), held.pad))
        elements = Signal.like(requantise.elements, reset_less=True)
        for lane in range(self.config.lanes):
            vector, row = vectors.word_select(lane, 8).as_signed(), rows.word_select(lane, 32).as_signed()
            read = Mux(held.source == Source.SCRATCHPAD, vector, row)
            m.d.sync += elements[lane].eq(Mux(element.in_range, read, pad))
        valid, chosen = Signal(), Signal(self._element, name="chosen")
        m.d.sync += [valid.eq(arrival.valid), chosen.eq(element)]

        m.d.comb += [
            requantise.valid.eq(valid),
            requantise.first.eq(chosen.first),
            requantise.last.eq(chosen.last),
            requantise.tag.eq(chosen.tag),
            requantise.elements.eq(elements),
            requantise.second.eq(self._lanes(m, second, chosen.tag.index)),
        ]
        parts = [self._lanes(m, plane, chosen.tag.index) for plane in planes]
        for lane in range(self.config.lanes):
            word = Signal(8 * PARAMETER_VECTORS, name=f"word_{lane}")
            column = requantise.columns[lane]
            m.d.comb += [
                word.eq(Cat(part.word_select(lane, 8) for part in parts)),
                column.bias.eq(word[:32]),
                column.mantissa.eq(word[32:56]),
                column.shift.eq(word[56:62]),
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
