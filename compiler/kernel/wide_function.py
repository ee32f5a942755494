"""Functions of elements of 16 bits: straight lines between 256 places."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from weft.compiler.ir.graph import View
from weft.compiler.ir.planes import joined, split
from weft.compiler.kernel.evaluate import evaluate
from weft.compiler.kernel.expressions import DIGITS, Rows
from weft.compiler.kernel.int16 import LIMITS, ClampedRows, stored
from weft.compiler.kernel.operators import FINE
from weft.hdl.isa.config import LOOKUP_ENTRIES

TABLES = 2
"""Look-up tables that entries of 16 bits take."""
_PLACES = 14
"""Binary places between two entries."""
_BEYOND = 1.25
"""How far entries may lie beyond the range of results, so that lines cross its ends where the function does."""


@dataclass(frozen=True, eq=False, kw_only=True)
class WideFunction(ClampedRows):
    """q = sat(round(line(x) * scale)), where line(x) is on the straight line between the entries of `table`, int16
    (256,), next to ``(x - first) / spacing``, and x has 16 bits. Results have 8, or 16 with `wide`."""

    src: View
    table: np.ndarray
    first: int
    spacing: int
    scale: float

    @property
    def sources(self) -> tuple[View, ...]:
        return self.src.planes

    def rows(self) -> Rows:
        rows = Rows(self.src.shape[3], 2)
        along = (rows.bytes_of(0, 1) - self.first).scaled((1 << _PLACES) / self.spacing)
        place = along - (LOOKUP_ENTRIES // 2 << _PLACES)
        value = place.interpolated(self.table, _PLACES)
        return stored(rows, value.scaled(math.ldexp(self.scale, FINE)), self)

    @property
    def results(self) -> np.ndarray:
        """What it makes of each x, from the least on: (65536,)."""
        x = np.arange(LIMITS[0], LIMITS[1] + 1)
        found = evaluate(self._single().rows(), [plane[:, None] for plane in split(x)])
        return joined(found[:, 0], found[:, 1]) if self.wide else found[:, 0].astype(np.int32)

    def _single(self) -> WideFunction:
        """The same of one element."""
        one = View(self.src.buffer, (1, 1, 1, 1))
        return self.replace(src=one, dst=one)


class Lines(NamedTuple):
    """The fields of a `WideFunction`."""

    table: np.ndarray
    first: int
    spacing: int
    scale: float


def lines(values: np.ndarray, limits: tuple[int, int]) -> Lines:
    """The entries nearest to a function, by least squares.

    `values` are its results for each x, float64 (65536,), in steps and with the zero point, before they are rounded and
    clamped to `limits`. Where it does not change at either end there are no entries.
    """
    middle, half = (limits[0] + limits[1]) / 2, (limits[1] - limits[0]) / 2 * _BEYOND
    wanted = np.clip(values, middle - half, middle + half)
    whole = np.clip(np.rint(wanted), *limits)
    changing = np.flatnonzero(np.diff(whole))
    begin, end = (int(changing[0]), int(changing[-1]) + 1) if changing.size else (0, 1)
    spacing = max(1, -(-(end - begin) // (LOOKUP_ENTRIES - 1)))
    begin = max(0, min(begin, len(wanted) - 1 - spacing))
    x = np.arange(begin, min(begin + spacing * (LOOKUP_ENTRIES - 1) + 1, len(wanted)))
    entries = _fitted((x - begin) / spacing, wanted[x])
    largest = max(float(np.abs(entries).max()), 2.0**-20)
    gain = min(DIGITS / largest, 2.0**20)
    return Lines(np.rint(entries * gain).astype(np.int16), begin + LIMITS[0], spacing, 1 / gain)


def _fitted(at: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The entries between which straight lines come nearest to what is wanted at places counted in entries."""
    place = np.minimum(at.astype(np.int64), LOOKUP_ENTRIES - 2)
    rest = at - place
    matrix, right = np.zeros((LOOKUP_ENTRIES, LOOKUP_ENTRIES)), np.zeros(LOOKUP_ENTRIES)
    for i, a in ((0, 1 - rest), (1, rest)):
        np.add.at(right, place + i, a * wanted)
        for j, b in ((0, 1 - rest), (1, rest)):
            np.add.at(matrix, (place + i, place + j), a * b)
    used = np.flatnonzero(np.diag(matrix))
    found = np.full(LOOKUP_ENTRIES, wanted[-1])
    found[used] = np.linalg.solve(matrix[np.ix_(used, used)], right[used])
    return found
