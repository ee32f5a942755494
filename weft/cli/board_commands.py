"""The commands that list FPGA boards, build bitstreams, and write bitstreams and programs to boards."""

from __future__ import annotations

import json
import shlex
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from weft import files
from weft import report as reports
from weft.arguments import Real, Whole
from weft.cli.commands import Board as Name
from weft.cli.commands import Group, Json, command, config_file, configuration, load
from weft.errors import FileError, InputError

if TYPE_CHECKING:
    from weft.boards.board import Board
    from weft.hdl.isa.config import Config
    from weft.run.program import Program


LIST = "weft boards 1"
"""Format of what `weft boards --json` prints."""


@command(Group.HARDWARE, quiet=False)
def boards(as_json: Json = False) -> None:
    """List the supported FPGA boards, their resources, and the presets that fit by estimate."""
    from weft.boards.registry import BOARDS

    if as_json:
        listed = [_as_json(board) for board in BOARDS.values()]
        print(json.dumps({"format": LIST, "boards": listed}, indent=1))
        return
    numbers = (
        "LUTs",
        "DSPs",
        "RAMs",
        "memory",
        "clock",
        "array",
        "of LUTs",
        "of DSPs",
        "of RAMs",
        "baud",
        "eye",
    )
    table = reports.table("board", *numbers, "presets that fit", right=numbers)
    for board in BOARDS.values():
        has = (board.available.lut, board.available.dsp, board.available.ram)
        memory = f"{board.memory.size >> 10:,} KB {board.memory.kind}"
        array = f"{board.config.n} x {board.config.n}"
        shares = [f"{share:.0%}" for share in _shares(board).values()] or ["-"] * 3
        eye = _eye(board)
        margin = "-" if eye is None else f"{eye:.1f}"
        table.add_row(board.name, *(f"{count:,}" for count in has), memory, f"{board.clock / 1e6:g} MHz", array,
                     *shares, f"{board.baud:,}", margin, ", ".join(_fitting(board)) or "none")  # fmt: skip
    reports.stdout().print(table)
    print("array: of the board's own configuration, with the estimated share of the FPGA's resources")
    print("eye: smallest set-up or hold margin of the SDRAM at that clock, in ns")


def _eye(board: Board) -> float | None:
    """Return the smallest set-up or hold margin of the SDRAM in ns; None for a board without SDRAM."""
    from weft.boards.board import MemoryKind
    from weft.boards.sdram.eye import best_eye

    return best_eye(board.clock).min_margin if board.memory.kind is MemoryKind.SDRAM else None


def _as_json(board: Board) -> dict[str, Any]:
    return {
        "name": board.name, "title": board.title, "family": board.family.name, "core": board.core.value,
        "resources": dict(board.available.items()), "clock_hz": board.clock, "baud": board.baud,
        "sdram_eye_ns": _eye(board),
        "memory": {"kind": board.memory.kind.value, "bytes": board.memory.size},
        "config": board.config.to_dict(), "estimated_shares": _shares(board), "presets_that_fit": _fitting(board),
    }  # fmt: skip


def _fitting(board: Board) -> list[str]:
    from weft.hdl.isa.config import PRESETS

    return [name for name, config in PRESETS.items() if _fits(board, config)]


def _shares(board: Board) -> dict[str, float]:
    """Estimate the share of each FPGA resource that the board's own configuration uses; empty without an estimate."""
    from weft.boards.build.estimate import estimate

    need = estimate(board, board.config)
    kinds = ("lut", "dsp", "ram") if need else ()
    return {kind: getattr(need, kind) / getattr(board.available, kind) for kind in kinds}


def _fits(board: Board, config: Config) -> bool:
    from weft.boards.build.estimate import can_place
    from weft.hdl.errors import ConfigError

    # A preset may need wider multipliers than the FPGA has.
    try:
        board.family.fabric.multipliers.check(config)
    except ConfigError:
        return False
    return can_place(board, config)


