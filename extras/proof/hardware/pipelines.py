"""Values of earlier cycles, for benches of pipelines.

Registers that a function returns have by default the name of the variable that they are assigned to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Shape, ShapeLike, Signal, Value
from amaranth.lib import wiring


def ago(m: Module, value: Value, cycles: int, name: str, *, reset: bool = False) -> Value:
    """Return `value` of `cycles` cycles ago. With `reset` it is 0 for that time after a reset; else it survives one."""
    shape = Shape.cast(value.shape())
    for cycle in range(cycles):
        register = Signal(shape, name=f"{name}_{cycle + 1}_ago", reset_less=not reset)
        m.d.sync += register.eq(value)
        value = register
    return value


def was(m: Module, value: Any, name: str | None = None) -> Signal:
    """Return `value` of the cycle before, and 0 after a reset."""
    value = Value.cast(value)
    register = Signal(value.shape(), name=name, src_loc_at=1)
    m.d.sync += register.eq(value)
    return register


def wire(m: Module, value: Any, shape: Any = None, name: str | None = None) -> Any:
    """Return a signal that equals `value`, for traces; it has by default the shape of `value`."""
    shape = Value.cast(value).shape() if shape is None else shape
    signal = Signal(shape, name=name, src_loc_at=1)
    m.d.comb += signal.eq(value)
    return signal


def flag(m: Module, sets: Any, clears: Any, name: str | None = None) -> Signal:
    """Return a register that is 1 from the cycle after `sets` to the next cycle with `clears` and without `sets`."""
    register = Signal(name=name, src_loc_at=1)
    m.d.sync += register.eq(Value.cast(sets) | register & ~Value.cast(clears))
    return register


def latch(
    m: Module, when: Value, value: Any, shape: Any = None, name: str | None = None, *, reset: bool = True
) -> Any:
    """Return a register that takes `value` in cycles with `when`. Without `reset`, its content survives a reset.

    It has by default the shape of `value`.
    """
    shape = Value.cast(value).shape() if shape is None else shape
    register = Signal(shape, name=name, reset_less=not reset, src_loc_at=1)
    with m.If(when):
        m.d.sync += register.eq(value)
    return register


def latch_all(m: Module, when: Value, values: Mapping[str, Any], prefix: str = "field_") -> dict[str, Any]:
    """Return registers of the shapes of `values`, which take them in cycles with `when`."""
    registers = {name: Signal.like(value, name=f"{prefix}{name}") for name, value in values.items()}
    with m.If(when):
        m.d.sync += [register.eq(values[name]) for name, register in registers.items()]
    return registers


def watch_cycle(
    m: Module, bench: Any, last: int, *values: tuple[Any, ShapeLike, str]
) -> tuple[Signal, list[Any]]:
    """Watch one cycle, which may be any: return its age, from 1 to `last`, and the `values` that it had.

    The age is 0 while no cycle is watched. Each value comes with the shape and name of its register. A free input
    chooses the cycle, so claims about it hold for all cycles.
    """
    age, mark = Signal(range(last + 1), name="age"), bench.free(1, "mark")
    registers = [Signal(shape, name=name) for _, shape, name in values]
    with m.If(age != 0):
        m.d.sync += age.eq(Mux(age == last, 0, age + 1))
    with m.Elif(mark):
        m.d.sync += age.eq(1)
        m.d.sync += [register.eq(value) for register, (value, _, _) in zip(registers, values, strict=True)]
    return age, registers


def follow(m: Module, bench: Any, value: Value, stages: Iterable[Value], name: str) -> Value:
    """Claim that `stages` hold `value` of 1, 2 and so on cycles ago, and 0 after a reset; return it from the last."""
    for number, stage in enumerate(stages):
        value = was(m, value, f"{name.replace(' ', '_')}{number}")
        bench.claim(f"{name} on the way {number}", stage == value)
    return value


def settled(m: Module, cycles: int, name: str = "settled") -> Signal:
    """Return whether there was no reset in the last `cycles` cycles."""
    count = Signal(range(cycles + 1), name=f"{name}_count")
    there = Signal(name=name)
    m.d.comb += there.eq(count == cycles)
    with m.If(~there):
        m.d.sync += count.eq(count + 1)
    return there


def implies(condition: Value, then: Value) -> Value:
    """Return whether `then` holds if `condition` does."""
    return ~condition.bool() | then.bool()


def connect_all(m: Module, dut: Any, name: str = "all_outputs") -> None:
    """Connect all outputs of a unit, so that all of its benches have an equal netlist of it.

    Then ``weft prove --mutants`` tries a mutant on the other benches if one does not detect it.
    """
    members = dut.signature.flatten(dut)
    outputs = Cat(*(Value.cast(value) for _, member, value in members if member.flow is wiring.Out))
    connected = Signal(len(outputs), name=name)
    m.d.comb += connected.eq(outputs)
