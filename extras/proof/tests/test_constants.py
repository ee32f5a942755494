"""Which bits of a core are no points of coverage: those that cannot change, and those that nothing reads."""

from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from weft.extras.proof.mutants.constants import constant_bits


class Part(wiring.Component):
    """A counter of which two bits are read, a register that stays, and one that only another reads that nobody does."""

    def __init__(self) -> None:
        super().__init__({"a": In(2), "o": Out(2)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        count = Signal(4)
        stays = Signal(3)
        first = Signal()
        second = Signal()
        low = Signal(4)
        m.d.comb += [low.eq(count & 3), self.o.eq(low[:2] ^ stays[:2])]
        m.d.sync += [count.eq(count + self.a), first.eq(self.a[0]), second.eq(first), stays.eq(stays)]
        return m


class Whole(wiring.Component):
    """Two parts, of which one has an input that stays."""

    def __init__(self) -> None:
        super().__init__({"a": In(2), "o": Out(4)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.one, m.submodules.two = one, two = Part(), Part()
        m.d.comb += [one.a.eq(self.a), two.a.eq(0), self.o.eq(one.o | two.o << 2)]
        return m


def test_constants() -> None:
    found = constant_bits(Whole())
    assert ("core", "o[0]") not in found
    assert ("core", "o[2]") in found
    assert not {("one", f"count[{bit}]") for bit in range(4)} & found  # the counter itself reads them
    assert {("one", f"stays[{bit}]") for bit in range(3)} <= found
    assert {("one", "low[2]"), ("one", "low[3]")} <= found
    assert {("one", "first"), ("one", "first[0]"), ("one", "second")} <= found
    assert {("two", f"count[{bit}]") for bit in range(4)} <= found
    assert not {("one", "low[0]"), ("one", "low[1]"), ("one", "a[0]"), ("one", "o[1]")} & found
