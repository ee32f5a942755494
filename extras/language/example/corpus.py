"""Text to train a small language model on: prose that comes with every Python, and problems with known answers.

The prose is what the standard library's docstrings and comments and Python's language reference (``help("topics")``)
say, one paragraph a text. It differs a little from one version of Python to the next. The problems are made here, and
are the same everywhere: sums and differences, the same told as stories, and letters to be sorted. Answers work digit by
digit, which a small network learns much sooner than whole sums.

A tenth of everything is held out. Of prose these are whole modules and topics, since paragraphs of one are alike; of
problems, all that have the same two numbers, or the same letters, in whatever order.
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
"""One in so many is held out."""
SMALLEST, LARGEST = 10, 99
"""Numbers, all of which have two digits."""
LETTERS = 5
"""Most letters that are sorted."""
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
    """What is given, and how it goes on, with a space in front."""

    question: str
    answer: str

    @property
    def text(self) -> str:
        return self.question + self.answer


def held_out(key: str) -> bool:
    """Whether what has this key, a module or a pair of numbers, is not trained on."""
    return zlib.crc32(key.encode()) % SHARE == 0


def prose(*, held: bool) -> list[str]:
    """Paragraphs of the standard library and of the language reference, each of them once.

    Parameters
    ----------
    held : bool
        Those that are held out, or those to train on. What both have counts as trained on.
    """
    trained, rest = _divided()
    return list(rest if held else trained)


@functools.cache
def _divided() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Paragraphs to train on, and those that are held out: it takes seconds to find them."""
    kept: dict[bool, dict[str, None]] = {False: {}, True: {}}
    for key, text in _texts():
        kept[held_out(key)].update(dict.fromkeys(paragraphs(text)))
    return tuple(kept[False]), tuple(text for text in kept[True] if text not in kept[False])


def paragraphs(text: str) -> Iterator[str]:
    """The paragraphs of a docstring or a comment that are sentences, each on one line; no code and no tables."""
    for part in re.split(r"\n\s*\n", inspect.cleandoc(text)):
        joined = " ".join(_MARKS.sub("", part).split())
        if _SHORTEST <= len(joined) <= _LONGEST and joined.isascii() and _PROSE.fullmatch(joined):
            yield joined


def _texts() -> Iterator[tuple[str, str]]:
    """Docstrings and comments with the module or package that they are from, and topics with their names."""
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.rglob("*.py")):
        parts = path.relative_to(library).with_suffix("").parts
        if _SKIPPED.isdisjoint(parts):
            yield from ((parts[0], text) for text in _written(path))
    yield from sorted(topics.items())


def _written(path: Path) -> Iterator[str]:
    """The docstrings of a module, and then its comments of one or more lines."""
    source = path.read_text("utf-8", "replace")  # what is no ASCII becomes no paragraph
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
    """Problems without end: with the same seed the same ones, whatever the version of Python.

    Parameters
    ----------
    seed : int
    held : bool
        Only those that are held out, or only the others.
    """

    def __init__(self, seed: int, *, held: bool) -> None:
        self._random = random.Random(seed).random  # all else of the module may change between versions
        self._held = held

    def _choice(self, items: Sequence[_Item]) -> _Item:
        return items[int(self._random() * len(items))]

    def _numbers(self) -> tuple[int, int]:
        """Two numbers, the sum of which is `LARGEST` at most."""
        while True:
            x, y = (SMALLEST + int(self._random() * (LARGEST + 1 - SMALLEST)) for _ in range(2))
            if x + y <= LARGEST and held_out(f"{min(x, y)} {max(x, y)}") == self._held:
                return x, y

    def sum(self) -> Problem:
        """A sum or a difference."""
        x, y = self._numbers()
        if self._random() < 0.5:
            return Problem(f"{x} + {y}:", f" {added(x, y)}.")
        return Problem(f"{x + y} - {x}:", f" {subtracted(x + y, x)}.")

    def story(self) -> Problem:
        """The same in words."""
        x, y = self._numbers()
        adds = self._random() < 0.5
        a, thing = self._choice(_NAMES), self._choice(_THINGS)
        b = self._choice([name for name in _NAMES if name != a])
        question = self._choice(_SUMS if adds else _DIFFERENCES)
        answer = added(x, y) if adds else subtracted(x + y, x)
        first, second = (x, y) if adds else (x + y, x)
        return Problem(question.format(a=a, b=b, t=thing, x=first, y=second), f" {answer} {thing}.")

    def letters(self) -> Problem:
        """Different letters, and the same in order."""
        while True:
            count = 3 + int(self._random() * (LETTERS - 2))
            drawn: list[str] = []
            while len(drawn) < count:
                letter = self._choice("abcdefghijklmnopqrstuvwxyz")
                drawn += [letter] if letter not in drawn else []
            if held_out("".join(sorted(drawn))) == self._held:
                return Problem(f"The letters {' '.join(drawn)} in order:", f" {' '.join(sorted(drawn))}.")

    def any(self) -> Problem:
        """One of the three."""
        return self._choice((self.sum, self.sum, self.sum, self.story, self.story, self.letters))()


def added(x: int, y: int) -> str:
    """How two numbers of two digits are added, ones first: ``8 + 7 = 15, 4 + 3 + 1 = 8, so 85``."""
    carry = " + 1" if x % 10 + y % 10 > 9 else ""
    tens = (x + y) // 10
    return f"{x % 10} + {y % 10} = {x % 10 + y % 10}, {x // 10} + {y // 10}{carry} = {tens}, so {x + y}"


def subtracted(x: int, y: int) -> str:
    """How a number of two digits is subtracted from a larger one: ``15 - 7 = 8, 8 - 3 - 1 = 4, so 48``."""
    borrow = x % 10 < y % 10
    ones, tens = x % 10 + 10 * borrow, (x - y) // 10
    less = " - 1" if borrow else ""
    return f"{ones} - {y % 10} = {ones - y % 10}, {x // 10} - {y // 10}{less} = {tens}, so {x - y}"
