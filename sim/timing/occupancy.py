"""Occupancy of the scratchpad over time, from the accesses of instructions and the intervals in which they ran."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from weft.hdl.checker.accesses import Cells, on_chip
from weft.hdl.isa import Instruction, Memory
from weft.hdl.isa.config import Config

Span = tuple[int, int]
"""First cycle, and the one after the last."""


class _Vectors:
    """Since when every vector of the scratchpad is in use (-1: it never was), and until when as far as is known."""

    def __init__(self, size: int) -> None:
        self.since = np.full(size, -1, np.int64)
        self.until = np.zeros(size, np.int64)
        self.changes: dict[int, int] = {}

    def read(self, cells: Cells, span: Span) -> None:
        self.until[cells] = np.maximum(self.until[cells], span[1])

    def write(self, cells: Cells, span: Span) -> None:
        """New contents: the old ones were in use until they were last read. No vector counts twice in a cycle."""
        self.close(cells)
        self.since[cells] = np.maximum(self.until[cells], span[0])
        self.until[cells] = np.maximum(self.since[cells], span[1])

    def close(self, cells: Cells) -> None:
        used = self.since[cells] >= 0
        self._change(self.since[cells][used], 1)
        self._change(self.until[cells][used], -1)

    def _change(self, cycles: np.ndarray, by: int) -> None:
        for cycle, count in zip(*np.unique(cycles, return_counts=True), strict=True):
            self.changes[int(cycle)] = self.changes.get(int(cycle), 0) + by * int(count)


def occupancy(
    instructions: Sequence[Instruction], spans: dict[int, Span], config: Config
) -> list[tuple[int, int]]:
    """Scratchpad vectors in use, as (cycle, vectors) wherever that changes.

    A vector is in use from the start of the instruction that writes it to the end of the last one that reads it before
    it is written again; one that nobody reads, while it is written.

    Parameters
    ----------
    instructions : sequence of Instruction
        A program whose semaphores order its accesses, as the program checker wants them.
    spans : dict of int to Span
        By index, when instructions ran; others do not count.
    config : Config
        The accelerator it ran on.
    """
    vectors = _Vectors(config.scratchpad_size)
    for index, instruction in enumerate(instructions):
        if index not in spans:
            continue
        for access in on_chip(instruction, config):
            if access.memory is Memory.SCRATCHPAD:
                change = vectors.write if access.write else vectors.read
                change(access.cells, spans[index])
    vectors.close(slice(None))
    cycles = sorted(cycle for cycle, change in vectors.changes.items() if change)
    return list(zip(cycles, accumulate(vectors.changes[cycle] for cycle in cycles), strict=True))
