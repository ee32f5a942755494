"""The mutation tool for Python: changed places, chosen tests, and verdicts."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from closure import python_tests, software
from closure.kept import Kept
from closure.python_sites import Change, apply_change, draw_changes, statement
from closure.python_tests import Recorded, distance, record

SOURCE = """\
from __future__ import annotations
from functools import cache

LIMIT = 3


@cache
def doubled(number: int | None) -> int | bool:
    if number == 0:
        return 0
    return number + number


def countdown(number: int) -> int:
    while number > 0:
        number = number - 1
    return (
        number
        + LIMIT
    )


def unused(number: int) -> int:
    return number * 2
"""
TESTS = """\
import pytest
from made import countdown, doubled

@pytest.mark.parametrize("number", [0, 1, 4])
def test_doubled(number):
    assert doubled(number) == 2 * number

def test_countdown():
    assert countdown(2) == 3

def test_that_fails():
    assert doubled(1) == 3
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create sources, tests that run them, and their record."""
    root = tmp_path_factory.mktemp("tree").resolve()
    (root / "made").mkdir()
    (root / "made" / "__init__.py").write_text(SOURCE)
    (root / "tests").mkdir()
    (root / "tests" / "test_made.py").write_text(TESTS)
    (root / "pytest.ini").write_text("[pytest]\npythonpath = .\nmarkers = long\n")
    (root / "record").mkdir()
    record(root, root / "record", ["made"], ["tests"], jobs=1)
    return root


@pytest.fixture
def here(tree: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """Let the tool work on the tree instead of on this project."""
    monkeypatch.setattr(software, "ROOT", tree)
    monkeypatch.setattr(software, "TESTS", ("tests",))
    monkeypatch.setattr(software, "PARTS", {"made": "made"})
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    software._digest.cache_clear()
    yield tree
    software._digest.cache_clear()


def change_of(tree: Path, text: str, operator: str) -> Change:
    """Return the change of an operator's first place in the line that contains `text`."""
    line = next(at for at, found in enumerate(SOURCE.splitlines(), 1) if text in found)
    changes = draw_changes(tree, ["made/__init__.py"], 1000, 1)
    for seed in range(2, 200):
        for item in changes:
            if item.line == line and item.operator == f"core/{operator}":
                return item
        changes = draw_changes(tree, ["made/__init__.py"], 1000, seed)
    raise AssertionError(f"no {operator} in line {line}")


def test_places_exclude_annotations_and_caches(tree: Path) -> None:
    """Neither annotations nor decorators of caches; each place once."""
    found = draw_changes(tree, ["made/__init__.py"], 1000, 1)
    lines = SOURCE.splitlines()
    assert {lines[item.line - 1].strip() for item in found} == {
        "LIMIT = 3", "if number == 0:", "return 0", "return number + number", "while number > 0:",
        "number = number - 1", "+ LIMIT", "return number * 2",
    }  # fmt: skip
    assert len({(item.line, item.column) for item in found}) == len(found)
    assert draw_changes(tree, ["made/__init__.py"], 3, 1) == found[:3]
    for item in found:
        assert apply_change(tree, item) != SOURCE
    assert not any(item.operator.endswith(("_Eq_Is", "_Eq_IsNot")) for item in found)


def test_statements() -> None:
    assert statement(SOURCE, 19) == range(17, 21)
    assert statement(SOURCE, 15) == range(15, 16)
    assert statement(SOURCE, 4) == range(4, 5)
    assert statement(textwrap.dedent("if (a or\n    b):\n  c = 1\n"), 2) == range(1, 3)


def test_tests_of_a_line(tree: Path) -> None:
    """Quick tests first; failing tests are excluded; lines that run at import belong to all tests."""
    recorded = Recorded(tree, tree / "record")

    def names(line: int) -> set[str]:
        return {test.name.rpartition("::")[2] for test in recorded.tests("made/__init__.py", line)}

    assert names(10) == {"test_doubled[0]"}
    assert names(11) == {"test_doubled[1]", "test_doubled[4]"}
    assert names(19) == {"test_countdown"}
    assert names(4) == {"test_countdown", "test_doubled[0]", "test_doubled[1]", "test_doubled[4]"}


def test_tests_of_the_file_itself_come_first() -> None:
    own, near = "tests/sim/golden/test_units.py::test_load", "tests/sim/golden/test_golden.py::test_order"
    far, other = "tests/compiler/test_units.py::test_load", "tests/sim/test_timing.py::test_small"
    found = [far, near, other, own]
    found.sort(key=lambda name: distance("sim/golden/units.py", name))
    assert found == [own, near, far, other]


def test_tests_are_limited(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_tests, "MOST", 2)
    assert len(Recorded(tree, tree / "record").tests("made/__init__.py", 4)) == 2
    monkeypatch.setattr(python_tests, "SECONDS", -1.0)
    assert Recorded(tree, tree / "record").tests("made/__init__.py", 4) == []


