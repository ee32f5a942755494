"""The command that proves properties of the hardware."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from weft import report as reports
from weft.arguments import SEED, Whole
from weft.cli.commands import command
from weft.cli.options import Json
from weft.errors import InputError

if TYPE_CHECKING:
    from weft.extras.proof.engine.mutants import Mutants
    from weft.extras.proof.engine.prove import Result
    from weft.extras.proof.hardware.property import Property

FORMAT = "weft prove 1"
"""Format of what `weft prove --json` prints."""


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
        bool, typer.Option("--list", help="List the properties with their claims, and prove nothing.")
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
    seed: Annotated[int, Whole("Seed that chooses the bits of --mutants.", *SEED)] = 1,
    as_json: Json = False,
) -> None:
    """Prove properties of the hardware for all inputs, with the solvers of Yosys and ABC.

    Results are cached for each version of the hardware, so that an unchanged unit is not proven again.
    """  # fmt: skip
    chosen = _chosen(names or [])
    if listed:
        for item in chosen:
            print(f"{item.title}\n    {item.claim}")
        return
    jobs = jobs or os.cpu_count() or 1
    with reports.progress() as progress:
        results = _prove(chosen, seconds, jobs, progress)
        killed = _mutate(chosen, mutants, seed, jobs, progress) if mutants else []
    if as_json:
        told = {"format": FORMAT, "properties": [dataclasses.asdict(item) for item in results]}
        print(json.dumps(told | {"mutants": [dataclasses.asdict(item) for item in killed]}, indent=1))
    else:
        _show(results, killed)
    if not all(item.good for item in results) or any(item.seen == 0 for item in killed):
        raise typer.Exit(1)


def _chosen(names: list[str]) -> list[Property]:
    """The properties whose titles have one of `names` in them."""
    from weft.extras.proof.boards.registry import properties as of_boards
    from weft.extras.proof.hardware.registry import properties as of_hardware

    items = [*of_hardware(), *of_boards()]
    for name in names:
        if not any(name in item.title for item in items):
            raise InputError(f"no property has {name!r} in its name: `weft prove --list` lists them")
    return [item for item in items if not names or any(name in item.title for name in names)]


def _prove(chosen: list[Property], seconds: int, jobs: int, progress: reports.Progress) -> list[Result]:
    from weft.extras.proof.engine.prove import prove_all

    progress(f"proving {len(chosen):,} properties")
    done = 0

    def told(result: Result) -> None:
        nonlocal done
        done += 1
        progress(f"{done:,} of {len(chosen):,}: {result.title} {result.outcome.value}")

    return list(prove_all(chosen, seconds, jobs, told))


def _mutate(
    chosen: list[Property], count: int, seed: int, jobs: int, progress: reports.Progress
) -> list[Mutants]:
    from concurrent.futures import ThreadPoolExecutor

    from weft.extras.proof.engine.mutants import mutants

    def one(item: Property) -> Mutants:
        found = mutants(item, count, seed, beside=chosen)
        progress(_counted(found))
        return found

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(one, chosen))


def _counted(found: Mutants) -> str:
    others = f", {found.others:,} by others of the unit" if found.others else ""
    unproven = f", {found.unproven:,} more not proven any more" if found.unproven else ""
    same = f"; {len(found.same):,} more change nothing" if found.same else ""
    return f"{found.title}: {found.killed:,} of {found.count:,} mutants killed{others}{unproven}{same}"


def _show(results: list[Result], killed: list[Mutants]) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("property", "outcome", "how", "seconds"):
        table.add_column(column, justify="right" if column == "seconds" else "left")
    for item in results:
        table.add_row(item.title, item.outcome.value, item.how, f"{item.seconds:.1f}")
    reports.summary().print(table)
    counts = {
        kind: sum(item.outcome == kind for item in results) for kind in {item.outcome for item in results}
    }
    told = ", ".join(f"{count:,} {kind.value}" for kind, count in sorted(counts.items()))
    reports.say(f"{len(results):,} {'property' if len(results) == 1 else 'properties'}: {told}")
    for item in results:
        if item.folder and not item.good:
            reports.say(f"{item.title}: netlists, logs and the trace are in {item.folder}")
    for found in killed:
        reports.say(_counted(found))
        for line in (*found.survivors, *found.undecided):
            reports.say(f"    survived: {line}")
