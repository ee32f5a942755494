"""The command line: every command is a few lines over the Python API.

Exit codes: 0 done, 1 results differ or the target failed, 2 the user's input is wrong. What is wrong is said in one
sentence on stderr, and nothing half-written stays behind.
"""

from __future__ import annotations

import dataclasses
import enum
import importlib
import io
import sys
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup
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


class _Commands(TyperGroup):
    """Commands whose wrong use is told by `main`, in a sentence as all wrong input."""

    def main(self, *arguments: Any, **options: Any) -> NoReturn:
        sys.exit(super().main(*arguments, **options | {"standalone_mode": False}) or 0)


app = typer.Typer(
    name="weft",
    cls=_Commands,
    help="From a quantised ONNX or TFLite network to a Verilog accelerator that provably runs it.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Target(enum.StrEnum):
    GOLDEN = "golden"
    RTL = "rtl"
    TIMING = "timing"
    BOARD = "board"


def _version(wanted: bool) -> None:
    if wanted:
        import weft

        print(f"weft {weft.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show it.")
    ] = False,
) -> None:
    pass


def run(
    folder: Folder,
    source: Annotated[
        list[Path],
        typer.Option(
            "--input",
            help="The model's inputs: .npz by name, or .npy or an image for one input, or - for stdin; not for timing. "
            "Given several times it is a run for each, in order: states go on.",
            show_default=False,
        ),
    ] = [],  # noqa: B006
    on: Annotated[Target, typer.Option("--on", help="Where to run.")] = Target.GOLDEN,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            help="Write the model's outputs to this .npz; of several runs along a first dimension.",
        ),
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", help="Write cycles, MACs and the rest as JSON.")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(help="The TFLite model that was compiled: say how far LiteRT's outputs are from these."),
    ] = None,
    latency: Latency = 30,
    bandwidth: Bandwidth = None,
    stall_seed: StallSeed = None,
    certified: Annotated[
        bool, typer.Option("--certified", help="Prove the program first, as `weft verify` does.")
    ] = False,
    variant: Annotated[
        list[Path],
        typer.Option(
            "--variant",
            help="Folder with the same model, planned for another memory: behind each run is chosen which of them runs "
            "next, by the counters (rtl, board). May be given several times.",
            show_default=False,
        ),
    ] = [],  # noqa: B006
    waves: Annotated[
        Path | None,
        typer.Option(help="Write waveforms, .fst or .vcd, and files that open them in viewers (rtl)."),
    ] = None,
    waves_from: Annotated[int, whole("--waves-from", "First cycle of --waves.", 0, 1 << 40)] = 0,
    waves_cycles: Annotated[
        int | None,
        whole("--waves-cycles", "Number of cycles in --waves; all that follow if not given.", 1, 1 << 40),
    ] = None,
    port: Port = None,
    baud: Baud = None,
) -> None:
    """Run a compiled program. What is told of several runs is of the last one.

    On rtl, outputs and memory are compared with the golden interpreter's; on board, outputs. On timing, nothing is
    computed: a model of the hardware tells how many cycles it takes, and why.
    """
    _check_variants(on, variant, certified=certified)
    _check_waves(on, waves, waves_from > 0 or waves_cycles is not None)
    if on is Target.TIMING:
        if against is not None:
            raise FileError("--against and --on timing do not go together: timing computes no outputs")
        memory = {"latency": latency, "bandwidth": bandwidth}
        return _time(folder, output, report, memory, certified=certified)
    program, others, runs = _read(on, folder, source, port, _written(output, report, waves), against, variant)
    if certified:
        _certify(program, folder)
    variants = _variants(program, others)
    if output is not None:
        arrays.check_outputs(program.outputs)
    ends = (program.inputs, program.outputs)
    theirs = None if against is None else litert.run(against, runs, *ends)

    with reports.progress() as progress, recording(waves, waves_from, waves_cycles) as recorded:
        progress("running on the golden interpreter")
        golden = results = [program.run(inputs, on="golden") for inputs in runs]
        if on is Target.RTL:
            progress(reports.RTL_STARTS)
            timing: dict[str, Any] = {"latency": latency, "bandwidth": bandwidth, "stalls": stall_seed}
            program.reset()
            traces = [None] * (len(runs) - 1) + [recorded]
            if variants is not None:  # memory depends on the plan
                golden, timing = _without_memory(golden), {**timing, "memory": False}
            results = [
                (variants or program).run(inputs, on="rtl", trace=trace, **timing)
                for inputs, trace in zip(runs, traces, strict=True)
            ]
        elif on is Target.BOARD:
            # A board's memory is not read back.
            golden = _without_memory(golden)
            program.reset()
            results = run_on_board(program, runs, port, baud, progress, variants)
    _keep(results, output, report)
    if variants is not None:
        about = results[-1].report["variant"]
        program = variants.programs[about["ran"]]
        folders = [folder, *variant]
        reports.say(f"ran last: {folders[about['ran']]}; next: {folders[about['next']]}: {about['why']}")
    if on is Target.RTL:
        reports.say_plan(program, bandwidth)
    if on is Target.BOARD:
        say_link(results[-1].report)
        say_source(results[-1].report)
        reports.say_plan(program, results[-1].report.get("modelled", {}).get("bandwidth"))
    if theirs is not None:
        reports.say(litert.describe_differences([result.outputs for result in results], theirs))
    if waves is not None:
        viewers = " and ".join(str(waves.with_suffix(suffix)) for suffix in VIEWERS)
        reports.say(f"{waves}: waveforms from cycle {waves_from:,} on; {viewers} open them")
    if on is not Target.GOLDEN:
        _compare(golden, results)


