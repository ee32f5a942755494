"""Declaration of commands, which weft finds in modules named ``*_command.py`` or ``*_commands.py``."""

from __future__ import annotations

import dataclasses
import enum
import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import typer

from weft.arguments import Number
from weft.errors import InputError
from weft.report import QUIET

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
