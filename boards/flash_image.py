"""What is written to a board's flash chip behind its bitstream: code and constants of programs, found by their hash.

An image begins with a directory in `DIRECTORY` bytes, little endian: `MAGIC`, the number of entries, of each its offset
from the image's start, its size and its SHA-256, and behind them the SHA-256 of all that. Blobs follow at multiples of
`ALIGN`.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence

from weft.hdl.errors import WeftError

MAGIC = b"weft flash 1\0\0\0\0"
DIRECTORY = 4096
ALIGN = 4096
_HEAD, _ENTRY = struct.Struct("<16sI"), struct.Struct("<II32s")
_HASH = 32
HEAD_BYTES = _HEAD.size
"""Of the directory, which say how long it is."""
MOST = (DIRECTORY - _HEAD.size - _HASH) // _ENTRY.size
"""Programs that an image holds at most."""


class FlashImageError(WeftError, ValueError):
    """An image that cannot be made, or that is damaged: one sentence."""


def image_of(blobs: Sequence[bytes], room: int, where: str) -> bytes:
    """The image that holds some blobs, equal ones once, in at most `room` bytes of what `where` names.

    Raises
    ------
    FlashImageError
        If there are more than `MOST`, or they have no room.
    """
    blobs = list(dict.fromkeys(blobs))
    if len(blobs) > MOST:
        raise FlashImageError(f"an image holds {MOST} device programs at most, not {len(blobs)}")
    body, head = bytearray(), _HEAD.pack(MAGIC, len(blobs))
    for blob in blobs:
        head += _ENTRY.pack(DIRECTORY + len(body), len(blob), hashlib.sha256(blob).digest())
        body += blob + bytes(-len(blob) % ALIGN)
    head += hashlib.sha256(head).digest()
    image = head + bytes(DIRECTORY - len(head)) + body
    if len(image) > room:
        raise FlashImageError(
            f"the program's code and constants take {len(image):,} bytes, and {where} has room for {room:,}"
        )
    return image


def directory_bytes(start: bytes) -> int:
    """Bytes of the directory that begins with `start`, `HEAD_BYTES` or more; 0 if none does.

    Raises `FlashImageError` if it cannot be as long as it says.
    """
    magic, count = _HEAD.unpack_from(start)
    if magic != MAGIC:
        return 0
    if count > MOST:
        raise FlashImageError(f"the directory is damaged: it says that there are {count:,} programs")
    return _HEAD.size + count * _ENTRY.size + _HASH


def entries(directory: bytes) -> dict[bytes, int]:
    """Offsets of the blobs by their hash.

    Raises `FlashImageError` if the directory is damaged.
    """
    content, digest = directory[:-_HASH], directory[-_HASH:]
    if hashlib.sha256(content).digest() != digest:
        raise FlashImageError("the directory is damaged: its hash does not match")
    found = [_ENTRY.unpack_from(content, at) for at in range(_HEAD.size, len(content), _ENTRY.size)]
    return {digest: offset for offset, _, digest in found}


class Directory:
    """The directory of a chip, read when it is made.

    Parameters
    ----------
    read : callable
        Gives so many bytes from an address on.
    start : int
        Address of the image.

    Attributes
    ----------
    state : str
        What the chip holds, in words.
    """

    def __init__(self, read: Callable[[int, int], bytes], start: int) -> None:
        self._start = start
        self._offsets: dict[bytes, int] = {}
        self.state = "no program"
        try:
            if size := directory_bytes(read(start, HEAD_BYTES)):
                self._offsets = entries(read(start, size))
                self.state = "other programs"
        except FlashImageError as error:
            self.state = f"an image of which {error}"

    def find(self, blob: bytes) -> int | None:
        """The address of a blob; None if the image has no such one."""
        offset = self._offsets.get(hashlib.sha256(blob).digest())
        return None if offset is None else self._start + offset
