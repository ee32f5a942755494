"""The command that finds and proves rules of graph substitution."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft import files
from weft import report as reports
from weft.arguments import SEED
from weft.cli.options import whole, writes

if TYPE_CHECKING:
    from weft.extras.search.substitution.rule import Rule


def rules(
    given: Annotated[
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
    seed: Annotated[
        int, whole("--seed", "Seed of the random integers with which --find compares terms.", *SEED)
    ] = 1,
    listed: Annotated[bool, typer.Option("--list", help="Print the rules.")] = False,
) -> None:
    """Prove the rules of graph substitution, or find new rules.

    A proof compares the results of both sides element by element, as polynomials, maxima and uninterpreted functions,
    on images and windows of several sizes.
    """
    from weft.extras.search.substitution.discovery import find as search
    from weft.extras.search.substitution.rule_file import CARRIED, read, write

    if find is not None:
        with files.whole_file(find) as part:
            found = search(seed=seed, progress=print)
            write(part, found.rules)
        print(
            f"{find}: {len(found.rules):,} rules of {found.terms:,} terms in {found.seconds:.0f} s; "
            f"{len(found.unproven):,} pairs that were equal on integers are not proven"
        )
        return
    path = CARRIED if given is None else given
    held = read(path)
    _prove(held, path, listed)


def _prove(held: tuple[Rule, ...], path: Path, listed: bool) -> None:
    """Prove rules, and count them by the operators of their larger side."""
    from weft.extras.search.substitution.rule_file import proven

    with reports.progress() as progress:
        for number, _ in enumerate(proven(held, path), 1):
            if number % 50 == 0:
                progress(f"{number:,} of {len(held):,} rules are proven")
    if listed:
        for rule in held:
            print(rule.told)
    sizes = Counter(max(rule.left.size, rule.right.size) for rule in held)
    shares = ", ".join(f"{count} of {size}" for size, count in sorted(sizes.items()))
    print(f"{path}: all {len(held):,} rules are proven; by the operators of the larger side: {shares}")


def add(app: typer.Typer) -> None:
    """Give `app` the command of this module."""
    app.command()(writes(rules))
