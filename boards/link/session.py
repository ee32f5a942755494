"""The host's end of the link: requests in a window, sent again until they are answered."""

from __future__ import annotations

import contextlib
import errno
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Protocol

from weft.boards.link.flights import FRAMED, SIZES, Flights, Pending, Quality, held, on_line, payload
from weft.boards.link.frames import (
    PAYLOAD,
    REQUEST_BYTES,
    Answer,
    FrameError,
    Operation,
    Parser,
    Request,
    frame,
)
from weft.sim.device import DeviceError

WINDOW = 64
"""Requests that are sent before the first one's answer."""
WINDOW_BYTES = 16 * (FRAMED + PAYLOAD)
"""Bytes that these take on the line, both ways together; what they hold must fit in the board's buffer besides."""
ATTEMPTS = 6
"""How often in a row a board may be silent that has never answered."""
PATIENCE = 45.0
"""Seconds for which one may be silent that has: USB hubs and busy hosts have stood still for half a minute."""
PROBES = 4
"""Requests that are sent again after silence."""
SILENCES = 2
"""Of silences in a row, how many tell of the line's quality: in more than these, it stands still."""
LOSSES = 100
"""How often one request may be lost while others are answered."""
LEAST = 0.04
"""Seconds that an answer may take at least, besides its time on the line: hosts do other things, too."""
LONGEST_WAIT = 1.0
"""Seconds between two attempts at most."""
POLL = 0.02
"""Seconds that a read of the port takes at most."""


class SilenceError(DeviceError):
    """Nothing that understands us answers."""


class SerialPort(Protocol):
    """What is used of `serial.Serial`; reads must return within `POLL` seconds or so."""

    baudrate: int

    @property
    def in_waiting(self) -> int: ...

    def read(self, size: int) -> bytes: ...

    def write(self, data: bytes) -> int | None: ...

    def close(self) -> None: ...


def open_port(port: str, baud: int) -> SerialPort:
    """Open a serial port for `Session`: a device, or a URL that pyserial knows.

    Raises
    ------
    DeviceError
        If it does not exist, is in use, is no serial port, may not be opened or cannot run at `baud`, or if pyserial
        is not installed.
    """
    try:
        import serial
        from serial.tools.list_ports import comports
    except ImportError:
        raise DeviceError("boards need pyserial: pip install 'weft[boards]'") from None
    try:
        opened = serial.serial_for_url(port, baud, timeout=POLL, write_timeout=1.0, exclusive=True)
    except serial.SerialException as error:
        if error.errno == errno.ENOENT:
            found = ", ".join(sorted(info.device for info in comports())) or "none"
            message = f"there is no serial port {port}; the ports of this machine: {found}"
        elif error.errno in (errno.EACCES, errno.EPERM):
            message = (
                f"you may not open {port}: join the group that owns it (often dialout), then log in again"
            )
        elif error.errno in (errno.EBUSY, errno.EWOULDBLOCK):
            message = f"another program has {port} open: end it first"
        elif error.errno is None and "configure" in str(error):
            message = f"{port} is no serial port"
        else:
            message = f"cannot open {port}: {error}"
        raise DeviceError(message) from None
    except (ValueError, OverflowError, NotImplementedError) as error:
        raise DeviceError(f"cannot open {port} at {baud} baud: {error}") from None
    # USB adapters else hold answers back for 16 ms. Other ports and systems know no such mode.
    with contextlib.suppress(AttributeError, NotImplementedError, ValueError, OSError):
        opened.set_low_latency_mode(True)
    return opened


