"""`weft train`: train layers of a model on the device."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft import files
from weft import report as reports
from weft.arguments import Whole
from weft.cli.commands import Baud, Configuration, Port, Take, check_only, command, config_file, configuration
from weft.errors import FileError
from weft.extras.training.settings import Settings
from weft.run.options import RunOptions

if TYPE_CHECKING:
    import numpy as np

    from weft.extras.training.interface import Trained
    from weft.hdl.isa.config import Config
    from weft.samples import FileArrays

FORMAT = "weft train 1"
"""Format of the file that `weft train --report` writes."""
LABELS = "labels"
"""Name of the array with the class of each sample."""


@command()
def train(
    model: Annotated[
        Path,
        typer.Argument(
            metavar="MODEL",
            help="Classifier: ONNX (quantised or float), TFLite or MLIR, with one output of class scores per sample.",
            show_default=False,
        ),
    ],
    data: Annotated[
        Path,
        typer.Option(
            help="Samples: .npz with an array for each input, and `labels` with the class of each sample.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="Write the trained model to this file.", show_default=False),
    ],
    held_out: Annotated[
        Path | None,
        typer.Option(
            help="Samples to measure accuracy on. Default: the samples of --data.", show_default=False
        ),
    ] = None,
    layers: Annotated[int, Whole("Train this many of the last layers.", 1, 10_000)] = 1,
    all_layers: Annotated[bool, typer.Option("--all-layers", help="Train all layers.")] = False,
    layer: Annotated[
        list[str],
        typer.Option(help="Train the layer of this node instead. May be repeated.", metavar="NODE"),
    ] = [],  # noqa: B006
    *,
    settings: Annotated[Settings, Take("adapter", "epochs", "batch", "rate", "momentum", "seed")],
    options: Annotated[RunOptions, Take(on=("golden", "rtl", "board"))],
    config: Configuration = "default",
    report: Annotated[
        Path | None, typer.Option(help="Write the epochs and the accuracy as JSON.", show_default=False)
    ] = None,
    port: Port = None,
    baud: Baud = None,
) -> None:
    """Train the last layers of a classifier, or all layers, with integer arithmetic on the device."""
    chosen = configuration(config)
    reads = [files.require_file(path) for path in (model, data, held_out) if path is not None]
    suffixes = {"--output": (".onnx",), "--report": (".json",)}
    files.check_overwrites({"--output": output, "--report": report}, [*reads, config_file(config)], suffixes)
    check_only("board", options.on, {"--port": port, "--baud": baud})
    # Slow imports come after the checks of the arguments.
    import weft
    from weft.run.board_run import open_board

    samples, labels = _samples(data)
    tested = (samples, labels) if held_out is None else _samples(held_out)
    with reports.progress() as progress:
        progress("measuring the model's accuracy")
        before = _accuracy(model, *tested, chosen)
        board = open_board(port, chosen, baud, progress) if options.on == "board" else None
        with board or contextlib.nullcontext(str(options.on)) as device:
            trained = weft.train(
                model, samples, labels, chosen, layers=None if all_layers else layers, names=layer, on=device,
                progress=progress, **vars(settings),
            )  # fmt: skip
        progress("measuring the trained model's accuracy")
        after = _accuracy(trained.model, *tested, chosen)
        trained.save(output)
    if report is not None:
        files.write_json(report, _json(trained, before, after))
    _print_summary(trained, before, after, held_out or data)
    reports.say(f"{output}: {model.name} with {len(trained.constants)} trained constants")


def _samples(path: Path) -> tuple[FileArrays, np.ndarray]:
    """Return the arrays of inputs, and the labels.

    Raises
    ------
    FileError
        If the file has no labels, or cannot be read.
    """
    from weft.samples import FileArrays, arrays_of

    arrays = FileArrays(str(path), {str(name): value for name, value in arrays_of(path)[0].items()})
    if LABELS not in arrays:
        names = ", ".join(repr(name) for name in list(arrays)[:8])
        raise FileError(f"{path} has no array {LABELS!r} with the class of each sample; it has {names}")
    return arrays, arrays.pop(LABELS)


def _accuracy(model: Any, samples: dict[str, np.ndarray], labels: np.ndarray, config: Config) -> float | None:
    from weft.extras.training.interface import accuracy

    return accuracy(model, samples, labels, config)


def _json(trained: Trained, before: float | None, after: float | None) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "constants": list(trained.constants),
        "accuracy": {"before": before, "after": after},
        "epochs": [
            {
                "loss": item.loss,
                "accuracy": item.accuracy,
                "cycles": item.cycles,
                "utilisation": item.utilisation,
            }
            for item in trained.epochs
        ],
        "nodes": [
            dict(zip(("node", "operator", "place", "reason"), node, strict=True)) for node in trained.nodes
        ],
    }


def _print_summary(trained: Trained, before: float | None, after: float | None, tested: Path) -> None:
    console = reports.summary()
    table = reports.table("epoch", "loss", "accuracy", "cycles of a step", "array", right=())
    for index, epoch in enumerate(trained.epochs, 1):
        cycles = "-" if epoch.cycles is None else f"{epoch.cycles:,}"
        array = "-" if epoch.utilisation is None else f"{epoch.utilisation:.1%}"
        table.add_row(str(index), f"{epoch.loss:.3f}", f"{epoch.accuracy:.1%}", cycles, array)
    console.print(table)
    on_device = sum(node[2] == "device" for node in trained.nodes)
    reports.say(f"{on_device} of {len(trained.nodes)} nodes of a training step run on the device")
    if before is not None and after is not None:
        reports.say(f"accuracy on {tested}: {before:.1%} before, {after:.1%} after")
