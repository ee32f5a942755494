"""The command that makes quantised models of float ones, and says how far they are from these."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft import files
from weft import report as reports
from weft.cli.options import Configuration, Shapes, config_file, real, shapes_of, whole, writes
from weft.configurations import configuration

if TYPE_CHECKING:
    from weft.api import Check
    from weft.quantiser.accuracy import Accuracy
    from weft.quantiser.kept_weights import Weights

FORMAT = "weft quantise 1"
"""Format of what `weft quantise --report` writes."""


class Method(enum.StrEnum):
    MINMAX = "minmax"
    PERCENTILE = "percentile"
    MSE = "mse"


def quantise(
    model: Annotated[
        Path,
        typer.Argument(
            help="Float model: ONNX. Or one with integer weights and float activations: dynamically quantised, or "
            "weights in 4 bits.",
            show_default=False,
        ),
    ],
    data: Annotated[
        Path,
        typer.Option(
            help="Samples that calibrate it: .npz with an array for each input by name, or .npy for one input; the "
            "first axis counts samples.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="Write the quantised model to this file.", show_default=False),
    ],
    held_out: Annotated[
        Path | None,
        typer.Option(
            help="Samples to measure accuracy on; those of --data if not given.", show_default=False
        ),
    ] = None,
    method: Annotated[
        Method,
        typer.Option(
            help="How ranges are chosen: all values, 99.99 % of them, or by the least squared error."
        ),
    ] = Method.MINMAX,
    keep_float: Annotated[
        list[str], typer.Option(help="Node not to quantise, by name; once for each.", metavar="NODE")
    ] = [],  # noqa: B006
    wide: Annotated[
        list[str],
        typer.Option(
            help="Node whose result gets 16 bits, by name; once for each. The device then needs a kernel engine.",
            metavar="NODE",
        ),
    ] = [],  # noqa: B006
    budget: Annotated[
        float | None,
        real(
            "--budget",
            "Least signal-to-noise ratio of a layer, in dB: exit code 1 if one has less.",
            0,
            200,
        ),
    ] = None,
    top: Annotated[int, whole("--top", "Layers to show, those with the largest errors.", 0, 1_000_000)] = 10,
    report: Annotated[
        Path | None, typer.Option(help="Write all layers' errors and the rest as JSON.", show_default=False)
    ] = None,
    config: Configuration = "default",
    shape: Shapes = [],  # noqa: B006
) -> None:
    """Quantise a float ONNX model to int8 for the device, and say how far it is from float."""
    chosen = configuration(config)
    reads = [files.require_file(path) for path in (model, data, held_out) if path is not None]
    suffixes = {"--output": (".onnx",), "--report": (".json",)}
    files.check_overwrites({"--output": output, "--report": report}, [*reads, config_file(config)], suffixes)
    import weft

    with reports.progress() as progress:
        made = weft.quantise(
            model,
            data,
            held_out=held_out,
            method=method.value,
            keep_float=keep_float,
            wide=wide,
            shapes=shapes_of(shape),
            progress=progress,
        )
        progress("looking where its nodes run")
        nodes = weft.check(made.model, chosen)
        made.save(output)
    accuracy = made.accuracy
    if report is not None:
        found = _json(accuracy, nodes, method, held_out is not None, budget)
        files.write_json(report, found | _weights_json(made.weights))
    _tell(accuracy, top, held_out or data)
    _tell_weights(made.weights)
    _tell_device(nodes, config)
    reports.say(f"{output}: {model.name} quantised to int8 (ranges by {method})")
    if budget is not None and accuracy.below(budget):
        _tell_budget(accuracy, budget)
        raise typer.Exit(1)


def _tell(accuracy: Accuracy, top: int, samples: Path) -> None:
    if top:
        reports.show_errors(accuracy.layers[:top], reports.summary())
    if len(accuracy.layers) > top:
        reports.say(f"and {len(accuracy.layers) - top} more layers with smaller errors (--top, --report)")
    for output in accuracy.outputs:
        same = "" if output.same is None else f"; the same arg max as in float for {output.same:.2%}"
        reports.say(
            f"output {output.name}: {reports.decibels(output.snr)} from float on {accuracy.samples:,} runs with "
            f"{samples.name}{same}"
        )


def _tell_weights(weights: Sequence[Weights]) -> None:
    """What became of the weights that a model had as integers, if it had any."""
    if not weights:
        return
    changed = [item for item in weights if not item.kept]
    if not changed:
        reports.say(f"all {len(weights):,} constants of integers keep those of the file")
        return
    least = min(changed, key=lambda item: item.snr)
    reports.say(
        f"{len(weights) - len(changed):,} of {len(weights):,} constants of integers keep those of the file; the other "
        f"{len(changed):,}, which int8 with one scale for each channel has not, are rounded again: "
        f"{reports.decibels(least.snr)} from the file's at least ({least.kind} of {least.node!r})"
    )


def _weights_json(weights: Sequence[Weights]) -> dict[str, Any]:
    """`weights` of the report: what the file had as integers, if it had any."""
    found = [
        {"node": item.node, "type": item.kind, "kept": item.kept, "snr_db": round(item.snr, 3)}
        for item in weights
    ]
    return {"weights": found} if found else {}


def _tell_device(nodes: Check, config: str) -> None:
    """What `weft check` says, but for the list of all nodes."""
    from weft.cli.model_commands import told_shares, warn_of_host
    from weft.compiler.ir.model import reasons

    first, second = told_shares(nodes)
    reports.say(f"{first} (configuration {config})", second)
    reports.show_reasons(reasons(nodes), reports.summary())
    warn_of_host(nodes)


def _tell_budget(accuracy: Accuracy, budget: float) -> None:
    """Which layers are below the budget, and how to give those more bits that bring the error in."""
    below, causes = accuracy.below(budget), accuracy.causes(budget)
    options = " ".join(f"--wide {layer.name!r}" for layer in causes[:8])
    more = f" and {len(causes) - 8} more" if len(causes) > 8 else ""
    reports.warn(
        f"{len(below)} of {len(accuracy.layers)} layers have less than {budget:g} dB; the error comes from "
        f"{len(causes)} of them, which {options}{more} would give 16 bits, and --keep-float leave in float, on the host"
    )


def _json(
    accuracy: Accuracy, nodes: Check, method: Method, held_out: bool, budget: float | None
) -> dict[str, Any]:
    layers = [
        {"name": layer.name, "operator": layer.operator, "snr_db": round(layer.snr, 3)}
        for layer in accuracy.layers
    ]
    outputs = [
        {"name": output.name, "snr_db": round(output.snr, 3), "same_arg_max": output.same}
        for output in accuracy.outputs
    ]
    found: dict[str, Any] = {
        "format": FORMAT,
        "method": method.value,
        "runs": accuracy.samples,
        "held_out": held_out,
        "outputs": outputs,
        "layers": layers,
        "nodes": len(nodes),
        "on_device": sum(node[2] == "device" for node in nodes),
        **dataclasses.asdict(nodes.shares),
    }
    if budget is not None:
        found["budget_db"] = budget
        found["below_budget"] = [layer.name for layer in accuracy.below(budget)]
        found["causes"] = [layer.name for layer in accuracy.causes(budget)]
    return found


def add(app: typer.Typer) -> None:
    """Give `app` the command of this module."""
    app.command()(writes(quantise))
