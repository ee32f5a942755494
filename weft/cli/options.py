"""Arguments and options that several commands have."""

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
    """The option `name`, a whole number from `low` to `high`: another one is refused as the Python API does."""
    return _number(name, help, low, high, lambda value: integer(name, value, low, high), int, **shown)


def real(name: str, help: str, low: float, high: float, **shown: Any) -> Any:
    """The option `name`, a finite number from `low` to `high`."""
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
    def parse(text: Any) -> Any:
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
    Path, typer.Argument(help="Quantised model: ONNX (QDQ), TFLite or MLIR.", show_default=False)
]


def shapes_of(texts: list[str]) -> dict[str, int]:
    """What was given as `Shapes`: sizes by name."""
    sizes = {}
    for text in texts:
        name, _, size = text.rpartition("=")
        if not name or not size.isdecimal() or not int(size):
            raise typer.BadParameter(f"{text!r} is not NAME=SIZE with a whole number above 0")
        sizes[name] = int(size)
    return sizes


def _checked(texts: list[str]) -> list[str]:
    shapes_of(texts)
    return texts


def states_of(texts: list[str]) -> dict[str, str]:
    """What was given as `States`: outputs by the inputs that they become."""
    found: dict[str, str] = {}
    for text in texts:
        source, _, target = text.partition("=")
        if not source or not target or source in found:
            raise typer.BadParameter(f"{text!r} is not INPUT=OUTPUT with an input that is named once")
        found[source] = target
    return found


def _checked_states(texts: list[str]) -> list[str]:
    states_of(texts)
    return texts


States = Annotated[
    list[str],
    typer.Option(
        "--state",
        metavar="INPUT=OUTPUT",
        callback=_checked_states,
        help="Input of an ONNX model that the next run takes from an output of this one; once for each.",
        show_default=False,
    ),
]
Shapes = Annotated[
    list[str],
    typer.Option(
        "--shape",
        metavar="NAME=SIZE",
        callback=_checked,
        help="Size of a dimension that the model leaves open, by its name or as input.axis; once for each.",
        show_default=False,
    ),
]
Folder = Annotated[Path, typer.Argument(help="Folder that `weft compile` wrote.", show_default=False)]
Configuration = Annotated[
    str,
    typer.Option(
        "--config",
        help="Preset, board (its own configuration), or a JSON file of configuration fields.",
        autocompletion=_configurations,
    ),
]
Board = Annotated[
    str,
    typer.Option(
        "--board",
        help="Name of the board, one of those that `weft boards` lists.",
        show_default=False,
        autocompletion=board_names,
    ),
]
Latency = Annotated[int, whole("--latency", "Memory latency in cycles (rtl, timing).", *LATENCY)]
Bandwidth = Annotated[float | None, real("--bandwidth", "Memory bytes per cycle (rtl, timing).", *BANDWIDTH)]
PlannedMemory = Annotated[
    str | None,
    typer.Option(
        "--memory",
        help="Memory to plan for: bytes a cycle, or a board; by default that of the board that --config names, or one "
        "as fast as the bus.",
        show_default=False,
        autocompletion=board_names,
    ),
]


def memory_given(text: str | None) -> float | str | None:
    """What `--memory` says, as `weft.compile` takes it."""
    try:
        return None if text is None else float(text)
    except ValueError:
        return text


StallSeed = Annotated[
    int | None,
    whole("--stall-seed", "Seed of random pauses of the memory; no pauses if not given (rtl).", *SEED),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="No progress and no summary: only files, errors and the exit code."),
]


def writes(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that writes files, or acts, the option ``--quiet``."""

    @functools.wraps(command)
    def called(*arguments: Any, quiet: bool = False, **options: Any) -> None:
        before = QUIET.set(quiet)
        try:
            command(*arguments, **options)
        finally:
            QUIET.reset(before)

    signature = inspect.signature(command, eval_str=True)
    option = inspect.Parameter("quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Quiet)
    called.__signature__ = signature.replace(parameters=[*signature.parameters.values(), option])  # type: ignore[attr-defined]
    called.__annotations__ = {**get_type_hints(command, include_extras=True), "quiet": Quiet}
    return called


def config_file(config: str | None) -> Path | None:
    """The file that ``--config`` reads, if it names one."""
    return Path(config) if config is not None and Path(config).suffix == ".json" else None


def load(folder: Path) -> tuple[Any, list[Path]]:
    """The program in a folder, and the files that it was read from."""
    import weft
    from weft.errors import FileError

    if not folder.is_dir():
        hint = f"; compile the model first: weft compile {folder} -o FOLDER" if folder.is_file() else ""
        raise FileError(f"{folder} is not a folder that `weft compile` wrote{hint}")
    return weft.load(folder), program_files(folder)


def board_port(name: str) -> Any:
    """The option `name`: where a board is."""
    return typer.Option(
        name,
        help="Serial port of the board, found by asking if not given, or virtual:NAME to simulate one "
        "(virtual:NAME@CONFIG with another configuration than its own).",
        show_default=False,
    )


Port = Annotated[str | None, board_port("--port")]
Baud = Annotated[
    int | None,
    whole(
        "--baud",
        "Baud rate of the port, which `weft build` prints; found by trying if not given.",
        1,
        1 << 31,
    ),
]
