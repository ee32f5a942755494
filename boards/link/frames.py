"""The frames between a host and a board, defined once for both.

A frame is a body and its CRC-32 (least significant byte first, as `zlib.crc32` computes it), between two bytes `END`.
Inside, `END` and `ESC` are sent as `ESC` and the byte with the bits of `FLIP` inverted: HDLC-like framing, RFC 1662.
So `END` always ends a frame: whatever happens to the bytes of one frame, the next one is understood, and damage to an
`END` costs at most the two frames it stands between. A damaged frame is dropped without an answer.

Hosts send requests: a header of `REQUEST_FIELDS`, and the payload of operations that `carries` tells. A board carries
out undamaged requests in order and answers each: a header of `ANSWER_FIELDS`, and the payload of operations that read.
A request has no effect before its last byte has arrived, and is answered when its effect is complete.

Hosts send a request again when its answer does not come: every operation may be carried out twice. `START` is by
itself: it names the number of starts so far, modulo 256, and has no effect when that is another.
"""

from __future__ import annotations

import enum
import re
import struct
import zlib
from dataclasses import dataclass

import numpy as np

from weft.boards.sdram.calibration import CALIBRATION_BYTES, NOT_CALIBRATED, Calibration
from weft.hdl.errors import WeftError
from weft.hdl.isa.memmap import MAGIC

PROTOCOL = 2
END, ESC, FLIP = 0x7E, 0x7D, 0x20
ANSWER = 0x80
"""Set in the operation of an answer, so that an echo is none."""
PAYLOAD = 256
"""Bytes that a request may read or write; they must not lie on both sides of a multiple of this."""
CHECKED = 4096
"""The same for bytes that a request may check."""
CHECK_BYTES = 8
"""Bytes of the answer to a check: the CRC-64/XZ of what was checked, least significant byte first."""
CRC_BYTES = 4

REQUEST_FIELDS = {"sequence": 8, "operation": 8, "size": 16, "address": 32}
"""Fields of a request and their widths in bits, least significant byte first: ``sequence`` comes back in the answer;
``size`` bytes (0 to `PAYLOAD`, or to `CHECKED`) are read, written, filled or checked from byte address ``address`` on.
Bit `INVERSE` of ``size`` is for `Operation.FILL_MEMORY` and counts no bytes."""
INVERSE = 15
"""Bit of a request's size: memory is filled with the inverse of `filling`."""
ANSWER_FIELDS = {"sequence": 8, "operation": 8, "starts": 8}
"""Fields of an answer: ``starts`` is the number of programs started since the board was configured, modulo 256."""


class Operation(enum.IntEnum):
    """What a request asks for. Those with bit 0 set carry their payload. Frames with another value are dropped."""

    READ_MEMORY = 0
    WRITE_MEMORY = 1
    READ_REGISTERS = 2  # AXI4-Lite, see `weft.hdl.isa.memmap`
    WRITE_REGISTERS = 3
    IDENTIFY = 4  # read an `Identity`; from its end on, 0
    START = (
        5  # write registers, if bits 24 to 31 of the address are the number of starts so far, which goes up
    )
    CHECK_MEMORY = 6  # read a CRC of memory instead of memory itself; of no bytes, nothing
    RESET = 7  # reset the core; its registers are cleared
    FILL_MEMORY = 8  # write `filling` to memory; only of boards that say so, see `Feature`


def carries(operation: int) -> int:
    """1 if a request has `operation`'s payload, 0 if it has none. Works for Amaranth values, too."""
    return operation & 1


def limit(operation: Operation) -> int:
    """Bytes that a request may be about."""
    return CHECKED if operation in (Operation.CHECK_MEMORY, Operation.FILL_MEMORY) else PAYLOAD


def filling(address: int, size: int, *, inverse: bool = False) -> bytes:
    """What `Operation.FILL_MEMORY` writes to `size` bytes from `address` on.

    Every eight bytes hold their own number, which is their address / 8, in 32 bits, and then the inverse of it; or the
    inverse of all that. So no eight bytes of a memory are like any others, and with both, every bit is 0 once and 1
    once: "address in address", as memory tests have it.
    """
    first, end = address // 8, -(-(address + size) // 8)
    numbers = np.arange(first, end, dtype=np.uint64).astype("<u4")
    halves = (~numbers, numbers) if inverse else (numbers, ~numbers)
    return np.stack(halves, axis=1).tobytes()[address - 8 * first :][:size]


def _packer(fields: dict[str, int]) -> struct.Struct:
    return struct.Struct("<" + "".join({8: "B", 16: "H", 32: "I"}[width] for width in fields.values()))


