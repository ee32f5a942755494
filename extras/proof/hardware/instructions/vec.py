"""Properties of VEC after its reads: operands, the path of results, and writes."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value

from weft.extras.proof.hardware.pipelines import ago, implies, latch, watch_cycle
from weft.extras.proof.hardware.property import Bench, Induction, proves
from weft.extras.proof.hardware.smallest import SMALLEST
from weft.hdl.isa import Reduce, Source
from weft.hdl.isa.operands import READ_LATENCY
from weft.hdl.vector.requantise import LATENCY
from weft.hdl.vector.vec import VecOperands, VecUnit, VecWriter
from weft.hdl.vector.vec_streams import arrival_layout, instruction_layout, results_layout

_OPERANDS = 2
"""Cycles from the arrival of data to the input of requantisation."""
_PLAIN = SMALLEST.replace(lanes=1, lookup_tables=0)


@proves("vector/vec_operands", "operands of VEC", Induction(4), _PLAIN.replace(probability_bits=0))
@proves(
    "vector/vec_operands",
    "operands of SOFTMAX, NORMALISE and VEC",
    Induction(4),
    _PLAIN.replace(probability_bits=8),
    claim="As for VEC alone; for NORMALISE, bytes are probabilities that SOFTMAX stored, and parameters are "
    "cleared and replaced by what it has for them; the first element of a row is marked.",
)
class OperandsBench(Bench, unit=VecOperands, drives=("group",)):
    """For each element requantisation gets what was read of it, or what stands for it out of range, or its product with
    the second operand; with the second operand's byte and the parameters of its column; for all values.

    The inputs are free. Assumed, as the reader guarantees: the fields of an instruction are present in the two cycles
    after its elements' arrival, and with `multiply` also in the cycle of arrival; the lane group is that of the
    arriving element.
    """

    def watch(self, m: Module) -> None:
        dut = self.dut
        arrival, current = dut.arrival, dut.current
        self.element = element = arrival.element
        m.d.comb += dut.group.eq(element.tag.index)
        came = ago(m, arrival.valid, _OPERANDS, "came", reset=True)
        before = ago(m, current.as_value(), 1, "fields")
        twice = ago(m, before, 1, "fields_twice")
        here = current.as_value()
        self.assume(~came | (here == before))
        self.assume(~(came & current.multiply) | (before == twice))
        self.claim("operands for each element", dut.operands.valid == came)
        for name in ("first", "last", "tag"):
            value = Value.cast(element[name])
            due = ago(m, value, _OPERANDS, name, reset=True)
            self.claim(name, Value.cast(dut.operands[name]) == due)
        self.index = ago(m, element.tag.index, _OPERANDS, "index", reset=True)
        self._claim_columns(m)
        self._claim_elements(m, came)
        if self.config.softmax:
            row = ago(m, arrival.valid & element.row, 1, "row", reset=True)
            self.claim("the first element of a row", dut.row == row)

    def _claim_columns(self, m: Module) -> None:
        """Claim that a column's parameters are its bytes of the last parameter vectors that were read."""
        dut = self.dut
        vectors = [Signal(self.config.widths.vector, name=f"vector{k}", reset_less=True) for k in range(8)]
        with m.If(dut.arrival.parameter):
            m.d.sync += [to.eq(of) for to, of in zip(vectors, [*vectors[1:], dut.scratchpad], strict=True)]
        if self.config.softmax:
            with m.If(dut.clear):
                m.d.sync += Cat(*vectors).eq(0)
        planes = self.peek("planes")
        self.claim("the last vectors of parameters", planes == Cat(*vectors))
        for lane in range(self.config.lanes):
            place = self.index * self.config.lanes + lane
            word = Cat(*(vector.word_select(place, 8) for vector in vectors))
            column = dut.operands.columns[lane]
            parts = {
                "bias": word[:32],
                "mantissa": word[32 : 32 + len(column.mantissa)],
                "shift": word[56:62],
            }
            for name, part in parts.items():
                value, scale = (Value.cast(of).as_unsigned() for of in (column[name], self._scale(name)))
                self.claim(f"{name} {lane}", value == (part | scale))

    def _claim_elements(self, m: Module, came: Value) -> None:
        """Claim the elements: the value that was read, or its substitute if it is out of range.

        With `multiply`, an element is the product with the second operand's byte, both less their zero points.
        """
        dut, config, current = self.dut, self.config, self.dut.current
        second = latch(
            m, dut.arrival.second, dut.scratchpad, config.widths.vector, "last_second", reset=False
        )
        self.claim("the last second operand", self.peek("second") == second)
        group = self.element.tag.index
        inside = ago(m, self.element.in_range, _OPERANDS, "inside", reset=True)
        nearer = ago(m, self.element.in_range, 1, "nearer", reset=True)
        self.claim("in range on the way", self._nearer("in_range") == nearer)
        for lane in range(config.lanes):
            place = group * config.lanes + lane
            other = ago(m, second.word_select(place, 8), _OPERANDS, f"other{lane}")
            self.claim(f"second {lane}", dut.operands.second[lane].as_unsigned() == other)
            row, vector = dut.accumulator.word_select(place, 32), dut.scratchpad.word_select(place, 8)
            for name, width, value in (("row_lanes", 32, row), ("vector_lanes", 8, vector)):
                register = self.peek(name).word_select(lane, width)
                self.claim(f"{name} {lane}", register == ago(m, value, 1, f"{name}{lane}"))
            row = ago(m, row, _OPERANDS, f"row{lane}").as_signed()
            vector = self._element(m, ago(m, vector, _OPERANDS, f"vector_of{lane}").as_signed())
            missing = Mux(current.settings.reduce == Reduce.MAX, -(1 << 31), current.pad)
            read = Mux(current.source == Source.SCRATCHPAD, vector, row)
            element = Mux(inside, read, missing)
            expected = Mux(
                current.multiply, self._product(m, lane, group * config.lanes + lane, second), element
            )
            self.claim(f"element {lane}", ~came | (dut.operands.elements[lane] == expected))
            self.cover(f"a product {lane}", came & current.multiply & (dut.operands.elements[lane] < -300))
            self.cover(f"an element out of range {lane}", came & ~inside & ~current.multiply)

    def _scale(self, name: str) -> Value:
        """Return the part of a column that NORMALISE adds to parameters."""
        scale: Value = Value.cast(self.dut.scale[name]) if self.config.softmax else Const(0)
        return scale

    def _element(self, m: Module, vector: Value) -> Value:
        """Return a byte as an element; NORMALISE reads probabilities, which are stored less 128."""
        if not self.config.softmax:
            return vector
        normalising = ago(m, self.dut.normalising, 1, "normalising")
        return Mux(normalising, vector + 128, vector)

    def _product(self, m: Module, lane: int, place: Value, second: Value) -> Value:
        """Claim both factors, and then their product: solvers prove products equal only if their operands are."""
        fields, inside = self.dut.current, self.element.in_range
        bytes_ = (value.word_select(place, 8).as_signed() for value in (self.dut.scratchpad, second))
        factors = [self.peek(f"{name}_{lane}") for name in ("factor", "second_factor")]
        for number, (factor, byte, zero) in enumerate(
            zip(factors, bytes_, (fields.pad, fields.settings.b_zero), strict=True)
        ):
            due = ago(m, Mux(inside, byte - zero, 0), 1, f"factor{number}_{lane}").as_signed()
            self.claim(f"factor {number} of lane {lane}", factor == due)
        product = self.peek(f"product_{lane}")
        self.claim(f"product {lane}", product == ago(m, factors[0] * factors[1], 1, f"product{lane}"))
        return product

    def _nearer(self, name: str) -> Value:
        layout = self.element.shape()
        return layout(self.peek("nearer"))[name]


