"""The second stage of the vector unit: what arrives from the memories, as operands of requantisation."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.isa import PARAMETER_VECTORS, Reduce, Source
from weft.hdl.isa.config import Config
from weft.hdl.isa.parameters import BIAS, MANTISSA, SHIFT
from weft.hdl.vector.requantise import column_layout
from weft.hdl.vector.vec_kinds import bytewise
from weft.hdl.vector.vec_streams import arrival_layout, index_range, instruction_layout, operands_layout

_PARTS = {"bias": BIAS, "mantissa": MANTISSA, "shift": SHIFT}


class VecOperands(wiring.Component):
    """Keeps the parameter block and the second operand, and chooses the columns of each element's lane group.

    Parameters
    ----------
    config : Config

    Members
    -------
    current : In(instruction_layout(config))
    arrival : In(arrival_layout(config))
        What `scratchpad` and `accumulator` are in this cycle.
    group : In(index_range(config))
        The lane group of that.
    scratchpad, accumulator : In(vector), In(row)
    vectors, rows : Out(8 * lanes), Out(32 * lanes)
        The lane group of both, in the next cycle.
    clear : In(1)
        Parameters become 0. With softmax only.
    normalising : In(1)
        Bytes of the scratchpad are probabilities. With softmax only.
    scale : In(column_layout)
        Parameters instead of those that were read, which are 0; else 0.
    operands : Out(operands_layout(config))
        Two cycles after the arrival.
    row : Out(1)
        The first element of a row enters requantisation in the next cycle; from a register. With softmax only.
    byte : Out(8)
        The element's lane of `operands`. With tables of any kind only.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        softmax = {
            "clear": In(1),
            "normalising": In(1),
            "scale": In(column_layout(config)),
            "row": Out(1),
        }
        super().__init__(
            {
                "current": In(instruction_layout(config)),
                "arrival": In(arrival_layout(config)),
                "group": In(index_range(config)),
                "vectors": Out(8 * config.lanes),
                "rows": Out(32 * config.lanes),
                "scratchpad": In(config.widths.vector),
                "accumulator": In(config.widths.row),
                "operands": Out(operands_layout(config)),
                **(softmax if config.softmax else {}),
                **({"byte": Out(8)} if bytewise(config) else {}),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        arrival, element, operands = self.arrival, self.arrival.element, self.operands
        width = self.config.widths.vector
        planes = Signal(data.ArrayLayout(width, PARAMETER_VECTORS), reset_less=True)
        second = Signal(width, reset_less=True)
        with m.If(arrival.parameter):
            m.d.sync += planes.as_value().eq(Cat(planes.as_value()[width:], self.scratchpad))
        with m.If(arrival.second):
            m.d.sync += second.eq(self.scratchpad)

        # A cycle to choose lanes, one to choose among sources.
        nearer, chosen = (Signal(element.shape(), name=name) for name in ("nearer", "chosen"))
        nearer_second = Signal(8 * self.config.lanes, reset_less=True)
        chosen_second = Signal.like(nearer_second, reset_less=True)
        near, valid = Signal(), Signal()
        second_lanes = self._lanes(m, second, element.tag.index)
        m.d.sync += [
            near.eq(arrival.valid),
            nearer.eq(element),
            nearer_second.eq(second_lanes),
            valid.eq(near),
            chosen.eq(nearer),
            chosen_second.eq(nearer_second),
        ]
        self._elements(m, nearer.in_range, second_lanes)
        m.d.comb += [operands.valid.eq(valid), operands.second.as_value().eq(chosen_second)]
        m.d.comb += [operands[name].eq(chosen[name]) for name in ("first", "last", "tag")]
        self._columns(m, planes, chosen.tag.index)
        if self.config.softmax:
            with m.If(self.clear):
                m.d.sync += planes.eq(0)
            m.d.sync += self.row.eq(arrival.valid & element.row)
        if bytewise(self.config):
            m.d.comb += self.byte.eq(operands.elements[chosen.lane][:8])
        return m

    def _elements(self, m: Module, in_range: Value, second: Value) -> None:
        """The lane group of what arrives, two cycles later; `second` is that of the second operand."""
        current, arriving = self.current, self.arrival.element.in_range
        rows, vectors = (
            Signal.like(value, name=name, reset_less=True)
            for value, name in ((self.rows, "row_lanes"), (self.vectors, "vector_lanes"))
        )
        lanes = self._lanes(m, self.scratchpad, self.group)
        m.d.sync += [rows.eq(self._lanes(m, self.accumulator, self.group)), vectors.eq(lanes)]
        m.d.comb += [self.rows.eq(rows), self.vectors.eq(vectors)]
        pad = Signal(signed(32))
        m.d.comb += pad.eq(Mux(current.settings.reduce == Reduce.MAX, -(1 << 31), current.pad))
        elements = Signal.like(self.operands.elements, name="elements", reset_less=True)
        for lane in range(self.config.lanes):
            vector = self._probability(vectors.word_select(lane, 8).as_signed())
            row = rows.word_select(lane, 32).as_signed()
            read = Mux(current.source == Source.SCRATCHPAD, vector, row)
            m.d.sync += elements[lane].eq(Mux(in_range, read, pad))
            element: Value = elements[lane]
            if self.config.multiply:
                element = Mux(current.multiply, self._product(m, lane, lanes, second, arriving), element)
            m.d.comb += self.operands.elements[lane].eq(element)

    def _product(self, m: Module, lane: int, vector: Value, second: Value, in_range: Value) -> Value:
        """An element of what arrives times that of the second operand, two cycles later: zero points are taken off in
        the first, and there is nothing but a register behind the multiplier."""
        factors = [
            Signal(signed(9), name=f"{name}_{lane}", reset_less=True) for name in ("factor", "second_factor")
        ]
        product = Signal(signed(18), name=f"product_{lane}", reset_less=True)
        bytes_ = (value.word_select(lane, 8).as_signed() for value in (vector, second))
        zeros = self.current.pad, self.current.settings.b_zero
        for factor, byte, zero in zip(factors, bytes_, zeros, strict=True):
            m.d.sync += factor.eq(Mux(in_range, byte - zero, 0))
        m.d.sync += product.eq(factors[0] * factors[1])
        return product

    def _columns(self, m: Module, planes: data.View, index: Value) -> None:
        """Parameters of the lane group `index`, or `scale`."""
        parts = [self._lanes(m, plane, index) for plane in planes]
        for lane in range(self.config.lanes):
            word = Signal(8 * PARAMETER_VECTORS, name=f"word_{lane}")
            m.d.comb += word.eq(Cat(part.word_select(lane, 8) for part in parts))
            for name, part in _PARTS.items():
                # One of the two is 0.
                scale = self.scale[name] if self.config.softmax else 0
                m.d.comb += self.operands.columns[lane][name].eq(word[part.bits] | scale)

    def _probability(self, vector: Value) -> Value:
        """A byte of the scratchpad as an element; for Normalise a probability, stored less 128 if it has 8 bits."""
        if self.config.probability_bits != 8:
            return vector
        return Cat(vector[:7], vector[7] ^ self.normalising, (vector[7] & ~self.normalising)).as_signed()

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
