"""The command line: every command is a few lines over the Python API.

Exit codes: 0 done, 1 results differ or the target failed, 2 the user's input is wrong. What is wrong is said in one
sentence on stderr, and nothing half-written stays behind.
"""

from __future__ import annotations

import dataclasses
import enum
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft import arrays, board_commands, tune_command
from weft import report as reports
from weft.options import Configuration, Model

if TYPE_CHECKING:
    from weft.hdl.config import Config

app = typer.Typer(
    name="weft",
    help="From a quantised ONNX network to a Verilog accelerator that provably runs it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Folder = Annotated[Path, typer.Argument(help="Folder that `weft compile` wrote.", show_default=False)]


class Target(enum.StrEnum):
    GOLDEN = "golden"
    RTL = "rtl"
    TIMING = "timing"
    BOARD = "board"


class Simulation(enum.StrEnum):
    """Where `trace` runs."""

    TIMING = "timing"
    RTL = "rtl"


_RTL_STARTS = "running on the RTL (the first time builds its simulator, about a minute)"


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


def _configuration(source: str) -> Config:
    from weft.hdl.config import Config

    return Config.load(source)


def _load(folder: Path) -> Any:
    import weft

    if not folder.is_dir():
        raise reports.FileError(f"{folder} is not a folder that `weft compile` wrote")
    return weft.load(folder)


@app.command("compile")
def compile_model(
    model: Model,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for the program.", show_default=False)
    ],
    config: Configuration = "default",
    tuning: Annotated[
        Path | None, typer.Option("--tuning", help="File that `weft tune` wrote for this configuration.")
    ] = None,
    plain_inputs: Annotated[
        bool, typer.Option(help="Have inputs in memory in NHWC order; a first convolution may be slower.")
    ] = False,
) -> None:
    """Compile a model for one configuration of the hardware."""
    import weft

    chosen = _configuration(config)
    reports.existing(model)
    options: dict[str, Any] = {"plain_inputs": plain_inputs}
    if tuning is not None:
        from weft.tuning import Tuning

        options["choose"] = Tuning.load(reports.existing(tuning), chosen).chooser()
    with reports.progress() as progress:
        progress(f"compiling {model.name}")
        program = weft.compile(model, config=chosen, progress=progress, **options)
        nodes = weft.check(model)
        with reports.whole_folder(output) as part:
            program.save(part)
    host = [node for node in nodes if node[2] == "host"]
    print(f"{output}: {model.name} for an array of {chosen.n} x {chosen.n}; "
          f"{len(nodes) - len(host)} of {len(nodes)} nodes run on the device")  # fmt: skip
    if host:
        reports.show_placement(host, reports.stdout())