@proves("vector/vec_writer", "writes", Induction(4), _PLAIN)
class WriterBench(Bench, unit=VecWriter):
    """Results are written as they came, each lane group to its place in the vector and the vector to its address; an
    instruction is signalled when its last one can be read.

    The inputs are free; nothing is assumed.
    """

    def watch(self, m: Module) -> None:
        dut, results = self.dut, self.dut.results
        vector = Signal(self.config.widths.vector, reset_less=True)
        for group in range(self.config.groups):
            with m.If(results.index == group):
                m.d.sync += vector.word_select(group, 8 * self.config.lanes).eq(results.bytes)
        self.claim("written", dut.write.valid == ago(m, results.write, 1, "write", reset=True))
        self.claim("to its place", dut.write.address == ago(m, results.dst, 1, "dst", reset=True))
        self.claim("the lane groups that came last", dut.write.data == vector)
        ended = ago(m, results.end, 1, "end", reset=True)
        ended_before = ago(m, ended, 1, "ended_before", reset=True)
        mask = ago(m, Mux(results.end, dut.mask, 0), 2, "mask", reset=True)
        self.claim("signalled when it can be read", dut.signal == mask)
        self.claim("busy", dut.busy == (ended | ended_before))
        self.cover("a vector of two lane groups", dut.write.valid & (dut.write.data == 0x1234))
        self.cover("signalled", dut.signal == 0x8001)


