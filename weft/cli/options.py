"""Arguments and options that several commands share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from weft.arguments import BANDWIDTH, LATENCY, SEED, integer, number
from weft.errors import InputError
from weft.files import program_files
from weft.report import QUIET


def _configurations(incomplete: str) -> list[str]:
    from weft.configurations import names

    return [name for name in names() if name.startswith(incomplete)]


def board_names(incomplete: str) -> list[str]:
    from weft.boards.registry import BOARDS

    return [name for name in BOARDS if name.startswith(incomplete)]


def whole(name: str, help: str, low: int | None = None, high: int | None = None, **shown: Any) -> Any:
    """Return the option `name`: a whole number from `low` to `high`, checked as the Python API checks it."""
    return _number(name, help, low, high, lambda value: integer(name, value, low, high), int, **shown)


def real(name: str, help: str, low: float, high: float, **shown: Any) -> Any:
    """Return the option `name`: a finite number from `low` to `high`."""
    return _number(name, help, low, high, lambda value: number(name, value, low, high), float, **shown)


def _number(
    name: str,
    help: str,
    low: float | None,
    high: float | None,
    check: Callable[[Any], Any],
    kind: type[int] | type[float],
    **shown: Any,
) -> Any:
    # Typer's own range check would print a message unlike the Python API's.
    def parse(text: Any) -> Any:
        # Text that is not a number goes to the check as it is, which names it in its message.
        try:
            value = kind(text)
        except ValueError:
            value = text
        try:
            return check(value)
        except InputError as error:
            raise typer.BadParameter(str(error)) from error

    metavar = {int: "INTEGER", float: "NUMBER"}[kind]
    limits = " to ".join(f"{limit:,}" for limit in (low, high) if limit is not None)
    about = f"{help} [{limits}]" if high is not None else f"{help} [at least {limits}]"
    return typer.Option(name, help=about, parser=parse, metavar=metavar, **shown)


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
Latency = Annotated[
    int, whole("--latency", "Latency of the simulated memory, in cycles (rtl, timing).", *LATENCY)
]
Bandwidth = Annotated[
    float | None,
    real("--bandwidth", "Bandwidth of the simulated memory, in bytes per cycle (rtl, timing).", *BANDWIDTH),
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


def memory_given(text: str | None) -> float | str | None:
    """Parse the value of ``--memory`` into the argument `memory` of `weft.compile`."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


StallSeed = Annotated[
    int | None,
    whole("--stall-seed", "Seed of random memory stalls (rtl). Default: no stalls.", *SEED),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Print errors only: no progress and no summary."),
]


def writes(command: Callable[..., None]) -> Callable[..., None]:
    """Add the option ``--quiet`` to a command that writes files or acts on a device."""

    @functools.wraps(command)
    def run(*arguments: Any, quiet: bool = False, **options: Any) -> None:
        before = QUIET.set(quiet)
        try:
            command(*arguments, **options)
        finally:
            QUIET.reset(before)

    # Typer reads the options from the signature and the annotations.
    signature = inspect.signature(command, eval_str=True)
    option = inspect.Parameter("quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Quiet)
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), option])  # type: ignore[attr-defined]
    run.__annotations__ = {**get_type_hints(command, include_extras=True), "quiet": Quiet}
    return run


def config_file(config: str | None) -> Path | None:
    """Return the JSON file that ``--config`` names; None for a preset or a board."""
    return Path(config) if config is not None and Path(config).suffix == ".json" else None


def load(folder: Path) -> tuple[Any, list[Path]]:
    """Load the program in a folder. Returns it and the files that it was read from."""
    import weft
    from weft.errors import FileError

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
    whole(
        "--baud",
        "Baud rate of the port, as `weft build` printed it. Default: found by trial.",
        1,
        1 << 31,
    ),
]