@app.command()
def run(
    folder: Folder,
    source: Annotated[
        Path | None,
        typer.Option(
            "--input",
            help="The model's inputs: .npz by name, or .npy or an image for one input, or - for stdin; not for timing.",
            show_default=False,
        ),
    ] = None,
    on: Annotated[Target, typer.Option("--on", help="Where to run.")] = Target.GOLDEN,
    output: Annotated[
        Path | None, typer.Option("--output", help="Write the model's outputs to this .npz.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option("--report", help="Write cycles, MACs and the rest as JSON.")
    ] = None,
    latency: Annotated[int, typer.Option(min=1, help="Memory latency in cycles (rtl, timing).")] = 30,
    bandwidth: Annotated[
        float | None, typer.Option(min=0.001, help="Memory bytes per cycle (rtl, timing).")
    ] = None,
    stall_seed: Annotated[
        int | None, typer.Option(help="Random pauses of the memory, by seed (rtl).")
    ] = None,
    waves: Annotated[
        Path | None,
        typer.Option(help="Write waveforms, .fst or .vcd, and files that open them in viewers (rtl)."),
    ] = None,
    waves_from: Annotated[int, typer.Option(min=0, max=1 << 40, help="First cycle of --waves.")] = 0,
    waves_cycles: Annotated[
        int | None, typer.Option(min=1, max=1 << 40, help="Cycles in --waves, else all that follow.")
    ] = None,
    port: Annotated[
        str | None, typer.Option(help="Serial port of the board, or virtual:NAME to simulate one.")
    ] = None,
    baud: Annotated[int, typer.Option(min=1, help="Bits a second on it, as `weft build` says.")] = 3_000_000,
) -> None:
    """Run a compiled program.

    On rtl, outputs and memory are compared with the golden interpreter's; on board, outputs. On timing, nothing is
    computed: a model of the hardware tells how many cycles it takes, and why.
    """
    _check_waves(on, waves, waves_from > 0 or waves_cycles is not None)
    if on is Target.TIMING:
        return _time(folder, output, report, {"latency": latency, "bandwidth": bandwidth})
    if source is None:
        raise reports.FileError("--input is missing: say which file holds the model's inputs")
    if (on is Target.BOARD) != (port is not None):
        raise reports.FileError("--on board and --port PORT go together: say both, or neither")
    program = _load(folder)
    inputs = arrays.read_inputs(source, program.inputs)
    if output is not None:
        arrays.check_outputs(program.outputs)
    from weft.waves import recording

    with reports.progress() as progress, recording(waves, waves_from, waves_cycles) as recorded:
        progress("running on the golden interpreter")
        golden = result = program.run(inputs, on="golden")
        if on is Target.RTL:
            progress(_RTL_STARTS)
            timing = {"latency": latency, "bandwidth": bandwidth, "stalls": stall_seed}
            result = program.run(inputs, on="rtl", trace=recorded, **timing)
        elif port is not None:
            result = _on_board(program, inputs, port, baud, progress)
    _keep(result, output, report)
    if waves is not None:
        viewers = " and ".join(str(waves.with_suffix(suffix)) for suffix in (".gtkw", ".sucl"))
        print(f"{waves}: waveforms from cycle {waves_from:,} on; {viewers} open them")
    if on is Target.RTL:
        _compare(golden, result)
    elif on is Target.BOARD:
        _compare(dataclasses.replace(golden, memory=b""), result)


def _keep(result: Any, output: Path | None, report: Path | None) -> None:
    """Write what was asked for, and show the rest."""
    if output is not None:
        arrays.save_arrays(output, result.outputs)
    if report is not None:
        reports.write_json(report, result.report)
    reports.show_layers(result.report, reports.stdout())
    for name, value in result.outputs.items():
        print(f"output {name}: {value.dtype} {'x'.join(map(str, value.shape))}")


def _check_waves(on: Target, waves: Path | None, part: bool) -> None:
    """Refuse options for waveforms that do not go together; `part`: not all cycles are wanted."""
    if waves is not None and on is not Target.RTL:
        raise reports.FileError(f"--waves and --on {on} do not go together: only rtl has waveforms")
    if waves is None and part:
        raise reports.FileError("--waves is missing: --waves-from and --waves-cycles say what it shows")


def _time(folder: Path, output: Path | None, report: Path | None, memory: dict[str, Any]) -> None:
    """Run on the cycle model. Inputs do not matter to it."""
    import numpy as np

    if output is not None:
        raise reports.FileError("--output and --on timing do not go together: timing computes no outputs")
    program = _load(folder)
    inputs = {name: np.zeros(shape, dtype) for name, (dtype, shape) in program.inputs.items()}
    with reports.progress() as progress:
        progress("running on the cycle model")
        result = program.run(inputs, on="timing", **memory)
    if report is not None:
        reports.write_json(report, result.report)
    reports.show_layers(result.report, reports.stdout())
    _show_units(result.report["counters"])
    print("nothing was computed: cycles are those of a model of the hardware, without data")


def _show_units(counters: dict[str, int]) -> None:
    """Say of every unit for which part of the cycles it was busy, and for which it was held up, by cause."""
    for unit in ("load", "mm", "vec", "store"):
        own = {
            name.removeprefix(f"{unit}_"): value for name, value in counters.items() if name.startswith(unit)
        }
        shares = [f"{name} {value / max(counters['cycles'], 1):.1%}" for name, value in own.items()]
        print(f"{unit}: {', '.join(shares)}")


def _on_board(program: Any, inputs: dict[str, Any], port: str, baud: int, progress: reports.Progress) -> Any:
    from weft.virtual import PREFIX, board_at

    if port.startswith(PREFIX):
        progress("building the board's simulator (about a minute, the first time only)")
    with board_at(port, program.config, baud) as device:
        progress(f"running on {device.identity.board}")
        return program.run(inputs, on=device, memory=False)


def _compare(golden: Any, result: Any) -> None:
    """Say how many bytes of memory and outputs differ; leave with exit code 1 if any does."""
    wrong = reports.difference(golden, result)
    print(f"mismatching bytes: {wrong}")
    if wrong:
        raise typer.Exit(1)


@app.command()
def trace(
    folder: Folder,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Write Trace Event JSON, for ui.perfetto.dev.", show_default=False
        ),
    ] = None,
    drawing: Annotated[
        Path | None, typer.Option("--svg", help="Write a drawing of it.", show_default=False)
    ] = None,
    on: Annotated[Simulation, typer.Option("--on", help="Where to run.")] = Simulation.TIMING,
    latency: Annotated[int, typer.Option(min=1, help="Memory latency in cycles.")] = 30,
    bandwidth: Annotated[float | None, typer.Option(min=0.001, help="Memory bytes per cycle.")] = None,
) -> None:
    """Show what every unit does when: as the cycle model has it, or the RTL, whose inputs are zeros here."""
    if output is None and drawing is None:
        raise reports.FileError("say where the trace goes: --output FILE.json, --svg FILE.svg, or both")
    if output is not None and drawing is not None and output.resolve() == drawing.resolve():
        raise reports.FileError(f"--output and --svg both name {output}: they are two files")
    program = _load(folder)
    from weft import trace_json, trace_svg
    from weft.trace import timelines_of

    with reports.progress() as progress:
        progress(_RTL_STARTS if on is Simulation.RTL else "running on the cycle model")
        timelines = timelines_of(program, on=on.value, latency=latency, bandwidth=bandwidth)
        progress("writing the trace")
        texts = {}
        if output is not None:
            memory = {"latency": latency, "bandwidth": bandwidth or program.config.bus_bytes}
            about = {"program": str(folder), "on": on.value, **memory, "config": program.config.to_dict()}
            texts[output] = trace_json.text(timelines, about)
        if drawing is not None:
            texts[drawing] = trace_svg.svg(timelines, program.config.scratchpad_size)
        for path, text in texts.items():
            with reports.whole_file(path) as part:
                part.write_text(text, encoding="utf-8")
    for path in texts:
        print(f"{path}: {sum(line.cycles for line in timelines):,} cycles")


