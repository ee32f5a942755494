"""What is done to an integer on its way to a byte: rounding, clamping and a table."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Form(NamedTuple):
    """What is done to p; `table` are 256 bytes, or empty."""

    shift: int
    zero: int
    low: int
    high: int
    table: bytes = b""

    @property
    def rises(self) -> bool:
        """Whether a larger p never makes a smaller result."""
        return not self.table or bool((np.diff(self.entries) >= 0).all())

    @property
    def entries(self) -> np.ndarray:
        """What becomes of -128 to 127, int64."""
        if not self.table:
            return np.arange(-128, 128)
        return np.frombuffer(self.table, np.int8).astype(np.int64)

    @property
    def normal(self) -> Form:
        """The same with a table that has the clamp in it, or with a clamp alone if the table only adds a number."""
        if not self.table:
            return self
        entries = self.entries[np.clip(np.arange(-128, 128), self.low, self.high) + 128]
        low, high = int(entries[0]), int(entries[-1])
        inside = np.flatnonzero((entries > low) & (entries < high))
        more = int(entries[inside[0]] - inside[0] + 128) if inside.size else 0
        if low <= high and (entries == np.clip(np.arange(-128, 128) + more, low, high)).all():
            return self._replace(zero=self.zero + more, low=low, high=high, table=b"")
        return self._replace(low=-128, high=127, table=entries.astype(np.int8).tobytes())

    def before(self, form: Form) -> Form:
        """This, and then a form without shift."""
        entries = form.of(self.entries)
        return self._replace(table=entries.astype(np.int8).tobytes()).normal

    def of(self, p: np.ndarray) -> np.ndarray:
        """The results of integers, int64."""
        one = np.int64(1)
        floor = p >> self.shift
        rest, half = p - (floor << self.shift), (one << self.shift) >> 1
        up = (rest > half) | ((rest == half) & (floor & 1 == 1)) if self.shift else np.zeros(p.shape, bool)
        q = np.clip(floor + up + self.zero, self.low, self.high)
        return self.entries[q + 128] if self.table else q

    def ends(self, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The range of results of integers in a range."""
        if not self.table:
            return self.of(low), self.of(high)
        plain = self._replace(table=b"")
        table = np.frombuffer(self.table, np.int8).astype(np.int64)
        if self.rises:
            return self.of(low), self.of(high)
        ends = np.stack([plain.of(low), plain.of(high)])
        pairs, inverse = np.unique(ends, axis=1, return_inverse=True)
        found = np.array(
            [(part.min(), part.max()) for a, b in pairs.T for part in [table[a + 128 : b + 129]]]
        )
        return found[inverse.ravel(), 0], found[inverse.ravel(), 1]


STORED = Form(0, 0, -128, 127)
"""What becomes of a number that is stored: the nearest int8."""
