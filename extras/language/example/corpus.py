"""Text to train a small language model on: prose that comes with every Python, and problems with known answers.

The prose consists of the docstrings and comments of the standard library and of Python's language reference
(``help("topics")``); each paragraph is a text. It differs a little between versions of Python. The problems are
generated, and the same everywhere: sums and differences, as numbers and as stories, and letters to sort. Answers work
digit by digit, which a small network learns much sooner than whole sums.

A tenth of all texts is held out. For prose these are whole modules and topics, since paragraphs of one are similar; for
problems, all with the same two numbers, or the same letters, in any order.
"""

from __future__ import annotations

import ast
import functools
import inspect
import random
import re
import sysconfig
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import TypeVar

SHARE = 10
"""One of this many keys is held out."""
SMALLEST, LARGEST = 10, 99
"""Limits of numbers: all have two digits."""
LETTERS = 5
"""Maximum number of letters to sort."""
_SKIPPED = {"site-packages", "test", "tests", "idle_test", "lib2to3", "pydoc_data", "ensurepip", "encodings"}
_MARKS = re.compile(r"[`*]+|:\w+:(?=`)|#+(?= )")
_COMMENT = re.compile(r"(?:^[ \t]*#.*\n)+", re.MULTILINE)
_HASH = re.compile(r"^[ \t]*#+ ?", re.MULTILINE)
_PROSE = re.compile(r"[A-Z][^<>{}|\\~]*[.:!?)]")
_SHORTEST, _LONGEST = 24, 1200
_NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivan", "Jane", "Karl", "Lena")
_THINGS = ("apples", "books", "cards", "coins", "eggs", "keys", "nuts", "pears", "shells", "stones")
_SUMS = (
    "{a} has {x} {t}. {b} has {y} {t}. How many do they have?",
    "{a} had {x} {t}. Then {b} gave {a} {y} more. How many has {a}?",
    "There were {x} {t} in a box. {a} put {y} more into it. How many are there?",
)
_DIFFERENCES = (
    "{a} had {x} {t}. Then {a} gave {b} {y} of them. How many has {a}?",
    "There were {x} {t} in a box. {a} took {y} of them out. How many are there?",
)
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Problem:
    """A question, and its answer, which begins with a space."""

    question: str
    answer: str

    @property
    def text(self) -> str:
        return self.question + self.answer


def is_held_out(key: str) -> bool:
    """Return whether the texts of a key, such as a module or a pair of numbers, are excluded from training."""
    return zlib.crc32(key.encode()) % SHARE == 0


def prose(*, held: bool) -> list[str]:
    """Return the different paragraphs of the standard library and of the language reference.

    Parameters
    ----------
    held : bool
        Return those that are held out instead of those to train on. A paragraph of both kinds is one to train on.
    """
    trained, excluded = _split_prose()
    return list(excluded if held else trained)


