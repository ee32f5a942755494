"""Properties of parts of `weft.hdl.vector`: masks of softmax."""

from __future__ import annotations

from collections.abc import Iterator

from amaranth.hdl import Module, Mux, Signal, Value, signed

from weft.extras.proof.hardware.pipelines import implies
from weft.extras.proof.hardware.property import Bench, Induction, Property
from weft.hdl.isa.config import Config
from weft.hdl.vector.softmax import Mask

_COUNT_BITS = 12
"""Width of a loop's count in an instruction."""
_SETTLING_CYCLES = 4
"""Cycles from the first cycle of an instruction to valid masks."""


class MaskBench(Bench):
    """In every step of the loops, the mask counts the columns that the length and the diagonal leave by their
    definition, for any fields and register. It is ready 4 cycles after it starts.

    Assumed, as the sequence of Softmax guarantees: there is no step before the unit is ready, and a loop counts up to
    4096 rows or groups. Fields, and the register that the instruction names, change with `start` only. The model counts
    rows and groups from `start` on, in the loops of `weft.hdl.isa.Softmax`.
    """

    UNIT = Mask

    def watch(self, m: Module) -> None:
        dut, n = self.dut, self.dut.n
        self._connect(m)
        self.started = started = Signal()
        row, group = Signal(_COUNT_BITS), Signal(_COUNT_BITS)  # ox, ob
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
        self.total = self.peek("total", 32).as_signed()
        self.claim("base", implies(started & (age > 0), self.peek("base", 32) == self.base))
        length, diagonal = (self._limit(m, name, age, at) for name, at in (("length", 2), ("diagonal", 3)))
        before = group * n
        within, first = length - before, diagonal + 1 - before
        upto = first + row
        holds = started & dut.ready
        self.claim("columns within the length", implies(holds, dut.by_length == _between(within, n)))
        by_diagonal = Mux(dut.causal, _between(upto, n), n)
        self.claim("columns before the diagonal", implies(holds, dut.by_diagonal == by_diagonal))
        self.claim("left register", implies(started & (age > 2), self.peek("left", 21).as_signed() == within))
        for name, value in (("inner", upto), ("outer", first)):
            self.claim(f"{name} register", implies(holds, self.peek(name, 21).as_signed() == value))
        # Nothing was stepped before it is ready.
        self.claim("first vector", implies(started & (age < _SETTLING_CYCLES), ~row.any() & ~group.any()))
        self.cover("in the middle of a later group", holds & (group == 2) & (dut.by_length == 1))
        self.cover(
            "the diagonal in a later group", holds & (group == 1) & dut.causal & (dut.by_diagonal == 1)
        )

    def _connect(self, m: Module) -> None:
        """Give every input any value in every cycle; fields change only with `start`."""
        dut = self.dut
        self.free_inputs(m, "causal", "relative", "register", "length", "diagonal", "bases")
        for name in ("causal", "relative", "length", "diagonal"):
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
        field = Signal(width, name=f"field_{name}", reset_less=True)
        value = self.free(width, f"new_{name}")
        with m.If(self.dut.start):
            m.d.sync += field.eq(value)
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
        self.claim("phase", self.peek("phase", 3) == age)
        return age


def _between(value: Value, most: int) -> Value:
    """Clamp `value` to the range from 0 to `most`."""
    return Mux(value < 0, 0, Mux(value > most, most, value))


def properties() -> Iterator[Property]:
    for n, loops in ((2, 0), (16, 1)):
        yield MaskBench.proves(
            "vector/mask",
            f"columns of {n}{', loops' if loops else ''}",
            Induction(8),
            Config(n=n, lanes=2, bus_bytes=max(n, 4), loops=loops),
        )
