"""Properties of the kernel engine's divider: reciprocals and reciprocal square roots, element after element."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal

from weft.extras.proof.hardware.pipelines import ago, implies
from weft.extras.proof.hardware.property import Bench, Induction, proves
from weft.extras.proof.hardware.smallest import kernel_sizes
from weft.hdl.isa.kernel import MULTIPLIER_BITS, REGISTERS, STRIP_ROWS, Op
from weft.hdl.isa.operands import KERNEL_DIVISION_CYCLES, KERNEL_ROOT_CYCLES
from weft.hdl.vector.kernel_divide import KernelDivide

_RESULT_BITS = 16
"""Bits of a root and of a quotient."""
_READY_STEP = 3
"""Step in which the operand is normalised."""


@proves(
    "vector/kernel_divide",
    {f"results, {groups}": config for config, groups in kernel_sizes()},
    Induction(3),
    cover=2 * (KERNEL_DIVISION_CYCLES + KERNEL_ROOT_CYCLES) + 8,
)
class DivideBench(Bench, unit=KernelDivide):
    """Factor and exponent of RECIPROCAL and RSQRT follow from each element by their definition, for all values, step by
    step. All lanes are written once, when they are complete, to the place that the micro-operation names.

    The inputs are free: any lane group comes, but only after the results of the one before were written, as users
    guarantee. A row's micro-operation is RECIPROCAL or RSQRT.

    No solver proves a whole square root or long division, so each of their steps is claimed in terms of the step
    before. For the root: four times the rest, plus the next two bits, is the next rest plus, if the next bit of the
    root is set, four times the root and 1; no rest exceeds twice the root. So the rest is the difference between the
    bits so far and the square of the root, which is the largest possible. For the division of ``2**32`` by t: twice the
    rest is digit times t plus the next rest, which is less than t. Where t is ``2**16``, the quotient has 17 bits, and
    all digits are 1, which is its limit.
    """

    def watch(self, m: Module) -> None:
        dut, config = self.dut, self.config
        op = dut.issue.op
        self.assume(~dut.valid | (op.op == Op.RECIPROCAL) | (op.op == Op.RSQRT))
        self.root, self.uniform = Signal(name="is_root"), Signal(name="is_uniform")
        self.numbers = Signal(32 * config.lanes, name="numbers", reset_less=True)
        self._count_steps(m)
        with m.If(dut.valid):
            m.d.sync += [
                self.root.eq(op.op == Op.RSQRT),
                self.uniform.eq(op.unsigned),
                self.numbers.eq(dut.elements.as_value()),
            ]
        self.number = Signal(32, name="number")
        m.d.comb += self.number.eq(self.numbers.word_select(self.index, 32))
        self._claim_normalisation(m)
        self._claim_root(m)
        self._claim_division(m)
        self._claim_results(m)

    def _count_steps(self, m: Module) -> None:
        """Count the steps of each element, and the writes of results, like the unit."""
        dut, config = self.dut, self.config
        steps = KERNEL_DIVISION_CYCLES + KERNEL_ROOT_CYCLES
        self.index = Signal(range(max(config.lanes, 2)))
        self.step = Signal(range(steps))
        self.works = Signal()
        writes = Signal(range(config.groups + 1))
        self.last = Signal(name="last_step")
        m.d.comb += self.last.eq(
            self.works & (self.step == Mux(self.root, steps - 1, KERNEL_DIVISION_CYCLES - 1))
        )
        whole = self.last & (self.uniform | (self.index == config.lanes - 1))
        self.assume(~dut.valid | ~(self.works | writes.any()))
        with m.If(writes.any()):
            m.d.sync += writes.eq(writes - 1)
        with m.If(dut.valid):
            m.d.sync += [self.works.eq(1), self.index.eq(0), self.step.eq(0)]
        with m.Elif(self.works):
            m.d.sync += self.step.eq(Mux(self.last, 0, self.step + 1))
            with m.If(self.last & ~whole):
                m.d.sync += self.index.eq(self.index + 1)
            with m.If(whole):
                m.d.sync += [self.works.eq(0), writes.eq(Mux(self.uniform, config.groups, 1))]
        self.writes = writes
        self.claim("written when they are complete", dut.write == writes.any())
        self.claim("step", implies(self.works, self.peek("step") == self.step))
        left = self.peek("left")
        more = Mux(self.uniform, 1, config.lanes - self.index)
        self.claim("left", left == Mux(self.works, more, 0))
        self.claim("writing", self.peek("writing") == writes)
        self.claim("steps", self.step <= Mux(self.root, steps - 1, KERNEL_DIVISION_CYCLES - 1))
        self.claim("index", (self.index < config.lanes) & ~(self.uniform & self.index.any()))
        self.claim("one by one", ~(self.works & writes.any()))
        self.claim("root", self.peek("root") == self.root)
        self.claim("uniform", self.peek("uniform") == self.uniform)

    def _claim_normalisation(self, m: Module) -> None:
        """Claim the element's size and its bits from the top."""
        remaining = self.peek("remaining")
        self.claim("element", implies(self.works, remaining == self.numbers >> (self.index << 5)))
        negative = self.number[-1]
        self.size = Signal(32, name="size_of_number")
        m.d.comb += self.size.eq(Mux(negative, -self.number.as_signed(), self.number)[:32])
        self.nothing = Signal(name="nothing_to_divide")
        m.d.comb += self.nothing.eq((self.number == 0) | (self.root & negative))
        bits = Signal(6, name="bits_of_number")
        for bit in range(32):
            with m.If(self.size[bit]):
                m.d.comb += bits.eq(bit + 1)
        even = Signal(6, name="even_bits")
        m.d.comb += even.eq(bits + bits[0])
        counted = Mux(self.root, even, bits)
        size, highest = self.peek("size"), self.peek("highest")
        some = self.works & ~self.nothing
        sized, ready = self.works & (self.step > 0), some & (self.step >= _READY_STEP)
        self.claim("size", implies(sized, size == self.size))
        self.claim("nothing", implies(sized, self.peek("nothing") == self.nothing))
        self.claim("bits", implies(some & (self.step > 1), highest == counted - 1))
        self.claim("exponent", implies(ready, self.peek("exponent") == Mux(self.root, even >> 1, bits)))
        self.normal = Signal(32, name="normal")
        m.d.comb += self.normal.eq(self.size << (32 - counted)[:5])
        self.top = self.peek("top")
        rooted = Mux(self.step > _READY_STEP + _RESULT_BITS, _RESULT_BITS, self.step - _READY_STEP)
        moved = Mux(self.root, rooted, 0)[:5]
        self.ready = ready
        self.claim("top", implies(ready, self.top == (self.normal << (moved << 1))[:32]))

    def _claim_root(self, m: Module) -> None:
        base, square = self.peek("base"), self.peek("square")
        first = self.ready & (self.step == _READY_STEP)
        taken = self.ready & self.root & (self.step > _READY_STEP) & (self.step <= _READY_STEP + _RESULT_BITS)
        self.rooted = self.ready & self.root & (self.step >= _READY_STEP + _RESULT_BITS)
        self.claim("no root yet", implies(first, (base == 0) & (square == 0)))
        before, rest = ago(m, base, 1, "base"), ago(m, square, 1, "square")
        following = ago(m, self.top[-2:], 1, "following")
        term = Mux(base[0], (before << 2) + 1, 0)
        self.claim("bit of the root", implies(taken, Cat(following, rest) == term + square))
        self.claim("root moves up", implies(taken, base[1:] == before[:-1]))
        self.claim("no bit is lost", implies(taken, ~before[-1]))
        number = self.step - _READY_STEP
        for bit in range(_RESULT_BITS):
            self.claim(
                f"root below 2**{bit}", implies(self.ready & self.root & (number <= bit), base[bit:] == 0)
            )
        self.claim("rest of the root", implies(self.ready & self.root, square <= base << 1))
        stays = self.rooted & (self.step > _READY_STEP + _RESULT_BITS)
        self.claim("root stays", implies(stays, base == before))
        highest = Mux(number > _RESULT_BITS, _RESULT_BITS, number) - 1
        begun = self.ready & self.root & (number >= 1)
        self.claim("top bit of a root", implies(begun, (base >> highest[:4])[0]))

    def _claim_division(self, m: Module) -> None:
        start = Mux(self.root, _READY_STEP + KERNEL_ROOT_CYCLES, _READY_STEP)
        divides = self.ready & (self.step >= start)
        rest, quotient = (self.peek(name) for name, width in (
            ("rest", 17), ("quotient", _RESULT_BITS)))  # fmt: skip
        base = self.peeks["base"]
        t = Signal(17, name="t")
        m.d.comb += t.eq(Mux(self.root, base << 1, self.normal[15:]))
        taken = divides & (self.step > start)
        least = t == 1 << _RESULT_BITS
        self.claim("t has its top bit", implies(divides, t[-1]))
        self.claim("first rest", implies(self.ready & (self.step <= start), rest == 1 << _RESULT_BITS))
        before = ago(m, rest, 1, "rest")
        digit = quotient[0]
        self.claim("digit", implies(taken & ~least, before << 1 == Mux(digit, t, 0) + rest))
        self.claim("rest", implies(taken & ~least, rest < t))
        self.claim("rest of the least", implies(divides & least, rest == 1 << _RESULT_BITS))
        self.claim("digit of the least", implies(taken & least, digit))
        quotient_before = ago(m, quotient, 1, "quotient")
        self.claim("digits move up", implies(taken, quotient[1:] == quotient_before[:-1]))
        self.claim("all digits", implies(self.last, self.step == start + _RESULT_BITS))
        self.quotient = quotient
        self.cover("a quotient", self.last & ~self.root & (quotient == 0xAAAA) & ~self.nothing)

    def _claim_results(self, m: Module) -> None:
        """Claim the results, and where they go.

        A uniform operation writes the result of element 0 to all lanes of all lane groups.
        """
        dut, config = self.dut, self.config
        factor = Signal(MULTIPLIER_BITS, name="factor")
        m.d.comb += factor.eq(Mux(self.number[-1], -self.quotient, self.quotient))
        nothing = Const((1 << _RESULT_BITS) - 1, MULTIPLIER_BITS + 6)
        packed = Mux(self.nothing, nothing, Cat(factor, self.peek("exponent")))
        for lane in range(config.lanes):
            result = Signal(MULTIPLIER_BITS + 6, name=f"result{lane}", reset_less=True)
            known = Signal(name=f"known{lane}")
            with m.If(dut.valid):
                m.d.sync += known.eq(0)
            with m.If(self.last & (self.uniform | (self.index == lane))):
                m.d.sync += [result.eq(packed), known.eq(1)]
            words = dut.results.word_select(lane, 32)
            self.claim(f"all lanes {lane}", implies(dut.write, known))
            right = known == (self.index > lane)
            self.claim(f"lane {lane} is known", implies(self.works & ~self.uniform, right))
            self.claim(f"lanes of one {lane}", implies(self.works & self.uniform, ~known))
            place = self.peek("packed")
            for index in range(lane + 1, config.lanes):
                stored = place.word_select(config.lanes - index + lane, MULTIPLIER_BITS + 6)
                here = self.works & ~self.uniform & (self.index == index)
                self.claim(f"lane {lane} is kept at {index}", implies(here, stored == result))
            self.claim(f"result {lane}", implies(dut.write, words == result))
            self.cover(f"a root {lane}", dut.write & self.root & (words[:16] == 0xB504) & ~self.uniform)
        place = Signal(range(STRIP_ROWS * REGISTERS), name="place")
        group = Signal(range(config.groups + 1), name="first_group")
        turn = Signal(range(config.groups + 1))
        with m.If(dut.valid):
            m.d.sync += [place.eq(Cat(dut.issue.entry.row, dut.issue.op.d)), group.eq(dut.issue.entry.group)]
        m.d.sync += turn.eq(Mux(self.writes.any(), turn + 1, 0))
        bits = (config.groups - 1).bit_length()
        self.claim("where", implies(self.works | dut.write, dut.entry == Cat((group + turn)[:bits], place)))
        self.cover("all lane groups", dut.write & self.uniform & (turn == config.groups - 1))