_REQUEST, _ANSWER = _packer(REQUEST_FIELDS), _packer(ANSWER_FIELDS)
NAME_BYTES = 15
_IDENTITY = struct.Struct(f"<IHHIII{NAME_BYTES}sB")
REQUEST_BYTES, ANSWER_BYTES, IDENTITY_BYTES = _REQUEST.size, _ANSWER.size, _IDENTITY.size + CALIBRATION_BYTES
FLASH_STATE = _IDENTITY.size - 1
"""The byte of an identity that is `Identity.flash`, with the bits of `Identity.features`. Those after it, the
calibration, are 0 on boards without one."""


class FlashState(enum.IntEnum):
    """What became of a program in the board's flash, see `weft.boards.link.loader`."""

    NONE = 0
    """The board copies none."""
    COPYING = 1
    EMPTY = 2
    """There is no image in the flash, or of another format."""
    COPIED = 3
    DAMAGED = 4
    """A CRC or a marker is not what it should be: what came before is in memory, the rest is not."""


class Feature(enum.IntFlag):
    """What a board's link can do that not all can: bits that no `FlashState` has."""

    NONE = 0
    FILLS = 0x80
    """`Operation.FILL_MEMORY`; the others drop it as no request."""


class FrameError(WeftError, ValueError):
    """A body that is no request, answer or identity."""


@dataclass(frozen=True)
class Request:
    """What a host asks for; `encode` gives the body of its frame.

    Raises `FrameError` for fields that do not fit.
    """

    sequence: int
    operation: Operation
    address: int = 0
    size: int = 0
    payload: bytes = b""
    inverse: bool = False

    def __post_init__(self) -> None:
        block = limit(self.operation)
        if self.inverse and self.operation is not Operation.FILL_MEMORY:
            raise FrameError(f"{self.operation.name} has no inverse")
        if not 0 <= self.size <= block - self.address % block:
            raise FrameError(f"{self.size} bytes from {self.address:#x} on do not lie in a block of {block}")
        if len(self.payload) != self.size * carries(self.operation):
            raise FrameError(f"{self.operation.name} of {self.size} bytes carries {len(self.payload)}")

    @property
    def answered(self) -> int:
        """Bytes of the payload of its answer."""
        if self.operation is Operation.CHECK_MEMORY:
            return CHECK_BYTES if self.size else 0
        return 0 if carries(self.operation) or self.operation is Operation.FILL_MEMORY else self.size

    def encode(self) -> bytes:
        """The body of the request."""
        try:
            size = self.size | self.inverse << INVERSE
            return _REQUEST.pack(self.sequence, self.operation, size, self.address) + self.payload
        except struct.error as error:
            raise FrameError(f"{self} does not fit into a frame: {error}") from None

    @classmethod
    def decode(cls, body: bytes) -> Request:
        """The request in a frame. Raises `FrameError` if there is none."""
        if len(body) < REQUEST_BYTES:
            raise FrameError(f"a request has at least {REQUEST_BYTES} bytes, not {len(body)}")
        sequence, operation, size, address = _REQUEST.unpack_from(body)
        if operation not in list(Operation):
            raise FrameError(f"unknown operation {operation:#x}")
        inverse = operation == Operation.FILL_MEMORY and bool(size >> INVERSE)
        size &= ~(inverse << INVERSE)
        return cls(sequence, Operation(operation), address, size, body[REQUEST_BYTES:], inverse)


@dataclass(frozen=True)
class Answer:
    """What a board answers to the request with the same `sequence`."""

    sequence: int
    operation: Operation
    starts: int
    payload: bytes = b""

    def encode(self) -> bytes:
        """The body of the answer."""
        return _ANSWER.pack(self.sequence, self.operation | ANSWER, self.starts) + self.payload

    @classmethod
    def decode(cls, body: bytes) -> Answer:
        """The answer in a frame. Raises `FrameError` if there is none."""
        if len(body) < ANSWER_BYTES:
            raise FrameError(f"an answer has at least {ANSWER_BYTES} bytes, not {len(body)}")
        sequence, operation, starts = _ANSWER.unpack_from(body)
        if operation ^ ANSWER not in list(Operation):
            raise FrameError(f"operation {operation:#x} is none of an answer")
        return cls(sequence, Operation(operation ^ ANSWER), starts, body[ANSWER_BYTES:])


