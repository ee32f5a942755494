"""What benches of rigid pipelines need: values of some cycles ago, and multiplication by its definition."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Module, Shape, Signal, Value
from amaranth.lib import wiring


def ago(m: Module, value: Value, cycles: int, name: str, *, reset: bool = False) -> Value:
    """`value` of so many cycles ago. A `reset` makes it 0 for that time; else it goes through a reset as it is."""
    shape = Shape.cast(value.shape())
    for cycle in range(cycles):
        register = Signal(shape, name=f"{name}_{cycle + 1}_ago", reset_less=not reset)
        m.d.sync += register.eq(value)
        value = register
    return value


def settled(m: Module, cycles: int, name: str = "settled") -> Signal:
    """Whether there was no reset for so many cycles."""
    count = Signal(range(cycles + 1), name=f"{name}_count")
    there = Signal(name=name)
    m.d.comb += there.eq(count == cycles)
    with m.If(~there):
        m.d.sync += count.eq(count + 1)
    return there


def implies(condition: Value, then: Value) -> Value:
    """`then` holds wherever `condition` does."""
    return ~condition.bool() | then.bool()


def connect_all(m: Module, dut: Any, name: str = "all_outputs") -> None:
    """Connect all outputs of a unit. Benches that do have the same netlist of it, so that `--mutants` shows the faults
    that one of them does not see to the others."""
    members = dut.signature.flatten(dut)
    outputs = Cat(*(Value.cast(value) for _, member, value in members if member.flow is wiring.Out))
    connected = Signal(len(outputs), name=name)
    m.d.comb += connected.eq(outputs)
