"""Files of rules: what is written is read, and what is none is refused in a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from weft.extras.search.substitution.rule_file import (
    FORMAT,
    RuleError,
    builtin_rules,
    prove_rules,
    read,
    write,
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write(tmp_path / "rules.json", builtin_rules())
    again = read(tmp_path / "rules.json")
    assert again == builtin_rules()
    assert [(rule.rising, rule.bound) for rule in again] == [
        (rule.rising, rule.bound) for rule in builtin_rules()
    ]


@pytest.mark.parametrize(
    ("data", "what"),
    [
        ("{", "no JSON"),
        ("[]", "format None"),
        ({"format": "weft rules 0"}, "'weft rules 0'"),
        ({"format": FORMAT}, "no list of rules"),
        ({"format": FORMAT, "rules": [1]}, "rule 1 is 1"),
        ({"format": FORMAT, "rules": [{"left": "x", "right": 3}]}, "'right' is 3"),
        ({"format": FORMAT, "rules": [{"left": "x", "right": "x", "more": 1}]}, "rule 1 is"),
        ({"format": FORMAT, "rules": [{"left": "x", "right": "sum(x)"}]}, "rule 1: 'sum"),
        ({"format": FORMAT, "rules": [{"left": "x", "right": "x", "rising": "f"}]}, "'rising'"),
    ],
)
def test_what_holds_no_rules(data: object, what: str, tmp_path: Path) -> None:
    path = tmp_path / "rules.json"
    path.write_text(data if isinstance(data, str) else json.dumps(data))
    with pytest.raises(RuleError, match=what) as told:
        read(path)
    assert str(path) in str(told.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="cannot read"):
        read(tmp_path / "none.json")


def test_a_rule_that_was_edited(tmp_path: Path) -> None:
    path = tmp_path / "rules.json"
    rules = [{"left": "first(cat(x, y))", "right": "x"}, {"left": "second(cat(x, y))", "right": "x"}]
    path.write_text(json.dumps({"format": FORMAT, "rules": rules}))
    with pytest.raises(RuleError, match="rule 2 does not hold"):
        list(prove_rules(read(path), path))
