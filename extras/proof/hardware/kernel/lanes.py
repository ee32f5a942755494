"""Properties of the kernel engine's lanes: operands, arithmetic, and where results go."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data

from weft.extras.proof.hardware.pipelines import ago, implies
from weft.extras.proof.hardware.property import CutBench, Induction, Property
from weft.extras.proof.hardware.requantise import half_even
from weft.extras.proof.hardware.smallest import KERNEL_SMALLEST
from weft.hdl.isa.config import Config
from weft.hdl.isa.kernel import COMPARISONS, INT32_MIN, MULTIPLIER_BITS, SERIAL, SOURCES, Op
from weft.hdl.isa.operands import KERNEL_LATENCY, READ_LATENCY
from weft.hdl.vector.kernel import KernelLanes
from weft.hdl.vector.kernel_sequence import issue_layout

OPERAND_CYCLES = READ_LATENCY + 2
"""Cycles from an issue to its operands."""
RESULT_CYCLES = KERNEL_LATENCY - OPERAND_CYCLES
"""Cycles from the operands to the result."""
_LOW = MULTIPLIER_BITS - 1
"""Number of low bits of the first factor, whose product is separate: the proof is cut there."""
_PRODUCT = 32 + MULTIPLIER_BITS
_PRODUCT_CYCLES = 2


class LanesBench(CutBench, unit=KernelLanes):
    """The lanes in free inputs: each cycle has any micro-operation, for any place, or none. Registers are free, too."""

    def issued(self, m: Module, cycles: int) -> Any:
        """Return the issue of `cycles` cycles ago; there is none after a reset."""
        layout = issue_layout(self.config)
        name = f"issued{cycles}"
        return data.View(layout, ago(m, self.dut.issue.as_value(), cycles, name, reset=True))

    def lane(self, path: str, lane: int, width: int = 32) -> Value:
        """Return a lane of a signal inside the unit."""
        return self.peek(path).word_select(lane, width)

    def element(self, issue: Any, lane: int) -> Value:
        """Return the number of a lane's element in its vector."""
        return issue.entry.group * self.config.lanes + lane if self.config.groups > 1 else Value.cast(lane)


class PlainBench(LanesBench):
    """ADD, SUB, RSUB, MIN, MAX, LT, EQ, SELECT, INDEX and TABLE follow from their operands by their definition, in the
    documented cycle and for all values.

    Operands and predicate are the contents of the unit's registers.
    """

    def watch(self, m: Module) -> None:
        for lane in range(self.config.lanes):
            self._claim_lane(m, lane)

    def _claim_lane(self, m: Module, lane: int) -> None:
        issue, last = self.issued(m, OPERAND_CYCLES), self.issued(m, KERNEL_LATENCY)
        a, b = (self.lane(name, lane).as_signed() for name in ("first", "second"))
        shifted = (a << issue.op.shift)[:32].as_signed()  # S
        number = issue.column * self.config.n + self.element(issue, lane)
        less, same = shifted < b, shifted == b
        results = {
            Op.ADD: shifted + b,
            Op.SUB: shifted - b,
            Op.RSUB: b - shifted,
            Op.MIN: Mux(less, shifted, b),
            Op.MAX: Mux(less, b, shifted),
            Op.SELECT: Mux(self.lane("predicate", lane, 1), shifted, b),
            Op.INDEX: b + number,
        }
        result, flag = self.lane("result", lane), self.lane("flags", lane, 1)
        for op, value in results.items():
            due = ago(m, value.as_unsigned()[:32], RESULT_CYCLES, f"{op.name}{lane}")
            self.claim(f"{op.name} of lane {lane}", implies(last.valid & (last.op.op == op), result == due))
            self.cover(f"{op.name} of lane {lane}", (last.op.op == op) & last.valid & (result == 77))
        for op, value in {Op.LT: less, Op.EQ: same}.items():
            due = ago(m, value, RESULT_CYCLES, f"{op.name}{lane}")
            self.claim(f"{op.name} of lane {lane}", implies(last.valid & (last.op.op == op), flag == due))
            self.cover(f"{op.name} of lane {lane}", (last.op.op == op) & last.valid & flag)
        if self.config.lookup_tables:
            self._claim_table(m, lane, a, issue, last, result)

    def _claim_table(self, m: Module, lane: int, a: Value, issue: Any, last: Any, result: Value) -> None:
        """Claim that the entry for the first operand, as int8, is requested, and comes two cycles later."""
        dut = self.dut
        least, most = -128, 127
        limited = Mux(a < least, least, Mux(a > most, most, a))
        self.claim(f"entry of lane {lane}", dut.index[lane] == (limited + 128)[:8])
        self.claim(f"table of lane {lane}", dut.table == issue.op.immediate[: len(dut.table)])
        entry = ago(m, dut.entries[lane], RESULT_CYCLES - 2, f"entry{lane}").as_signed()
        result = result.as_signed()
        self.claim(f"TABLE of lane {lane}", implies(last.valid & (last.op.op == Op.TABLE), result == entry))
        self.cover(f"TABLE of lane {lane}", (last.op.op == Op.TABLE) & last.valid & (result == -3))


