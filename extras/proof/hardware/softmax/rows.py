"""Properties of `weft.hdl.vector.softmax`: masks, and the states of rows."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, Value, signed

from weft.extras.proof.hardware.pipelines import ago, implies, latch
from weft.extras.proof.hardware.property import Bench, Induction, Invariant, proves
from weft.hdl.isa.config import Config
from weft.hdl.vector.probabilities import PEAK, PEAK_BITS
from weft.hdl.vector.softmax import ALIGNED, TOTAL, WRITTEN, Mask, RowStates

_COUNT_BITS = 12
"""Width of a loop's count in an instruction."""
_SETTLING_CYCLES = 4
"""Cycles from the first cycle of an instruction to valid masks."""


_FIELDS = ("causal", "relative", "length", "diagonal")


@proves("vector/mask", "columns of 2", Induction(8), Config(n=2, lanes=2, bus_bytes=4))
@proves("vector/mask", "columns of 16, loops", Induction(8), Config(n=16, lanes=2, bus_bytes=16, loops=1))
class MaskBench(Bench, unit=Mask, drives=(*_FIELDS, "register", "bases")):
    """In every step of the loops, the mask counts the columns that the length and the diagonal leave by their
    definition, for any fields and register. It is ready 4 cycles after it starts.

    Assumed, as the sequence of Softmax guarantees: there is no step before the unit is ready, and a loop counts up to
    4096 rows or groups. Fields, and the register that the instruction names, change with `start` only. The model counts
    rows and groups from `start` on, in the loops of `weft.hdl.isa.Softmax`.
    """

    def watch(self, m: Module) -> None:
        dut, n = self.dut, self.dut.n
        self._connect(m)
        self.started = started = Signal()
        row = Signal(_COUNT_BITS)
        group = Signal(_COUNT_BITS)  # ox, ob
        with m.If(dut.step):
            m.d.sync += row.eq(Mux(dut.last_ox, 0, row + 1))
            with m.If(dut.last_ox & dut.last_oy):
                m.d.sync += group.eq(group + 1)
        with m.If(dut.start):
            m.d.sync += [started.eq(1), row.eq(0), group.eq(0)]
        self.assume(implies(dut.step, dut.ready & started))
        self.assume(implies(dut.step & ~dut.last_ox, row != (1 << _COUNT_BITS) - 1))
        self.assume(implies(dut.step & dut.last_ox & dut.last_oy, group != (1 << _COUNT_BITS) - 1))

        age = self._claim_ready(m)
        self.total = self.peek("total")
        self.claim("base", implies(started & (age > 0), self.peek("base") == self.base))
        length, diagonal = (self._limit(m, name, age, at) for name, at in (("length", 2), ("diagonal", 3)))
        before = group * n
        within, first = length - before, diagonal + 1 - before
        upto = first + row
        holds = started & dut.ready
        self.claim("columns within the length", implies(holds, dut.by_length == _between(within, n)))
        by_diagonal = Mux(dut.causal, _between(upto, n), n)
        self.claim("columns before the diagonal", implies(holds, dut.by_diagonal == by_diagonal))
        self.claim("left register", implies(started & (age > 2), self.peek("left") == within))
        for name, value in (("inner", upto), ("outer", first)):
            self.claim(f"{name} register", implies(holds, self.peek(name) == value))
        # Nothing was stepped before it is ready.
        self.claim("first vector", implies(started & (age < _SETTLING_CYCLES), ~row.any() & ~group.any()))
        self.cover("in the middle of a later group", holds & (group == 2) & (dut.by_length == 1))
        self.cover(
            "the diagonal in a later group", holds & (group == 1) & dut.causal & (dut.by_diagonal == 1)
        )

    def _connect(self, m: Module) -> None:
        """Connect the fields, which change only with `start`."""
        dut = self.dut
        for name in _FIELDS:
            m.d.comb += getattr(dut, name).eq(self._field(m, len(getattr(dut, name)), name))
        content = self._field(m, 32, "held")
        if dut.loops:
            m.d.comb += dut.register.eq(content)
        else:
            m.d.comb += dut.register.eq(self._field(m, len(dut.register), "register"))
            for index, base in enumerate(dut.bases):
                m.d.comb += base.eq(Mux(dut.register == index, content, self.free(32, f"base{index}")))
        self.base = Mux(dut.relative, content, 0)

    def _field(self, m: Module, width: int, name: str) -> Signal:
        value = self.free(width, f"new_{name}")
        field = latch(m, self.dut.start, value, width, f"field_{name}", reset=False)
        return field

    def _limit(self, m: Module, name: str, age: Value, at: int) -> Signal:
        """Return ``length'`` or ``diagonal'``: the field plus the register modulo 2**32, clamped to int16.

        Induction needs the unit's own sum, `at` cycles after the first cycle.
        """
        total = Signal(signed(32), name=f"{name}_total")
        limit = Signal(signed(16), name=f"{name}_limit")
        m.d.comb += total.eq(self.base + getattr(self.dut, name))
        low, high = -(1 << 15), (1 << 15) - 1
        m.d.comb += limit.eq(Mux(total < low, low, Mux(total > high, high, total)))
        self.claim(f"sum with {name}", implies(self.started & (age == at), self.total == total))
        return limit

    def _claim_ready(self, m: Module) -> Signal:
        """Claim that the unit is ready `_SETTLING_CYCLES` cycles after the first cycle of an instruction, until the
        next one.

        Returns the number of cycles after the first one.
        """
        dut = self.dut
        age = Signal(range(_SETTLING_CYCLES + 1))
        with m.If(dut.start):
            m.d.sync += age.eq(0)
        with m.Elif(age < _SETTLING_CYCLES):
            m.d.sync += age.eq(age + 1)
        self.claim("ready", dut.ready == (age == _SETTLING_CYCLES))
        self.claim("phase", self.peek("phase") == age)
        return age


