"""Properties of parts of `weft.hdl.vector`: masks of softmax."""

from __future__ import annotations

from collections.abc import Iterator

from amaranth.hdl import Module, Mux, Signal, Value, signed

from weft.extras.proof.hardware.pipelines import implies
from weft.extras.proof.hardware.property import Bench, Induction, Property
from weft.hdl.isa.config import Config
from weft.hdl.vector.softmax import Mask

_COUNT = 12
"""Bits of a loop's count in an instruction."""
_SETTLES = 4
"""Cycles from the first one of an instruction to masks that hold."""


class MaskBench(Bench):
    """In every step of the loops the mask counts as many columns as the length and the diagonal leave by their
    definition, for any fields and register, and it is ready 4 cycles after it starts.

    The mask's unit in free inputs.

    Assumed is what the sequence of Softmax does: nothing is stepped before the unit is ready, and a loop counts up to
    4096 rows or groups. Fields change with `start` only, and so does the register that the instruction names. Rows and
    groups are counted here from `start` on, as `weft.hdl.isa.Softmax` has its loops.
    """

    UNIT = Mask

    def watch(self, m: Module) -> None:
        dut, n = self.dut, self.dut.n
        self._connect(m)
        self.started = started = Signal()
        row, group = Signal(_COUNT), Signal(_COUNT)  # ox, ob
        with m.If(dut.step):
            m.d.sync += row.eq(Mux(dut.last_ox, 0, row + 1))
            with m.If(dut.last_ox & dut.last_oy):
                m.d.sync += group.eq(group + 1)
        with m.If(dut.start):
            m.d.sync += [started.eq(1), row.eq(0), group.eq(0)]
        self.assume(implies(dut.step, dut.ready & started))
        self.assume(implies(dut.step & ~dut.last_ox, row != (1 << _COUNT) - 1))
        self.assume(implies(dut.step & dut.last_ox & dut.last_oy, group != (1 << _COUNT) - 1))

        age = self._ready(m)
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
        self.claim("first vector", implies(started & (age < _SETTLES), ~row.any() & ~group.any()))
        self.cover("in the middle of a later group", holds & (group == 2) & (dut.by_length == 1))
        self.cover(
            "the diagonal in a later group", holds & (group == 1) & dut.causal & (dut.by_diagonal == 1)
        )

    def _connect(self, m: Module) -> None:
        """Every input takes any value in every cycle, but for fields: theirs come with `start`."""
        dut = self.dut
        self.free_inputs(m, "causal", "relative", "register", "length", "diagonal", "bases")
        for name in ("causal", "relative", "length", "diagonal"):
            m.d.comb += getattr(dut, name).eq(self._field(m, len(getattr(dut, name)), name))
        held = self._field(m, 32, "held")
        if dut.loops:
            m.d.comb += dut.register.eq(held)
        else:
            m.d.comb += dut.register.eq(self._field(m, len(dut.register), "register"))
            for index, base in enumerate(dut.bases):
                m.d.comb += base.eq(Mux(dut.register == index, held, self.free(32, f"base{index}")))
        self.base = Mux(dut.relative, held, 0)

    def _field(self, m: Module, width: int, name: str) -> Signal:
        field = Signal(width, name=f"field_{name}", reset_less=True)
        value = self.free(width, f"new_{name}")
        with m.If(self.dut.start):
            m.d.sync += field.eq(value)
        return field

    def _limit(self, m: Module, name: str, age: Value, at: int) -> Signal:
        """``length'`` or ``diagonal'``: the field plus the register modulo 2**32, clamped to int16. As a helper, the
        unit has the sum in its own register `at` cycles after the first one."""
        total = Signal(signed(32), name=f"{name}_total")
        limit = Signal(signed(16), name=f"{name}_limit")
        m.d.comb += total.eq(self.base + getattr(self.dut, name))
        low, high = -(1 << 15), (1 << 15) - 1
        m.d.comb += limit.eq(Mux(total < low, low, Mux(total > high, high, total)))
        self.claim(f"sum with {name}", implies(self.started & (age == at), self.total == total))
        return limit

    def _ready(self, m: Module) -> Signal:
        """It is ready `_SETTLES` cycles after the first one of an instruction, and stays so to the next one. Returns
        how many cycles it is after the first one."""
        dut = self.dut
        age = Signal(range(_SETTLES + 1))
        with m.If(dut.start):
            m.d.sync += age.eq(0)
        with m.Elif(age < _SETTLES):
            m.d.sync += age.eq(age + 1)
        self.claim("ready", dut.ready == (age == _SETTLES))
        self.claim("phase", self.peek("phase", 3) == age)
        return age


def _between(value: Value, most: int) -> Value:
    """`value` from 0 to `most`."""
    return Mux(value < 0, 0, Mux(value > most, most, value))


def properties() -> Iterator[Property]:
    for n, loops in ((2, 0), (16, 1)):
        yield MaskBench.proves(
            "vector/mask",
            f"columns of {n}{', loops' if loops else ''}",
            Induction(8),
            Config(n=n, lanes=2, bus_bytes=max(n, 4), loops=loops),
        )
