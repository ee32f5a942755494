"""Functional coverage: values of instructions' fields, and overlapping instructions of two units."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from support.core_cases import Core, Step

from weft.hdl.isa import INSTRUCTIONS, SEMAPHORES, Instruction, Microcode, Mode, Queue, places
from weft.hdl.isa.config import Config
from weft.hdl.isa.kernel import MICRO_OPS
from weft.sim.rtl.coverage import Counts, Point

_WORDS = tuple(f"op{index}" for index in range(MICRO_OPS))
"""Micro-operations are not numeric; their fields are covered as signals."""
FEW = 3
"""Bits of fields of which every value is a point: modes, flags, and numbers of tables."""


def maximum(kind: type[Instruction], name: str, config: Config) -> int:
    """Return the largest value of a field: of an on-chip address, the last address of the memory."""
    most = places(kind.OPCODE)[name].high
    for operand in kind.OPERANDS:
        if operand.name == name and operand.register is None:
            most = min(most, operand.memory.size(config) - 1)
    return most


def bins(kind: type[Instruction], name: str, config: Config) -> list[str]:
    """Return the names of a field's bins."""
    place = places(kind.OPCODE)[name]
    most = maximum(kind, name, config)
    if name in ("wait", "signal"):
        return [f"bit {bit}" for bit in range(SEMAPHORES)]
    if name.startswith("mode"):
        return [str(int(mode)) for mode in Mode]
    if place.width <= FEW:
        return [str(value) for value in range(place.low, most + 1)]
    found = [str(value) for value in (0, 1) if place.low <= value <= most]
    return [*found, *(["negative"] if place.low < 0 else []), "between", "maximum"]


def bins_of(instruction: Instruction, name: str, config: Config) -> list[str]:
    """Return the bins that contain a field's value."""
    kind, value = type(instruction), int(getattr(instruction, name))
    if name in ("wait", "signal"):
        return [f"bit {bit}" for bit in range(SEMAPHORES) if value >> bit & 1]
    if places(kind.OPCODE)[name].width <= FEW or value in (0, 1):
        return [str(value)]
    if value == maximum(kind, name, config):
        return ["maximum"]
    return ["negative"] if value < 0 else ["between"]


def points(core: Core) -> Counts:
    """Return all points of a core's instruction set, each with a count of 0."""
    config = core.config
    kinds = [kind for kind in INSTRUCTIONS.values() if not kind().unsupported(config)]
    found: Counts = {}
    for kind in kinds:
        for name, place in places(kind.OPCODE).items():
            if (name in ("wait", "signal") and kind.QUEUE is None) or (kind is Microcode and name in _WORDS):
                continue
            # A field of hardware that this configuration lacks stays 0.
            if kind(**{name: max(place.low, 1)}).unsupported(config):
                continue
            for value in bins(kind, name, config):
                if not kind(**{name: number_of(value, kind, name, config)}).unsupported(config):
                    found[Point("field", kind.OPCODE.name, f"{name}={value}")] = 0
    if not core.sequential:
        for first, second in itertools.permutations(kinds, 2):
            if None not in (first.QUEUE, second.QUEUE) and first.QUEUE is not second.QUEUE:
                found[Point("pair", first.OPCODE.name, second.OPCODE.name)] = 0
    return found


def number_of(value: str, kind: type[Instruction], name: str, config: Config) -> int:
    """Return a value in a bin."""
    if value.startswith("bit"):
        return 1 << int(value[4:])
    named = {"negative": -1, "between": 2, "maximum": maximum(kind, name, config)}
    return named[value] if value in named else int(value)


def count(counts: Counts, steps: Iterable[Step], config: Config) -> None:
    """Add the points of the programs of `steps` to `counts`."""
    for step in steps:
        for instruction in step.program:
            for name in places(instruction.OPCODE):
                for value in bins_of(instruction, name, config):
                    point = Point("field", instruction.OPCODE.name, f"{name}={value}")
                    if point in counts:
                        counts[point] += 1
        for first, second in pairs(step):
            point = Point("pair", first.OPCODE.name, second.OPCODE.name)
            if point in counts:
                counts[point] += 1


def pairs(step: Step) -> Iterator[tuple[Instruction, Instruction]]:
    """Yield instructions of two units, the second of which begins while the first runs."""
    runs = sorted((item for item in step.intervals if item.kind == "runs"), key=lambda item: item.start)
    open_: list[tuple[int, Queue, int]] = []
    for item in runs:
        open_ = [entry for entry in open_ if entry[0] > item.start]
        for _, unit, index in open_:
            if unit is not item.unit:
                yield step.program[index], step.program[item.instruction]
        open_.append((item.end, item.unit, item.instruction))
