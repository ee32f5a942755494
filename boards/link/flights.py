"""Requests that are on their way to a board, and what an answer tells of the others."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from weft.boards.link.frames import ANSWER_BYTES, CRC_BYTES, PAYLOAD, REQUEST_BYTES, Answer, Request

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


@dataclass(eq=False)
class Pending:
    """A request that is not answered.

    Attributes
    ----------
    request : Request
        With the number that it was sent with last.
    losses : int
        How often it, or its answer, is known to have been lost.
    """

    request: Request
    losses: int = 0


@dataclass(frozen=True)
class _Flight:
    order: int
    sent: float
    pending: Pending


class Flights:
    """Transmissions without answer, by sequence number.

    A request may have several: one that was sent again after silence may still be answered. The line keeps its order,
    and so does the board: what was sent before the transmission that is answered never will be. Numbers are given in
    turn, so that one is free for long before it comes again.

    Parameters
    ----------
    sequence : int
        The number before the first one.

    Attributes
    ----------
    held, on_line : int
        Bytes that the requests under way take of the board's buffer, and of the line both ways together.
    """

    def __init__(self, sequence: int) -> None:
        self._sequence = sequence
        self._order = 0
        # In the order of departure. A request's numbers are those of its transmissions.
        self._flights: dict[int, _Flight] = {}
        self._numbers: dict[Pending, list[int]] = {}
        self.held = self.on_line = 0

    def __len__(self) -> int:
        return len(self._numbers)

    def clear(self) -> None:
        """Wait for no answers any more."""
        self._flights.clear()
        self._numbers.clear()
        self.held = self.on_line = 0

    def oldest(self, count: int) -> list[Pending]:
        """The first requests under way, or all."""
        return list(itertools.islice(self._numbers, count))

    def depart(self, pending: Pending, now: float) -> Request:
        """Give a request the number of a transmission that begins now."""
        self._sequence = (self._sequence + 1) % 256
        while self._sequence in self._flights:
            self._sequence = (self._sequence + 1) % 256
        self._order += 1
        pending.request = replace(pending.request, sequence=self._sequence)
        self._flights[self._sequence] = _Flight(self._order, now, pending)
        if pending not in self._numbers:
            self._numbers[pending] = []
            self.held += held(pending.request)
            self.on_line += on_line(pending.request)
        self._numbers[pending].append(self._sequence)
        return pending.request

    def drop(self, one: Pending) -> None:
        """Wait for no answer to a request any more."""
        for number in self._numbers.pop(one):
            del self._flights[number]
        self.held -= held(one.request)
        self.on_line -= on_line(one.request)

    def arrive(self, answer: Answer) -> tuple[Pending, float, list[Pending]] | None:
        """The request that is answered, when its transmission began, and those requests that are lost; none of them are
        under way any more. None if the answer belongs to none."""
        flight = self._flights.get(answer.sequence)
        if flight is None or not _matches(flight.pending.request, answer):
            return None
        self.drop(flight.pending)
        before = itertools.takewhile(lambda item: item[1].order < flight.order, self._flights.items())
        lost = []
        for number, other in list(before):
            one = other.pending
            if self._numbers[one] == [number]:
                self.drop(one)
                lost.append(one)
            else:
                self._numbers[one].remove(number)
                del self._flights[number]
        return flight.pending, flight.sent, lost


def held(request: Request) -> int:
    """Bytes of the board's buffer that it takes."""
    return REQUEST_BYTES + len(request.payload)


def payload(request: Request) -> int:
    """Bytes of payload that cross the line for it, one way or the other."""
    return len(request.payload) + request.answered


def on_line(request: Request) -> int:
    """Bytes that cross the line for it, but for escapes."""
    return FRAMED + payload(request)


def _matches(request: Request, answer: Answer) -> bool:
    return answer.operation is request.operation and len(answer.payload) == request.answered
