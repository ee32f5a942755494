"""Constant and unread bits of a core, which coverage excludes."""

from __future__ import annotations

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from weft.extras.proof.mutants.constants import constant_bits


class Part(wiring.Component):
    """Counter with two bits that are read, a constant register, and a chain of registers that nothing reads."""

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
    """Two parts; the input of one is constant."""

    def __init__(self) -> None:
        super().__init__({"a": In(2), "o": Out(4)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.one, m.submodules.two = one, two = Part(), Part()
        m.d.comb += [one.a.eq(self.a), two.a.eq(0), self.o.eq(one.o | two.o << 2)]
        return m


def test_constant_bits() -> None:
    bits = constant_bits(Whole())
    assert ("core", "o[0]") not in bits
    assert ("core", "o[2]") in bits
    assert not {("one", f"count[{bit}]") for bit in range(4)} & bits  # the counter itself reads them
    assert {("one", f"stays[{bit}]") for bit in range(3)} <= bits
    assert {("one", "low[2]"), ("one", "low[3]")} <= bits
    assert {("one", "first"), ("one", "first[0]"), ("one", "second")} <= bits
    assert {("two", f"count[{bit}]") for bit in range(4)} <= bits
    assert not {("one", "low[0]"), ("one", "low[1]"), ("one", "a[0]"), ("one", "o[1]")} & bits