@proves(
    "vector/vec",
    "the way of results",
    Induction(17),
    _PLAIN.replace(mantissa_bits=16),
    cover=30,
    proven=("reader", "vec_operands", "requantise", "writer"),
)
class WayBench(Bench, unit=VecUnit):
    """For each output whose operands were all read, and for nothing else, a vector is written a fixed number of cycles
    later, to the place that the instruction defines. Stages are connected.

    The inputs of the whole vector unit are free; nothing is assumed. One cycle, which may be any, is watched, with the
    element whose reads are complete in it.
    """

    def watch(self, m: Module) -> None:
        dut, config = self.dut, self.config
        layout, results = arrival_layout(config), results_layout(config)
        granted = layout(self.peek("reader.granted"))
        there = results(self.peek("writer.results"))
        out = READ_LATENCY + _OPERANDS + LATENCY
        age, (element,) = watch_cycle(m, self, out + 1, (granted, layout, "element"))
        tag = element.element.tag
        result = element.valid & element.element.last
        comes = age == out
        writes = result & tag.last
        self.claim("a result for each reduction", implies(comes, there.write == writes))
        self.claim("the last one of an instruction", implies(comes, there.end == (result & tag.end)))
        for name in ("index", "dst"):
            self.claim(name, implies(comes & result, there[name] == tag[name]))
        seen = age == out + 1
        self.claim("a write for each output", implies(seen, dut.write.valid == writes))
        self.claim("its place", implies(seen & writes, dut.write.address == tag.dst))
        self._claim_connections(m)
        self.cover("an output", seen & dut.write.valid & (dut.write.address == 5))

    def _claim_connections(self, m: Module) -> None:
        """Claim that each stage gets the output of the stage before it."""
        config, dut = self.config, self.dut

        fields = instruction_layout(config)
        for register in ("current", "instruction"):
            instruction = fields(self.peek(f"reader.{register}"))
            self.claim(f"{register}: results are written", ~instruction.bytewise)

        def same(name: str, one: str, other: str, width: int) -> None:
            self.claim(name, self.peek(one) == self.peek(other))

        same("operands of the data", "vec_operands.scratchpad", "scratchpad__data", config.widths.vector)
        same("rows of the data", "vec_operands.accumulator", "accumulator__data", config.widths.row)
        arrival = arrival_layout(config).size
        same("arrivals", "vec_operands.arrival", "reader.arrival", arrival)
        same("results", "requantise.results", "writer.results.bytes", 8 * config.lanes)
        same("masks", "reader.signal", "writer.mask", len(dut.signal))
        same("signals", "writer.signal", "signal", len(dut.signal))
