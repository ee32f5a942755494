"""Files of rules, including weft's own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

from weft.extras.search.substitution.rule import Rule, holds
from weft.extras.search.substitution.term import TermError, parse
from weft.hdl import schema
from weft.hdl.errors import WeftError

FORMAT = "weft rules 1"
BUILTIN_RULES = Path(__file__).with_name("rules.json")
"""Rules that `weft rules --find` found for `weft.extras.search.substitution.families`."""


class RuleError(WeftError, ValueError):
    """A file of rules is invalid, or a rule does not hold."""


def read(path: str | Path = BUILTIN_RULES) -> tuple[Rule, ...]:
    """Read the rules of a file, without proving them.

    Raises
    ------
    RuleError
        If the file cannot be read, has another format, or contains an invalid rule.
    """
    try:
        data = json.loads(Path(path).read_text())
    except OSError as error:
        raise RuleError(f"cannot read the rules {path}: {error.strerror}") from None
    except ValueError as error:
        raise RuleError(f"{path} holds no rules: it is no JSON ({error})") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        found_format = data.get("format") if isinstance(data, dict) else None
        raise RuleError(
            f"{path} is of format {schema.short_repr(found_format)}, not {FORMAT!r}: create it with `weft rules --find`"
        )
    rules = data.get("rules")
    if not isinstance(rules, list):
        raise RuleError(f"{path} has no list of rules under 'rules'")
    return tuple(_rule(item, f"{path}: rule {number}") for number, item in enumerate(rules, 1))


@cache
def builtin_rules() -> tuple[Rule, ...]:
    """Return weft's own rules."""
    return read()


def prove_rules(rules: Iterable[Rule], path: str | Path) -> Iterator[Rule]:
    """Yield rules, each after its proof.

    Raises
    ------
    RuleError
        If a rule has no proof.
    """
    for number, rule in enumerate(rules, 1):
        if not holds(rule):
            raise RuleError(
                f"{path}: rule {number} does not hold under the condition that it states: {rule.description}; "
                "remove it, or create the file again with `weft rules --find`"
            )
        yield rule


def _rule(item: object, place: str) -> Rule:
    if not isinstance(item, dict) or not {"left", "right"} <= set(item) <= {
        "left",
        "right",
        "rising",
        "bound",
    }:
        raise RuleError(f"{place} is {schema.short_repr(item)}, not an object with 'left' and 'right'")
    rising, bound = item.get("rising", []), item.get("bound", False)
    if (
        not isinstance(rising, list)
        or not all(isinstance(name, str) for name in rising)
        or not isinstance(bound, bool)
    ):
        raise RuleError(f"{place}: 'rising' has to be a list of names and 'bound' true or false")
    sides = []
    for side in ("left", "right"):
        if not isinstance(item[side], str):
            raise RuleError(f"{place}: {side!r} is {schema.short_repr(item[side])}, not the text of a term")
        try:
            sides.append(parse(item[side]))
        except TermError as error:
            raise RuleError(f"{place}: {error}") from None
    return Rule(sides[0], sides[1], tuple(rising), bound)


def write(path: str | Path, rules: Sequence[Rule]) -> None:
    """Write rules to a file, one per line."""
    Path(path).write_text("\n".join(_lines(rules)) + "\n")


def _lines(rules: Sequence[Rule]) -> Iterable[str]:
    yield f'{{"format": {json.dumps(FORMAT)}, "rules": ['
    for number, rule in enumerate(rules, 1):
        item: dict[str, object] = {"left": rule.left.text, "right": rule.right.text}
        if rule.rising:
            item["rising"] = list(rule.rising)
        if rule.bound:
            item["bound"] = True
        yield json.dumps(item) + ("," if number < len(rules) else "")
    yield "]}"
