"""Training text of the example's language model: reproducible, with held-out text excluded from training."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from weft.extras.language.example import PROMPT, corpus
from weft.extras.language.example.corpus import LARGEST, SHARE, Problem, Problems

COUNT = 3000


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Provide an empty standard library and a language reference of two topics."""
    monkeypatch.setattr(corpus.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(corpus, "topics", {"words": "What words are is told here."})
    corpus._split_prose.cache_clear()
    yield tmp_path
    corpus._split_prose.cache_clear()


def draw_problems(seed: int, *, held: bool) -> list[Problem]:
    problems = Problems(seed, held=held)
    return [problems.any() for _ in range(COUNT)]


def operands(problem: Problem) -> tuple[int, int, bool]:
    """Return a question's two numbers, and whether it subtracts."""
    first, second = map(int, re.findall(r"\d+", problem.question))
    return first, second, re.search(r" - |of them", problem.question) is not None


def key(problem: Problem) -> tuple[object, ...]:
    """Return the two numbers and their sum, or the letters, by which problems count as alike."""
    if problem.question.startswith("The letters"):
        return tuple(sorted(re.findall(r"\b[a-z]\b", problem.question)))
    first, second, minus = operands(problem)
    return tuple(sorted((second, first - second if minus else first)))


def test_problems_do_not_depend_on_the_python_version() -> None:
    text = "\n".join(problem.text for held in (False, True) for problem in draw_problems(1, held=held))
    assert zlib.crc32(text.encode()) == 289176511
    assert draw_problems(1, held=True) != draw_problems(2, held=True)


def test_answers_are_right() -> None:
    counts = {"sum": 0, "letters": 0, "story": 0}
    for problem in draw_problems(3, held=False) + draw_problems(3, held=True):
        if match := re.fullmatch(r"The letters ([a-z ]+) in order:", problem.question):
            assert problem.answer == f" {' '.join(sorted(match[1].split()))}."
            counts["letters"] += 1
            continue
        first, second, minus = operands(problem)
        match = re.fullmatch(r" (.+) = (\d+), (.+) = (\d), so (\d\d)( [a-z]+)?\.", problem.answer)
        assert match is not None, problem
        ones, tens = (
            sum(int(number) for number in re.findall(r"-?\d+", match[at].replace(" ", ""))) for at in (1, 3)
        )
        result = first - second if minus else first + second
        assert (ones, tens) == (int(match[2]), int(match[4]))
        assert 10 * tens + ones % 10 == int(match[5]) == result
        assert 10 <= min(second, result) <= max(first, result) <= LARGEST
        counts["story" if match[6] else "sum"] += 1
    assert min(counts.values()) > COUNT / SHARE


def test_held_out_problems_are_not_trained_on() -> None:
    trained, excluded = ({key(problem) for problem in draw_problems(4, held=held)} for held in (False, True))
    assert len(excluded) > 100
    assert not trained & excluded


def test_the_prompt_asks_a_held_out_problem() -> None:
    first, second = sorted(map(int, re.findall(r"\d+", PROMPT)))
    assert corpus.is_held_out(f"{first} {second}")


def test_prose_is_split_by_modules(library: Path) -> None:
    (library / "test").mkdir()
    (library / "test" / "skipped.py").write_text('"""Nobody wants to read about these tests."""\n')
    for number in range(60):
        (library / f"m{number}.py").write_text(
            f'"""This is the module with the number {number}.\n\nMany modules say this one sentence.\n"""\n'
            f"def f():\n    '''It does what number {number} does,\n    and nothing else.'''\n"
            f"    # A comment of two lines, for number {number},\n    # is one paragraph.\n"
        )
    trained, excluded = corpus.prose(held=False), corpus.prose(held=True)
    assert not set(trained) & set(excluded)
    assert "Many modules say this one sentence." in trained
    excluded_modules = [number for number in range(60) if corpus.is_held_out(f"m{number}")]
    assert excluded_modules
    for number in range(60):
        expected = excluded if number in excluded_modules else trained
        for text in (
            f"This is the module with the number {number}.",
            f"It does what number {number} does, and nothing else.",
            f"A comment of two lines, for number {number}, is one paragraph.",
        ):
            assert expected.count(text) == 1
    assert len(trained) + len(excluded) == 3 * 60 + 2, "one more for the topic"
    corpus._split_prose.cache_clear()
    assert (trained, excluded) == (corpus.prose(held=False), corpus.prose(held=True))


@pytest.mark.parametrize(
    "content",
    [
        b"def f(:",
        b"\xff\xfe\x00",
        b"x = '\x00'",
        b"# -*- coding: latin-1 -*-\n# Gr\xfc\xdfe an alle, die das lesen.",
        b"",
    ],
)
def test_files_that_are_no_python_or_no_ascii_have_no_prose(library: Path, content: bytes) -> None:
    (library / "odd.py").write_bytes(content)
    assert corpus.prose(held=False) + corpus.prose(held=True) == ["What words are is told here."]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Short.", []),
        ("One sentence on\ntwo lines of it.", ["One sentence on two lines of it."]),
        ("First paragraph, with ``code`` in it.\n\n    >>> f(1) < 2\n    True\n\nThe `last` one of all *three*!", [
            "First paragraph, with code in it.", "The last one of all three!"]),
        ("no capital letter at the start of it.", []),
        ("Nothing ends this one, not even a point", []),
        ("An ümlaut makes it a text that is not ASCII.", []),
        ("A" * 2000 + ".", []),
    ],
)  # fmt: skip
def test_paragraphs(text: str, expected: list[str]) -> None:
    assert list(corpus.paragraphs(text)) == expected
