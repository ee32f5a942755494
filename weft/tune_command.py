"""The command that searches for better plans."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weft import report as reports
from weft.hdl.config import Config
from weft.options import Configuration, Model


def tune(
    model: Model,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Write what was found to this .json.", show_default=False)
    ],
    config: Configuration = "default",
    trials: Annotated[int, typer.Option(min=1, help="Plans to try for each distinct layer.")] = 32,
    seed: Annotated[int, typer.Option(min=0, help="Another seed proposes other plans.")] = 0,
    latency: Annotated[int, typer.Option(min=1, help="Memory latency in cycles.")] = 30,
    bandwidth: Annotated[float | None, typer.Option(min=0.001, help="Memory bytes per cycle.")] = None,
) -> None:
    """Search for faster plans of a model's convolutions, for `weft compile --tuning`."""
    reports.existing(model)
    chosen = Config.load(config)
    from weft.tune import tune as search

    with reports.progress() as progress, reports.whole_file(output) as part:
        tuning, default, cycles = search(
            model, chosen, trials=trials, seed=seed, latency=latency, bandwidth=bandwidth, progress=progress
        )
        part.write_text(tuning.text(), encoding="utf-8")
    for layer in tuning.layers.values():
        print(f"{layer.name}: {layer.default:,} -> {layer.cycles:,} cycles by itself")
    if tuning.layers:
        print(f"{output}: {default:,} -> {cycles:,} cycles ({1 - cycles / default:.2%} less)")
    else:
        print(f"{output}: nothing faster was found than the {default:,} cycles there are")
