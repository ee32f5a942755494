"""Frames between host and board, defined once for both.

A frame is a body and its CRC-32 (least significant byte first, as `zlib.crc32` computes it), between two bytes `END`.
Inside, `END` and `ESC` are sent as `ESC` followed by the byte with the bits of `FLIP` inverted. This is the HDLC-like
framing of RFC 1662.

`END` always ends a frame, so damage inside a frame never affects the next one. Damage to an `END` costs at most the two
frames next to it. A damaged frame is dropped without an answer.

Hosts send requests: a header of `REQUEST_FIELDS`, then the payload of operations for which `carries_payload` is 1. A
board carries out undamaged requests in order and answers each: a header of `ANSWER_FIELDS`, then the payload of
operations that read. A request has no effect before its last byte has arrived, and is answered when its effect is
complete.

Hosts repeat a request that is not answered, so every operation may be carried out twice without harm. `START` alone
needs a guard: it carries the number of starts so far, modulo 256, and has no effect if the board's number differs.
"""

from __future__ import annotations

import enum
import re
import struct
import zlib
from dataclasses import dataclass

import numpy as np

from weft.boards.errors import FrameError
from weft.boards.sdram.calibration import CALIBRATION_BYTES, NOT_CALIBRATED, Calibration
from weft.hdl.isa.memmap import MAGIC

PROTOCOL = 2
END, ESC, FLIP = 0x7E, 0x7D, 0x20
ANSWER = 0x80
"""Bit set in the operation of an answer, so that an echoed request is not an answer."""
PAYLOAD = 256
"""Block size in bytes for reads and writes: a request lies within one block."""
CHECK_BLOCK = 4096
"""Block size in bytes for checks and fills: a request lies within one block."""
CHECK_BYTES = 8
"""Bytes of the answer to a check: CRC-64/XZ of the checked bytes, least significant byte first."""
CRC_BYTES = 4

REQUEST_FIELDS = {"sequence": 8, "operation": 8, "size": 16, "address": 32}
"""Fields of a request and their widths in bits, least significant byte first.

``sequence`` is returned in the answer. ``size`` bytes (0 to `PAYLOAD`, or to `CHECK_BLOCK`) are read, written, filled
or checked from byte address ``address``. Bit `INVERSE` of ``size`` is for `Operation.FILL_MEMORY` and not part of the
number.
"""
INVERSE = 15
"""Bit of a request's size: memory is filled with the inverse of `fill_pattern`."""
ANSWER_FIELDS = {"sequence": 8, "operation": 8, "starts": 8}
"""Fields of an answer: ``starts`` is the number of programs started since configuration of the FPGA, modulo 256."""


class Operation(enum.IntEnum):
    """Operation of a request. Operations with bit 0 set carry a payload. Boards drop frames with other values."""

    READ_MEMORY = 0
    WRITE_MEMORY = 1
    READ_REGISTERS = 2  # AXI4-Lite, see `weft.hdl.isa.memmap`
    WRITE_REGISTERS = 3
    IDENTIFY = 4  # read an `Identity`, and zeros after its end
    # Write registers if bits 24 to 31 of the address are the number of starts so far, and increment that number.
    START = 5
    CHECK_MEMORY = 6  # read a CRC of memory; nothing if the size is 0
    RESET = 7  # reset the core, including its registers
    FILL_MEMORY = 8  # write `fill_pattern` to memory, on boards with `Feature.FILLS`


def carries_payload(operation: int) -> int:
    """Return 1 if a request with `operation` carries a payload, else 0. Amaranth values are accepted, too."""
    return operation & 1


def block_limit(operation: Operation) -> int:
    """Return the largest size of a request with `operation`."""
    return CHECK_BLOCK if operation in (Operation.CHECK_MEMORY, Operation.FILL_MEMORY) else PAYLOAD


