"""The commands that search: Pareto-optimal configurations, rules of graph substitution, plans of convolutions."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft import files
from weft import report as reports
from weft.arguments import SEED, Real, Whole
from weft.cli.commands import (
    Configuration,
    Model,
    Shapes,
    Take,
    board_names,
    command,
    config_file,
    configuration,
    shapes_of,
)
from weft.errors import InputError
from weft.run.options import RunOptions

if TYPE_CHECKING:
    from weft.extras.search.explore.confirm import Check, Name, Outcome, Outcomes
    from weft.extras.search.explore.explore import Exploration
    from weft.extras.search.explore.output import Output
    from weft.extras.search.substitution.rule import Rule


@command(name="explore", quiet=False)
def search(
    model: Annotated[
        list[Path],
        typer.Argument(
            help="Quantised models, ONNX or TFLite; the time is that of one run of each.",
            metavar="MODEL",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="Folder for results. The same command continues the search there.",
            show_default=False,
        ),
    ],
    board: Annotated[
        list[str],
        typer.Option(
            "--board",
            metavar="BOARD",
            help="Board to search on. May be repeated. Default: no board, a memory of --latency and --bandwidth.",
            show_default=False,
            autocompletion=board_names,
        ),
    ] = [],  # noqa: B006
    objectives: Annotated[
        str,
        typer.Option(
            metavar="NAMES", help="Objectives to minimise, of cycles, ms, lut, ff, dsp, ram, bytes, energy."
        ),
    ] = "ms,lut,ram",
    limit: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=MOST",
            help="Upper limit of an objective, for example lut=20000. May be repeated.",
            show_default=False,
        ),
    ] = [],  # noqa: B006
    space: Annotated[
        Path | None, typer.Option(help="JSON file with the values to try for each field.", show_default=False)
    ] = None,
    trials: Annotated[int, Whole("Number of points to measure.", 1, 1_000_000)] = 100,
    minutes: Annotated[
        float | None,
        Real(
            "Time limit in minutes, after which no further point starts.",
            0.01,
            100_000,
        ),
    ] = None,
    sampler: Annotated[
        str, typer.Option(metavar="NAME", help="Algorithm that proposes points: nsga2 or tpe.")
    ] = "nsga2",
    seed: Annotated[int, Whole("Seed of the search.", *SEED)] = 0,
    jobs: Annotated[
        int | None,
        Whole("Number of processes. Default: the number of processors.", 1, 1024),
    ] = None,
    scheduler: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Address of a Dask scheduler to use instead, as tcp://127.0.0.1:8786.",
            show_default=False,
        ),
    ] = None,
    *,
    options: Annotated[RunOptions, Take("latency", "bandwidth")],
    clock: Annotated[float, Real("Clock of the core in MHz, without --board.", 0.1, 1000)] = 75.0,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Then run one layer of each point of the front on the RTL: compare bytes and cycles.",
        ),
    ] = False,
    synth: Annotated[
        bool,
        typer.Option(
            "--synth", help="Then synthesise each point of the front: compare resources with the estimates."
        ),
    ] = False,
    shape: Shapes = [],  # noqa: B006
) -> None:
    """Find Pareto-optimal configurations for models: time by the cycle model against estimated resources."""
    from weft.extras.search.explore.confirm import SYNTHESISED, VERIFIED
    from weft.extras.search.explore.explore import explore
    from weft.extras.search.explore.output import Output, copy_models, show
    from weft.extras.search.explore.point import make_places
    from weft.extras.search.explore.space import Space
    from weft.extras.search.explore.workers import WorkersError

    for path in model:
        files.require_file(path)
    out = Output.of(
        output,
        copy_models(output, model, shapes_of(shape)),
        Space() if space is None else Space.load(space),
        make_places(board, options, clock * 1e6),
        tuple(objectives.split(",")),
        _limits(limit),
        (sampler, seed),
    )
    jobs = jobs or os.cpu_count() or 1
    end = None if minutes is None else 60 * minutes
    with _ProgressBar(trials, end) as report:
        exploration = explore(
            out.task,
            output,
            trials=trials,
            seconds=float("inf") if end is None else end,
            sampler=sampler,
            seed=seed,
            jobs=jobs,
            scheduler=scheduler,
            report=report,
        )
    out.write(exploration)
    show(exploration, output)
    if exploration.workers_error:
        raise WorkersError(exploration.workers_error)
    if exploration.interrupted:
        reports.say_on_stderr("results are kept; the same command resumes the search")
        raise KeyboardInterrupt
    check_kinds = [kind for kind, requested in ((VERIFIED, verify), (SYNTHESISED, synth)) if requested]
    if check_kinds and not _confirm(out, exploration, check_kinds, seed, jobs, scheduler):
        raise typer.Exit(1)


def _confirm(
    out: Output,
    exploration: Exploration,
    check_kinds: Sequence[str],
    seed: int,
    jobs: int,
    scheduler: str | None,
) -> bool:
    """Confirm the points of the front and report each outcome; results so far are always in the folder."""
    from weft.extras.search.explore.confirm import ABANDONED, confirm_all, make_checks, run_check
    from weft.extras.search.explore.explore import RESULTS
    from weft.extras.search.explore.output import show_check
    from weft.extras.search.explore.workers import Workers

    def report(name: Name, check: Check, outcome: Outcome, outcomes: Outcomes) -> None:
        show_check(name, check, outcome)
        out.write(exploration, outcomes)

    checks = make_checks(exploration, out.task.models, seed, check_kinds, out.folder / RESULTS)
    workers = Workers(jobs, run_check, ABANDONED, scheduler)
    try:
        with reports.progress() as progress:
            return confirm_all(checks, workers, report, progress)
    except KeyboardInterrupt:
        reports.say_on_stderr("results are kept; the same command resumes the confirmation")
        raise


def _limits(texts: list[str]) -> dict[str, float]:
    limits = {}
    for text in texts:
        name, _, limit = text.partition("=")
        try:
            limits[name] = float(limit)
        except ValueError:
            raise InputError(
                f"--limit is NAME=MOST with a number, for example lut=20000, not {text!r}"
            ) from None
    return limits


class _ProgressBar:
    """Progress of a search: a bar with the remaining time on a terminal, occasional lines in a log."""

    def __init__(self, trials: int, seconds: float | None) -> None:
        self._trials, self._seconds = trials, seconds
        self._begin = time.monotonic()
        self._first: int | None = None

    def __enter__(self) -> _ProgressBar:
        self._context = reports.progress()
        self._say = self._context.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._context.__exit__(None, None, None)

    def __call__(self, exploration: Exploration, proposals: int) -> None:
        count, spent = len(exploration.measured), time.monotonic() - self._begin
        # References and results of an earlier search are no progress of this one.
        if self._first is None:
            self._first, self._begin, spent = count, time.monotonic(), 0.0
        done = count - self._first
        share = max(done / self._trials, 0 if self._seconds is None else spent / self._seconds)
        time_left = "" if not done else f", {_format_time(spent / max(share, 1e-6) - spent)} left"
        filled = int(20 * min(1.0, share))
        self._say(
            f"[{'#' * filled}{'.' * (20 - filled)}] {count:,} points measured, "
            f"{len(exploration.pareto_front):,} on the front, {proposals:,} proposed{time_left}"
        )


def _format_time(seconds: float) -> str:
    minutes = max(0, round(seconds)) // 60
    return (
        f"{minutes // 60}:{minutes % 60:02} h" if minutes >= 60 else f"{minutes}:{round(seconds) % 60:02} min"
    )


@command()
def rules(
    file: Annotated[
        Path | None,
        typer.Argument(
            help="File of rules. Default: the rules that come with weft.",
            metavar="FILE",
            show_default=False,
        ),
    ] = None,
    find: Annotated[
        Path | None,
        typer.Option(
            "--find", help="Search for rules, prove them, and write them to this file.", show_default=False
        ),
    ] = None,
    seed: Annotated[int, Whole("Seed for the random integers with which --find compares terms.", *SEED)] = 1,
    list_rules: Annotated[bool, typer.Option("--list", help="Print the rules.")] = False,
) -> None:
    """Prove the rules of graph substitution, or find new rules.

    A proof compares the results of both sides element by element, as polynomials, maxima and uninterpreted functions,
    on images and windows of several sizes.
    """
    from weft.extras.search.substitution.discovery import find as search
    from weft.extras.search.substitution.rule import BUILTIN_RULES, read, write

    if find is not None:
        with files.whole_file(find) as part:
            discovery = search(seed=seed, progress=print)
            write(part, discovery.rules)
        print(
            f"{find}: {len(discovery.rules):,} rules of {discovery.terms:,} terms in {discovery.seconds:.0f} s; "
            f"{len(discovery.unproven):,} pairs with equal results on integers are unproven"
        )
        return
    path = BUILTIN_RULES if file is None else file
    loaded = read(path)
    _prove(loaded, path, list_rules)


def _prove(loaded: tuple[Rule, ...], path: Path, list_rules: bool) -> None:
    """Prove rules, and print their number by the operators of the larger side."""
    from weft.extras.search.substitution.rule import prove_rules

    with reports.progress() as progress:
        for number, _ in enumerate(prove_rules(loaded, path), 1):
            if number % 50 == 0:
                progress(f"{number:,} of {len(loaded):,} rules are proven")
    if list_rules:
        for rule in loaded:
            print(rule.text)
    sizes = Counter(max(rule.left.size, rule.right.size) for rule in loaded)
    shares = ", ".join(f"{count} of {size}" for size, count in sorted(sizes.items()))
    print(
        f"{path}: all {len(loaded):,} rules are proven; number of rules by operators of the larger side: {shares}"
    )


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
