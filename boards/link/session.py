"""The host's end of the link: a window of requests, which are repeated until they are answered."""

from __future__ import annotations

import contextlib
import errno
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Protocol

from weft.boards.errors import FrameError
from weft.boards.link.flights import (
    FRAME_BYTES,
    SIZES,
    Flights,
    Pending,
    Quality,
    buffer_bytes,
    line_bytes,
    payload_bytes,
)
from weft.boards.link.frames import PAYLOAD, REQUEST_BYTES, Answer, Operation, Parser, Request, frame
from weft.sim.device import DeviceError

WINDOW = 64
"""Largest number of unanswered requests."""
WINDOW_BYTES = 16 * (FRAME_BYTES + PAYLOAD)
"""Largest number of bytes of unanswered requests on the line, in both directions together. They must fit in the board's
buffer as well."""
ATTEMPTS = 6
"""Consecutive timeouts after which a board that never answered counts as absent."""
PATIENCE = 45.0
"""Seconds after which a board that answered before counts as lost. USB hubs and busy hosts have stalled for half a
minute."""
PROBES = 4
"""Requests repeated after a timeout."""
SILENCES = 2
"""Consecutive timeouts that count towards the line's quality. After more, the line counts as stalled."""
LOSSES = 100
"""Losses of one request, while others are answered, after which the line counts as unusable."""
MIN_WAIT = 0.04
"""Seconds allowed for an answer, in addition to its time on the line, because hosts do other work, too."""
LONGEST_WAIT = 1.0
"""Longest time between two attempts, in seconds."""
POLL = 0.02
"""Longest time that a read of the port blocks, in seconds."""


class SilenceError(DeviceError):
    """No board answers."""


class SerialPort(Protocol):
    """Subset of `serial.Serial` in use. Reads must return within about `POLL` seconds."""

    baudrate: int

    @property
    def in_waiting(self) -> int: ...

    def read(self, size: int) -> bytes: ...

    def write(self, data: bytes) -> int | None: ...

    def close(self) -> None: ...


def open_port(port: str, baud: int) -> SerialPort:
    """Open a serial port for `Session`: a device, or a URL that pyserial supports.

    Raises
    ------
    DeviceError
        If it does not exist, is in use, is no serial port, may not be opened or does not support `baud`, or if pyserial
        is not installed.
    """
    try:
        import serial
        from serial.tools.list_ports import comports
    except ImportError:
        raise DeviceError("boards need pyserial: pip install 'weft[boards]'") from None
    try:
        serial_port = serial.serial_for_url(port, baud, timeout=POLL, write_timeout=1.0, exclusive=True)
    except serial.SerialException as error:
        if error.errno == errno.ENOENT:
            ports = ", ".join(sorted(info.device for info in comports())) or "none"
            message = f"there is no serial port {port}; the ports of this machine: {ports}"
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
    # Without this mode, USB adapters delay answers by 16 ms. Other ports and systems do not have it.
    with contextlib.suppress(AttributeError, NotImplementedError, ValueError, OSError):
        serial_port.set_low_latency_mode(True)
    return serial_port