@pytest.mark.drawn(1)
@pytest.mark.parametrize(
    ("text", "operator", "seen"),
    [
        ("return number + number", "ReplaceBinaryOperator_Add_Sub", "tests/test_made.py::test_doubled"),
        ("LIMIT = 3", "NumberReplacer", "tests/test_made.py::test_countdown"),
        ("number = number - 1", "ReplaceBinaryOperator_Sub_Add", "tests do not end"),
        ("return number * 2", "ReplaceBinaryOperator_Mul_Div", ""),
        ("while number > 0", "ReplaceComparisonOperator_Gt_NotEq", ""),
    ],
)
def test_verdicts(
    here: Path, text: str, operator: str, seen: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(software, "PATIENCE", 5)
    change = change_of(here, text, operator)
    recorded = Recorded(here, here / "record")
    ((tried, killed_by),) = software._try_changes([change], recorded, tmp_path, 2)
    assert tried == change
    assert killed_by.startswith(seen) if seen else killed_by == ""


def test_a_test_that_fails_anyway_is_reported(here: Path, tmp_path: Path) -> None:
    software._control("tests/test_made.py::test_countdown", tmp_path)
    with pytest.raises(software.ControlError, match="test_that_fails fails without a mutant, too"):
        software._control("tests/test_made.py::test_that_fails", tmp_path)


def test_a_mutant_that_cannot_be_tried_is_no_kill(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(change: Change) -> None:
        raise OSError("no such thing")

    monkeypatch.setattr(software, "_install", refused)
    changes = draw_changes(here, ["made/__init__.py"], 1, 1)
    with pytest.raises(software.ControlError, match="could not be tried: OSError: no such thing"):
        list(software._try_changes(changes, Recorded(here, here / "record"), tmp_path, 1))


@pytest.mark.parametrize(
    "error", [MemoryError(), ImportError("x.so: failed to map segment from shared object")]
)
def test_a_mutant_that_takes_all_memory_is_seen(
    error: Exception, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hungry(tests: list[str]) -> str:
        raise error

    monkeypatch.setattr(software, "_first_failure", hungry)
    change = change_of(here, "return number + number", "ReplaceBinaryOperator_Add_Sub")
    ((_, killed_by),) = software._try_changes([change], Recorded(here, here / "record"), tmp_path, 1)
    assert killed_by == "tests take too much memory"


def test_verdicts_are_kept(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second run tries nothing; after a change of the tests only survivors run again."""
    tried: list[Change] = []

    def judged(changes: list[Change], *others: object) -> Iterator[tuple[Change, str]]:
        tried.extend(changes)
        yield from (
            (item, "tests/test_made.py::test_countdown" if item.line < 12 else "") for item in changes
        )

    monkeypatch.setattr(software, "_try_changes", judged)
    recorded = Recorded(here, here / "record")
    first = list(software.run("made", 8, 1, recorded, 1))
    assert len(tried) == 8
    tried.clear()
    assert set(software.run("made", 8, 1, recorded, 1)) == set(first)
    assert not tried
    (here / "tests" / "test_more.py").write_text("# More.\n")
    software._digest.cache_clear()
    try:
        assert set(software.run("made", 8, 1, recorded, 1)) == set(first)
    finally:
        (here / "tests" / "test_more.py").unlink()
    assert {item.line for item in tried} == {item.change.line for item in first if not item.killed_by}


def test_equivalent_mutants_are_not_counted(
    here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By file, line, operator and column, with a reason."""
    path = tmp_path / "same.txt"
    path.write_text(
        "# Why.\n\nmade/__init__.py: while number > 0:: ReplaceComparisonOperator_Gt_NotEq at 13 | it falls by 1\n"
    )
    monkeypatch.setattr(software.reasons, "__defaults__", (path,))
    equal = change_of(here, "while number > 0", "ReplaceComparisonOperator_Gt_NotEq")
    other = change_of(here, "return number * 2", "ReplaceBinaryOperator_Mul_Div")
    seen = change_of(here, "LIMIT = 3", "NumberReplacer")
    why = software.reasons()
    assert [software.same(item, here, why) for item in (equal, other, seen)] == [True, False, False]
    verdicts = [software.Verdict(equal, ""), software.Verdict(other, ""), software.Verdict(seen, "a test")]
    rows = software.section({"made": verdicts}, 3, 1)["rows"]
    assert rows == [["mutants of the made that its tests see", "1 of 2 (50.0 %); 1 more mean the same"]]
    path.write_text("made/__init__.py: ReplaceComparisonOperator_Gt_NotEq at 13 | it falls by 1\n")
    with pytest.raises(software.ControlError, match=r"same\.txt, line 1: .* is not `file: line: operator"):
        software.reasons()


def test_reasons_refer_to_existing_lines() -> None:
    for (file, line, _), _why in software.reasons().items():
        assert line in map(str.strip, (software.ROOT / file).read_text().splitlines())


def test_kept_verdicts_survive_an_interruption(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    Kept("verdicts").add(("programs", 3), "bytes differ")
    with (tmp_path / "verdicts.jsonl").open("a") as file:
        file.write('\n["programs", 4, "by')
    Kept("verdicts").add(("programs", 5), "")
    assert Kept("verdicts").verdicts == {("programs", 3): "bytes differ", ("programs", 5): ""}
