"""The file of rules that the project carries, and files like it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

from weft.extras.search.substitution.rule import Rule, holds
from weft.extras.search.substitution.term import TermError, parsed
from weft.hdl import schema
from weft.hdl.errors import WeftError

FORMAT = "weft rules 1"
CARRIED = Path(__file__).with_name("rules.json")
"""What `weft rules --find` made of `weft.extras.search.substitution.families`."""


class RuleError(WeftError, ValueError):
    """A file that holds no rules, or a rule that does not hold."""


def read(path: str | Path = CARRIED) -> tuple[Rule, ...]:
    """The rules of a file, which are not proven by that.

    Raises
    ------
    RuleError
        If it cannot be read, is of another version, or has what is no rule.
    """
    try:
        data = json.loads(Path(path).read_text())
    except OSError as error:
        raise RuleError(f"cannot read the rules {path}: {error.strerror}") from None
    except ValueError as error:
        raise RuleError(f"{path} holds no rules: it is no JSON ({error})") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        found = data.get("format") if isinstance(data, dict) else None
        raise RuleError(
            f"{path} is of format {schema.short_repr(found)}, not {FORMAT!r}: make it anew with `weft rules --find`"
        )
    rules = data.get("rules")
    if not isinstance(rules, list):
        raise RuleError(f"{path} has no list of rules under 'rules'")
    return tuple(_rule(item, f"{path}: rule {number}") for number, item in enumerate(rules, 1))


@cache
def carried() -> tuple[Rule, ...]:
    """The rules that the project carries."""
    return read()


def proven(rules: Iterable[Rule], path: str | Path) -> Iterator[Rule]:
    """The rules, each once it is proven.

    Raises
    ------
    RuleError
        If one is not.
    """
    for number, rule in enumerate(rules, 1):
        if not holds(rule):
            raise RuleError(
                f"{path}: rule {number} does not hold under the condition that it states: {rule.told}; "
                "take it out, or make the file anew with `weft rules --find`"
            )
        yield rule


def _rule(item: object, where: str) -> Rule:
    if not isinstance(item, dict) or not {"left", "right"} <= set(item) <= {
        "left",
        "right",
        "rising",
        "bound",
    }:
        raise RuleError(f"{where} is {schema.short_repr(item)}, not an object with 'left' and 'right'")
    rising, bound = item.get("rising", []), item.get("bound", False)
    if (
        not isinstance(rising, list)
        or not all(isinstance(name, str) for name in rising)
        or not isinstance(bound, bool)
    ):
        raise RuleError(f"{where}: 'rising' has to be a list of names and 'bound' true or false")
    sides = []
    for side in ("left", "right"):
        if not isinstance(item[side], str):
            raise RuleError(f"{where}: {side!r} is {schema.short_repr(item[side])}, not the text of a term")
        try:
            sides.append(parsed(item[side]))
        except TermError as error:
            raise RuleError(f"{where}: {error}") from None
    return Rule(sides[0], sides[1], tuple(rising), bound)


def write(path: str | Path, rules: Sequence[Rule]) -> None:
    """Write rules to a file, a line each."""
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
