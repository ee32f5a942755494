"""A long fixed delay in memory instead of flip-flops."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from amaranth.hdl import Module, ShapeLike, Signal, Value
from amaranth.lib import data, memory, wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.isa import BASES, SEMAPHORES, Instruction, places, register_fields, required_features
from weft.hdl.isa.config import Config
from weft.hdl.isa.encoding import OPCODE_BITS
from weft.hdl.lib.ports import part_layout


class Delay(wiring.Component):
    """A delay line for words without reset: a memory that is read a fixed distance behind its writes.

    Parameters
    ----------
    width : int
    cycles : int
        The delay, at least 3.

    Members
    -------
    i : In(width)
    o : Out(width)
        `i` of `cycles` cycles ago, from a register. Unspecified for the first `cycles` cycles after reset.
    """

    def __init__(self, width: int, cycles: int) -> None:
        if cycles < 3:
            raise ValueError(f"a delay line takes at least 3 cycles, not {cycles}")
        self.width = width
        self.cycles = cycles
        super().__init__({"i": In(width), "o": Out(width)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        distance = self.cycles - 2  # the memory's read takes one cycle, the output register another
        depth = 1 << distance.bit_length()
        m.submodules.ram = ram = memory.Memory(shape=self.width, depth=depth, init=[])
        store, fetch = ram.write_port(), ram.read_port()
        write_at, read_at = Signal(range(depth)), Signal(range(depth), init=depth - distance)
        m.d.sync += [write_at.eq(write_at + 1), read_at.eq(read_at + 1), self.o.eq(fetch.data)]
        m.d.comb += [
            store.en.eq(1),
            store.addr.eq(write_at),
            store.data.eq(self.i),
            # Always; saying so spares synthesis the logic for reading a word while it is written.
            fetch.en.eq(read_at != write_at),
            fetch.addr.eq(read_at),
        ]
        return m


class Tap(wiring.Component):
    """Words come out in the order they went in. It counts nothing: who takes a word knows that it is there.

    Parameters
    ----------
    shape : shape
    words : int
        Words that are between the two points at most.

    Members
    -------
    push : In(1)
        Put `i` in; it may be taken from the next cycle on.
    i : In(shape)
    pop : In(1)
        Have taken `o`.
    o : Out(shape)
        The oldest word. Not from a register.
    """

    def __init__(self, shape: ShapeLike, words: int) -> None:
        self.shape = shape
        self.words = words
        super().__init__({"push": In(1), "i": In(shape), "pop": In(1), "o": Out(shape)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        depth = 1 << max(self.words - 1, 1).bit_length()
        # Read without a clock, so that it becomes distributed memory.
        m.submodules.ram = ram = memory.Memory(shape=self.shape, depth=depth, init=[])
        store, fetch = ram.write_port(), ram.read_port(domain="comb")
        write_at, read_at = Signal(range(depth)), Signal(range(depth))
        m.d.sync += [write_at.eq(write_at + self.push), read_at.eq(read_at + self.pop)]
        m.d.comb += [
            store.en.eq(self.push),
            store.addr.eq(write_at),
            store.data.eq(self.i),
            fetch.addr.eq(read_at),
            self.o.eq(fetch.data),
        ]
        return m


FIRST_FIELD = OPCODE_BITS + 2 * SEMAPHORES
"""Where an instruction's first field begins, behind opcode and semaphores."""
VALUES = data.ArrayLayout(32, 2)
"""What the registers hold that an instruction names: as its first field, and elsewhere."""


def queued_layout(config: Config) -> data.StructLayout:
    """What a queue gets: a part of an instruction, and with loops beside the last part of each its `VALUES`."""
    part = part_layout(config)
    return data.StructLayout({**part.members, "values": VALUES}) if config.loops else part


def named(kinds: Iterable[type[Instruction]], config: Config) -> list[int]:
    """Which of the `VALUES` instructions of these kinds need, in the order of the fields that name them."""
    found = set()
    for kind in kinds:
        for name in register_fields(kind.OPCODE):
            feature = required_features(kind.OPCODE).get(name)
            if feature is None or not feature.missing(config):
                found.add(int(places(kind.OPCODE)[name].position != FIRST_FIELD))
    return sorted(found)


def register_port(kind: type[Instruction], config: Config) -> dict[str, wiring.Member]:
    """The member of a unit by which it has registers: ``bases``, those of the host; or with loops ``values``, what the
    registers hold that the instruction names which the unit is offered."""
    if config.loops:
        return {"values": In(data.ArrayLayout(32, len(named([kind], config))))}
    return {"bases": In(data.ArrayLayout(32, BASES))}


def pass_registers(unit: Any, inner: Any, config: Config) -> Any:
    """The statement that gives a part of a unit what `register_port` gives the unit."""
    return inner.values.eq(unit.values) if config.loops else inner.bases.eq(unit.bases)


def register_value(unit: Any, kind: type[Instruction], name: str, number: Value, config: Config) -> Value:
    """What the register holds that the instruction at a unit names as its field `name`, which is `number`."""
    if config.loops:
        value: Value = unit.values[register_fields(kind.OPCODE).index(name)]
        return value
    base: Value = unit.bases[number[: (BASES - 1).bit_length()]]
    return base
