"""Properties of `weft.hdl.lib.arithmetic`: the reciprocal of a row's sum."""

from __future__ import annotations

from amaranth.hdl import Const, Module, Mux, Signal, Value

from weft.extras.proof.hardware.pipelines import ago, implies, latch, was
from weft.extras.proof.hardware.property import Bench, Induction, Invariant, proves
from weft.hdl.isa.operands import DIVISION_LATENCY
from weft.hdl.lib.arithmetic import LEAD, QUOTIENT_BITS, Divider

_SUM, _TOP = 32, QUOTIENT_BITS + 1
_FIELDS = {"scale": QUOTIENT_BITS, "exponent": 7, "v_zero": 8}


class DividerBench(Bench, unit=Divider, drives=("sum", *_FIELDS)):
    """The divider and the behaviour of its users.

    Fields change with `start` only. There is a current row from the cycle after `start` or `step`, or a later cycle,
    until the next of these; `sum` is that of two cycles ago. A row is issued when the divider is ready, and taken once,
    at least `LEAD` cycles later.
    """

    def watch(self, m: Module) -> None:
        for name, width in _FIELDS.items():
            self._field(m, name, width)
        self._model_rows(m)
        self._model_protocol(m)
        self._watch(m)

    def _watch(self, m: Module) -> None:
        raise NotImplementedError

    def _field(self, m: Module, name: str, width: int) -> None:
        value = self.free(width, f"new_{name}")
        field = latch(m, self.dut.start, value, width, f"field_{name}", reset=False)
        m.d.comb += getattr(self.dut, name).eq(field)

    def _model_rows(self, m: Module) -> None:
        """Model the rows: `current` is ``l`` of the current row, and `divided` that of the last row that was stepped
        past.
        """
        dut = self.dut
        advance = Signal()
        self.current = Signal(_SUM, name="current", reset_less=True)
        self.divided = Signal(_SUM, name="divided", reset_less=True)
        following = self.free(_SUM, "following")
        m.d.comb += advance.eq(dut.start | dut.step)
        there = was(m, dut.row & ~advance)
        self.assume(implies(there, dut.row))
        with m.If(advance | ~dut.row):
            m.d.sync += self.current.eq(following)
        with m.If(dut.step):
            m.d.sync += self.divided.eq(self.current)
        m.d.comb += dut.sum.eq(ago(m, self.current, 2, "sum"))

    def _model_protocol(self, m: Module) -> None:
        """Model the protocol: `age` counts cycles since the issue of a row, up to `LEAD`; `holding` marks a row that
        was not taken.
        """
        dut = self.dut
        self.issued = Signal()
        self.age = Signal(range(LEAD + 1))
        self.holding = Signal()
        self.assume(implies(dut.issue, dut.ready))
        self.assume(implies(dut.take, self.issued & (self.age == LEAD)))
        with m.If(self.issued & (self.age != LEAD)):
            m.d.sync += self.age.eq(self.age + 1)
        with m.If(dut.issue):
            m.d.sync += [self.issued.eq(1), self.age.eq(1)]
        with m.If(dut.take):
            m.d.sync += [self.issued.eq(0), self.holding.eq(0)]
        with m.If(dut.step):
            m.d.sync += self.holding.eq(1)
        with m.If(dut.start):
            m.d.sync += [self.issued.eq(0), self.holding.eq(0)]


@proves("lib/divide", "order", Invariant(), cover=48)
class OrderBench(DividerBench):
    """Each row is stepped past once; one result is there at a time until it is taken, and it is complete then; rows are
    normalised and ready within a bounded time.
    """

    def _watch(self, m: Module) -> None:
        dut = self.dut
        self.claim("only a row that is there is stepped past", implies(dut.step, dut.row))
        self.claim("one row at a time", implies(dut.step, ~self.holding | dut.take))
        self.claim("ready for a row that was not issued", implies(dut.ready, self.holding & ~self.issued))
        self.claim("done when it is taken", implies(dut.take, ~self.peek("left").any()))
        # It works ahead: a sum is read in 3 cycles, and normalised a byte and then a bit at a time, 11 at most.
        waits = Signal(range(32))
        free = ~self.holding | dut.take
        m.d.sync += waits.eq(Mux(dut.row & ~dut.start & ~dut.step, waits + (waits != 31), 0))
        self.claim("a row is stepped past in time", implies((waits >= 14) & free, dut.step | dut.start))
        since = Signal(range(DIVISION_LATENCY + 2))
        with m.If(dut.step | dut.start | ~self.holding | self.issued):
            m.d.sync += since.eq(0)
        with m.Elif(since != DIVISION_LATENCY + 1):
            m.d.sync += since.eq(since + 1)
        late = DIVISION_LATENCY - LEAD
        self.claim("ready in time", implies((since > late) & self.holding & ~self.issued, dut.ready))
        self.cover(
            "a second row is taken",
            dut.take & ago(m, dut.step, DIVISION_LATENCY + 1, "stepped", reset=True) & ~dut.start,
        )


