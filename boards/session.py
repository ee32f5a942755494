"""The host's end of the link: requests in a window, sent again until they are answered."""

from __future__ import annotations

import contextlib
import errno
import random
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from weft.boards.frames import PAYLOAD, REQUEST_BYTES, Answer, FrameError, Parser, Request, carries, frame
from weft.sim.device import DeviceError

WINDOW = 16
"""Requests that are sent before the first one's answer; their bytes must fit in the board's buffer besides."""
ATTEMPTS = 6
"""How often in a row the board may be silent."""
LOSSES = 20
"""How often one request may be lost while others are answered."""
POLL = 0.02
"""Seconds that a read of the port takes at most."""


class SilenceError(DeviceError):
    """Nothing that understands us answers."""


class SerialPort(Protocol):
    """What is used of `serial.Serial`; reads must return within `POLL` seconds or so."""

    in_waiting: int
    baudrate: int

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


@dataclass
class _Sent:
    """A request without answer. `order` counts transmissions: the line keeps their order."""

    index: int
    request: Request
    order: int
    losses: int = 0


class Session:
    """Requests and answers over a serial port.

    Parameters
    ----------
    port : SerialPort
    name : str
        What messages call the port.
    timeout : float
        Seconds without an answer after which requests are sent again; twice and four times as long for the next times.
        It must be more than a window of requests and answers takes on the line: 8 kB.
    attempts : int
        How often in a row that may happen.

    Attributes
    ----------
    buffer : int
        Bytes of requests that the board can hold.
    starts : int
        `Answer.starts` of the last answer.
    repeated : int
        Requests sent again so far.
    """

    def __init__(self, port: SerialPort, name: str, *, timeout: float, attempts: int = ATTEMPTS) -> None:
        self.name, self.timeout, self.attempts = name, timeout, attempts
        self.buffer = 2 * (REQUEST_BYTES + PAYLOAD)
        self.starts = self.repeated = self.answered = 0
        self._port = port
        self._parser = Parser()
        # A session before this one may have left answers on the line.
        self._sequence = random.randrange(256)
        self._order = 0

    def close(self) -> None:
        """Close the port."""
        self._port.close()

    def exchange(self, requests: Iterable[Request]) -> Iterator[tuple[int, Answer]]:
        """Send requests, whatever their sequence numbers; yields the place of each and its answer, in any order.

        Raises
        ------
        SilenceError
            If the board is silent, or something else answers.
        DeviceError
            If the line is lost or too bad.
        """
        waiting = enumerate(requests)
        following = next(waiting, None)
        sent: dict[int, _Sent] = {}
        silent, deadline = 0, time.monotonic() + self.timeout
        while sent or following:
            while following and self._fits(sent, following[1]):
                index, request = following
                self._send(sent, [_Sent(index, replace(request, sequence=self._number(sent)), 0)])
                following = next(waiting, None)
            data = self._receive()
            for answer in self._answers(data):
                mine = sent.get(answer.sequence)
                if mine is None or not _matches(mine.request, answer):
                    continue  # of a request that was sent twice
                del sent[answer.sequence]
                self._send(sent, [other for other in sent.values() if other.order < mine.order], lost=True)
                silent, deadline = 0, time.monotonic() + self.timeout
                yield mine.index, answer
            if time.monotonic() > deadline:
                silent += 1
                if silent >= self.attempts:
                    raise SilenceError(self._silence())
                deadline = time.monotonic() + self.timeout * min(2**silent, 4)
                self._send(sent, list(sent.values()), lost=False)
                self.repeated += len(sent)

    def request(self, request: Request) -> Answer:
        """Exchange one request."""
        return next(answer for _, answer in list(self.exchange([request])))

    def _number(self, sent: dict[int, _Sent]) -> int:
        self._sequence = (self._sequence + 1) % 256
        while self._sequence in sent:
            self._sequence = (self._sequence + 1) % 256
        return self._sequence

    def _fits(self, sent: dict[int, _Sent], request: Request) -> bool:
        held = sum(_held(other.request) for other in sent.values())
        return len(sent) < WINDOW and held + _held(request) < self.buffer

    def _send(self, sent: dict[int, _Sent], those: list[_Sent], *, lost: bool = False) -> None:
        out = b""
        for one in sorted(those, key=lambda one: one.order):
            self._order += 1
            one.order = self._order
            one.losses += lost
            self.repeated += lost
            if one.losses > LOSSES:
                raise DeviceError(
                    f"the line to {self.name} is too bad: it lost a request or its answer {LOSSES} times"
                )
            sent[one.request.sequence] = one
            out += frame(one.request.encode())
        if out:
            self._write(out)

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


def _held(request: Request) -> int:
    """Bytes of the board's buffer."""
    return REQUEST_BYTES + len(request.payload)


def _matches(request: Request, answer: Answer) -> bool:
    operation = request.operation
    size = 0 if carries(operation) else request.size
    return answer.operation is operation and len(answer.payload) == size
