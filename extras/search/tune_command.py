"""Command that searches for faster plans of convolutions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weft import files
from weft import report as reports
from weft.arguments import SEED, Whole
from weft.cli.commands import Configuration, Model, Take, command, config_file, configuration
from weft.run.options import RunOptions


@command()
def tune(
    model: Model,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Write the plans to this .json file.", show_default=False)
    ],
    config: Configuration = "default",
    trials: Annotated[int, Whole("Number of plans to try for each distinct layer.", 1, 100_000)] = 32,
    seed: Annotated[int, Whole("Seed of the search.", *SEED)] = 0,
    *,
    options: Annotated[RunOptions, Take("latency", "bandwidth")],
) -> None:
    """Find faster plans for the convolutions of a model, for `weft compile --tuning`."""
    files.require_file(model)
    loaded = configuration(config)
    files.check_overwrites({"--output": output}, [model, config_file(config)], {"--output": (".json",)})
    from weft.extras.search.tune import tune as search

    with reports.progress() as progress:
        tuning, default, cycles = search(
            model, loaded, trials=trials, seed=seed, progress=progress, **options.memory
        )
        files.write_text(output, tuning.text())
    for layer in tuning.layers.values():
        reports.say(f"{layer.name}: {layer.default:,} -> {layer.cycles:,} cycles by itself")
    if tuning.layers:
        reports.say(f"{output}: {default:,} -> {cycles:,} cycles ({1 - cycles / default:.2%} less)")
    else:
        reports.say(f"{output}: found nothing faster than the default's {default:,} cycles")
