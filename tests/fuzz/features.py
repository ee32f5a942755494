"""What a random program has, told by its text: values of fields by instruction (`closure.fields`), which instruction
comes next in another queue, and settings of memory and host, each for each core."""

from __future__ import annotations

import itertools
from typing import Any

from closure.fields import bins_of

from weft.hdl.isa import Instruction, Microcode, places
from weft.hdl.isa.config import Config

SETTINGS = ("latency", "rate", "stalls", "reordered", "traffic", "turns", "fails")
"""Of memory and host; of `fails`, which is a seed, only whether it is none."""


def features(program: list[Instruction], config: Config, settings: dict[str, Any]) -> frozenset[str]:
    """Names of all that a program has."""
    found = {f"{name}={bool(settings[name]) if name == 'fails' else settings[name]}" for name in SETTINGS}
    for instruction in program:
        found |= of(instruction, config)
    for first, second in itertools.pairwise(program):
        if first.QUEUE is not second.QUEUE:
            found.add(f"{first.OPCODE.name}, {second.OPCODE.name}")
    return frozenset(f"{settings['core']} {name}" for name in found)


def of(instruction: Instruction, config: Config) -> set[str]:
    """Names of what an instruction has; of micro-operations, which are no numbers, only that there are some."""
    if isinstance(instruction, Microcode):
        return {"MICROCODE"}
    return {
        f"{instruction.OPCODE.name} {name}={value}"
        for name in places(instruction.OPCODE)
        for value in bins_of(instruction, name, config)
    }