def fill_pattern(address: int, size: int, *, inverse: bool = False) -> bytes:
    """Return the bytes that `Operation.FILL_MEMORY` writes to `size` bytes from `address`.

    Each eight bytes contain their address / 8 as a 32-bit number, followed by its inverse; with `inverse`, all bits are
    inverted. No two words of a memory are thus equal, and with both patterns each bit is 0 once and 1 once. This is the
    "address in address" pattern of memory tests.
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
"""Byte of an identity with `Identity.flash` and `Identity.features`. The calibration follows, which is 0 on boards
without one."""


class FlashState(enum.IntEnum):
    """State of the copy of a program from the board's flash, see `weft.boards.link.loader`."""

    NONE = 0
    """The board does not copy programs."""
    COPYING = 1
    EMPTY = 2
    """The flash contains no image, or one of another format."""
    COPIED = 3
    DAMAGED = 4
    """A CRC or marker is wrong. Memory contains the pages before it."""


class Feature(enum.IntFlag):
    """Optional features of a board's link, in bits that `FlashState` does not use."""

    NONE = 0
    FILLS = 0x80
    """`Operation.FILL_MEMORY`; boards without this feature drop the request."""


@dataclass(frozen=True)
class Request:
    """Request of a host; `encode` returns the body of its frame.

    Raises `FrameError` for fields that do not fit.
    """

    sequence: int
    operation: Operation
    address: int = 0
    size: int = 0
    payload: bytes = b""
    inverse: bool = False

    def __post_init__(self) -> None:
        block = block_limit(self.operation)
        if self.inverse and self.operation is not Operation.FILL_MEMORY:
            raise FrameError(f"{self.operation.name} has no inverse")
        if not 0 <= self.size <= block - self.address % block:
            raise FrameError(f"{self.size} bytes from {self.address:#x} are not inside a block of {block}")
        if len(self.payload) != self.size * carries_payload(self.operation):
            raise FrameError(f"{self.operation.name} of {self.size} bytes carries {len(self.payload)}")

    @property
    def answer_size(self) -> int:
        """Payload bytes of the answer."""
        if self.operation is Operation.CHECK_MEMORY:
            return CHECK_BYTES if self.size else 0
        return 0 if carries_payload(self.operation) or self.operation is Operation.FILL_MEMORY else self.size

    def encode(self) -> bytes:
        """Return the body of the request."""
        try:
            size = self.size | self.inverse << INVERSE
            return _REQUEST.pack(self.sequence, self.operation, size, self.address) + self.payload
        except struct.error as error:
            raise FrameError(f"{self} does not fit into a frame: {error}") from None

    @classmethod
    def decode(cls, body: bytes) -> Request:
        """Return the request in a body. Raises `FrameError` if it contains none."""
        if len(body) < REQUEST_BYTES:
            raise FrameError(f"a request has at least {REQUEST_BYTES} bytes, not {len(body)}")
        sequence, operation, size, address = _REQUEST.unpack_from(body)
        if operation not in list(Operation):
            raise FrameError(f"unknown operation {operation:#x}")
        # Bit `INVERSE` of the size has a meaning only here; in other requests it makes the size invalid.
        inverse = operation == Operation.FILL_MEMORY and bool(size >> INVERSE)
        size &= ~(inverse << INVERSE)
        return cls(sequence, Operation(operation), address, size, body[REQUEST_BYTES:], inverse)


@dataclass(frozen=True)
class Answer:
    """Answer of a board to the request with this `sequence` number."""

    sequence: int
    operation: Operation
    starts: int
    payload: bytes = b""

    def encode(self) -> bytes:
        """Return the body of the answer."""
        return _ANSWER.pack(self.sequence, self.operation | ANSWER, self.starts) + self.payload

    @classmethod
    def decode(cls, body: bytes) -> Answer:
        """Return the answer in a body. Raises `FrameError` if it contains none."""
        if len(body) < ANSWER_BYTES:
            raise FrameError(f"an answer has at least {ANSWER_BYTES} bytes, not {len(body)}")
        sequence, operation, starts = _ANSWER.unpack_from(body)
        if operation ^ ANSWER not in list(Operation):
            raise FrameError(f"an answer has no operation {operation:#x}")
        return cls(sequence, Operation(operation ^ ANSWER), starts, body[ANSWER_BYTES:])