def _variants(program: Any, others: list[Any]) -> Any:
    """The choice between a program and others; None if there are none."""
    if not others:
        return None
    from weft.run.variants import Variants

    return Variants([program, *others])


def _without_memory(results: list[Any]) -> list[Any]:
    return [dataclasses.replace(result, memory=b"") for result in results]


def _check_variants(on: Target, variant: list[Path], *, certified: bool) -> None:
    """Refuse options that do not go with a choice between programs."""
    if variant and on not in (Target.RTL, Target.BOARD):
        raise FileError(
            f"--variant and --on {on} do not go together: the choice is by the counters of runs on rtl or board"
        )
    if variant and certified:
        raise FileError("--variant and --certified do not go together: a certificate is of one program")


def _read(
    on: Target,
    folder: Path,
    source: list[Path],
    port: str | None,
    written: dict[str, Path | None],
    against: Path | None = None,
    variant: list[Path] = [],  # noqa: B006
) -> tuple[Any, list[Any], list[dict[str, Any]]]:
    """The program, its variants, and the inputs of each run, once the options of `run` go together."""
    if not source:
        raise FileError("--input is missing: say which file holds the model's inputs")
    if port is not None and on is not Target.BOARD:
        raise FileError(f"--port and --on {on} do not go together: only a board has a port")
    program, read = load(folder)
    others = [load(item) for item in variant]
    read += [path for _, paths in others for path in paths]
    suffixes = {"--output": (".npz",), "--report": (".json",)}
    files.check_overwrites(written, [*read, *source, against and files.require_file(against)], suffixes)
    _check_device(on, program)
    return (
        program,
        [other for other, _ in others],
        [arrays.read_inputs(item, program.inputs) for item in source],
    )


def _keep(results: list[Any], output: Path | None, report: Path | None) -> None:
    """Write what was asked for, and show the rest."""
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
    """The outputs of a run; those of several along a dimension in front."""
    import numpy as np

    if len(results) == 1:
        return results[0].outputs
    return {name: np.stack([result.outputs[name] for result in results]) for name in results[0].outputs}


def _written(output: Path | None, report: Path | None, waves: Path | None) -> dict[str, Path | None]:
    """The files that a run writes, by what names them."""
    viewers = {f"--waves ({suffix})": waves and waves.with_suffix(suffix) for suffix in VIEWERS}
    return {"--output": output, "--report": report, "--waves": waves, **viewers}


def _check_device(on: Target, program: Any) -> None:
    """Refuse to compare with a device that nothing of the program runs on."""
    if on in (Target.RTL, Target.BOARD) and not program.on_device:
        raise FileError(
            f"nothing of this program runs on the device, so there is nothing to run on {on}: use --on golden, which "
            "runs the host's part; `weft check` tells every node's reason"
        )