class ProductBench(LanesBench):
    """The register of MUL's product holds the exact product of its operands, as the sum of the products of parts, and
    with it comes by how much it is to be shifted, for all operands.

    The proof is cut at the registers of the products of the first factor's low and high bits, and at the register of
    their sum. Multiplication is distributive, so the sum is the product of the factors.
    """

    def watch(self, m: Module) -> None:
        for lane in range(self.config.lanes):
            self._claim_product(m, lane)

    def _claim_product(self, m: Module, lane: int) -> None:
        a, b = (self.lane(name, lane) for name in ("first", "second"))
        factor = b[:MULTIPLIER_BITS].as_signed()
        low, high = (self.peek(f"{name}_{lane}") for name in ("low", "high"))
        self.claim(f"low bits {lane}", low == ago(m, a[:_LOW] * factor, 1, f"low{lane}"))
        self.claim(f"high bits {lane}", high == ago(m, a[_LOW:].as_signed() * factor, 1, f"high{lane}"))
        product = self.peek(f"product_{lane}")
        whole = (low + (high << _LOW))[:_PRODUCT].as_signed()
        self.claim(f"sum of products {lane}", product == ago(m, whole, 1, f"sum{lane}"))
        op = self.issued(m, OPERAND_CYCLES).op
        exponent = Mux(op.scaled, b[MULTIPLIER_BITS : MULTIPLIER_BITS + 6], 0)
        total = op.shift + exponent
        due = ago(m, Mux(total > 63, 63, total), _PRODUCT_CYCLES, f"places{lane}")
        self.claim(f"places {lane}", self.peek(f"shift_{lane}_1") == due)
        self.cover(f"a product {lane}", product == -(3 << 40))


class RoundingBench(LanesBench):
    """Any product, shifted by any number, is rounded half to even or down and saturated to 32 bits: that is the result
    of MUL, in the documented cycle.

    The proof begins at the register of the product, with any content.
    """

    def watch(self, m: Module) -> None:
        for lane in range(self.config.lanes):
            self._claim_rounding(m, lane)

    def _claim_rounding(self, m: Module, lane: int) -> None:
        cycles = RESULT_CYCLES - _PRODUCT_CYCLES
        op = self.issued(m, OPERAND_CYCLES + _PRODUCT_CYCLES).op
        product, shift = self.peek(f"product_{lane}"), self.peek(f"shift_{lane}_1")
        nearest = half_even(m, product, shift, f"nearest{lane}")
        value = Signal(signed(_PRODUCT + 1), name=f"value{lane}")
        m.d.comb += value.eq(Mux(op.floor, product >> shift, nearest))
        most = -INT32_MIN - 1
        limited = Mux(value > most, most, Mux(value < INT32_MIN, INT32_MIN, value))[:32].as_signed()
        last = self.issued(m, KERNEL_LATENCY)
        multiplied = last.valid & (last.op.op == Op.MUL)
        result = self.lane("result", lane).as_signed()
        due = ago(m, limited, cycles, f"result{lane}")
        self.claim(f"MUL of lane {lane}", implies(multiplied, result == due))
        for name, seen in {"largest": most, "least": INT32_MIN, "some": 77}.items():
            self.cover(f"MUL of lane {lane} {name}", multiplied & (result == seen))


