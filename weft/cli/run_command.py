"""The command that runs a compiled program."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer

from weft import files
from weft import report as reports
from weft.cli.commands import Baud, Folder, Group, Port, Take, check_only, command, load
from weft.errors import FileError
from weft.hdl.extras import provider
from weft.run.options import RunOptions


@command(Group.RUNS)
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
    *,
    options: Annotated[
        RunOptions,
        Take(
            "latency",
            "bandwidth",
            "stall_seed",
            "waves",
            "waves_from",
            "waves_cycles",
            on=("golden", "rtl", "timing", "board"),
        ),
    ],
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
    port: Port = None,
    baud: Baud = None,
) -> None:
    """Run a compiled program on the golden interpreter, the simulated RTL, the cycle model or a board.

    On rtl, outputs and memory are compared byte by byte with those of the golden interpreter; on board, outputs only.

    On timing, nothing is computed: the cycle model counts cycles and says what limits them.

    With several --input, the report covers the last run.
    """
    _check_variants(options.on, variant, certified=certified)
    check_only("board", options.on, {"--port": port, "--baud": baud})
    # The cycle model needs neither inputs nor outputs, so it has a path of its own.
    if options.on == "timing":
        return _time(folder, output, report, against, options, certified=certified)
    written = _targets(output, report, options)
    program, others, runs = _read(options, folder, source, written, against, variant)
    if certified:
        _certify(program, folder)
    from weft import arrays, litert
    from weft.run.variants import Variants

    variants = Variants([program, *others]) if others else None
    if output is not None:
        arrays.check_outputs(program.outputs)
    ends = (program.inputs, program.outputs)
    expected = None if against is None else litert.run(against, runs, *ends)

    from weft.run.board_run import run_on_board, say_link, say_source
    from weft.run.trace import VIEWERS, recording

    with reports.progress() as progress, recording(options) as recorded:
        progress("running on the golden interpreter")
        golden = results = [program.run(inputs) for inputs in runs]
        if options.on == "rtl":
            progress(reports.RTL_STARTS)
            program.reset()  # the golden runs have changed the states
            if variants is not None:  # the contents of memory depend on the plan
                golden = _without_memory(golden)
            # Only the last run is recorded: a file of waveforms holds one run.
            each = [options.without_waves()] * (len(runs) - 1) + [recorded]
            results = [
                (variants or program).run(inputs, record, memory=variants is None)
                for inputs, record in zip(runs, each, strict=True)
            ]
        elif options.on == "board":
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
    if options.on == "rtl":
        reports.say_plan(program, options.bandwidth)
    if options.on == "board":
        say_link(results[-1].report)
        say_source(results[-1].report)
        reports.say_plan(program, results[-1].report.get("modelled", {}).get("bandwidth"))
    if expected is not None:
        reports.say(litert.describe_differences([result.outputs for result in results], expected))
    if (waves := options.recording) is not None:
        viewers = " and ".join(str(waves.path.with_suffix(suffix)) for suffix in VIEWERS)
        reports.say(f"{waves.path}: waveforms from cycle {waves.first:,} on; {viewers} open them")
    # Last, because it exits with code 1 if bytes differ: files and tables are then there to look at.
    if options.on != "golden":
        _compare(golden, results)


def _without_memory(results: list[Any]) -> list[Any]:
    return [dataclasses.replace(result, memory=b"") for result in results]


def _check_variants(on: object, variant: list[Path], *, certified: bool) -> None:
    if variant and on not in ("rtl", "board"):
        raise FileError(
            f"--variant and --on {on} do not go together: the choice needs the counters of runs on rtl or board"
        )
    if variant and certified:
        raise FileError("--variant and --certified do not go together: a certificate covers one program only")


def _read(
    options: RunOptions,
    folder: Path,
    source: list[Path],
    written: dict[str, Path | None],
    against: Path | None,
    variant: list[Path],
) -> tuple[Any, list[Any], list[dict[str, Any]]]:
    """Check that the options of `run` go together. Returns the program, its variants, and the inputs of each run."""
    if not source:
        raise FileError("--input is missing: name the file with the model's inputs")
    program, read = load(folder)
    others = [load(item) for item in variant]
    # No output may overwrite a file that the command reads.
    read += [path for _, paths in others for path in paths]
    suffixes = {"--output": (".npz",), "--report": (".json",)}
    files.check_overwrites(written, [*read, *source, against and files.require_file(against)], suffixes)
    _check_device(options.on, program)
    from weft import arrays

    return (
        program,
        [other for other, _ in others],
        [arrays.read_inputs(item, program.inputs) for item in source],
    )


def _save_and_show(results: list[Any], output: Path | None, report: Path | None) -> None:
    from weft import arrays

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


def _targets(output: Path | None, report: Path | None, options: RunOptions) -> dict[str, Path | None]:
    """Return the files that a run writes, by the option that names them."""
    from weft.run.trace import VIEWERS

    waves = None if options.recording is None else options.recording.path
    # The viewers' files are named after the waveforms, and must not overwrite an input either.
    viewers = {f"--waves ({suffix})": waves and waves.with_suffix(suffix) for suffix in VIEWERS}
    return {"--output": output, "--report": report, "--waves": waves, **viewers}


def _check_device(on: object, program: Any) -> None:
    if on in ("rtl", "board") and not program.on_device:
        raise FileError(
            f"nothing of this program runs on the device, so there is nothing to run on {on}: use --on golden, which "
            "runs the host's part; `weft check` gives the reason for every node"
        )


def _time(
    folder: Path,
    output: Path | None,
    report: Path | None,
    against: Path | None,
    options: RunOptions,
    *,
    certified: bool,
) -> None:
    """Run on the cycle model, with zeros as inputs: cycles do not depend on data."""
    import numpy as np

    from weft.configurations import sequential_boards

    for name, path in (("--output", output), ("--against", against)):
        if path is not None:
            raise FileError(f"{name} and --on timing do not go together: timing computes no outputs")
    program, read = load(folder)
    files.check_overwrites({"--report": report}, read, {"--report": (".json",)})
    if certified:
        _certify(program, folder)
    inputs = {name: np.zeros(shape, dtype) for name, (dtype, shape) in program.inputs.items()}
    with reports.progress() as progress:
        progress("running on the cycle model")
        result = program.run(inputs, options)
    if report is not None:
        files.write_json(report, result.report)
    reports.show_layers(result.report, reports.summary())
    _show_units(result.report["counters"])
    reports.say_plan(program, options.bandwidth)
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
