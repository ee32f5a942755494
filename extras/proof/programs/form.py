"""Forms: rounding shift, clamp and look-up table, which convert an integer to an int8."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Form(NamedTuple):
    """Conversion of an integer p: ``table[clamp(round_half_even(p / 2**shift) + zero, low, high)]``.

    `table` has 256 bytes, the int8 results of -128 to 127, or none for the identity.
    """

    shift: int
    zero: int
    low: int
    high: int
    table: bytes = b""

    @property
    def monotonic(self) -> bool:
        """True if a larger p never gives a smaller result."""
        return not self.table or bool((np.diff(self.entries) >= 0).all())

    @property
    def entries(self) -> np.ndarray:
        """Table entries of -128 to 127, int64 (256,)."""
        if not self.table:
            return np.arange(-128, 128)
        return np.frombuffer(self.table, np.int8).astype(np.int64)

    @property
    def canonical(self) -> Form:
        """Equal form for all equal functions: the clamp is part of the table, or the table, if it only adds a constant,
        part of the clamp."""
        if not self.table:
            return self
        entries = self.entries[np.clip(np.arange(-128, 128), self.low, self.high) + 128]
        # A table that adds a constant and clamps shows the constant in any entry between its bounds.
        low, high = int(entries[0]), int(entries[-1])
        inside = np.flatnonzero((entries > low) & (entries < high))
        added = int(entries[inside[0]] - inside[0] + 128) if inside.size else 0
        if low <= high and (entries == np.clip(np.arange(-128, 128) + added, low, high)).all():
            return self._replace(zero=self.zero + added, low=low, high=high, table=b"")
        return self._replace(low=-128, high=127, table=entries.astype(np.int8).tobytes())

    def then(self, form: Form) -> Form:
        """Compose with a second form that has no shift."""
        entries = form.apply(self.entries)
        return self._replace(table=entries.astype(np.int8).tobytes()).canonical

    def apply(self, p: np.ndarray) -> np.ndarray:
        """Convert integers, int64."""
        one = np.int64(1)
        floor = p >> self.shift
        rest, half = p - (floor << self.shift), (one << self.shift) >> 1
        up = (rest > half) | ((rest == half) & (floor & 1 == 1)) if self.shift else np.zeros(p.shape, bool)
        q = np.clip(floor + up + self.zero, self.low, self.high)
        return self.entries[q + 128] if self.table else q

    def apply_range(self, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the least and the largest result of integers from `low` to `high`, int64."""
        if self.monotonic:
            return self.apply(low), self.apply(high)
        # Search the part of the table between both ends, once for each different pair of ends.
        plain, entries = self._replace(table=b""), self.entries
        ends = np.stack([plain.apply(low), plain.apply(high)])
        pairs, inverse = np.unique(ends, axis=1, return_inverse=True)
        extremes = np.array(
            [(part.min(), part.max()) for a, b in pairs.T for part in [entries[a + 128 : b + 129]]]
        )
        return extremes[inverse.ravel(), 0], extremes[inverse.ravel(), 1]


SATURATE = Form(0, 0, -128, 127)
"""Saturation to int8."""
