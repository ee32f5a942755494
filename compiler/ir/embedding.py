"""Rows of a constant table by indices that are known when the program runs, as embeddings are."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from weft.compiler.ir.graph import CompileError, DeviceOp, View
from weft.hdl.isa import PAGE_ENTRY

INDICES = ("int32", "int64")
"""Types of indices."""
_BLOCK = 1 << 22
"""Elements of a table that are quantised at a time."""


@dataclass(frozen=True)
class RowIndices:
    """What the host stores of a value that has indices of rows: 32-bit byte offsets of rows that are `pitch` bytes
    long. There are `rows` of them, and indices of type `dtype`; negative ones count from the end."""

    dtype: str
    rows: int
    pitch: int

    def offsets(self, name: str, value: np.ndarray) -> np.ndarray:
        """The bytes of the offsets of all indices of a value called `name`, int8 of shape (1, 1, count, 4).

        Raises
        ------
        CompileError
            For an index of no row.
        """
        wrong = np.argwhere((value < -self.rows) | (value >= self.rows))
        if len(wrong):
            at = tuple(wrong[0].tolist())
            raise CompileError(
                f"{name!r} has index {value[at]} at {list(at)}, but the table has {self.rows:,} rows"
            )
        rows = np.where(value < 0, value.astype(np.int64) + self.rows, value)
        return (rows * self.pitch).astype("<u4").reshape(-1).view(np.int8).reshape(1, 1, -1, PAGE_ENTRY)


@dataclass(frozen=True, eq=False)
class Embedding(DeviceOp):
    """For each index a row: q = sat(round_half_even(values[index] * scale) + y_zero), clamped to [low, high].

    `values` are numbers of shape (rows, columns), and `scale` float64 broadcasts to them. All of it is known ahead, so
    memory has `content`, and the device moves rows. `src` is a buffer of kind "table" of shape (1, 1, count, 4), for
    each row of `dst`, (1, 1, count, columns), its little-endian 32-bit byte offset in `content`.
    """

    name: str
    src: View
    dst: View
    values: np.ndarray
    scale: np.ndarray
    y_zero: int = 0
    low: int = -128
    high: int = 127

    def quantised(self, least: int = -128, most: int = 127) -> np.ndarray:
        """The rows as integers from `least` to `most`, int16 of shape (rows, columns)."""
        rows, columns = self.values.shape
        made = np.empty(self.values.shape, np.int16)
        scale = np.broadcast_to(self.scale, self.values.shape)
        low, high = max(self.low, least), min(self.high, most)
        step = max(1, _BLOCK // columns)
        for first in range(0, rows, step):
            part = slice(first, first + step)
            made[part] = np.clip(np.rint(self.values[part] * scale[part]) + self.y_zero, low, high)
        return made

    @cached_property
    def content(self) -> np.ndarray:
        """The rows as they lie in memory, int8."""
        return self.quantised().astype(np.int8)