@proves("lib/divide", "results", Induction(6), cover=16)
class QuotientBench(DividerBench):
    """Quotient, shift and bias of a row follow from its sum and the fields by their definition, for all values.

    No solver proves a whole long division or multiplication, so each of their 8 steps is claimed in terms of the step
    before. For the division in base 4, four times the rest is digit times t plus the next rest, which is less than t. A
    step of the multiplication doubles the sum and subtracts the factor if the next bit is set; the first step, of the
    sign, adds it. It follows that the digits form the quotient of ``scale * 4**8`` and t, rounded down, and that the
    sum is ``-v_zero * rsh(l, 8)``.
    """

    def _watch(self, m: Module) -> None:
        dut = self.dut
        size, top = self._measure(m, self.current, "current")
        self._claim_normalisation(m, size, top)
        size, top = self._measure(m, self.divided, "divided")
        divided = self.holding
        self.claim("shift", implies(divided, dut.result.shift == size + dut.exponent))
        left = self.peek("left")
        self.first_step = ago(m, dut.step, 1, "begun", reset=True) & divided
        self.next_step = ago(m, left.any() & ~dut.step & ~dut.start, 1, "moved", reset=True) & divided
        self.claim("steps", left <= DIVISION_LATENCY)
        self.claim("first step", implies(self.first_step, left == DIVISION_LATENCY))
        self.claim("next step", implies(self.next_step, left == ago(m, left, 1, "left") - 1))
        self.claim("no step", implies(divided & ~self.next_step & ~self.first_step, left == 0))
        self._claim_quotient(m, divided, top, left)
        self._claim_bias(m, divided, left)

    def _measure(self, m: Module, value: Signal, name: str) -> tuple[Signal, Signal]:
        """Return E and t of a sum."""
        size, top = Signal(6, name=f"{name}_size"), Signal(_TOP, name=f"{name}_top")
        for bit in range(_SUM):
            with m.If(value[bit]):
                shift = bit + 1 - _TOP
                m.d.comb += [size.eq(bit + 1), top.eq(value >> shift if shift > 0 else value << -shift)]
        return size, top

    def _claim_normalisation(self, m: Module, size: Signal, top: Signal) -> None:
        """Claim that the current row's sum is shifted until its top bit is set, and that its bits are counted."""
        dut = self.dut
        operand, counted = self.peek("operand"), self.peek("size")
        fetched, normal = self.peek("fetched"), self.peek("normal")
        age = self.peek("age")
        shifted = (self.current << (_SUM - counted)[:6])[:_SUM]
        self.claim("operand", implies(fetched, (operand == shifted) & (counted <= _SUM) & (counted >= size)))
        self.claim("normal", implies(normal, fetched & (counted == size)))
        self.claim("not normal", implies(fetched & ~normal, ~operand[-1] & (counted != 0)))
        self.claim("whole bytes of nothing", implies(fetched & ~self.current.any(), counted[:3] == 0))
        waits = Signal(2)
        with m.If(dut.start | dut.step):
            m.d.sync += waits.eq(0)
        with m.Elif(dut.row & (waits != 3)):
            m.d.sync += waits.eq(waits + 1)
        self.claim("age", Mux(fetched, waits == 3, age == waits))
        self.claim("a row is there", implies(waits != 0, dut.row))
        delayed = [ago(m, self.current, cycles, f"current{cycles}") for cycles in (1, 2)]
        for cycles, value in enumerate(delayed, start=1):
            self.claim(f"row stays {cycles}", implies(waits >= cycles, value == self.current))
        self.claim("step is normal", implies(dut.step, normal & (operand[-_TOP:] == top)))

    def _claim_quotient(self, m: Module, divided: Value, top: Signal, left: Value) -> None:
        dut = self.dut
        rest, divisor = self.peek("rest"), self.peek("top")
        triple = self.peek("triple")
        self.claim("divisor", implies(divided, (divisor == top) & (triple == divisor * 3)))
        some = divisor[-1]  # the sum is not 0
        self.claim("a top bit", implies(divided, some == self.divided.any()))
        quotient = dut.result.mantissa
        digit, before = quotient[:2], ago(m, rest, 1, "rest")
        self.claim("no digits", implies(self.first_step, rest == dut.scale))
        times = Mux(digit[1], divisor << 1, 0) + Mux(digit[0], divisor, 0)
        self.claim("digit", implies(self.next_step & some, (before << 2) == times + rest))
        self.claim("digit of nothing", implies(self.next_step & ~some, digit == 0))
        self.claim("rest", implies(divided & some, rest < divisor))
        quotient_before = ago(m, quotient, 1, "quotient")
        stays = divided & ~self.next_step & ~self.first_step
        self.claim("digits move up", implies(self.next_step, quotient[2:] == quotient_before[:-2]))
        self.claim("digits stay", implies(stays, quotient == quotient_before))
        self.cover("a quotient", stays & quotient[-1])

    def _claim_bias(self, m: Module, divided: Value, left: Value) -> None:
        dut = self.dut
        factor, zero = self.peek("factor"), self.peek("zero")
        rounded = ((self.divided + Const(128)) >> 8)[: _SUM - 7]
        self.claim("factor", implies(divided, factor == rounded))
        self.claim("zero", implies(divided, zero == (dut.v_zero << (DIVISION_LATENCY - left)[:4])[:8]))
        bias = dut.result.bias.as_unsigned()
        before = ago(m, bias, 1, "bias")
        bit = dut.v_zero.as_unsigned().bit_select(left[:3], 1)  # of the step that was
        term = Mux(bit, factor, 0)
        step = Mux(left == DIVISION_LATENCY - 1, term, (before << 1) - term)[:_SUM]
        self.claim("bits", implies(self.next_step, bias == step))
        self.claim("no bits", implies(self.first_step, bias == 0))
        stays = divided & ~self.next_step & ~self.first_step
        self.claim("bits stay", implies(stays, bias == before))
        self.cover("a bias", stays & bias[0])
