"""The command that writes a bitstream to a board, or a program's code and weights to its flash chip."""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft import files
from weft import report as reports
from weft.cli.commands import Group, command
from weft.cli.options import Board as Name
from weft.cli.options import load
from weft.errors import FileError, InputError

if TYPE_CHECKING:
    from weft.boards.board import Board
    from weft.run.program import Program


@command(Group.HARDWARE)
def flash(
    board: Name,
    bitstream: Annotated[
        Path | None,
        typer.Argument(
            help="Bitstream file. Default: the file that `weft build` wrote.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    program: Annotated[
        Path | None,
        typer.Option(
            "--program",
            metavar="FOLDER",
            help="Write no bitstream but the code and weights of the program in this folder, after the bitstream in "
            "the flash chip. `weft run` reads them there, or in memory if the board copies them when it starts.",
            show_default=False,
        ),
    ] = None,
    image: Annotated[
        Path | None,
        typer.Option(
            "--image",
            help="With --program: write the contents of the flash chip to this file instead, for a simulated board.",
            show_default=False,
        ),
    ] = None,
    persistent: Annotated[
        bool,
        typer.Option(
            "--persistent",
            help="Write the bitstream to the flash chip, so that the FPGA loads it at power-up.",
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the programming command and do not run it.")
    ] = False,
) -> None:
    """Write a bitstream to a connected board, or a program's code and weights to its flash chip."""
    from weft.boards.registry import find

    chosen = find(board)
    if program is not None:
        if bitstream is not None:
            raise InputError("a bitstream and --program do not go together: write one after the other")
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
        reports.say(f"{image}: contents of the flash of {board.title} from byte {offset:,} on")
        return
    with tempfile.TemporaryDirectory() as temporary, reports.progress() as progress:
        path = Path(temporary) / "program.bin"
        path.write_bytes(content)
        progress(f"writing {len(content):,} bytes to the flash of {board.title}")
        programmer.flash(board, path, offset=offset)
    then = "; the board copies them to memory at its next start" if board.copies_flash else ""
    reports.say(f"code and weights of {folder} are in the flash of {board.title}{then}")


def flash_image(program: Program, board: Board) -> bytes:
    """Return the bytes of a program for a board's flash, starting at `SpiFlash.offset`.

    Raises
    ------
    InputError
        If the board keeps no programs in flash, nothing of the program runs on the device, the program has several
        parts but the board copies only one, or the program does not fit the board's memory.
    weft.boards.flash.image.FlashImageError
        If the program does not fit the flash.
    """
    from weft.boards.flash.image import build_image
    from weft.boards.link.loader import build_copy_image
    from weft.boards.registry import BOARDS
    from weft.run.runtime import Image

    if board.flash is None:
        able = ", ".join(other.name for other in BOARDS.values() if other.flash)
        raise InputError(f"{board.name} keeps no programs in its flash; boards that do: {able}")
    # A board that reads flash in place keeps nothing of the fixed part in memory.
    parts = [Image(part, flash_address=None if board.copies_flash else 0) for part in program.device_programs]
    if not parts:
        raise InputError("nothing of this program runs on the device, so there is nothing to write")
    needed = max(part.memory_bytes for part in parts)
    # Fixed parts are code, weights and parameters; values stay in memory.
    fixed, room, where = [part.read_only for part in parts], board.flash.room, f"the flash of {board.name}"
    if board.copies_flash:
        if needed > board.memory.size:
            raise InputError(
                f"{board.name} has {board.memory.size:,} bytes of memory, and the program needs {needed:,}"
            )
        if len(fixed) > 1:
            raise InputError(
                f"{board.name} copies one part of a program to its memory when it starts, and this one has "
                f"{len(fixed)} that take turns there: use `weft run`, which sends them over the link"
            )
        return build_copy_image(fixed[0], room, where)
    if needed > board.memory.size:
        raise InputError(
            f"with code and weights in its flash, {board.name} has {board.memory.size:,} bytes of memory, and the "
            f"program's values need {needed:,}"
        )
    return build_image(fixed, room, where)