class Session:
    """Requests and answers over a serial port.

    Damaged bytes lose requests. Because the board answers in order, an answer shows that earlier unanswered requests
    are lost, and only these are repeated. The last requests are repeated after a timeout. On a line with many losses,
    requests on memory are split: see `payload`.

    Parameters
    ----------
    port : SerialPort
    name : str
        Name of the port for messages.
    timeout : float
        Seconds without an answer after which requests are repeated.
    adaptive : bool
        Wait for less than `timeout` if the board has answered faster.
    attempts : int
        Consecutive timeouts after which a board that never answered counts as absent.
    patience : float
        Seconds after which a board that answered before counts as lost.
    clock : callable
        Returns the time in seconds.

    Attributes
    ----------
    buffer : int
        Bytes of the board's request buffer.
    starts : int
        `Answer.starts` of the last answer.
    retries : int
        Requests repeated so far.
    quality : Quality
        Statistics of answers and losses.
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
        self.starts = self.answers = self.retries = 0
        self.quality = Quality()
        self._port, self._clock = port, clock
        self._parser = Parser()
        # A random start, because answers to an earlier session may still arrive.
        self._flights = Flights(random.randrange(256))

    @property
    def damaged_frames(self) -> int:
        """Damaged frames received so far."""
        return self._parser.damaged

    @property
    def payload(self) -> int:
        """Best current size in bytes for requests on memory."""
        return self.quality.payload

    def close(self) -> None:
        """Close the port."""
        self._port.close()

    def exchange(self, requests: Iterable[Request]) -> Iterator[tuple[Request, Answer]]:
        """Send requests, and yield each with its answer, in any order. Their sequence numbers are replaced.

        A request that reads or writes memory may be split into several.

        Raises
        ------
        SilenceError
            If the board does not answer, or another device does.
        DeviceError
            If the port is lost, or the line is unusable.
        """
        # `heard` is the time of the last answer, `woken` that of the last answer or timeout, and `silent` counts the
        # timeouts between answers.
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
                    continue  # a second answer to a repeated request
                mine, sent, lost = arrival
                # From the second timeout on, repeats reuse sequence numbers: the answered transmission is unknown.
                now = self._clock()
                gap = now - max(sent, heard) if silent < 2 else None
                self.quality.record_answer(payload_bytes(mine.request), gap)
                heard = woken = now
                silent = 0
                waiting.extendleft(
                    reversed([part for pending in lost for part in self._replace_lost(pending)])
                )
                yield mine.request, answer
            now = self._clock()
            if flights and now > woken + self._wait(silent):
                silent, woken = silent + 1, now
                if silent >= self.attempts and (not self.answers or now > heard + self.patience):
                    raise SilenceError(self._silence())
                waiting.extendleft(reversed(self._probe(silent)))

    def _fill(self, waiting: deque[Pending], following: Iterator[Request]) -> None:
        """Send as many requests as line and board have room for, lost requests first."""
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
            and flights.buffered + buffer_bytes(request) < self.buffer
            and flights.on_line + line_bytes(request) <= WINDOW_BYTES
        )

    def _replace_lost(self, pending: Pending) -> list[Pending]:
        """Return the requests that replace a lost one, split if that is better."""
        self.retries += 1
        self.quality.record_loss(payload_bytes(pending.request))
        if pending.losses >= LOSSES:
            raise DeviceError(
                f"the line to {self.name} is too bad: it lost a request or its answer {LOSSES} times"
            )
        parts = _split(pending.request, self.payload)
        return [Pending(part, losses=pending.losses + 1) for part in parts]

    def _probe(self, silent: int) -> list[Pending]:
        """Repeat some unanswered requests; answers to them show which others are lost.

        If the oldest is better split, it is not sent but its parts are returned; they are shorter the longer the
        silence. After the first time, repeats keep their sequence numbers, so that numbers do not run out while the
        line is stalled.
        """
        # More timeouts in a row say that the line is stalled, not that it loses bytes.
        if silent <= SILENCES:
            for pending in self._flights.oldest(WINDOW):
                self.quality.record_loss(payload_bytes(pending.request))
        oldest = self._flights.oldest(PROBES)
        self.retries += len(oldest)
        most = max(SIZES[-1], min(self.payload, PAYLOAD >> silent))
        parts = [Pending(part) for part in _split(oldest[0].request, most)]
        if len(parts) == 1:
            parts = []
        else:
            self._flights.drop(oldest.pop(0))
        now = self._clock()
        for pending in oldest if silent == 1 else []:
            self._flights.depart(pending, now)
        if oldest:
            self._write(b"".join(frame(pending.request.encode()) for pending in oldest))
        return parts

    def request(self, request: Request) -> Answer:
        """Exchange one request, which must not be of a kind that is split."""
        return next(answer for _, answer in list(self.exchange([request])))

    def _wait(self, silent: int) -> float:
        """Return the seconds without an answer until the next repeat."""
        # 10 bits per byte. Waits double with every timeout.
        first = self.timeout
        if self.adaptive and self.answers:
            line = self._flights.on_line * 10 / self._port.baudrate
            first = min(first, MIN_WAIT + line + self.quality.reaction)
        return min(first * 2**silent, max(LONGEST_WAIT, 2 * self.timeout))

    def _write(self, data: bytes) -> None:
        import serial

        try:
            self._port.write(data)
        except serial.SerialTimeoutException:
            pass  # the data count as lost on the line
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
            self.answers += 1
            self.starts = answer.starts
            yield answer

    def _silence(self) -> str:
        if self.answers:
            return f"the board at {self.name} no longer answers"
        if self._parser.received:
            return (
                f"what answers at {self.name} is no weft board, or runs at another baud rate: "
                f"of {self._parser.received} bytes, none belong to an answer"
            )
        return f"nothing answers at {self.name}: is a board there, powered, and loaded with weft?"


def _split(request: Request, most: int) -> Iterator[Request]:
    """Yield a request in parts of at most `most` bytes of memory. Requests that cannot be split are yielded as they
    are."""
    if request.size <= most or request.operation not in (Operation.READ_MEMORY, Operation.WRITE_MEMORY):
        yield request
        return
    for at, size in blocks(request.address, request.size, most):
        start = at - request.address
        yield replace(request, address=at, size=size, payload=request.payload[start : start + size])


def blocks(address: int, size: int, block: int) -> Iterator[tuple[int, int]]:
    """Yield (address, size) of the parts of `size` bytes from `address`, split at multiples of `block`."""
    end = address + size
    while address < end:
        length = min(end, (address // block + 1) * block) - address
        yield address, length
        address += length
