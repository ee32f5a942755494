"""A serial line to a board model in simulated time, so that minutes take no time."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

from weft.boards.link.session import POLL


def spoil(data: bytes, rate: float, rng: random.Random) -> bytes:
    """Return `data` with a share `rate` of bytes lost, doubled or corrupted, each equally often."""
    out = bytearray()
    for byte in data:
        if rng.random() >= rate:
            out.append(byte)
            continue
        kind = rng.randrange(3)
        if kind:
            out += bytes([byte] * 2) if kind == 1 else bytes([byte ^ 1 << rng.randrange(8)])
    return bytes(out)


class SimulatedLine:
    """A `weft.boards.link.session.SerialPort`.

    Each byte takes time both ways, plus `latency`; each call of the host takes time, too.

    Parameters
    ----------
    board : Callable[[bytes], bytes]
        Returns the answer to arriving bytes.
    rng : random.Random
        Draws the corrupted bytes.

    Attributes
    ----------
    now : float
        Seconds since the beginning.
    rate : float
        Share of corrupted bytes, each way.
    still : tuple of (float, float)
        Start and end of a pause of the line: bytes in flight arrive after it, or are lost if `forgets`.
    """

    def __init__(
        self, board: Callable[[bytes], bytes], rng: random.Random, baudrate: int = 3_000_000
    ) -> None:
        self.board, self.rng, self.baudrate = board, rng, baudrate
        self.latency, self.rate, self.now = 0.001, 0.0, 0.0
        self.still = (0.0, 0.0)
        self.forgets = False
        self._out = self._back = 0.0  # when both ways are free again
        self._arrived: deque[tuple[float, bytes]] = deque()

    def clock(self) -> float:
        return self.now

    @property
    def in_waiting(self) -> int:
        return sum(len(data) for at, data in self._arrived if at <= self.now)

    def write(self, data: bytes) -> int:
        self.now += 20e-6
        for start in range(0, len(data), 64):
            self._carry(data[start : start + 64])
        return len(data)

    def _carry(self, data: bytes) -> None:
        byte = 10 / self.baudrate
        self._out, data = self._delay(max(self._out, self.now) + byte * len(data), data)
        said = spoil(self.board(spoil(data, self.rate, self.rng)), self.rate, self.rng)
        if said:
            self._back, said = self._delay(max(self._back, self._out + self.latency) + byte * len(said), said)
            self._arrived.append((self._back, said))

    def _delay(self, at: float, data: bytes) -> tuple[float, bytes]:
        begin, end = self.still
        if not begin <= at < end:
            return at, data
        return (at, b"") if self.forgets else (end + at - begin, data)

    def read(self, size: int) -> bytes:
        self.now += 20e-6
        if self._arrived and self._arrived[0][0] <= self.now + POLL:
            at, data = self._arrived.popleft()
            self.now = max(self.now, at)
            return data
        self.now += POLL
        return b""

    def close(self) -> None:
        self._arrived.clear()
