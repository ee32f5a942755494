"""Requests that are on their way to a board, and what an answer tells of the others."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace

from weft.boards.frames import REQUEST_BYTES, Answer, Request
from weft.boards.quality import FRAMED


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
