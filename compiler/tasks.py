"""A task: one instruction with what it touches, before semaphores are assigned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from weft.hdl.isa import Instruction, Queue


class Range(NamedTuple):
    """A range that a task reads or writes; `space` is "scratchpad", "accumulator" or a base register as "dram0".. ."""

    space: str
    start: int
    stop: int


@dataclass(frozen=True)
class Task:
    """One instruction (its semaphores still empty), the ranges it touches and the layer it belongs to.

    Ranges may be larger than what is touched, never smaller. `dram_bytes` is what crosses the bus for the task,
    `cycles` its time in its unit without stalls, an estimate. Of a layer, the tasks with `paces` set are its
    compute: what loads are scheduled against.
    """

    instruction: Instruction
    reads: tuple[Range, ...]
    writes: tuple[Range, ...]
    layer: int
    cycles: int
    dram_bytes: int = 0
    paces: bool = False

    @property
    def queue(self) -> Queue:
        assert self.instruction.QUEUE is not None
        return self.instruction.QUEUE


def scratchpad(start: int, size: int) -> Range:
    return Range("scratchpad", start, start + size)


def accumulator(start: int, size: int) -> Range:
    return Range("accumulator", start, start + size)


def dram(base: int, start: int, size: int) -> Range:
    return Range(f"dram{base}", start, start + size)
