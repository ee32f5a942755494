"""Outstanding requests to a board, and statistics of the line."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace

from weft.boards.link.frames import ANSWER_BYTES, CRC_BYTES, PAYLOAD, REQUEST_BYTES, Answer, Request

FRAME_BYTES = REQUEST_BYTES + ANSWER_BYTES + 2 * (CRC_BYTES + 2)
"""Bytes on the line for a request and its answer, without payload and escapes."""
SIZES = tuple(PAYLOAD >> shift for shift in range(5))
"""Payload sizes of requests, largest first."""
_MEMORY = 0.98
"""Weight of an exchange relative to the next one: the statistics cover about fifty exchanges."""
_SPREAD = 4


class Quality:
    """Statistics of a line.

    Attributes
    ----------
    exchanges, lost : int
        Answered requests, and unanswered transmissions.
    """

    def __init__(self) -> None:
        self.exchanges = self.lost = 0
        # Start with one answered request of the largest size, so that a first loss does not dominate.
        self._tries, self._failures, self._bytes = 1.0, 0.0, float(PAYLOAD + FRAME_BYTES)
        self._gap = self._variation = 0.0

    def record_answer(self, size: int, gap: float | None) -> None:
        """Record an answer to a request with `size` bytes of payload in either direction.

        `gap` is the time in seconds since the previous answer, or since transmission if that was later. It is None if
        the answered transmission is not known.
        """
        self.exchanges += 1
        self._count(size, 0)
        if gap is None:
            return
        # Smoothing factors 1/8 and 1/4 are those of RFC 6298.
        change = abs(gap - self._gap)
        self._gap += (gap - self._gap) / 8
        self._variation += (change - self._variation) / 4

    def record_loss(self, size: int) -> None:
        """Record the loss of a request with `size` bytes of payload in either direction, or of its answer."""
        self.lost += 1
        self._count(size, 1)

    def _count(self, size: int, failed: int) -> None:
        self._tries = self._tries * _MEMORY + 1
        self._failures = self._failures * _MEMORY + failed
        self._bytes = self._bytes * _MEMORY + size + FRAME_BYTES

    @property
    def error_rate(self) -> float:
        """Estimated recent rate of damaged bytes on the line."""
        if not self._failures:
            return 0.0
        survives = max(1 - self._failures / self._tries, 0.01)
        return -math.log(survives) * self._tries / self._bytes

    @property
    def payload(self) -> int:
        """Payload size with the highest throughput, if a request of `length` bytes arrives with probability `exp(-rate
        * length)`."""
        rate = self.error_rate
        return max(
            SIZES, key=lambda size: size / (size + FRAME_BYTES) * math.exp(-rate * (size + FRAME_BYTES))
        )

    @property
    def reaction(self) -> float:
        """Expected time in seconds until an answer that does not wait for others, estimated as in TCP (RFC 6298)."""
        return self._gap + _SPREAD * self._variation


@dataclass(eq=False)
class Pending:
    """Unanswered request.

    Attributes
    ----------
    request : Request
        With the sequence number of its last transmission.
    losses : int
        Number of known losses of the request or its answer.
    """

    request: Request
    losses: int = 0


@dataclass(frozen=True)
class _Flight:
    order: int
    sent: float
    pending: Pending


class Flights:
    """Unanswered transmissions, by sequence number.

    A request may have several transmissions, because the first may still be answered after a repeat. Line and board
    keep the order of requests, so earlier transmissions than an answered one are lost. Numbers are assigned in turn, so
    a number stays unused for long before it is assigned again.

    Parameters
    ----------
    sequence : int
        Number before the first one to assign.

    Attributes
    ----------
    buffered, on_line : int
        Bytes that the outstanding requests take of the board's buffer, and of the line in both directions together.
    """

    def __init__(self, sequence: int) -> None:
        self._sequence = sequence
        self._order = 0
        # Flights are in order of departure. `_numbers` lists the sequence numbers of each request's transmissions.
        self._flights: dict[int, _Flight] = {}
        self._numbers: dict[Pending, list[int]] = {}
        self.buffered = self.on_line = 0

    def __len__(self) -> int:
        return len(self._numbers)

    def clear(self) -> None:
        """Forget all outstanding requests."""
        self._flights.clear()
        self._numbers.clear()
        self.buffered = self.on_line = 0

    def oldest(self, count: int) -> list[Pending]:
        """Return the `count` oldest outstanding requests, or all if there are fewer."""
        return list(itertools.islice(self._numbers, count))

    def depart(self, pending: Pending, now: float) -> Request:
        """Assign a sequence number for a transmission that begins now, and return the request with it."""
        self._sequence = (self._sequence + 1) % 256
        while self._sequence in self._flights:
            self._sequence = (self._sequence + 1) % 256
        self._order += 1
        pending.request = replace(pending.request, sequence=self._sequence)
        self._flights[self._sequence] = _Flight(self._order, now, pending)
        if pending not in self._numbers:
            self._numbers[pending] = []
            self.buffered += buffer_bytes(pending.request)
            self.on_line += line_bytes(pending.request)
        self._numbers[pending].append(self._sequence)
        return pending.request

    def drop(self, pending: Pending) -> None:
        """Forget an outstanding request."""
        for number in self._numbers.pop(pending):
            del self._flights[number]
        self.buffered -= buffer_bytes(pending.request)
        self.on_line -= line_bytes(pending.request)

    def arrive(self, answer: Answer) -> tuple[Pending, float, list[Pending]] | None:
        """Return the answered request, the start time of its transmission, and all requests that are lost.

        These requests are no longer outstanding. Return None if the answer belongs to no transmission.
        """
        flight = self._flights.get(answer.sequence)
        if flight is None or not _matches(flight.pending.request, answer):
            return None
        self.drop(flight.pending)
        # Everything sent before the answered transmission is lost, except requests with a later transmission.
        before = itertools.takewhile(lambda item: item[1].order < flight.order, self._flights.items())
        lost = []
        for number, other in list(before):
            pending = other.pending
            if self._numbers[pending] == [number]:
                self.drop(pending)
                lost.append(pending)
            else:
                self._numbers[pending].remove(number)
                del self._flights[number]
        return flight.pending, flight.sent, lost


def buffer_bytes(request: Request) -> int:
    """Return the bytes of the board's buffer that a request takes."""
    return REQUEST_BYTES + len(request.payload)


def payload_bytes(request: Request) -> int:
    """Return the payload bytes that cross the line for a request, in either direction."""
    return len(request.payload) + request.answer_size


def line_bytes(request: Request) -> int:
    """Return the bytes that cross the line for a request, without escapes."""
    return FRAME_BYTES + payload_bytes(request)


def _matches(request: Request, answer: Answer) -> bool:
    return answer.operation is request.operation and len(answer.payload) == request.answer_size
