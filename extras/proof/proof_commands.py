"""Commands that prove properties of the hardware, and that prove a compiled program again."""

from __future__ import annotations

import dataclasses
import json
import os
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from weft import files
from weft import report as reports
from weft.arguments import SEED, Whole
from weft.cli.commands import Folder, Json, Shapes, States, command, load, shapes_of, states_of
from weft.errors import InputError

if TYPE_CHECKING:
    from weft.extras.proof.engine.mutants import Mutants
    from weft.extras.proof.engine.prove import Result
    from weft.extras.proof.hardware.property import Property

FORMAT = "weft prove 1"
"""Value of "format" in the output of `weft prove --json`."""


@command()
def prove(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Prove properties whose name contains NAME. Default: all properties.",
            metavar="NAME",
            show_default=False,
        ),
    ] = None,
    listed: Annotated[
        bool, typer.Option("--list", help="List the properties with their claims, without a proof.")
    ] = False,
    seconds: Annotated[int, Whole("Time limit for each property, in seconds.", 1, 86_400)] = 240,
    jobs: Annotated[
        int | None,
        Whole("Properties to prove in parallel. Default: the number of processors.", 1, 1024),
    ] = None,
    mutants: Annotated[
        int,
        Whole(
            "Mutation test: change this many bits of each unit, one at a time, and check that a property fails.",
            0,
            10_000,
        ),
    ] = 0,
    seed: Annotated[int, Whole("Seed of the choice of bits for --mutants.", *SEED)] = 1,
    as_json: Json = False,
) -> None:
    """Prove properties of the hardware for all inputs, with the solvers of Yosys and ABC.

    Results are cached for each version of the hardware, so an unchanged unit is not proven again.
    """
    properties = _find_properties(names or [])
    if listed:
        for item in properties:
            print(f"{item.title}\n    {item.claim}")
        return
    jobs = jobs or os.cpu_count() or 1
    with reports.progress() as progress:
        results = _prove(properties, seconds, jobs, progress)
        tested = _test_mutants(properties, mutants, seed, jobs, progress) if mutants else []
    if as_json:
        output = {"format": FORMAT, "properties": _as_dicts(results), "mutants": _as_dicts(tested)}
        print(json.dumps(output, indent=1))
    else:
        _show(results, tested)
    if not all(item.good for item in results) or any(item.seen == 0 for item in tested):
        raise typer.Exit(1)


def _as_dicts(records: Iterable[Result] | Iterable[Mutants]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(item) for item in records]


def _find_properties(names: list[str]) -> list[Property]:
    """Return the properties whose title contains one of `names`, or all properties without names."""
    from weft.extras.proof.boards.registry import properties as of_boards
    from weft.extras.proof.hardware.registry import properties as of_hardware

    items = [*of_hardware(), *of_boards()]
    for name in names:
        if not any(name in item.title for item in items):
            raise InputError(f"no property has {name!r} in its name: `weft prove --list` lists them")
    return [item for item in items if not names or any(name in item.title for name in names)]


def _prove(properties: list[Property], seconds: int, jobs: int, progress: reports.Progress) -> list[Result]:
    from weft.extras.proof.engine.prove import prove_all

    progress(f"proving {len(properties):,} properties")
    done = 0

    def report(result: Result) -> None:
        nonlocal done
        done += 1
        progress(f"{done:,} of {len(properties):,}: {result.title} {result.outcome.value}")

    return list(prove_all(properties, seconds, jobs, report))


def _test_mutants(
    properties: list[Property], count: int, seed: int, jobs: int, progress: reports.Progress
) -> list[Mutants]:
    from weft.extras.proof.engine.mutants import mutants

    def test(item: Property) -> Mutants:
        result = mutants(item, count, seed, beside=properties)
        progress(_summary(result))
        return result

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(test, properties))


def _summary(result: Mutants) -> str:
    others = f", {result.others:,} by other properties of the unit" if result.others else ""
    unproven = f", {result.unproven:,} more no longer proven" if result.unproven else ""
    same = f"; {len(result.same):,} more change nothing" if result.same else ""
    return f"{result.title}: {result.killed:,} of {result.count:,} mutants killed{others}{unproven}{same}"


def _show(results: list[Result], tested: list[Mutants]) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("property", "outcome", "how", "seconds"):
        table.add_column(column, justify="right" if column == "seconds" else "left")
    for item in results:
        table.add_row(item.title, item.outcome.value, item.how, f"{item.seconds:.1f}")
    reports.summary().print(table)
    counts = Counter(item.outcome for item in results)
    summary = ", ".join(f"{count:,} {outcome.value}" for outcome, count in sorted(counts.items()))
    reports.say(f"{len(results):,} {'property' if len(results) == 1 else 'properties'}: {summary}")
    for item in results:
        if item.folder and not item.good:
            reports.say(f"{item.title}: netlists, logs and the trace are in {item.folder}")
    for result in tested:
        reports.say(_summary(result))
        for line in (*result.survivors, *result.undecided):
            reports.say(f"    survived: {line}")


@command()
def verify(
    folder: Folder,
    model: Annotated[
        Path | None,
        typer.Option(
            "--model",
            help="The model that was compiled: import it again, and prove that the program computes it.",
            show_default=False,
        ),
    ] = None,
    shape: Shapes = [],  # noqa: B006
    state: States = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Prove again that a compiled program computes its network, and compare with the certificate in its folder.

    Without --model, the network comes from the folder too: anybody who can write there can replace everything.
    """
    from weft.extras.proof.certificate import verify as verify_program

    source = None if model is None else files.require_file(model)
    shapes, states = shapes_of(shape), states_of(state)
    program, _ = load(folder)
    with reports.progress() as progress:
        verified = verify_program(program, folder, progress, model=source, shapes=shapes, states=states)
    if as_json:
        print(json.dumps(verified.json, indent=1))
    else:
        reports.say(*verified.lines)