class Session:
    """Requests and answers over a serial port.

    Requests are lost where bytes are. As the board answers in order, an answer tells that what was sent before its
    request is lost, and only that is sent again; what was sent last is sent again when nothing comes for a while. On a
    line that loses much, requests on memory are divided: `payload` says how.

    Parameters
    ----------
    port : SerialPort
    name : str
        What messages call the port.
    timeout : float
        Seconds without an answer after which requests are sent again.
    adaptive : bool
        Whether to wait for less than `timeout` where the board has answered faster.
    attempts : int
        How often in a row a board may be silent that has never answered.
    patience : float
        Seconds for which one may be silent that has.
    clock : callable
        The time in seconds.

    Attributes
    ----------
    buffer : int
        Bytes of requests that the board can hold.
    starts : int
        `Answer.starts` of the last answer.
    repeated : int
        Requests sent again so far.
    quality : Quality
        What was answered and lost so far.
    """

    def __init__(
        self,
        port: SerialPort,
        name: str,
        *,
        timeout: float,
        adaptive: bool = False,
        attempts: int = ATTEMPTS,
        patience: float = PATIENCE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name, self.timeout, self.adaptive = name, timeout, adaptive
        self.attempts, self.patience = attempts, patience
        self.buffer = 2 * (REQUEST_BYTES + PAYLOAD)
        self.starts = self.answered = self.repeated = 0
        self.quality = Quality()
        self._port, self._clock = port, clock
        self._parser = Parser()
        # A session before this one may have left answers on the line.
        self._flights = Flights(random.randrange(256))

    @property
    def damaged(self) -> int:
        """Damaged frames received so far."""
        return self._parser.damaged

    @property
    def payload(self) -> int:
        """Bytes that requests on memory should be about now."""
        return self.quality.payload

    def close(self) -> None:
        """Close the port."""
        self._port.close()

    def exchange(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Answer]]:
        """Send requests, whatever their sequence numbers; yields each and its answer, in any order. Those that read or
        write memory may have become several.

        Raises
        ------
        SilenceError
            If the board is silent, or something else answers.
        DeviceError
            If the line is lost or too bad.
        """
        waiting = deque[Pending]()
        following = iter(requests)
        flights = self._flights
        flights.clear()
        heard = woken = self._clock()
        silent = 0
        while True:
            self._fill(waiting, following)
            if not flights:
                return
            for answer in self._answers(self._receive()):
                arrival = flights.arrive(answer)
                if arrival is None:
                    continue  # of a request that was sent twice
                mine, sent, lost = arrival
                now = self._clock()
                self.quality.answered(payload(mine.request), now - max(sent, heard) if silent < 2 else None)
                heard = woken = now
                silent = 0
                waiting.extendleft(reversed([part for one in lost for part in self._lost(one)]))
                yield mine.request, answer
            now = self._clock()
            if flights and now > woken + self._wait(silent):
                silent, woken = silent + 1, now
                if silent >= self.attempts and (not self.answered or now > heard + self.patience):
                    raise SilenceError(self._silence())
                waiting.extendleft(reversed(self._probe(silent)))

    def _fill(self, waiting: deque[Pending], following: Iterator[Request]) -> None:
        """Send what finds room on the line and in the board: what was lost first."""
        out, now = b"", self._clock()
        while True:
            if not waiting:
                request = next(following, None)
                if request is None:
                    break
                waiting.append(Pending(request))
            if not self._fits(waiting[0].request):
                break
            out += frame(self._flights.depart(waiting.popleft(), now).encode())
        if out:
            self._write(out)

    def _fits(self, request: Request) -> bool:
        flights = self._flights
        return not flights or (
            len(flights) < WINDOW
            and flights.held + held(request) < self.buffer
            and flights.on_line + on_line(request) <= WINDOW_BYTES
        )

    def _lost(self, one: Pending) -> list[Pending]:
        """What to send for a request that is lost: in pieces if that is better."""
        self.repeated += 1
        self.quality.failed(payload(one.request))
        if one.losses >= LOSSES:
            raise DeviceError(
                f"the line to {self.name} is too bad: it lost a request or its answer {LOSSES} times"
            )
        parts = _divided(one.request, self.payload)
        return [Pending(part, losses=one.losses + 1) for part in parts]

    def _probe(self, silent: int) -> list[Pending]:
        """Send some of what is not answered again: the answers tell if more is lost. Returns a part of it that
        is to be sent in pieces, the shorter the longer the silence.

        All but the first time they go with the same numbers, so that these do not run out while a line stands still.
        """
        if silent <= SILENCES:
            for one in self._flights.oldest(WINDOW):
                self.quality.failed(payload(one.request))
        oldest = self._flights.oldest(PROBES)
        self.repeated += len(oldest)
        most = max(SIZES[-1], min(self.payload, PAYLOAD >> silent))
        parts = [Pending(part) for part in _divided(oldest[0].request, most)]
        if len(parts) == 1:
            parts = []
        else:
            self._flights.drop(oldest.pop(0))
        now = self._clock()
        for one in oldest if silent == 1 else []:
            self._flights.depart(one, now)
        if oldest:
            self._write(b"".join(frame(one.request.encode()) for one in oldest))
        return parts

    def request(self, request: Request) -> Answer:
        """Exchange one request, which must not be one that may become several."""
        return next(answer for _, answer in list(self.exchange([request])))

    def _wait(self, silent: int) -> float:
        """Seconds without an answer after which something is sent again."""
        first = self.timeout
        if self.adaptive and self.answered:
            line = self._flights.on_line * 10 / self._port.baudrate
            first = min(first, LEAST + line + self.quality.reaction)
        return min(first * 2**silent, max(LONGEST_WAIT, 2 * self.timeout))

    def _write(self, data: bytes) -> None:
        import serial

        try:
            self._port.write(data)
        except serial.SerialTimeoutException:
            pass  # nobody takes it: as if it was lost
        except OSError as error:
            raise DeviceError(f"lost {self.name}: {error.strerror or error}") from None

    def _receive(self) -> bytes:
        try:
            return self._port.read(max(1, self._port.in_waiting))
        except OSError as error:
            raise DeviceError(f"lost {self.name}: {error.strerror or error}") from None

    def _answers(self, data: bytes) -> Iterator[Answer]:
        for body in self._parser.feed(data):
            try:
                answer = Answer.decode(body)
            except FrameError:
                continue
            self.answered += 1
            self.starts = answer.starts
            yield answer

    def _silence(self) -> str:
        if self.answered:
            return f"the board at {self.name} no longer answers"
        if self._parser.received:
            return (
                f"what answers at {self.name} is no weft board, or runs at another baud rate: "
                f"of {self._parser.received} bytes, none belong to an answer"
            )
        return f"nothing answers at {self.name}: is a board there, powered, and loaded with weft?"


def _divided(request: Request, most: int) -> Iterator[Request]:
    """A request as several, each on a part of its memory; itself if it is on none, or on no more than `most` bytes."""
    if request.size <= most or request.operation not in (Operation.READ_MEMORY, Operation.WRITE_MEMORY):
        yield request
        return
    for at, size in blocks(request.address, request.size, most):
        start = at - request.address
        yield replace(request, address=at, size=size, payload=request.payload[start : start + size])


def blocks(address: int, size: int, block: int) -> Iterator[tuple[int, int]]:
    """Addresses and sizes of the parts of `size` bytes from `address` on between multiples of `block`."""
    end = address + size
    while address < end:
        length = min(end, (address // block + 1) * block) - address
        yield address, length
        address += length
