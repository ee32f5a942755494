"""The command that shows what every unit does when."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, Any

import typer

from weft import files
from weft import report as reports
from weft.errors import FileError
from weft.options import Bandwidth, Folder, Latency, load, writes

FORMAT = "weft trace 1"
"""Of the trace's metadata."""


class Simulation(enum.StrEnum):
    """Where `trace` runs."""

    TIMING = "timing"
    RTL = "rtl"


def trace(
    folder: Folder,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Write the trace as Trace Event JSON, for ui.perfetto.dev.",
            show_default=False,
        ),
    ] = None,
    drawing: Annotated[
        Path | None, typer.Option("--svg", help="Write the trace as an SVG drawing.", show_default=False)
    ] = None,
    on: Annotated[Simulation, typer.Option("--on", help="Where to run.")] = Simulation.TIMING,
    latency: Latency = 30,
    bandwidth: Bandwidth = None,
) -> None:
    """Show what every unit does when: as the cycle model has it, or the RTL, whose inputs are zeros here."""
    if output is None and drawing is None:
        raise FileError("say where the trace goes: --output FILE.json, --svg FILE.svg, or both")
    program, read = load(folder)
    suffixes = {"--output": (".json",), "--svg": (".svg",)}
    files.apart({"--output": output, "--svg": drawing}, read, suffixes)
    from weft import trace_json, trace_svg
    from weft.trace import timelines_of

    with reports.progress() as progress:
        progress(reports.RTL_STARTS if on is Simulation.RTL else "running on the cycle model")
        timelines = timelines_of(program, on=on.value, latency=latency, bandwidth=bandwidth)
        progress("writing the trace")
        texts: dict[Path, str] = {}
        if output is not None:
            memory = {"latency": latency, "bandwidth": bandwidth or program.memory}
            about: dict[str, Any] = {"format": FORMAT, "program": str(folder), "on": on.value, **memory}
            texts[output] = trace_json.text(timelines, about | {"config": program.config.to_dict()})
        if drawing is not None:
            texts[drawing] = trace_svg.svg(timelines, program.config.scratchpad_size)
        for path, text in texts.items():
            files.write_text(path, text)
    reports.say_plan(program, bandwidth)
    for path in texts:
        reports.say(f"{path}: {sum(line.cycles for line in timelines):,} cycles")


def add(app: typer.Typer) -> None:
    """Give `app` the command of this module."""
    app.command()(writes(trace))
