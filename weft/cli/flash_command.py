"""Writing to a board: a bitstream, or a program's code and weights for its flash chip."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft import files
from weft import report as reports
from weft.cli.options import Board as Name
from weft.cli.options import load
from weft.errors import FileError, InputError

if TYPE_CHECKING:
    from weft.boards.board import Board
    from weft.run.program import Program


def flash(
    board: Name,
    bitstream: Annotated[
        Path | None,
        typer.Argument(
            help="Bitstream file; if not given, the one that `weft build` wrote.", show_default=False
        ),
    ] = None,
    program: Annotated[
        Path | None,
        typer.Option(
            "--program",
            help="Write no bitstream, but code and weights of the program in this folder, behind the bitstream in the "
            "board's flash chip: `weft run` finds them there, or where the board copies them when it starts.",
            show_default=False,
        ),
    ] = None,
    image: Annotated[
        Path | None,
        typer.Option(
            "--image",
            help="With --program: write what the flash chip would hold to this file instead, for a simulated board.",
            show_default=False,
        ),
    ] = None,
    persistent: Annotated[
        bool,
        typer.Option(
            "--persistent",
            help="Write the bitstream to where the FPGA finds it when it is switched on, instead of to the FPGA.",
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the command.")] = False,
) -> None:
    """Write a bitstream, or a program's code and weights, to a board that is connected."""
    from weft.boards.registry import find

    chosen = find(board)
    if program is not None:
        if bitstream is not None:
            raise InputError("a bitstream and --program are two things: write one after the other")
        if persistent:
            raise InputError("--persistent is for bitstreams: programs are always written to the flash chip")
        _flash_program(chosen, program, image, dry_run)
    elif image is not None:
        raise InputError("--image is for --program: name the program's folder")
    else:
        _flash_bitstream(chosen, bitstream, persistent, dry_run)


def _flash_bitstream(board: Board, bitstream: Path | None, persistent: bool, dry_run: bool) -> None:
    from weft.boards.build.build import bitstream_name
    from weft.boards.flash import image as programmer

    path = bitstream or Path("build") / board.name / bitstream_name(board)
    if not path.is_file():
        raise FileError(
            f"there is no bitstream {path}: build it with weft build --board {board.name}, or name another one"
        )
    if dry_run:
        print(shlex.join(programmer.command(board, path, persistent=persistent, installed=False)))
        return
    with reports.progress() as progress:
        progress(f"writing {path} to {board.title}")
        programmer.flash(board, path, persistent=persistent)
    reports.say(f"{path} is on {board.title}")


def _flash_program(board: Board, folder: Path, image: Path | None, dry_run: bool) -> None:
    from weft.boards.flash import image as programmer

    loaded, reads = load(folder)
    content = flash_image(loaded, board)
    assert board.flash is not None
    offset = board.flash.offset
    if dry_run:
        path = image or Path("program.bin")
        print(shlex.join(programmer.command(board, path, offset=offset, installed=False)))
        return
    if image is not None:
        files.check_overwrites({"--image": image}, reads)
        with files.whole_file(image) as part:
            part.write_bytes(content)
        reports.say(f"{image}: what the flash of {board.title} holds from byte {offset:,} on")
        return
    with tempfile.TemporaryDirectory() as made, reports.progress() as progress:
        path = Path(made) / "program.bin"
        path.write_bytes(content)
        progress(f"writing {len(content):,} bytes to the flash of {board.title}")
        programmer.flash(board, path, offset=offset)
    then = ", and will be in its memory when it has started anew" if board.copies_flash else ""
    reports.say(f"code and weights of {folder} are in the flash of {board.title}{then}")


def flash_image(program: Program, board: Board) -> bytes:
    """What a board's flash holds, from `SpiFlash.offset` on, for a program.

    Raises
    ------
    InputError
        If the board has no flash for programs, the program has nothing that runs on the device, or several parts where
        only one can be copied, or what it needs besides has no room in the board's memory.
    weft.boards.flash.image.FlashImageError
        If it has no room in the flash.
    """
    from weft.boards.flash.image import build_image
    from weft.boards.link.loader import build_copy_image
    from weft.boards.registry import BOARDS
    from weft.run.runtime import Image

    if board.flash is None:
        having = ", ".join(other.name for other in BOARDS.values() if other.flash)
        raise InputError(f"{board.name} keeps no programs in its flash; boards that do: {having}")
    parts = [Image(part, flash_address=None if board.copies_flash else 0) for part in program.device_programs]
    if not parts:
        raise InputError("nothing of this program runs on the device, so there is nothing to write")
    needed = max(part.memory_bytes for part in parts)
    fixed, room, where = [part.read_only for part in parts], board.flash.room, f"the flash of {board.name}"
    if board.copies_flash:
        if needed > board.memory.size:
            raise InputError(
                f"{board.name} has {board.memory.size:,} bytes of memory, and the program needs {needed:,}"
            )
        if len(fixed) > 1:
            raise InputError(
                f"{board.name} copies one part of a program to its memory when it starts, and this one has "
                f"{len(fixed)} that take turns there: leave them to `weft run`, which sends them"
            )
        return build_copy_image(fixed[0], room, where)
    if needed > board.memory.size:
        raise InputError(
            f"with code and weights in its flash, {board.name} has {board.memory.size:,} bytes of memory, and the "
            f"program's values need {needed:,}"
        )
    return build_image(fixed, room, where)