@command(Group.HARDWARE)
def build(
    board: Name,
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            metavar="NAME|FILE",
            help="Preset, board or JSON file. Default: the board's own configuration.",
        ),
    ] = None,
    seed: Annotated[
        int | None,
        Whole(
            "Seed of place and route; different seeds reach different clocks. Default: the board's own.",
            1,
            (1 << 31) - 1,
        ),
    ] = None,
    clock: Annotated[
        float | None, Real("Clock of the core in MHz. Default: the board's own.", 1, 10_000)
    ] = None,
    allow_timing_fail: Annotated[
        bool,
        typer.Option("--allow-timing-fail", help="Keep the bitstream even if the design misses its clock."),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="Folder for the bitstream and its report. Default: build/BOARD.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Build a bitstream for a board, and report its resource use and timing."""
    from weft.boards.build.build import build as build_bitstream
    from weft.boards.build.build import products
    from weft.boards.registry import find

    chosen = find(board)
    settings = configuration(config) if config is not None else chosen.config
    folder = output or Path("build") / chosen.name
    reads = [config_file(config)]
    # The build itself is cached; the folder gets copies of its products.
    with files.whole_folder(folder, reads) as part, reports.progress() as progress:
        built = build_bitstream(
            chosen,
            settings,
            _cache(),
            seed=chosen.seed if seed is None else seed,
            clock=clock and clock * 1e6,
            allow_timing_fail=allow_timing_fail,
            progress=progress,
        )
        for path in products(built):
            shutil.copyfile(path, part / path.name)
    show(built.report, reports.summary())
    reports.say(
        f"{folder / built.bitstream.name}: the bitstream; report.json and floorplan.svg are next to it"
    )


def _cache() -> Path:
    from weft.hdl.cache import cache_root

    return cache_root() / "boards"


def show(report: dict[str, Any], console: Console) -> None:
    """Print a build's resource use, timing, link and notes."""
    from weft.boards.families.family import Resources

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("resource")
    for column in ("used", "available", "percent"):
        table.add_column(column, justify="right")
    for kind, row in report["resources"].items():
        table.add_row(
            Resources.NAMES[kind], f"{row['placed']:,}", f"{row['available']:,}", f"{row['percent']:.1f}"
        )
    console.print(table)
    timing = report["timing"]
    if timing["fmax_hz"] is not None:
        verdict = "met" if timing["met"] else "NOT MET"
        console.print(
            f"clock: {report['clock_hz'] / 1e6:g} MHz wanted, {timing['fmax_hz'] / 1e6:.1f} MHz reached: {verdict}"
        )
        path = timing["critical_path"]
        # In order of the path, each source once.
        sources = dict.fromkeys(source for step in path for source in step["sources"])
        console.print(f"critical path: {path[0]['cell']} to {path[-1]['cell']}"
                      + (f", through {', '.join(sources)}" if sources else ""))  # fmt: skip
    if "sdram" in report:
        margins = report["sdram"]["margins_ns"]
        text = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in margins.items())
        console.print(
            f"SDRAM: clock late by {report['sdram']['phase_degrees']:g} degrees; margins in ns: {text}"
        )
    console.print(f"link: {report['baud']:,} baud")
    for note in report["notes"]:
        console.print(f"note: {note}")
    console.print(f"peak: {report['peak_gops']:g} GOPS; built in {report['seconds']['total']:g} s")


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
    weft.boards.errors.FlashImageError
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
    fixed, room, place = [part.read_only for part in parts], board.flash.room, f"the flash of {board.name}"
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
        return build_copy_image(fixed[0], room, place)
    if needed > board.memory.size:
        raise InputError(
            f"with code and weights in its flash, {board.name} has {board.memory.size:,} bytes of memory, and the "
            f"program's values need {needed:,}"
        )
    return build_image(fixed, room, place)
