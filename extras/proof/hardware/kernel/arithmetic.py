"""The kernel engine's arithmetic: from the operands of a micro-operation in a lane to its result."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import data

from weft.extras.proof.hardware.arithmetic import half_even
from weft.extras.proof.hardware.cuts import CutBench
from weft.extras.proof.hardware.pipelines import ago, implies
from weft.extras.proof.hardware.smallest import SMALLEST
from weft.hdl.isa.config import Config
from weft.hdl.isa.kernel import COMPARISONS, INT32_MIN, MULTIPLIER_BITS, Op
from weft.hdl.isa.operands import KERNEL_LATENCY, READ_LATENCY
from weft.hdl.vector.kernel import KernelLanes
from weft.hdl.vector.kernel_sequence import issue_layout

KERNEL_SMALLEST = SMALLEST.replace(kernel=16, lookup_tables=2)
"""The smallest configuration with the kernel engine."""
CHOSEN = READ_LATENCY + 2
"""Cycles from an issue to its operands."""
BEHIND = KERNEL_LATENCY - CHOSEN
"""Cycles from these to the result."""
_LOW = MULTIPLIER_BITS - 1
"""Bits of the first factor that the unit multiplies in one piece; it has to be known to cut the proof there."""
_PRODUCT = 32 + MULTIPLIER_BITS
_PRODUCT_CYCLES = 2


def sizes() -> Iterator[tuple[Config, str]]:
    """Configurations with one and with two lane groups, and what to call them."""
    for lanes in (2, 1):
        config = KERNEL_SMALLEST.replace(lanes=lanes)
        yield config, f"{config.groups} lane group{'s' if config.groups > 1 else ''}"


class LanesBench(CutBench):
    """The lanes in free inputs: each cycle has any micro-operation, for any place, or none; registers hold anything."""

    UNIT = KernelLanes

    def watch(self, m: Module) -> None:
        self.free_inputs(m)
        self._watch(m)

    def _watch(self, m: Module) -> None:
        raise NotImplementedError

    def issued(self, m: Module, cycles: int) -> Any:
        """What was issued so many cycles ago; nothing behind a reset."""
        layout = issue_layout(self.config)
        name = f"issued{cycles}"
        return data.View(layout, ago(m, self.dut.issue.as_value(), cycles, name, reset=True))

    def lane(self, path: str, lane: int, width: int = 32) -> Value:
        """A lane of a signal inside the unit."""
        return self.peek(path, width * self.config.lanes).word_select(lane, width)

    def element(self, issue: Any, lane: int) -> Value:
        """The number of a lane's element in its vector."""
        return issue.entry.group * self.config.lanes + lane if self.config.groups > 1 else Value.cast(lane)


class PlainBench(LanesBench):
    """ADD, SUB, RSUB, MIN, MAX, LT, EQ, SELECT, INDEX and TABLE follow from their operands by their definition, in the
    documented cycle and for all values.

    From both operands and the predicate, as they stand in the unit's registers, to results without a product.
    """

    def _watch(self, m: Module) -> None:
        for lane in range(self.config.lanes):
            self._lane(m, lane)

    def _lane(self, m: Module, lane: int) -> None:
        issue, last = self.issued(m, CHOSEN), self.issued(m, KERNEL_LATENCY)
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
            due = ago(m, value.as_unsigned()[:32], BEHIND, f"{op.name}{lane}")
            self.claim(f"{op.name} of lane {lane}", implies(last.valid & (last.op.op == op), result == due))
            self.cover(f"{op.name} of lane {lane}", (last.op.op == op) & last.valid & (result == 77))
        for op, value in {Op.LT: less, Op.EQ: same}.items():
            due = ago(m, value, BEHIND, f"{op.name}{lane}")
            self.claim(f"{op.name} of lane {lane}", implies(last.valid & (last.op.op == op), flag == due))
            self.cover(f"{op.name} of lane {lane}", (last.op.op == op) & last.valid & flag)
        if self.config.lookup_tables:
            self._table(m, lane, a, issue, last, result)

    def _table(self, m: Module, lane: int, a: Value, issue: Any, last: Any, result: Value) -> None:
        """The entry for the first operand, as int8, is asked for, and comes two cycles later."""
        dut = self.dut
        least, most = -128, 127
        limited = Mux(a < least, least, Mux(a > most, most, a))
        self.claim(f"entry of lane {lane}", dut.index[lane] == (limited + 128)[:8])
        self.claim(f"table of lane {lane}", dut.table == issue.op.immediate[: len(dut.table)])
        entry = ago(m, dut.entries[lane], BEHIND - 2, f"entry{lane}").as_signed()
        result = result.as_signed()
        self.claim(f"TABLE of lane {lane}", implies(last.valid & (last.op.op == Op.TABLE), result == entry))
        self.cover(f"TABLE of lane {lane}", (last.op.op == Op.TABLE) & last.valid & (result == -3))


