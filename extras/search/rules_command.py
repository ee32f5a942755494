"""The command that finds and proves rules of graph substitution."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from weft import files
from weft import report as reports
from weft.arguments import SEED, Whole
from weft.cli.commands import command

if TYPE_CHECKING:
    from weft.extras.search.substitution.rule import Rule


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
    from weft.extras.search.substitution.rule_file import BUILTIN_RULES, read, write

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
    from weft.extras.search.substitution.rule_file import prove_rules

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
