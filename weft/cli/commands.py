"""Declaration of commands, and options that several share; weft finds commands in modules ``*_command(s).py``."""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from weft.arguments import Number, Whole
from weft.errors import FileError, InputError
from weft.files import program_files
from weft.report import QUIET

if TYPE_CHECKING:
    from weft.hdl.isa.config import Config


Function = Callable[..., None]


class Group(enum.StrEnum):
    """Headings of the core's commands in `weft --help`, in their order."""

    EXAMPLES = "Examples"
    MODELS = "Models"
    RUNS = "Runs"
    HARDWARE = "Hardware"


class Declaration(NamedTuple):
    """Declaration of a command; see `command`."""

    group: Group | None
    name: str | None
    quiet: bool


def command(
    group: Group | None = None, *, name: str | None = None, quiet: bool = True
) -> Callable[[Function], Function]:
    """Declare a function as a command.

    Parameters
    ----------
    group : Group
        Heading of the command in `weft --help`. Commands of extras have the title of their extra instead.
    name : str
        Name of the command, if it is not that of the function.
    quiet : bool
        Add the option ``--quiet``, for commands that write files or act on a device.
    """

    def declare(function: Function) -> Function:
        function.declaration = Declaration(group, name, quiet)  # type: ignore[attr-defined]
        return function

    return declare


def find_commands(package: str) -> Iterator[tuple[Declaration, Function]]:
    """Yield the commands that the modules of a package declare, in the order of modules, then of functions."""
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__, f"{package}."):
        if module.name.endswith(("_command", "_commands")):
            for value in vars(importlib.import_module(module.name)).values():
                declaration = getattr(value, "declaration", None)
                if isinstance(declaration, Declaration) and value.__module__ == module.name:
                    yield declaration, value


class Take:
    """Fields of a record that a command takes, in ``Annotated[RunOptions, Take("latency", on=("rtl", "timing"))]``.

    Each becomes an option. `on` are the devices that the command can run on; the first is the default.
    """

    def __init__(self, *fields: str, on: tuple[str, ...] = ()) -> None:
        self.fields = (*(("on",) if on else ()), *fields)
        self.on = on

    def parameters(self, record: type[Any]) -> Iterator[inspect.Parameter]:
        """Yield a parameter for each field that is taken."""
        declared = {field.name: field for field in dataclasses.fields(record)}
        for name in self.fields:
            default, declaration = declared[name].default, declared[name].metadata["option"]
            devices = declared[name].metadata["devices"]
            # Devices are only worth a word if the command runs on others, too.
            some = f" For {' and '.join(devices)}." if devices and set(self.on) - set(devices) else ""
            kind: Any = Path | None
            if name == "on":
                kind, default = Literal[self.on], self.on[0]
            if isinstance(declaration, Number):
                kind = declaration.kind if default is not None else declaration.kind | None
                option = _number(name, dataclasses.replace(declaration, help=declaration.help + some))
            else:
                option = typer.Option(_flag(name), help=declaration + some)
            yield _parameter(name, Annotated[kind, option], default)


def expand(function: Function, *, quiet: bool) -> Function:
    """Return a function for Typer, which reads options from a signature.

    Records become the options of their fields, and numbers options that are checked as the Python API checks them.
    """
    parameters, records = list[inspect.Parameter](), dict[str, tuple[type[Any], Take]]()
    for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
        match getattr(parameter.annotation, "__metadata__", ()):
            case [Take() as take]:
                records[name] = (parameter.annotation.__origin__, take)
                parameters += take.parameters(parameter.annotation.__origin__)
            case [Number() as declaration]:
                kind: Any = parameter.annotation.__origin__
                option = Annotated[kind, _number(name, declaration)]
                parameters.append(_parameter(name, option, parameter.default))
            case _:
                parameters.append(_parameter(name, parameter.annotation, parameter.default))
    if quiet:
        parameters.append(_parameter("quiet", Quiet, False))

    @functools.wraps(function)
    def run(*, quiet: bool = False, **values: Any) -> None:
        for name, (record, take) in records.items():
            values[name] = _record(record, {field: values.pop(field) for field in take.fields})
        before = QUIET.set(quiet)
        try:
            function(**values)
        finally:
            QUIET.reset(before)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _record(kind: type[Any], values: dict[str, Any]) -> Any:
    """Return a record; an error has the names of options in place of those of fields."""
    try:
        return kind(**values)
    except InputError as error:
        text = str(error)
        for name in values:
            text = text.replace(f"'{name}'", _flag(name))
        raise InputError(text) from error


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _number(name: str, declaration: Number) -> Any:
    """Return the option of a number. Typer's own check of limits does not report the value."""
    flag = _flag(name)

    def parse(text: Any) -> Any:
        # Text that is not a number goes to the check as it is, which names it in its message.
        try:
            value = declaration.kind(text)
        except ValueError:
            value = text
        try:
            return declaration.check(flag, value)
        except InputError as error:
            raise typer.BadParameter(str(error)) from error

    low, high = declaration.low, declaration.high
    limits = f"[at least {low:,}]" if high is None else f"[{low:,} to {high:,}]"
    metavar = {int: "INTEGER", float: "NUMBER"}[declaration.kind]
    return typer.Option(flag, help=f"{declaration.help} {limits}", parser=parse, metavar=metavar)


Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only: no progress and no summary.")]


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