@dataclass(frozen=True)
class Identity:
    """What a board says about itself.

    Attributes
    ----------
    board : str
        Its name, at most `NAME_BYTES` bytes of ASCII.
    digest : int
        `Config.digest` of its core.
    memory_bytes : int
        Size of its memory.
    clock : int
        Frequency of its clock in hertz.
    buffer : int
        Bytes of its buffer: the requests that wait for their answers must fit in it, headers and payload.
    protocol : int
        `PROTOCOL`.
    flash : FlashState
    features : Feature
    calibration : Calibration
        Of the SDRAM's clock. Boards from before it was looked for answer as those without one.
    """

    board: str
    digest: int
    memory_bytes: int
    clock: int
    buffer: int
    protocol: int = PROTOCOL
    flash: FlashState = FlashState.NONE
    features: Feature = Feature.NONE
    calibration: Calibration = NOT_CALIBRATED

    def encode(self) -> bytes:
        """`IDENTITY_BYTES` bytes. Raises `FrameError` for fields that do not fit."""
        name = self.board.encode("ascii", "replace")
        if len(name) > NAME_BYTES:
            raise FrameError(f"the board's name {self.board!r} is longer than {NAME_BYTES} bytes")
        try:
            return (
                _IDENTITY.pack(
                    MAGIC,
                    self.protocol,
                    self.buffer,
                    self.digest,
                    self.memory_bytes,
                    self.clock,
                    name,
                    self.flash | self.features,
                )
                + self.calibration.encode()
            )
        except struct.error as error:
            raise FrameError(f"{self} does not fit: {error}") from None

    @classmethod
    def decode(cls, payload: bytes) -> Identity:
        """Raises `FrameError` if `payload` is no identity."""
        if len(payload) != IDENTITY_BYTES:
            raise FrameError(f"an identity has {IDENTITY_BYTES} bytes, not {len(payload)}")
        magic, protocol, buffer, digest, memory_bytes, clock, name, state = _IDENTITY.unpack_from(payload)
        if magic != MAGIC:
            raise FrameError(f"an identity starts with {MAGIC:#x}, not {magic:#x}")
        board = name.rstrip(b"\0").decode("ascii", "replace")
        features = Feature(state & Feature.FILLS)
        flash = state & ~features
        if flash not in list(FlashState):
            raise FrameError(f"a flash has no state {flash:#x}")
        try:
            calibration = Calibration.decode(payload[FLASH_STATE + 1 :])
        except ValueError as error:
            raise FrameError(f"an SDRAM has no state of this kind: {error}") from None
        told = FlashState(flash), features
        return cls(board, digest, memory_bytes, clock, buffer, protocol, *told, calibration)


LONGEST = REQUEST_BYTES + PAYLOAD + CRC_BYTES
"""Bytes of the longest body and its CRC."""

_END, _ESC = bytes([END]), bytes([ESC])
_ESCAPED = re.compile(re.escape(_ESC) + b"(.)", re.DOTALL)


def frame(body: bytes) -> bytes:
    """The frame of a body: CRC, escapes, and an `END` on both sides."""
    data = body + zlib.crc32(body).to_bytes(CRC_BYTES, "little")
    for byte in (ESC, END):  # in this order: escaping `END` makes an `ESC`
        data = data.replace(bytes([byte]), bytes([ESC, byte ^ FLIP]))
    return _END + data + _END


def transfer_bytes(operation: Operation, size: int) -> tuple[float, float]:
    """Bytes on the line, to the board and from it, for an `operation` on `size` bytes of memory that begin where a
    block of `PAYLOAD` does: what is to be expected of random bytes, 2 of 256 of which are escaped."""

    def framed(body: int) -> float:
        return 2 + (body + CRC_BYTES) * (1 + 2 / 256)

    out = into = 0.0
    for count, payload in ((size // PAYLOAD, PAYLOAD), (1 if size % PAYLOAD else 0, size % PAYLOAD)):
        out += count * framed(REQUEST_BYTES + payload * carries(operation))
        into += count * framed(ANSWER_BYTES + payload * (1 - carries(operation)))
    return out, into


class Parser:
    """Finds the undamaged frames in a stream of bytes.

    Attributes
    ----------
    received : int
        Bytes so far.
    damaged : int
        Frames so far that were dropped.
    """

    def __init__(self) -> None:
        self.received = self.damaged = 0
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The bodies of the frames that `data` completes."""
        self.received += len(data)
        *frames, self._rest = (self._rest + data).split(_END)
        # What is longer than any frame is none, however it goes on: keep enough of it to know.
        self._rest = self._rest[: 2 * LONGEST + 1]
        bodies = []
        for stuffed in frames:
            body = _unstuff(stuffed)
            if body is not None:
                bodies.append(body)
            elif stuffed:
                self.damaged += 1
        return bodies


def _unstuff(stuffed: bytes) -> bytes | None:
    """The body between two `END`; None if it is damaged."""
    if stuffed.endswith(_ESC) and _ESCAPED.sub(b"", stuffed).endswith(_ESC):
        return None  # cut short in the middle of an escape
    data = _ESCAPED.sub(lambda match: bytes([match[1][0] ^ FLIP]), stuffed)
    if not CRC_BYTES < len(data) <= LONGEST:
        return None
    body, crc = data[:-CRC_BYTES], data[-CRC_BYTES:]
    return body if zlib.crc32(body).to_bytes(CRC_BYTES, "little") == crc else None