@dataclass(frozen=True)
class Identity:
    """Description of a board, as the board sends it.

    Attributes
    ----------
    board : str
        Name, at most `NAME_BYTES` bytes of ASCII.
    digest : int
        `Config.digest` of the core.
    memory_bytes : int
        Size of the memory.
    clock : int
        Clock frequency in hertz.
    buffer : int
        Bytes of the request buffer. Headers and payload of all unanswered requests must fit in it.
    protocol : int
        `PROTOCOL`.
    flash : FlashState
    features : Feature
    calibration : Calibration
        Calibration of the SDRAM's clock. Old boards that do not calibrate answer as boards without SDRAM.
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
        """Return `IDENTITY_BYTES` bytes. Raises `FrameError` for fields that do not fit."""
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
        """Return the identity in `payload`. Raises `FrameError` if it contains none."""
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
            raise FrameError(f"an identity has an invalid calibration: {error}") from None
        return cls(
            board, digest, memory_bytes, clock, buffer, protocol, FlashState(flash), features, calibration
        )


LONGEST = REQUEST_BYTES + PAYLOAD + CRC_BYTES
"""Bytes of the longest body with its CRC."""

_END, _ESC = bytes([END]), bytes([ESC])
_ESCAPED = re.compile(re.escape(_ESC) + b"(.)", re.DOTALL)


def frame(body: bytes) -> bytes:
    """Return the frame of a body: with CRC, escapes, and an `END` on both sides."""
    data = body + zlib.crc32(body).to_bytes(CRC_BYTES, "little")
    for byte in (ESC, END):  # in this order: escaping `END` makes an `ESC`
        data = data.replace(bytes([byte]), bytes([ESC, byte ^ FLIP]))
    return _END + data + _END


def transfer_bytes(operation: Operation, size: int) -> tuple[float, float]:
    """Return the expected bytes on the line, to the board and from it, for `size` bytes of memory.

    The memory starts at a multiple of `PAYLOAD`. Bytes are assumed random, so 2 of 256 are escaped.
    """

    def frame_bytes(body: int) -> float:
        return 2 + (body + CRC_BYTES) * (1 + 2 / 256)

    # Full blocks, and a last one that is shorter. A frame has two `END`, and escapes double 2 of 256 bytes.
    out = into = 0.0
    for count, payload in ((size // PAYLOAD, PAYLOAD), (1 if size % PAYLOAD else 0, size % PAYLOAD)):
        out += count * frame_bytes(REQUEST_BYTES + payload * carries_payload(operation))
        into += count * frame_bytes(ANSWER_BYTES + payload * (1 - carries_payload(operation)))
    return out, into


class Parser:
    """Parser that finds undamaged frames in a stream of bytes.

    Attributes
    ----------
    received : int
        Bytes received so far.
    damaged : int
        Frames dropped so far.
    """

    def __init__(self) -> None:
        self.received = self.damaged = 0
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes to the stream, and return the bodies of the frames that they complete."""
        self.received += len(data)
        *frames, self._rest = (self._rest + data).split(_END)
        # Bytes beyond the longest frame cannot be valid: keep just enough to recognise that.
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
    """Return the body between two `END` bytes; None if it is damaged."""
    if stuffed.endswith(_ESC) and _ESCAPED.sub(b"", stuffed).endswith(_ESC):
        return None  # it ends inside an escape sequence
    data = _ESCAPED.sub(lambda match: bytes([match[1][0] ^ FLIP]), stuffed)
    if not CRC_BYTES < len(data) <= LONGEST:
        return None
    body, crc = data[:-CRC_BYTES], data[-CRC_BYTES:]
    return body if zlib.crc32(body).to_bytes(CRC_BYTES, "little") == crc else None
