"""Arguments and options that several commands share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.arguments import Whole
from weft.errors import FileError, InputError
from weft.files import program_files

if TYPE_CHECKING:
    from weft.hdl.isa.config import Config


def _configurations(incomplete: str) -> list[str]:
    from weft.configurations import names

    return [name for name in names() if name.startswith(incomplete)]


def board_names(incomplete: str) -> list[str]:
    from weft.boards.registry import BOARDS

    return [name for name in BOARDS if name.startswith(incomplete)]


Model = Annotated[
    Path,
    typer.Argument(help="Quantised model: ONNX (QDQ), TFLite or MLIR.", metavar="MODEL", show_default=False),
]


def shapes_of(texts: list[str]) -> dict[str, int]:
    """Parse the values of `Shapes`: dimension name or input.axis to size."""
    sizes = {}
    for text in texts:
        # Names of dimensions may contain "=" themselves, sizes cannot.
        name, _, size = text.rpartition("=")
        if not name or not size.isdecimal() or not int(size):
            raise typer.BadParameter(f"{text!r} is not NAME=SIZE with a whole number above 0")
        sizes[name] = int(size)
    return sizes


def _check_shapes(texts: list[str]) -> list[str]:
    shapes_of(texts)
    return texts


def states_of(texts: list[str]) -> dict[str, str]:
    """Parse the values of `States`: input to the output that feeds it in the next run."""
    states: dict[str, str] = {}
    for text in texts:
        source, _, target = text.partition("=")
        if not source or not target or source in states:
            raise typer.BadParameter(f"{text!r} is not INPUT=OUTPUT with an input that is named once")
        states[source] = target
    return states


def _check_states(texts: list[str]) -> list[str]:
    states_of(texts)
    return texts


States = Annotated[
    list[str],
    typer.Option(
        "--state",
        metavar="INPUT=OUTPUT",
        callback=_check_states,
        help="Feed this output of an ONNX model to this input in the next run. May be repeated.",
        show_default=False,
    ),
]
Shapes = Annotated[
    list[str],
    typer.Option(
        "--shape",
        metavar="NAME=SIZE",
        callback=_check_shapes,
        help="Size of a dimension that the model leaves open; NAME is its name or input.axis. May be repeated.",
        show_default=False,
    ),
]
Folder = Annotated[
    Path, typer.Argument(help="Folder that `weft compile` wrote.", metavar="FOLDER", show_default=False)
]
Configuration = Annotated[
    str,
    typer.Option(
        "--config",
        metavar="NAME|FILE",
        help="Hardware configuration: a preset, a board (its own configuration), or a JSON file of fields.",
        autocompletion=_configurations,
    ),
]
Board = Annotated[
    str,
    typer.Option(
        "--board",
        metavar="BOARD",
        help="Board, by its name in `weft boards`.",
        show_default=False,
        autocompletion=board_names,
    ),
]
PlannedMemory = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="BYTES|BOARD",
        help="Memory bandwidth to plan for, in bytes per cycle, or a board whose memory it is. Default: the memory of "
        "the board that --config names, else a memory as fast as the bus.",
        show_default=False,
        autocompletion=board_names,
    ),
]


def planned_memory(text: str | None, config: str) -> float | None:
    """Return the bandwidth in bytes a cycle that ``--memory`` or the board of ``--config`` names, or None."""
    from weft.configurations import memory_of

    try:
        return memory_of(None if text is None else float(text), config)
    except ValueError:
        return memory_of(text, config)


Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def configuration(source: str) -> Config:
    """Return the configuration that ``--config`` names, see `weft.configurations.configuration`."""
    from weft.configurations import configuration

    return configuration(source)


def config_file(config: str | None) -> Path | None:
    """Return the JSON file that ``--config`` names; None for a preset or a board."""
    return Path(config) if config is not None and Path(config).suffix == ".json" else None


def load(folder: Path) -> tuple[Any, list[Path]]:
    """Load the program in a folder. Returns it and the files that it was read from."""
    import weft

    if not folder.is_dir():
        hint = f"; compile the model first: weft compile {folder} -o FOLDER" if folder.is_file() else ""
        raise FileError(f"{folder} is not a folder that `weft compile` wrote{hint}")
    return weft.load(folder), program_files(folder)


def board_port(name: str) -> Any:
    """Return the option `name`: the serial port of a board."""
    return typer.Option(
        name,
        metavar="PORT",
        help="Serial port of the board, or virtual:NAME to simulate the board NAME, or virtual:NAME@CONFIG to simulate "
        "it with another configuration. Default: the port where a board answers.",
        show_default=False,
    )


Port = Annotated[str | None, board_port("--port")]
Baud = Annotated[
    int | None,
    Whole("Baud rate of the port, as `weft build` printed it. Default: found by trial.", 1, 1 << 31),
]


def check_only(device: str, on: object, options: Mapping[str, object]) -> None:
    """Raise `InputError` if any of `options`, by name, has a value although only `device` takes them, not `on`."""
    for name, value in options.items():
        if on != device and value:
            raise InputError(f"{name} and --on {on} do not go together: it is for --on {device}")