def _between(value: Value, most: int) -> Value:
    return Mux(value < 0, 0, Mux(value > most, most, value))


_CONFIG = Config(n=2, lanes=2, bus_bytes=4, row_states=4)
_READ_CYCLES = 2
"""Cycles from an address to its state."""
_LIMIT = 31
"""Limit of differences of exponents."""


@proves("vector/row_states", "update", Induction(9), _CONFIG)
class UpdateBench(Bench, unit=RowStates, drives=("final",)):
    """Maximum, sum and alignment follow from the old state, the vector's exponent and its sum by their definition, each
    in the documented cycle and for all values.

    The inputs are free, as are the states that are read. `final` is constant, as users guarantee.
    """

    def watch(self, m: Module) -> None:
        dut = self.dut
        m.d.comb += dut.final.eq(self.constant(m, 1, "final"))
        old = self.peek("old")
        self.claim("sum of the state", dut.sum == old[PEAK_BITS:])
        # Values of the cycle in which the sum of the vector comes.
        late = TOTAL - _READ_CYCLES
        fresh = ago(m, dut.fresh, TOTAL, "fresh")
        before = ago(m, old, late, "before")
        maximum = Mux(fresh, PEAK, before[:PEAK_BITS].as_signed())
        sum_before = Mux(fresh, 0, before[PEAK_BITS:])
        peak = ago(m, dut.peak, late, "peak").as_signed()
        total = dut.total << 8

        following = Mux(peak > maximum, peak, maximum)
        down, own = (_limited(following - value) for value in (maximum, peak))  # u, v
        whole = (rsh(m, sum_before, down, "u") + rsh(m, total, own, "v"))[:32]
        aligned = Mux(dut.final, _limited(Mux(maximum > peak, maximum - peak, 0)), down - own)

        # A reset clears the valid bits of the pipeline, not its data.
        update = ago(m, dut.valid, ALIGNED, "update", reset=True)
        self.claim("alignment comes in its cycle", dut.aligned == update)
        due = ago(m, aligned, ALIGNED - TOTAL, "alignment").as_signed()
        self.claim("alignment", implies(update, dut.alignment == due))
        written = ago(m, update, WRITTEN - ALIGNED, "written", reset=True)
        self.claim("it is written in its cycle", dut.written == written)
        word = self.peek("store__data")
        exponent, rest = (ago(m, v, WRITTEN - TOTAL, n) for v, n in ((following, "m"), (whole, "l")))
        self.claim("maximum", implies(written, word[:PEAK_BITS].as_signed() == exponent.as_signed()))
        self.claim("sum", implies(written, word[PEAK_BITS:] == rest))
        self.claim("final keeps states", self.peek("store__en") == (written & ~dut.final))
        address = self.peek("store__addr")
        self.claim("where it is written", address == dut.write_address)
        self.cover("a state that rises", written & (word[PEAK_BITS:] > 1 << 16) & (exponent.as_signed() == 5))


@proves("vector/row_states", "memory of 4", Invariant(), _CONFIG)
class MemoryBench(Bench, unit=RowStates):
    """A read returns the state that was written last to its address.

    One address, which may be any, is watched: two cycles after a read of it comes the state that was written to it last
    since the reset.
    """

    def watch(self, m: Module) -> None:
        dut = self.dut
        watched = self.constant(m, len(dut.address), "watched")
        word, old = (self.peek(name) for name in ("store__data", "old"))
        content = Signal(PEAK_BITS + 32, reset_less=True)
        known = Signal()
        writes = self.peek("store__en") & (self.peek("store__addr") == watched)
        with m.If(writes):
            m.d.sync += [content.eq(word), known.eq(1)]
        read = ago(m, (dut.address == watched) & known, _READ_CYCLES, "read", reset=True)
        due = ago(m, content, _READ_CYCLES, "due")
        self.claim("reads what was written", implies(read, old == due))
        self.cover("reads what was written", read & (due[PEAK_BITS:] > 300))


def rsh(m: Module, value: Value, shift: Value, name: str) -> Value:
    """Return ``value / 2**shift``, rounded half up, as `weft.sim.golden.memories.rsh`."""
    half = Signal(_LIMIT + 1, name=f"half_{name}")
    m.d.comb += half.eq((1 << shift) >> 1)
    return (value + half) >> shift


def _limited(value: Value) -> Value:
    """Return a non-negative difference, limited to 31."""
    return Mux(value > _LIMIT, _LIMIT, value[:5].as_unsigned())