@functools.cache
def _split_prose() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the paragraphs to train on and those that are held out; this takes seconds."""
    # Dictionaries keep the order of the texts, which sets would not.
    unique: dict[bool, dict[str, None]] = {False: {}, True: {}}
    for key, text in _texts():
        unique[is_held_out(key)].update(dict.fromkeys(paragraphs(text)))
    return tuple(unique[False]), tuple(text for text in unique[True] if text not in unique[False])


def paragraphs(text: str) -> Iterator[str]:
    """Yield the paragraphs of a docstring or comment that are sentences, as one line each; no code and no tables."""
    for part in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        joined = " ".join(_MARKS.sub("", part).split())
        if _SHORTEST <= len(joined) <= _LONGEST and joined.isascii() and _PROSE.fullmatch(joined):
            yield joined


def _texts() -> Iterator[tuple[str, str]]:
    """Yield docstrings and comments with the name of their module or package, and topics with their names."""
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*.py")):
        parts = path.relative_to(library).with_suffix("").parts
        if _SKIPPED.isdisjoint(parts):
            yield from ((parts[0], text) for text in _docstrings_and_comments(path))
    yield from sorted(topics.items())


def _docstrings_and_comments(path: Path) -> Iterator[str]:
    """Yield the docstrings of a module, then its comments of one or more lines."""
    # Text with replaced bytes is not ASCII, so that it becomes no paragraph.
    source = path.read_text("utf-8", "replace")
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""
    for match in _COMMENT.finditer(source):
        yield _HASH.sub("", match[0])


class Problems:
    """An endless sequence of problems that depends only on the seed, not on the version of Python.

    Parameters
    ----------
    seed : int
    held : bool
        Draw only problems that are held out, instead of only the others.
    """

    def __init__(self, seed: int, *, held: bool) -> None:
        # Other functions of the module may change between versions of Python.
        self._random = random.Random(seed).random
        self._held = held

    def _choice(self, items: Sequence[_Item]) -> _Item:
        return items[int(self._random() * len(items))]

    def _numbers(self) -> tuple[int, int]:
        """Return two numbers with a sum of at most `LARGEST`."""
        while True:
            x, y = (SMALLEST + int(self._random() * (LARGEST + 1 - SMALLEST)) for _ in range(2))
            if x + y <= LARGEST and is_held_out(f"{min(x, y)} {max(x, y)}") == self._held:
                return x, y

    def sum(self) -> Problem:
        """Return a sum or a difference."""
        x, y = self._numbers()
        if self._random() < 0.5:
            return Problem(f"{x} + {y}:", f" {explain_sum(x, y)}.")
        return Problem(f"{x + y} - {x}:", f" {explain_difference(x + y, x)}.")

    def story(self) -> Problem:
        """Return a sum or a difference in words."""
        x, y = self._numbers()
        adds = self._random() < 0.5
        a, thing = self._choice(_NAMES), self._choice(_THINGS)
        b = self._choice([name for name in _NAMES if name != a])
        question = self._choice(_SUMS if adds else _DIFFERENCES)
        answer = explain_sum(x, y) if adds else explain_difference(x + y, x)
        first, second = (x, y) if adds else (x + y, x)
        return Problem(question.format(a=a, b=b, t=thing, x=first, y=second), f" {answer} {thing}.")

    def letters(self) -> Problem:
        """Return different letters to sort."""
        while True:
            count = 3 + int(self._random() * (LETTERS - 2))
            drawn: list[str] = []
            while len(drawn) < count:
                letter = self._choice("abcdefghijklmnopqrstuvwxyz")
                drawn += [letter] if letter not in drawn else []
            if is_held_out("".join(sorted(drawn))) == self._held:
                return Problem(f"The letters {' '.join(drawn)} in order:", f" {' '.join(sorted(drawn))}.")

    def any(self) -> Problem:
        """Return a problem of a random kind."""
        return self._choice((self.sum, self.sum, self.sum, self.story, self.story, self.letters))()


def explain_sum(x: int, y: int) -> str:
    """Return how to add two numbers of two digits, ones first: ``8 + 7 = 15, 4 + 3 + 1 = 8, so 85``."""
    carry = " + 1" if x % 10 + y % 10 > 9 else ""
    tens = (x + y) // 10
    return f"{x % 10} + {y % 10} = {x % 10 + y % 10}, {x // 10} + {y // 10}{carry} = {tens}, so {x + y}"


def explain_difference(x: int, y: int) -> str:
    """Return how to subtract numbers of two digits, the larger one first: ``15 - 7 = 8, 8 - 3 - 1 = 4, so 48``."""
    borrow = x % 10 < y % 10
    ones, tens = x % 10 + 10 * borrow, (x - y) // 10
    less = " - 1" if borrow else ""
    return f"{ones} - {y % 10} = {ones - y % 10}, {x // 10} - {y // 10}{less} = {tens}, so {x - y}"
