"""The commands that compile, check and disassemble models, and that write the accelerator's Verilog."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft import files
from weft import report as reports
from weft.arguments import Whole
from weft.cli.commands import (
    Configuration,
    Folder,
    Group,
    Json,
    Model,
    PlannedMemory,
    Shapes,
    States,
    command,
    config_file,
    configuration,
    load,
    planned_memory,
    shapes_of,
    states_of,
)
from weft.errors import FileError
from weft.hdl.extras import provider

if TYPE_CHECKING:
    from weft.api import Check
    from weft.compiler.ir.graph import DeviceSegment
    from weft.run.program import Program

Assignment = Sequence[tuple[str, str, str, str]]
_PRODUCTS = ("MatMul", "Gemm", "Conv", "Integer", "NBits", "Float", "QAttention")
"""Suffixes of the names of operators that multiply by weights."""
CHECK = "weft check 1"
"""Format of what `weft check --json` prints."""


@command(Group.MODELS, name="compile")
def compile_model(
    model: Model,
    output: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="FOLDER", help="Folder for the program.", show_default=False),
    ],
    config: Configuration = "default",
    memory: PlannedMemory = None,
    tuning: Annotated[
        Path | None, typer.Option("--tuning", help="Plans that `weft tune` found for this configuration.")
    ] = None,
    plain_inputs: Annotated[
        bool,
        typer.Option(
            help="Keep inputs in memory in NHWC order, even if the first convolution is then slower."
        ),
    ] = False,
    dump_passes: Annotated[
        Path | None,
        typer.Option(
            "--dump-passes",
            metavar="FOLDER",
            help="Write the operators after every compiler pass to this folder, as text.",
        ),
    ] = None,
    certify: Annotated[
        bool,
        typer.Option("--certify", help="Prove that the program computes the model, and write a certificate."),
    ] = False,
    substitute: Annotated[
        int | None,
        Whole(
            "Search for graph substitutions that save cycles; measure at most this many parts of the graph.",
            1,
            1_000_000,
        ),
    ] = None,
    rules: Annotated[
        Path | None,
        typer.Option(
            "--rules",
            help="File of rules for --substitute, which are proven before use. Default: the rules of weft.",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            metavar="STEPS|SHARE%",
            help="Allow rewrites that round differently, as long as outputs change by at most STEPS quantisation "
            "steps, or the class of at most SHARE% of the samples changes (for example 1%).",
        ),
    ] = None,
    samples: Annotated[
        Path | None,
        typer.Option(
            "--samples", help="Samples to measure --budget on: .npz or .npy, as for `weft quantise`."
        ),
    ] = None,
    shape: Shapes = [],  # noqa: B006
    state: States = [],  # noqa: B006
) -> None:
    """Compile a quantised model for one configuration of the hardware."""
    import weft

    chosen = configuration(config)
    files.require_file(model)
    options: dict[str, Any] = {"plain_inputs": plain_inputs, "shapes": shapes_of(shape)}
    options["states"] = states_of(state)
    options["memory"] = planned_memory(memory, config)
    if substitute is not None or rules is not None:
        options |= {"substitute": substitute, "rules": rules}
    if budget is not None or samples is not None:
        options |= {"budget": budget, "samples": samples}
    dumped: dict[str, str] = {}  # written after compilation, so that an error leaves no folder
    if dump_passes is not None:
        options["watch"] = _dump_into(dumped)
    if tuning is not None:
        loaded = provider("read a tuning")(files.require_file(tuning), chosen)
        # A tuning is for one memory bandwidth, because its plans were measured with it.
        if memory is not None and options["memory"] != loaded.bandwidth:
            raise FileError(f"{tuning} is {loaded.memory_text}, unlike --memory {memory}: leave out --memory")
        options |= {"choose": loaded.chooser(), "memory": loaded.bandwidth}
    reads = [model, tuning, config_file(config), rules, samples]
    # The certificate is part of the folder: if the proof fails, no folder is written.
    with (
        files.whole_folder(output, reads=reads) as part,
        reports.progress() as progress,
    ):
        progress(f"compiling {model.name}")
        program = weft.compile(model, config=chosen, progress=progress, **options)
        program.save(part)
        if certify:
            certificate = provider("certify a program")(program, part, model, progress)
    if dump_passes is not None:
        with files.whole_folder(dump_passes, reads=reads) as part:
            for name, text in dumped.items():
                (part / name).write_text(text, encoding="utf-8")
    _show_summary(program, f"{output}: {model.name}")
    if certify:
        reports.say(*certificate.lines)
    _show_host(program)


def _show_summary(program: Program, title: str) -> None:
    nodes, n = program.assignment, program.config.n
    on_device = sum(node[2] != "host" for node in nodes)
    reports.say(f"{title} for an array of {n} x {n}; {on_device} of {len(nodes)} nodes run on the device")
    unused, channels = program.channels_left_out
    if unused:
        reports.say(f"{unused:,} of {channels:,} channels are not computed: nothing depends on them")
    for rewrites in (program.roundings, program.substitutions):
        if rewrites is not None:
            reports.say(*rewrites.lines)
    if program.narrow_bytes:
        reports.say(
            f"{2 * program.narrow_bytes:,} weights are in 4 bits: they take {program.narrow_bytes:,} bytes"
        )


def _show_host(program: Program) -> None:
    nodes = program.assignment
    if host := [node for node in nodes if node[2] == "host"]:
        reports.show_assignment(host, reports.summary())
    warn_of_host(nodes)
    warn_of_clamps(nodes)


def _dump_into(texts: dict[str, str]) -> Callable[[str, DeviceSegment], None]:
    """Return a callback that adds the operators after every pass to `texts`, by file name."""
    from weft.compiler.ir.model import dump_segment

    def watch(compiler_pass: str, segment: DeviceSegment) -> None:
        step = 1 + sum(name.startswith(f"{segment.name}-") for name in texts)
        texts[f"{segment.name}-{step:02}-{compiler_pass}.txt"] = dump_segment(segment)

    return watch


@command(Group.MODELS, quiet=False)
def check(
    model: Model,
    config: Configuration = "default",
    as_json: Json = False,
    shape: Shapes = [],  # noqa: B006
    state: States = [],  # noqa: B006
) -> None:
    """Show which nodes of a model run on the device and which on the host, and why."""
    import weft
    from weft.compiler.ir.model import host_reasons

    options: dict[str, Any] = {"shapes": shapes_of(shape), "states": states_of(state)}
    nodes = weft.check(files.require_file(model), configuration(config), **options)
    host = sum(node[2] == "host" for node in nodes)
    if as_json:
        keys = ("name", "operator", "place", "reason")
        rows = [dict(zip(keys, node, strict=True)) for node in nodes]
        listed = {"format": CHECK, "nodes": rows, "on_device": len(nodes) - host}
        listed["warnings"] = list(nodes.warnings)
        print(json.dumps(listed | dataclasses.asdict(nodes.shares), indent=1))
    else:
        reports.show_assignment(nodes, reports.stdout())
        print(*share_lines(nodes), sep="\n")
        reports.show_reasons(host_reasons(nodes), reports.stdout())
    warn_of_host(nodes)
    warn_of_clamps(nodes)


def warn_of_clamps(nodes: Assignment) -> None:
    """Warn of values that may leave the range that the device has for them."""
    from weft.compiler.ir.model import clamp_warnings

    for text in clamp_warnings(nodes):
        reports.warn(text)


def share_lines(nodes: Check) -> tuple[str, str]:
    """Return two lines: how many nodes, and what share of the multiplications, run on the device."""
    host = sum(node[2] == "host" for node in nodes)
    return (
        f"{len(nodes) - host} of {len(nodes)} nodes run on the device, {host} on the host",
        f"{nodes.shares.on_device:.1%} of the multiplications are on the device; {nodes.shares.crossing:,} bytes "
        "cross between host and device in each run",
    )


def warn_of_host(nodes: Assignment) -> None:
    """Warn, with advice, if nothing runs on the device or activations have no fixed ranges."""
    from weft.compiler.ir.model import WEIGHTS_ONLY
    from weft.compiler.onnx.model import without_ranges

    # A model without fixed ranges gets this advice only; the general advice below would repeat it.
    operators = {node[1].rpartition(".")[2] for node in nodes}
    warning = without_ranges(operators, weights_only=any(node[3] == WEIGHTS_ONLY for node in nodes))
    if warning is not None and any(node[1].endswith(_PRODUCTS) and node[2] == "host" for node in nodes):
        reports.warn(warning)
        return
    if any(node[2] == "device" for node in nodes):
        return
    reasons = Counter(reason for *_, reason in nodes if reason).most_common(1)
    why = f": most often because {reasons[0][0]!r}" if reasons else ""
    reports.warn(
        f"nothing of this model runs on the device{why}. Quantise the float model with `weft quantise`, which takes "
        "int8 for weights and activations and the QDQ format, or convert it to TFLite with full integer "
        "quantisation; `weft check` lists the reasons of all nodes"
    )


@command(Group.HARDWARE)
def verilog(
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Verilog file to write.", show_default=False)
    ],
    config: Configuration = "default",
    prefix: Annotated[
        str,
        typer.Option(
            "--prefix",
            metavar="NAME",
            help="Begin the names of all modules with NAME, so that a design can contain several accelerators.",
            show_default=False,
        ),
    ] = "",
) -> None:
    """Write the accelerator as one Verilog file, with a JSON description of its parameters, ports and registers.

    Modules are named by their place in the design, such as weft.vec.softmax, and a comment above each says what it is.
    """
    import weft

    chosen = configuration(config)
    if output.suffix == ".json":
        raise FileError(f"{output}: the Verilog file must not end in .json, its description does")
    # A pipe or a device has no neighbour to write the description to.
    description_file = None if files.is_special(output) else output.with_suffix(".json")
    suffixes = {"--output": (".v", ".sv")}
    files.check_overwrites(
        {"--output": output, "its description": description_file}, [config_file(config)], suffixes
    )
    with reports.progress() as progress:
        progress("generating Verilog")
        text, description = weft.verilog(chosen, prefix=prefix)
    files.write_text(output, text)
    reports.say(f"{output}: {len(text.splitlines()):,} lines of Verilog of the {description['core']} core")
    if description_file is not None:
        files.write_json(description_file, description)
        reports.say(f"{description_file}: parameters, ports and register map")


@command(Group.MODELS, quiet=False)
def dis(folder: Folder) -> None:
    """Disassemble a compiled program: print its instructions as text."""
    program, _ = load(folder)
    print(program.disassemble(), end="")
