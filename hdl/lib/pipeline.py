"""Delay lines and taps beside pipelines, and the values of registers that travel with instructions."""

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
    """Fixed delay line in memory instead of flip-flops: a memory that is read a fixed distance behind its writes.

    Parameters
    ----------
    width : int
    cycles : int
        Delay, at least 3.

    Members
    -------
    i : In(width)
    o : Out(width)
        `i` of `cycles` cycles ago, a register. Unspecified for the first `cycles` cycles after reset.
    """

    def __init__(self, width: int, cycles: int) -> None:
        if cycles < 3:
            raise ValueError(f"the delay of a delay line must be at least 3 cycles, not {cycles}")
        self.width = width
        self.cycles = cycles
        super().__init__({"i": In(width), "o": Out(width)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        distance = self.cycles - 2  # the memory's read takes one cycle, the output register another
        depth = 1 << distance.bit_length()
        m.submodules.ram = ram = memory.Memory(shape=self.width, depth=depth, init=[])
        store = ram.write_port()
        fetch = ram.read_port()
        # Both pointers advance in every cycle; their difference is the delay.
        write_at = Signal(range(depth))
        read_at = Signal(range(depth), init=depth - distance)
        m.d.sync += [write_at.eq(write_at + 1), read_at.eq(read_at + 1), self.o.eq(fetch.data)]
        m.d.comb += [
            store.en.eq(1),
            store.addr.eq(write_at),
            store.data.eq(self.i),
            # Always true, but synthesis then omits the logic for reading a word while it is written.
            fetch.en.eq(read_at != write_at),
            fetch.addr.eq(read_at),
        ]
        return m


class Tap(wiring.Component):
    """FIFO without level, full or empty flags: the reader knows by other means when a word is available.

    Parameters
    ----------
    shape : shape
    words : int
        Maximum number of words in flight between writer and reader.

    Members
    -------
    push : In(1)
        Write `i`, which may be read from the next cycle on.
    i : In(shape)
    pop : In(1)
        Remove `o`.
    o : Out(shape)
        The oldest word, combinational from memory.
    """

    def __init__(self, shape: ShapeLike, words: int) -> None:
        self.shape = shape
        self.words = words
        super().__init__({"push": In(1), "i": In(shape), "pop": In(1), "o": Out(shape)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        depth = 1 << max(self.words - 1, 1).bit_length()
        # An asynchronous read port, so that synthesis infers distributed memory.
        m.submodules.ram = ram = memory.Memory(shape=self.shape, depth=depth, init=[])
        store = ram.write_port()
        fetch = ram.read_port(domain="comb")
        write_at = Signal(range(depth))
        read_at = Signal(range(depth))
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
"""Bit position of an instruction's first field, after opcode and semaphores."""
VALUES = data.ArrayLayout(32, 2)
"""Values of the two registers that an instruction may name: in its first field, and in another field."""


def queued_layout(config: Config) -> data.StructLayout:
    """Return the layout of a queue's words: a part of an instruction, and with loops also `VALUES`.

    `VALUES` are valid beside the last part of an instruction.
    """
    part = part_layout(config)
    return data.StructLayout({**part.members, "values": VALUES}) if config.loops else part


def needed_values(kinds: Iterable[type[Instruction]], config: Config) -> list[int]:
    """Return the indices of the `VALUES` that instructions of these kinds use, ascending."""
    indices = set()
    for kind in kinds:
        for name in register_fields(kind.OPCODE):
            feature = required_features(kind.OPCODE).get(name)
            if feature is None or not feature.missing(config):
                indices.add(int(places(kind.OPCODE)[name].position != FIRST_FIELD))
    return sorted(indices)


def register_port(kind: type[Instruction], config: Config) -> dict[str, wiring.Member]:
    """Return the member through which a unit reads registers.

    It is ``bases``, all base registers that the host wrote; or with loops ``values``, the values of the registers that
    the instruction at the unit's input names.
    """
    if config.loops:
        return {"values": In(data.ArrayLayout(32, len(needed_values([kind], config))))}
    return {"bases": In(data.ArrayLayout(32, BASES))}


def pass_registers(unit: Any, inner: Any, config: Config) -> Any:
    """Return the statement that connects the `register_port` of a unit to that of its submodule `inner`."""
    return inner.values.eq(unit.values) if config.loops else inner.bases.eq(unit.bases)


def register_value(unit: Any, kind: type[Instruction], name: str, number: Value, config: Config) -> Value:
    """Return the value of register `number`, which the instruction at the unit's input names in its field `name`."""
    if config.loops:
        # The sequencer has read the register already: the value travels beside the instruction.
        value: Value = unit.values[register_fields(kind.OPCODE).index(name)]
        return value
    base: Value = unit.bases[number[: (BASES - 1).bit_length()]]
    return base
