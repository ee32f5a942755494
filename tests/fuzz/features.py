"""Features of a random program: fields' values by instruction (`closure.fields`), the next instruction in another
queue, and settings of memory and host, each by core."""

from __future__ import annotations

import itertools
from typing import Any

from closure.fields import bins_of

from weft.hdl.isa import Instruction, Microcode, places
from weft.hdl.isa.config import Config

SETTINGS = ("latency", "rate", "stalls", "reordered", "traffic", "turns", "fails")
"""Settings of memory and host; for the seed `fails` only whether it is set."""


def features(program: list[Instruction], config: Config, settings: dict[str, Any]) -> frozenset[str]:
    """Return the names of all features of a program."""
    found = {f"{name}={bool(settings[name]) if name == 'fails' else settings[name]}" for name in SETTINGS}
    for instruction in program:
        found |= of(instruction, config)
    for first, second in itertools.pairwise(program):
        if first.QUEUE is not second.QUEUE:
            found.add(f"{first.OPCODE.name}, {second.OPCODE.name}")
    return frozenset(f"{settings['core']} {name}" for name in found)


def of(instruction: Instruction, config: Config) -> set[str]:
    """Return the names of an instruction's features; micro-operations, which are no numbers, are only present or
    absent."""
    if isinstance(instruction, Microcode):
        return {"MICROCODE"}
    return {
        f"{instruction.OPCODE.name} {name}={value}"
        for name in places(instruction.OPCODE)
        for value in bins_of(instruction, name, config)
    }
