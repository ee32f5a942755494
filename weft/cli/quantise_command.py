"""The command that quantises a float model, and measures its error against the float model."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft import files
from weft import report as reports
from weft.arguments import Real, Whole
from weft.cli.commands import Configuration, Group, Shapes, command, config_file, configuration, shapes_of

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


@command(Group.MODELS)
def quantise(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL",
            help="Float ONNX model. Its weights may be integers already: dynamically quantised, or in 4 bits.",
            show_default=False,
        ),
    ],
    data: Annotated[
        Path,
        typer.Option(
            help="Calibration samples: .npz with an array for each input, or .npy for a single input. The first axis "
            "counts samples.",
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
            help="Samples to measure accuracy on. Default: the samples of --data.", show_default=False
        ),
    ] = None,
    method: Annotated[
        Method,
        typer.Option(
            help="How to choose the range of each activation: all values, 99.99 % of values, or least squared error."
        ),
    ] = Method.MINMAX,
    keep_float: Annotated[
        list[str], typer.Option(help="Name of a node to leave in float. May be repeated.", metavar="NODE")
    ] = [],  # noqa: B006
    wide: Annotated[
        list[str],
        typer.Option(
            help="Name of a node whose result gets 16 bits. May be repeated. The device then needs a kernel engine.",
            metavar="NODE",
        ),
    ] = [],  # noqa: B006
    budget: Annotated[
        float | None,
        Real(
            "Minimum signal-to-noise ratio of each layer, in dB. Exit with code 1 if a layer has less.",
            0,
            200,
        ),
    ] = None,
    top: Annotated[int, Whole("Number of layers to show, largest errors first.", 0, 1_000_000)] = 10,
    report: Annotated[
        Path | None,
        typer.Option(help="Write the errors of all layers as JSON.", show_default=False),
    ] = None,
    config: Configuration = "default",
    shape: Shapes = [],  # noqa: B006
) -> None:
    """Quantise a float ONNX model to int8 for the device, and measure the error of each layer."""
    chosen = configuration(config)
    reads = [files.require_file(path) for path in (model, data, held_out) if path is not None]
    suffixes = {"--output": (".onnx",), "--report": (".json",)}
    files.check_overwrites({"--output": output, "--report": report}, [*reads, config_file(config)], suffixes)
    import weft

    with reports.progress() as progress:
        quantised = weft.quantise(
            model,
            data,
            held_out=held_out,
            method=method.value,
            keep_float=keep_float,
            wide=wide,
            shapes=shapes_of(shape),
            progress=progress,
        )
        progress("assigning nodes to device and host")
        nodes = weft.check(quantised.model, chosen)
        quantised.save(output)
    accuracy = quantised.accuracy
    if report is not None:
        values = _json(accuracy, nodes, method, held_out is not None, budget)
        files.write_json(report, values | _weights_json(quantised.weights))
    _show_errors(accuracy, top, held_out or data)
    _show_weights(quantised.weights)
    _show_assignment(nodes, config)
    reports.say(f"{output}: {model.name} quantised to int8 (ranges by {method})")
    # The model is written all the same, so that it can be examined.
    if budget is not None and accuracy.below(budget):
        _warn_of_budget(accuracy, budget)
        raise typer.Exit(1)


def _show_errors(accuracy: Accuracy, top: int, samples: Path) -> None:
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


def _show_weights(weights: Sequence[Weights]) -> None:
    """Print how many of the model's integer weights are unchanged, if it has any."""
    if not weights:
        return
    changed = [item for item in weights if not item.kept]
    if not changed:
        reports.say(f"all {len(weights):,} integer constants keep their values in the file")
        return
    least = min(changed, key=lambda item: item.snr)
    reports.say(
        f"{len(weights) - len(changed):,} of {len(weights):,} integer constants keep their values in the file; the "
        f"other {len(changed):,} do not fit int8 with one scale per channel and are rounded again: at least "
        f"{reports.decibels(least.snr)} from the file ({least.kind} of {least.node!r})"
    )


def _weights_json(weights: Sequence[Weights]) -> dict[str, Any]:
    rows = [
        {"node": item.node, "type": item.kind, "kept": item.kept, "snr_db": round(item.snr, 3)}
        for item in weights
    ]
    return {"weights": rows} if rows else {}


def _show_assignment(nodes: Check, config: str) -> None:
    """Print the summary of `weft check`, without the list of nodes."""
    from weft.cli.model_commands import share_lines, warn_of_host
    from weft.compiler.ir.model import host_reasons

    first, second = share_lines(nodes)
    reports.say(f"{first} (configuration {config})", second)
    reports.show_reasons(host_reasons(nodes), reports.summary())
    warn_of_host(nodes)


def _warn_of_budget(accuracy: Accuracy, budget: float) -> None:
    """Print how many layers are below the budget, and the options that give the causes of the error more bits."""
    below, causes = accuracy.below(budget), accuracy.causes(budget)
    options = " ".join(f"--wide {layer.name!r}" for layer in causes[:8])
    more = f" and {len(causes) - 8} more" if len(causes) > 8 else ""
    reports.warn(
        f"{len(below)} of {len(accuracy.layers)} layers have less than {budget:g} dB; the error comes from "
        f"{len(causes)} of them: {options}{more} gives these 16 bits, --keep-float leaves them in float on the host"
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
    values: dict[str, Any] = {
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
        values["budget_db"] = budget
        values["below_budget"] = [layer.name for layer in accuracy.below(budget)]
        values["causes"] = [layer.name for layer in accuracy.causes(budget)]
    return values