def _check_waves(on: Target, waves: Path | None, part: bool) -> None:
    """Refuse options for waveforms that do not go together; `part`: not all cycles are wanted."""
    if waves is not None and on is not Target.RTL:
        raise FileError(f"--waves and --on {on} do not go together: only rtl has waveforms")
    if waves is None and part:
        raise FileError("--waves is missing: --waves-from and --waves-cycles say what it shows")


def _time(
    folder: Path, output: Path | None, report: Path | None, memory: dict[str, Any], *, certified: bool
) -> None:
    """Run on the cycle model. Inputs do not matter to it."""
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
    core = "sequential" if sequential_boards(program.config) else "pipelined"
    reports.say(f"nothing was computed: cycles are those of a model of the {core} core, without data")


def _show_units(counters: dict[str, int]) -> None:
    """Say of every unit for which part of the cycles it was busy, and for which it was held up, by cause."""
    for unit in ("load", "mm", "vec", "store"):
        own = {
            name.removeprefix(f"{unit}_"): value for name, value in counters.items() if name.startswith(unit)
        }
        shares = [f"{name} {value / max(counters['cycles'], 1):.1%}" for name, value in own.items()]
        reports.say(f"{unit}: {', '.join(shares)}")


def _certify(program: Any, folder: Path) -> None:
    """Prove a program that was read from a folder, or raise an error: this very program may run then."""
    verify = provider("verify a program")
    with reports.progress() as progress:
        reports.say(*verify(program, folder, progress).told)


def _compare(golden: list[Any], results: list[Any]) -> None:
    """Say how many bytes of memory and outputs differ; leave with exit code 1 if any does."""
    wrong = sum(map(reports.difference, golden, results))
    reports.say(f"mismatching bytes: {wrong}")
    if wrong:
        raise typer.Exit(1)


def _add_commands() -> None:
    """Give `app` all commands; those of each extra have a heading of their own in `weft --help`."""
    for module in (example_commands, model_commands, quantise_command):
        module.add(app)
    app.command()(writes(run))
    for module in (trace_command, estimate_command, board_commands, probe_command):
        module.add(app)
    for extra in extras():
        core = len(app.registered_commands)
        for name in extra.commands:
            importlib.import_module(name).add(app)
        for command in app.registered_commands[core:]:
            command.rich_help_panel = extra.title


_add_commands()


def main(arguments: list[str] | None = None) -> None:
    """Carry out one command line, and leave by `SystemExit` or `KeyboardInterrupt`.

    Errors of weft's own and of the operating system are told in a sentence; all others are bugs.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names hold letters that the locale may not have
    try:
        app(args=arguments)
    except SystemExit as left:
        if left.code == 130:  # how typer passes an interrupt on
            raise KeyboardInterrupt from None
        raise
    except TyperException as error:
        _refuse(error)
    except MemoryError as error:
        told = str(error).splitlines() or ["the model or its memory takes more than there is"]
        _fail(f"not enough memory: {told[0]}", 1)
    except OSError as error:
        named = error.filename is not None
        _fail(f"cannot use {error.filename}: {error.strerror}" if named else str(error), 2)
    except WeftError as error:
        # What the user gave is a ValueError; a tool or a device that fails is a RuntimeError.
        _fail(str(error), 1 if isinstance(error, RuntimeError) else 2)


def _refuse(error: TyperException) -> NoReturn:
    """Leave for a command line that is none; the message is empty where help has been printed in its place."""
    if isinstance(error.__cause__, InputError):  # of an option that is a number: see `weft.cli.options`
        _fail(str(error.__cause__), error.exit_code)
    told = " ".join(error.format_message().replace("Value error, ", "").split()).removesuffix(".")
    if not told:
        sys.exit(error.exit_code)
    context = getattr(error, "ctx", None)
    where = f"; `{context.command_path} -h` shows how to call it" if context is not None else ""
    _fail(f"{told[0].lower()}{told[1:]}{where}", error.exit_code)


def _fail(text: str, code: int) -> NoReturn:
    """Leave with a sentence: names in it come from files, and may be of any length and hold anything."""
    print("error:", "\n".join(map(reports.printable_line, text.splitlines())), file=sys.stderr)
    sys.exit(code)