class ProductBench(LanesBench):
    """The register of MUL's product holds the exact product of its operands, as the sum of the products of parts, and
    with it comes by how much it is to be shifted, for all operands.

    From both operands to the register of the product.

    The proof is cut at the registers of the products of the first factor's low and high bits, each of which is claimed
    to hold its product, and at that of their sum: which is the product of the whole factors, as multiplication is
    distributive.
    """

    def _watch(self, m: Module) -> None:
        for lane in range(self.config.lanes):
            self._product(m, lane)

    def _product(self, m: Module, lane: int) -> None:
        a, b = (self.lane(name, lane) for name in ("first", "second"))
        factor = b[:MULTIPLIER_BITS].as_signed()
        low, high = (self.peek(f"{name}_{lane}", _PRODUCT).as_signed() for name in ("low", "high"))
        self.claim(f"low bits {lane}", low == ago(m, a[:_LOW] * factor, 1, f"low{lane}"))
        self.claim(f"high bits {lane}", high == ago(m, a[_LOW:].as_signed() * factor, 1, f"high{lane}"))
        product = self.peek(f"product_{lane}", _PRODUCT).as_signed()
        whole = (low + (high << _LOW))[:_PRODUCT].as_signed()
        self.claim(f"sum of products {lane}", product == ago(m, whole, 1, f"sum{lane}"))
        op = self.issued(m, CHOSEN).op
        exponent = Mux(op.scaled, b[MULTIPLIER_BITS : MULTIPLIER_BITS + 6], 0)
        total = op.shift + exponent
        due = ago(m, Mux(total > 63, 63, total), _PRODUCT_CYCLES, f"places{lane}")
        self.claim(f"places {lane}", self.peek(f"shift_{lane}_1", 6) == due)
        self.cover(f"a product {lane}", product == -(3 << 40))


class RoundingBench(LanesBench):
    """Any product, shifted by any number, is rounded half to even or down and saturated to 32 bits: that is the result
    of MUL, in the documented cycle.

    From the register of the product, whatever it holds, to the result of MUL.
    """

    def _watch(self, m: Module) -> None:
        for lane in range(self.config.lanes):
            self._rounded(m, lane)

    def _rounded(self, m: Module, lane: int) -> None:
        cycles = BEHIND - _PRODUCT_CYCLES
        op = self.issued(m, CHOSEN + _PRODUCT_CYCLES).op
        product, shift = self.peek(f"product_{lane}", _PRODUCT).as_signed(), self.peek(f"shift_{lane}_1", 6)
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
    """Results go to the vector, the register or the predicate that their micro-operation names, saturated or as they
    are, and to no other; the end is told with the last one.

    From results to where they go: a vector, a register or the predicate, `KERNEL_LATENCY` cycles behind the issue.

    The results of serial operations come from the divider, when they are there. Assumed, of the micro-operation that is
    there: results of these operations and of comparisons do not go to memory, as the checker sees to. That the results
    of the divider and of the pipeline do not come at once is for the sequence to see to; if they do, the divider's are
    written.
    """

    def _watch(self, m: Module) -> None:
        dut, config = self.dut, self.config
        last = self.issued(m, KERNEL_LATENCY)
        op = last.op
        compares = Cat(op.op == kind for kind in COMPARISONS).any()
        serial = (op.op == Op.RECIPROCAL) | (op.op == Op.RSQRT)
        self.assume(~(dut.issue.op.d_memory & Cat(dut.issue.op.op == kind for kind in (
            *COMPARISONS, Op.RECIPROCAL, Op.RSQRT)).any()))  # fmt: skip
        to_memory = last.valid & op.d_memory
        self.claim("a vector", dut.results.write == (to_memory & (last.entry.group == config.groups - 1)))
        self.claim("end", dut.results.end == (last.valid & last.end))
        self.claim("lane group", dut.results.index == last.entry.group)
        self.claim("address", dut.results.dst == last.dst)
        for lane in range(config.lanes):
            value = self.lane("result", lane).as_signed()
            limited = Mux(value > 127, 127, Mux(value < -128, -128, value))[:8]
            self.claim(f"byte {lane}", dut.results.bytes[lane] == limited)
        divided, word = self.peek("divide.write", 1), self.peek("divide.packed", 24 * config.lanes)
        entry = self.peek("divide.entry", len(place(config, last, op.d)))
        whole = Cat(
            Cat(word.word_select(lane, 24), Value.cast(0).replicate(8)) for lane in range(config.lanes)
        )
        plain = last.valid & ~op.d_memory & ~compares & ~serial
        for memory in ("register_a", "register_b", "predicates"):
            name, is_flag = memory.replace("_", " "), memory == "predicates"
            enable = self.peek(f"{memory}.store__en", 1)
            width = config.lanes if is_flag else 32 * config.lanes
            stored = self.peek(f"{memory}.store__data", width)
            where = place(config, last, None if is_flag else op.d)
            address = self.peek(f"{memory}.store__addr", len(where))
            if is_flag:
                self.claim(f"{name} written", enable == (last.valid & compares))
                self.claim(f"{name} where", implies(enable, address == where))
                self.claim(f"{name} what", stored == self.peeks_of_flags())
                self.cover(f"{name} written", enable & (address == 5))
                continue
            self.claim(f"{name} written", enable == (plain | divided))
            self.claim(f"{name} where", implies(enable, address == Mux(divided, entry, where)))
            result = self.peeks["result"]
            self.claim(f"{name} what", implies(enable, stored == Mux(divided, whole, result)))
            self.cover(f"{name} written", enable & ~divided & (address == 19))
        self.cover("a vector", dut.results.write & dut.results.end & (dut.results.dst == 3))

    def peeks_of_flags(self) -> Signal:
        return self.peek("flags", self.config.lanes)


def place(config: Config, issue: Any, register: Value | None) -> Value:
    """Where a register, or the predicate, of a row's lane group lies."""
    bits = (config.groups - 1).bit_length()
    where = Cat(issue.entry.group[:bits], issue.entry.row)
    return where if register is None else Cat(where, register)
