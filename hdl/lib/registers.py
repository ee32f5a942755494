"""What registers hold for the instructions that units execute.

Without loops that are the host's base registers, which do not change while a program runs: units look into them. With
loops a program changes registers while earlier instructions wait in queues, so fetch looks them up
(`weft.hdl.control.sequencer`), and the values go with each instruction through its queue.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from amaranth.hdl import Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In

from weft.hdl.isa import BASES, SEMAPHORES, Instruction, places, registers, required
from weft.hdl.isa.config import Config
from weft.hdl.isa.encoding import OPCODE_BITS
from weft.hdl.lib.ports import part_layout

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
        for name in registers(kind.OPCODE):
            feature = required(kind.OPCODE).get(name)
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
        value: Value = unit.values[registers(kind.OPCODE).index(name)]
        return value
    base: Value = unit.bases[number[: (BASES - 1).bit_length()]]
    return base