@app.command()
def check(model: Model) -> None:
    """Show which nodes of a model run on the device, which on the host, and why."""
    import weft

    nodes = weft.check(reports.existing(model))
    reports.show_placement(nodes, reports.stdout())
    host = sum(node[2] == "host" for node in nodes)
    print(f"{len(nodes) - host} of {len(nodes)} nodes run on the device, {host} on the host")


@app.command()
def verilog(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Verilog file to write.", show_default=False)
    ],
    config: Configuration = "default",
) -> None:
    """Write the accelerator as one Verilog file, and a JSON file of its parameters, ports and registers next to it."""
    import weft

    chosen = _configuration(config)
    if output.suffix == ".json":
        raise reports.FileError(f"{output}: the Verilog file must not end in .json, its description does")
    with reports.progress() as progress:
        progress("generating Verilog")
        text, description = weft.verilog(chosen)
    with reports.whole_file(output) as part:
        part.write_text(text)
    described = output.with_suffix(".json")
    reports.write_json(described, description)
    print(
        f"{output}: {len(text.splitlines()):,} lines of Verilog\n{described}: parameters, ports and register map"
    )


@app.command()
def dis(folder: Folder) -> None:
    """Disassemble a compiled program."""
    print(_load(folder).disassemble(), end="")


class Example(enum.Enum):
    """Networks that `weft demo` knows."""

    DIGITS = "digits"
    ATTENTION = "attention"


@app.command()
def demo(
    example: Annotated[Example, typer.Argument(help="The network.")] = Example.DIGITS,
    config: Configuration = "default",
    images: Annotated[
        int | None, typer.Option(min=1, help="Images on the RTL, else a minute's worth.")
    ] = None,
    keep: Annotated[Path, typer.Option(help="Folder for Verilog, waveform and report.")] = Path("build/demo"),
) -> None:
    """Run a small network on the simulated accelerator and hold every byte against the golden interpreter."""
    from weft.demo import Demo

    demonstration = Demo(example.value, _configuration(config), keep, reports.stdout())
    if not demonstration.run(images):
        raise typer.Exit(1)


app.command()(tune_command.tune)
board_commands.add(app)


def _expected(error: Exception) -> bool:
    """Whether weft raised `error` to tell the user something, or the operating system did; all else is a bug."""
    ours = type(error).__module__.startswith("weft.") and isinstance(error, ValueError | RuntimeError)
    return ours or isinstance(error, OSError)


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the ``weft`` command; always leaves by `SystemExit`."""
    try:
        app(args=arguments)
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        if not _expected(error):
            raise
        text = str(error)
        if isinstance(error, OSError) and error.filename is not None:
            text = f"cannot use {error.filename}: {error.strerror}"
        print(f"error: {text}", file=sys.stderr)
        # What the user gave is a ValueError or a file; a tool or a device that fails is a RuntimeError.
        sys.exit(1 if isinstance(error, RuntimeError) else 2)