class ResultBench(LanesBench):
    """Results go to the vector, the register or the predicate that their micro-operation names, saturated or unchanged,
    and to no other, `KERNEL_LATENCY` cycles after the issue. The end comes with the last result.

    Results of serial operations come from the divider when they are complete. Assumed: results of serial operations and
    of comparisons do not go to memory, as the checker guarantees. The sequence keeps results of the divider and of the
    pipeline apart; if they coincide, the divider's are written.
    """

    def watch(self, m: Module) -> None:
        dut, config = self.dut, self.config
        last = self.issued(m, KERNEL_LATENCY)
        op = last.op
        compares = Cat(op.op == kind for kind in COMPARISONS).any()
        serial = (op.op == Op.RECIPROCAL) | (op.op == Op.RSQRT)
        no_bytes = Cat(dut.issue.op.op == kind for kind in (*COMPARISONS, Op.RECIPROCAL, Op.RSQRT)).any()
        self.assume(~(dut.issue.op.d_memory & no_bytes))
        to_memory = last.valid & op.d_memory
        self.claim("a vector", dut.results.write == (to_memory & (last.entry.group == config.groups - 1)))
        self.claim("end", dut.results.end == (last.valid & last.end))
        self.claim("lane group", dut.results.index == last.entry.group)
        self.claim("address", dut.results.dst == last.dst)
        for lane in range(config.lanes):
            value = self.lane("result", lane).as_signed()
            limited = Mux(value > 127, 127, Mux(value < -128, -128, value))[:8]
            self.claim(f"byte {lane}", dut.results.bytes[lane] == limited)
        divided, word = self.peek("divide.write"), self.peek("divide.packed")
        entry = self.peek("divide.entry")
        whole = Cat(
            Cat(word.word_select(lane, 24), Value.cast(0).replicate(8)) for lane in range(config.lanes)
        )
        plain = last.valid & ~op.d_memory & ~compares & ~serial
        written = {name: self.peek(f"predicates.store__{name}") for name in ("en", "addr", "data")}
        self.claim("predicates written", written["en"] == (last.valid & compares))
        self.claim(
            "predicates where", implies(written["en"], written["addr"] == register_place(config, last))
        )
        self.claim("predicates what", written["data"] == self.peek("flags"))
        self.cover("predicates written", written["en"] & (written["addr"] == 5))
        where = Mux(divided, entry, register_place(config, last, op.d))
        for name in "ab":
            enable, address, word = (
                self.peek(f"register_{name}_copy.store__{end}") for end in ("en", "addr", "data")
            )
            self.claim(f"register {name} written", enable == (plain | divided))
            self.claim(f"register {name} where", implies(enable, address == where))
            content = Mux(divided, whole, self.peek("result"))
            self.claim(f"register {name} what", implies(enable, word == content))
            self.cover(f"register {name} written", enable & ~divided & (address == 19))
        self.cover("a vector", dut.results.write & dut.results.end & (dut.results.dst == 3))


def register_place(config: Config, issue: Any, register: Value | None = None) -> Value:
    """Return the place of a register, or of the predicate, of a row's lane group."""
    bits = (config.groups - 1).bit_length()
    where = Cat(issue.entry.group[:bits], issue.entry.row)
    return where if register is None else Cat(where, register)


