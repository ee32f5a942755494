"""The command line: every command is a few lines over the Python API.

Exit codes: 0 success, 1 results differ or the target failed, 2 the user's input is wrong. An error is one sentence on
stderr, and leaves no partly written files.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import inspect
import io
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import TyperException

from weft import arrays, files, litert
from weft import report as reports
from weft.cli import (
    board_commands,
    estimate_command,
    example_commands,
    model_commands,
    probe_command,
    quantise_command,
    trace_command,
)
from weft.cli.options import Bandwidth, Baud, Folder, Latency, Port, StallSeed, load, whole, writes
from weft.cli.viewers import VIEWERS, recording
from weft.configurations import sequential_boards
from weft.errors import FileError, InputError
from weft.hdl.errors import WeftError
from weft.hdl.extras import extras, provider
from weft.run.board_run import run_on_board, say_link, say_source

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


class Target(enum.StrEnum):
    GOLDEN = "golden"
    RTL = "rtl"
    TIMING = "timing"
    BOARD = "board"


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


def run(
    folder: Folder,
    source: Annotated[
        list[Path],
        typer.Option(
            "--input",
            help="Inputs of the model: .npz with an array for each input, .npy or an image for a single input, or - "
            "for stdin. Each --input is one run, in order; states carry over. Not for timing.",
            show_default=False,
        ),
    ] = [],  # noqa: B006
    on: Annotated[Target, typer.Option("--on", help="Where to run.")] = Target.GOLDEN,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            help="Write the outputs to this .npz file; several runs are stacked along a new first dimension.",
        ),
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", help="Write cycles, MACs and counters as JSON.")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(help="The TFLite model that was compiled: compare the outputs with LiteRT's."),
    ] = None,
    latency: Latency = 30,
    bandwidth: Bandwidth = None,
    stall_seed: StallSeed = None,
    certified: Annotated[
        bool, typer.Option("--certified", help="Prove the program before it runs, as `weft verify` does.")
    ] = False,
    variant: Annotated[
        list[Path],
        typer.Option(
            "--variant",
            metavar="FOLDER",
            help="Folder with the same model planned for another memory. After each run, the counters decide which "
            "program runs next (rtl, board). May be repeated.",
            show_default=False,
        ),
    ] = [],  # noqa: B006
    waves: Annotated[
        Path | None,
        typer.Option(help="Write waveforms as .fst or .vcd, with setup files for GTKWave and Surfer (rtl)."),
    ] = None,
    waves_from: Annotated[int, whole("--waves-from", "First cycle in --waves.", 0, 1 << 40)] = 0,
    waves_cycles: Annotated[
        int | None,
        whole("--waves-cycles", "Number of cycles in --waves. Default: to the end.", 1, 1 << 40),
    ] = None,
    port: Port = None,
    baud: Baud = None,
) -> None:
    """Run a compiled program on the golden interpreter, the simulated RTL, the cycle model or a board.

    On rtl, outputs and memory are compared byte by byte with those of the golden interpreter; on board, outputs only.

    On timing, nothing is computed: the cycle model counts cycles and says what limits them.

    With several --input, the report covers the last run.
    """
    _check_variants(on, variant, certified=certified)
    _check_waves(on, waves, waves_from > 0 or waves_cycles is not None)
    # The cycle model needs neither inputs nor outputs, so it has a path of its own.
    if on is Target.TIMING:
        if against is not None:
            raise FileError("--against and --on timing do not go together: timing computes no outputs")
        memory = {"latency": latency, "bandwidth": bandwidth}
        return _time(folder, output, report, memory, certified=certified)
    program, others, runs = _read(on, folder, source, port, _targets(output, report, waves), against, variant)
    if certified:
        _certify(program, folder)
    variants = _variants(program, others)
    if output is not None:
        arrays.check_outputs(program.outputs)
    ends = (program.inputs, program.outputs)
    expected = None if against is None else litert.run(against, runs, *ends)

    with reports.progress() as progress, recording(waves, waves_from, waves_cycles) as recorded:
        progress("running on the golden interpreter")
        golden = results = [program.run(inputs, on="golden") for inputs in runs]
        if on is Target.RTL:
            progress(reports.RTL_STARTS)
            timing: dict[str, Any] = {"latency": latency, "bandwidth": bandwidth, "stalls": stall_seed}
            program.reset()  # the golden runs have changed the states
            # Only the last run is recorded: a file of waveforms holds one run.
            traces = [None] * (len(runs) - 1) + [recorded]
            if variants is not None:  # the contents of memory depend on the plan
                golden, timing = _without_memory(golden), {**timing, "memory": False}
            results = [
                (variants or program).run(inputs, on="rtl", trace=trace, **timing)
                for inputs, trace in zip(runs, traces, strict=True)
            ]
        elif on is Target.BOARD:
            # Outputs only: reading all of a board's memory over the link would take too long.
            golden = _without_memory(golden)
            program.reset()
            results = run_on_board(program, runs, port, baud, progress, variants)
    _save_and_show(results, output, report)
    if variants is not None:
        choice = results[-1].report["variant"]
        program = variants.programs[choice["ran"]]
        folders = [folder, *variant]
        reports.say(f"ran last: {folders[choice['ran']]}; next: {folders[choice['next']]}: {choice['why']}")
    if on is Target.RTL:
        reports.say_plan(program, bandwidth)
    if on is Target.BOARD:
        say_link(results[-1].report)
        say_source(results[-1].report)
        reports.say_plan(program, results[-1].report.get("modelled", {}).get("bandwidth"))
    if expected is not None:
        reports.say(litert.describe_differences([result.outputs for result in results], expected))
    if waves is not None:
        viewers = " and ".join(str(waves.with_suffix(suffix)) for suffix in VIEWERS)
        reports.say(f"{waves}: waveforms from cycle {waves_from:,} on; {viewers} open them")
    # Last, because it exits with code 1 if bytes differ: files and tables are then there to look at.
    if on is not Target.GOLDEN:
        _compare(golden, results)


def _variants(program: Any, others: list[Any]) -> Any:
    if not others:
        return None
    from weft.run.variants import Variants

    return Variants([program, *others])


def _without_memory(results: list[Any]) -> list[Any]:
    return [dataclasses.replace(result, memory=b"") for result in results]


def _check_variants(on: Target, variant: list[Path], *, certified: bool) -> None:
    if variant and on not in (Target.RTL, Target.BOARD):
        raise FileError(
            f"--variant and --on {on} do not go together: the choice needs the counters of runs on rtl or board"
        )
    if variant and certified:
        raise FileError("--variant and --certified do not go together: a certificate covers one program only")


def _read(
    on: Target,
    folder: Path,
    source: list[Path],
    port: str | None,
    written: dict[str, Path | None],
    against: Path | None = None,
    variant: list[Path] = [],  # noqa: B006
) -> tuple[Any, list[Any], list[dict[str, Any]]]:
    """Check that the options of `run` go together. Returns the program, its variants, and the inputs of each run."""
    if not source:
        raise FileError("--input is missing: name the file with the model's inputs")
    if port is not None and on is not Target.BOARD:
        raise FileError(f"--port and --on {on} do not go together: only a board has a port")
    program, read = load(folder)
    others = [load(item) for item in variant]
    # No output may overwrite a file that the command reads.
    read += [path for _, paths in others for path in paths]
    suffixes = {"--output": (".npz",), "--report": (".json",)}
    files.check_overwrites(written, [*read, *source, against and files.require_file(against)], suffixes)
    _check_device(on, program)
    return (
        program,
        [other for other, _ in others],
        [arrays.read_inputs(item, program.inputs) for item in source],
    )


def _save_and_show(results: list[Any], output: Path | None, report: Path | None) -> None:
    result = results[-1]
    if output is not None:
        arrays.save_arrays(output, _outputs(results))
    if report is not None:
        files.write_json(report, result.report)
    reports.show_layers(result.report, reports.summary())
    reports.show_host(result.report)
    for text in result.report.get("warnings", ()):
        reports.warn(text)
    for name, value in result.outputs.items():
        reports.say(f"output {name}: {value.dtype} {'x'.join(map(str, value.shape))}")


def _outputs(results: list[Any]) -> dict[str, Any]:
    """Return the outputs of a run by name; several runs are stacked along a new first dimension."""
    import numpy as np

    if len(results) == 1:
        return results[0].outputs
    return {name: np.stack([result.outputs[name] for result in results]) for name in results[0].outputs}


def _targets(output: Path | None, report: Path | None, waves: Path | None) -> dict[str, Path | None]:
    """Return the files that a run writes, by the option that names them."""
    # The viewers' files are named after the waveforms, and must not overwrite an input either.
    viewers = {f"--waves ({suffix})": waves and waves.with_suffix(suffix) for suffix in VIEWERS}
    return {"--output": output, "--report": report, "--waves": waves, **viewers}


def _check_device(on: Target, program: Any) -> None:
    if on in (Target.RTL, Target.BOARD) and not program.on_device:
        raise FileError(
            f"nothing of this program runs on the device, so there is nothing to run on {on}: use --on golden, which "
            "runs the host's part; `weft check` gives the reason for every node"
        )


def _check_waves(on: Target, waves: Path | None, selects_cycles: bool) -> None:
    if waves is not None and on is not Target.RTL:
        raise FileError(f"--waves and --on {on} do not go together: only rtl has waveforms")
    if waves is None and selects_cycles:
        raise FileError("--waves is missing: --waves-from and --waves-cycles select the cycles that it shows")


def _time(
    folder: Path, output: Path | None, report: Path | None, memory: dict[str, Any], *, certified: bool
) -> None:
    """Run on the cycle model, with zeros as inputs: cycles do not depend on data."""
    import numpy as np

    if output is not None:
        raise FileError("--output and --on timing do not go together: timing computes no outputs")
    program, read = load(folder)
    files.check_overwrites({"--report": report}, read, {"--report": (".json",)})
    if certified:
        _certify(program, folder)
    inputs = {name: np.zeros(shape, dtype) for name, (dtype, shape) in program.inputs.items()}
    with reports.progress() as progress:
        progress("running on the cycle model")
        result = program.run(inputs, on="timing", **memory)
    if report is not None:
        files.write_json(report, result.report)
    reports.show_layers(result.report, reports.summary())
    _show_units(result.report["counters"])
    reports.say_plan(program, memory["bandwidth"])
    # A configuration of a board with the sequential core is simulated on that core.
    core = "sequential" if sequential_boards(program.config) else "pipelined"
    reports.say(f"nothing was computed: the cycles come from a model of the {core} core, without data")


def _show_units(counters: dict[str, int]) -> None:
    """Print, for every unit, its share of busy cycles and of waiting cycles by cause."""
    for unit in ("load", "mm", "vec", "store"):
        cycles = {
            name.removeprefix(f"{unit}_"): value for name, value in counters.items() if name.startswith(unit)
        }
        shares = [f"{name} {value / max(counters['cycles'], 1):.1%}" for name, value in cycles.items()]
        reports.say(f"{unit}: {', '.join(shares)}")


def _certify(program: Any, folder: Path) -> None:
    """Prove the program as loaded, so that the proof covers what runs; raise an error if the proof fails."""
    verify = provider("verify a program")
    with reports.progress() as progress:
        reports.say(*verify(program, folder, progress).lines)


def _compare(golden: list[Any], results: list[Any]) -> None:
    """Print how many bytes of memory and outputs differ; exit with code 1 if any do."""
    mismatches = sum(map(reports.difference, golden, results))
    reports.say(f"mismatching bytes: {mismatches}")
    if mismatches:
        raise typer.Exit(1)


def _add_commands() -> None:
    """Add all commands to `app`; each extra's commands get their own heading in `weft --help`."""
    for module in (example_commands, model_commands, quantise_command):
        module.add(app)
    app.command()(writes(run))
    for module in (trace_command, estimate_command, board_commands, probe_command):
        module.add(app)
    # Extras add their commands themselves, so the core does not import them.
    for extra in extras():
        core = len(app.registered_commands)
        for name in extra.commands:
            importlib.import_module(name).add(app)
        for command in app.registered_commands[core:]:
            command.rich_help_panel = extra.title
    for command in app.registered_commands:
        command.cls = _Command
        paragraphs = inspect.cleandoc(command.callback.__doc__ or "").split("\n\n")
        # Without line breaks, Typer wraps paragraphs at the terminal's width.
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


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
    if isinstance(error.__cause__, InputError):  # from an option that is a number: see `weft.cli.options`
        _fail(str(error.__cause__), error.exit_code)
    message = " ".join(error.format_message().replace("Value error, ", "").split()).removesuffix(".")
    if not message:
        sys.exit(error.exit_code)
    context = getattr(error, "ctx", None)
    where = f"; `{context.command_path} -h` shows how to call it" if context is not None else ""
    _fail(f"{message[0].lower()}{message[1:]}{where}", error.exit_code)


def _fail(text: str, code: int) -> NoReturn:
    # Names in the text come from files: `reports.told` cuts them and escapes control characters.
    print("error:", "\n".join(map(reports.printable_line, text.splitlines())), file=sys.stderr)
    sys.exit(code)
