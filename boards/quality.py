"""How good a line is, from what gets lost on it: which requests are worth sending, and how long to wait for them."""

from __future__ import annotations

import math

from weft.boards.frames import ANSWER_BYTES, CRC_BYTES, PAYLOAD, REQUEST_BYTES

FRAMED = REQUEST_BYTES + ANSWER_BYTES + 2 * (CRC_BYTES + 2)
"""Bytes on the line for a request and its answer, besides payload and escapes."""
SIZES = tuple(PAYLOAD >> shift for shift in range(5))
"""Payloads of requests, the largest first."""
_MEMORY = 0.98
"""What counts of an exchange after the next one: about fifty exchanges are remembered."""
_SPREAD = 4


class Quality:
    """Statistics of a line.

    Attributes
    ----------
    exchanges, lost : int
        Requests that were answered, and transmissions without answer.
    """

    def __init__(self) -> None:
        self.exchanges = self.lost = 0
        # As if one of the longest requests had been answered: a single loss is not all there is to know.
        self._tries, self._failures, self._bytes = 1.0, 0.0, float(PAYLOAD + FRAMED)
        self._gap = self._variation = 0.0

    def answered(self, size: int, gap: float | None) -> None:
        """A request with `size` bytes of payload, or of its answer's, was answered `gap` seconds after the answer
        before it, or after it was sent if that was later; None if which transmission was answered is not known."""
        self.exchanges += 1
        self._count(size, 0)
        if gap is None:
            return
        change = abs(gap - self._gap)
        self._gap += (gap - self._gap) / 8
        self._variation += (change - self._variation) / 4

    def failed(self, size: int) -> None:
        """Such a request, or its answer, was lost."""
        self.lost += 1
        self._count(size, 1)

    def _count(self, size: int, failed: int) -> None:
        self._tries = self._tries * _MEMORY + 1
        self._failures = self._failures * _MEMORY + failed
        self._bytes = self._bytes * _MEMORY + size + FRAMED

    @property
    def error_rate(self) -> float:
        """Estimated share of bytes on the line that are spoilt, lately."""
        if not self._failures:
            return 0.0
        survives = max(1 - self._failures / self._tries, 0.01)
        return -math.log(survives) * self._tries / self._bytes

    @property
    def payload(self) -> int:
        """The payload with which most bytes arrive in the same time: of a request that survives spoilt bytes in a share
        of `exp(-rate * length)`."""
        rate = self.error_rate
        return max(SIZES, key=lambda size: size / (size + FRAMED) * math.exp(-rate * (size + FRAMED)))

    @property
    def reaction(self) -> float:
        """Seconds in which an answer is to be expected that is not held up by others: as TCP does it, RFC 6298."""
        return self._gap + _SPREAD * self._variation
