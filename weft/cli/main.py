"""The command line: every command is a few lines over the Python API.

Exit codes: 0 success, 1 results differ or the target failed, 2 the user's input is wrong. An error is one sentence on
stderr, and leaves no partly written files.
"""

from __future__ import annotations

import inspect
import io
import sys
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from weft import report as reports
from weft.cli.commands import Group, expand, find_commands
from weft.errors import InputError
from weft.hdl.errors import WeftError
from weft.hdl.extras import extras

# Metavars of the help texts, by the type name that Typer would show.
_METAVARS = {"<bool>": "", "<path>": "FILE", "<list[Path]>": "FILE", "<str>": "TEXT", "<list[str]>": "TEXT"}


class _Metavars:
    """Mixin of a command whose help shows metavars in place of Typer's type names."""

    def get_params(self, ctx: Any) -> list[Any]:
        parameters: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for parameter in parameters:
            if parameter.metavar is None:
                parameter.metavar = _METAVARS.get(parameter.display_type(ctx))
        return parameters

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.replace("{", "").replace("}", "") for piece in super().collect_usage_pieces(ctx)]  # type: ignore[misc]


class _Command(_Metavars, TyperCommand):
    pass


class _Commands(_Metavars, TyperGroup):
    """Group of commands that leaves errors of usage to `main`, which reports them like other wrong input."""

    def main(self, *arguments: Any, **options: Any) -> NoReturn:
        sys.exit(super().main(*arguments, **options | {"standalone_mode": False}) or 0)


app = typer.Typer(
    name="weft",
    cls=_Commands,
    help="Compile quantised ONNX, TFLite and MLIR networks for an FPGA accelerator, generate its Verilog, and "
    "prove that both agree.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        import weft

        print(f"weft {weft.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def _add_commands() -> None:
    """Add all commands to `app`: the core's by their groups, then those of extras, which the core does not import."""
    order = {group: place for place, group in enumerate((*Group, None))}
    core = sorted(find_commands("weft.cli"), key=lambda found: order[found[0].group])
    for title, commands in (("", core), *((extra.title, find_commands(extra.package)) for extra in extras())):
        for declaration, function in commands:
            paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
            app.command(
                declaration.name,
                cls=_Command,
                # Without line breaks, Typer wraps paragraphs at the terminal's width.
                help="\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs),
                rich_help_panel=declaration.group or title,
            )(expand(function, quiet=declaration.quiet))


_add_commands()


def main(arguments: list[str] | None = None) -> None:
    """Run one command line, and leave by `SystemExit` or `KeyboardInterrupt`.

    Errors of weft and of the operating system are reported in one sentence; all other exceptions are bugs.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names may hold characters that the locale lacks
    try:
        app(args=arguments)
    except SystemExit as end:
        if end.code == 130:  # Typer turns an interrupt into this code
            raise KeyboardInterrupt from None
        raise
    except TyperException as error:
        _refuse(error)
    except MemoryError as error:
        lines = str(error).splitlines() or ["the model or its memory does not fit"]
        _fail(f"not enough memory: {lines[0]}", 1)
    except OSError as error:
        named = error.filename is not None
        _fail(f"cannot use {error.filename}: {error.strerror}" if named else str(error), 2)
    except WeftError as error:
        # Wrong input is a ValueError; a tool or a device that fails is a RuntimeError.
        _fail(str(error), 1 if isinstance(error, RuntimeError) else 2)


def _refuse(error: TyperException) -> NoReturn:
    """Report wrong usage and exit. The message is empty if Typer has printed the help instead."""
    if isinstance(error.__cause__, InputError):  # from an option that is a number: see `weft.cli.commands`
        _fail(str(error.__cause__), error.exit_code)
    message = " ".join(error.format_message().replace("Value error, ", "").split()).removesuffix(".")
    if not message:
        sys.exit(error.exit_code)
    context = getattr(error, "ctx", None)
    hint = f"; `{context.command_path} -h` shows how to call it" if context is not None else ""
    _fail(f"{message[0].lower()}{message[1:]}{hint}", error.exit_code)


def _fail(text: str, code: int) -> NoReturn:
    # Names in the text come from files: `reports.printable_line` cuts them and escapes control characters.
    print("error:", "\n".join(map(reports.printable_line, text.splitlines())), file=sys.stderr)
    sys.exit(code)
