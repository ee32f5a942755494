"""What instructions take on the sequential core, which carries out one after the other: nothing hides behind another.

The numbers are of its microprogram, with a memory that answers at once, and are held against its cycle model by a test.
A LOAD waits for a slower memory; as many bytes have to come whatever the plan, unless they come more often.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class SequentialCosts:
    """Cycles of so many instructions together, fetching included. All counts are numbers or arrays.

    Parameters
    ----------
    n : int
        Columns of the array, and bytes of a vector.
    mantissa_bits : int
        Of requantisation, two in a cycle.
    """

    n: int
    mantissa_bits: int

    def mm(self, instructions: Any, steps: Any, lines: Any, columns: Any) -> Any:
        """`steps` of the contraction of tiles, each with weights of its own, and over all of them `lines`, that is
        values of ``oy``, of `columns` rows each. The next line is got ready while rows enter."""
        return instructions * 240 + steps * (32 + 2 * self.n) + lines * np.maximum(21, columns + 13)

    def load(self, instructions: Any, rows: Any, pixels: Any, vectors: Any) -> Any:
        """`rows`, `pixels` and `vectors` over all of them. Pixels of a vector each take no longer than that."""
        beside = np.where(np.asarray(vectors) > pixels, 22, 3)
        return instructions * 165 + rows * 42 + pixels * beside + vectors * (7 + self.n)

    def store(self, instructions: Any, rows: Any, pixels: Any, vectors: Any) -> Any:
        return instructions * 100 + rows * 15 + pixels * 21 + vectors * (7 + self.n)

    def vec(self, instructions: Any, lines: Any, vectors: Any) -> Any:
        """`lines`, that is values of ``oy``, and `vectors` that are read over all of them: one for an output, or all of
        a window. Parameters are taken apart for every instruction."""
        value = 14 + self.mantissa_bits // 2
        return instructions * (300 + 34 * self.n) + lines * 30 + vectors * (16 + value * self.n)
