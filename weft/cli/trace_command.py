"""The command that traces what every unit does in each cycle."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from weft import files
from weft import report as reports
from weft.cli.commands import Folder, Group, Take, command, load
from weft.errors import FileError
from weft.run.options import RunOptions

FORMAT = "weft trace 1"
"""Format in the metadata of a trace."""


@command(Group.RUNS)
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
    *,
    options: Annotated[RunOptions, Take("latency", "bandwidth", on=("timing", "rtl"))],
) -> None:
    """Trace what every unit of the accelerator does over time, on the cycle model or the RTL with zeros as inputs."""
    if output is None and drawing is None:
        raise FileError("--output is missing: name --output FILE.json, --svg FILE.svg, or both")
    program, read = load(folder)
    suffixes = {"--output": (".json",), "--svg": (".svg",)}
    files.check_overwrites({"--output": output, "--svg": drawing}, read, suffixes)
    from weft.cli.timelines import svg, trace_json
    from weft.run.trace import timelines_of

    with reports.progress() as progress:
        progress(reports.RTL_STARTS if options.on == "rtl" else "running on the cycle model")
        timelines = timelines_of(program, options)
        progress("writing the trace")
        texts: dict[Path, str] = {}
        if output is not None:
            memory = options.planned_for(program.memory).memory
            head: dict[str, Any] = {"format": FORMAT, "program": str(folder), "on": options.on, **memory}
            texts[output] = trace_json(timelines, head | {"config": program.config.to_dict()})
        if drawing is not None:
            texts[drawing] = svg(timelines, program.config.scratchpad_size)
        for path, text in texts.items():
            files.write_text(path, text)
    reports.say_plan(program, options.bandwidth)
    for path in texts:
        reports.say(f"{path}: {sum(line.cycles for line in timelines):,} cycles")