class OperandsBench(LanesBench):
    """A lane's operands are the register, the exchanged element of a register, the number, or the data that was read,
    with or without its sign, or the substitute for elements after the row's end. Each operand belongs to its row and
    lane group, and comes in the documented cycle. The divider gets the operands of its micro-operations.

    Assumed: elements are not exchanged over more than a vector, as the checker guarantees. Properties of the sequence
    prove that the registers of a micro-operation are written before its issue.
    """

    def watch(self, m: Module) -> None:
        config = self.config
        asked, issue = self.issued(m, READ_LATENCY), self.issued(m, READ_LATENCY + 1)
        op = self.dut.issue.op
        self.assume(~self.dut.issue.valid | op.b_immediate | (1 << op.swap <= config.n))
        self._claim_addresses(m, asked)
        group = self.issued(m, READ_LATENCY - 1).entry.group
        self.claim("lane group of what is read", self.dut.group == group)
        registers = [self.peek(f"register_{name}") for name in "ab"]
        flags = self.peek("predicates.fetch__data")
        self.claim("predicate", self.peek("predicate") == ago(m, flags, 1, "flags"))
        for lane in range(config.lanes):
            self._claim_first(m, lane, issue, registers[0].word_select(lane, 32))
            self._claim_second(m, lane, issue, registers[1])
        self._claim_divider(m)

    def _claim_addresses(self, m: Module, asked: Any) -> None:
        """Claim the addresses of registers. With an exchange over more than a lane group, register b belongs to another
        group.
        """
        lanes = self.config.lanes
        memories = ("register_a_copy", "register_b_copy", "predicates")
        first, second, flags = (self.peek(f"{memory}.fetch__addr") for memory in memories)
        self.claim("register a", first == register_place(self.config, asked, asked.op.a))
        self.claim("place of the predicate", flags == register_place(self.config, asked))
        other = (asked.entry.group * lanes ^ self._distance(asked.op)) // lanes
        group = Mux(asked.op.b_immediate, asked.entry.group, other)
        bits = (self.config.groups - 1).bit_length()
        due = Cat(group[:bits], asked.entry.row, asked.op.b)
        self.claim("register b", implies(asked.valid, second == due))
        self.cover("register b", asked.valid & (asked.op.swap == 1) & (second == 21))

    def _distance(self, op: Any) -> Value:
        """Return the distance of an exchange: element j is replaced by element ``j ^ distance``."""
        return ((1 << op.swap) >> 1)[: self.config.n.bit_length()]

    def _claim_first(self, m: Module, lane: int, issue: Any, register: Value) -> None:
        dut, op = self.dut, issue.op
        byte, row = dut.vectors.word_select(lane, 8), dut.rows.word_select(lane, 32)
        operand = op.a % len(SOURCES)
        of_accumulator = ~dut.source & (operand == 0)
        vector = Mux(op.unsigned, byte, byte.as_signed())
        after_end = issue.tail & (dut.tail != 0) & (self.element(issue, lane) >= dut.tail)
        read = Mux(of_accumulator, row.as_signed(), vector)
        read = Mux(after_end, Mux(op.fill, INT32_MIN, 0), read)
        due = Mux(op.a_memory, read, register.as_signed())[:32]
        first = self.lane("first", lane)
        self.claim(f"first of lane {lane}", first == ago(m, due, 1, f"first{lane}"))
        read = ago(m, op.a_memory & issue.valid, 1, f"read{lane}", reset=True)
        filled = read & ago(m, after_end & op.fill, 1, f"filled{lane}", reset=True)
        if lane or self.config.groups > 1:  # a row has one element at least
            self.cover(f"filled in lane {lane}", filled & (first.as_signed() == INT32_MIN))
        unsigned = read & ago(m, op.unsigned & ~after_end & ~of_accumulator, 1, f"unsigned{lane}", reset=True)
        self.cover(f"an unsigned byte in lane {lane}", unsigned & (first == 200))

    def _claim_second(self, m: Module, lane: int, issue: Any, register: Value) -> None:
        op, lanes = issue.op, self.config.lanes
        exchanged = register.word_select((lane ^ self._distance(op)) % lanes, 32)
        due = Mux(op.b_immediate, op.immediate, exchanged.as_signed())[:32]
        second = self.lane("second", lane)
        there = ago(m, issue.valid, 1, f"there{lane}", reset=True)
        self.claim(f"second of lane {lane}", implies(there, second == ago(m, due, 1, f"second{lane}")))
        number = ago(m, op.b_immediate, 1, f"number{lane}", reset=True)
        self.cover(f"a number in lane {lane}", there & number & (second.as_signed() == -5))

    def _claim_divider(self, m: Module) -> None:
        """Claim that the divider gets its micro-operations with their first operands."""
        issue, valid = self.issued(m, OPERAND_CYCLES), self.peek("divide.valid")
        serial = Cat(issue.op.op == kind for kind in SERIAL).any()
        self.claim("to the divider", valid == (issue.valid & serial))
        for lane in range(self.config.lanes):
            same = self.lane("divide.elements", lane) == self.lane("first", lane)
            self.claim(f"lane {lane} to the divider", same)
        self.claim("with its place", self.peek("divide.issue") == Value.cast(issue))
        self.cover("to the divider", valid)


_PARTS: dict[type[LanesBench], str] = {
    OperandsBench: "operands",
    PlainBench: "results without a product",
    ProductBench: "products",
    RoundingBench: "rounding",
    ResultBench: "where results go",
}


class WholeBench(OperandsBench, PlainBench, ProductBench, RoundingBench, ResultBench):
    """Operands, results and their destinations follow from the issued micro-operation, by its definition, in the
    documented cycle and for all values; a product is multiplied exactly, in two parts.

    All parts in one bench: one part detects faults that another does not.
    """

    def watch(self, m: Module) -> None:
        for part in _PARTS:
            part.watch(self, m)


def properties() -> Iterator[Property]:
    unit, method = "vector/kernel_lanes", Induction(KERNEL_LATENCY + 2)
    for kind, name in _PARTS.items():
        yield kind.proves(unit, f"{name}, 2 lanes", method, KERNEL_SMALLEST, part=True)
    config = KERNEL_SMALLEST.replace(lanes=1)
    yield WholeBench.proves(unit, "micro-operations, 2 lane groups", method, config, proven=("divide",))
