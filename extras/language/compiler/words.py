"""How text is split into words in front of byte-pair encoding, by the names that GGUF files have for it.

The expressions are those of the tokenizers that the names stand for, as llama.cpp lists them (src/llama-vocab.cpp):
each splits the parts that the one before it made, and what it does not match are parts, too.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from weft.extras.language.compiler.libraries import library

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_HEAD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"


@dataclass(frozen=True)
class Pattern:
    """One way to split.

    Attributes
    ----------
    expressions : tuple of str
        Regular expressions, those that split first in front.
    whole : bool
        Whether a word that is a token becomes it, whatever the merges say.
    begins : bool
        Whether texts have the token for the begin in front, unless the file says.
    """

    expressions: tuple[str, ...]
    whole: bool = False
    begins: bool = False


_LLAMA3 = Pattern((_HEAD + r"\p{N}{1,3}" + _TAIL,), whole=True, begins=True)
_QWEN2 = Pattern((_HEAD + r"\p{N}" + _TAIL,))
PATTERNS = {
    "default": Pattern((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": Pattern((_GPT2,)),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": _QWEN2,
    "smollm": Pattern((r"\p{N}", _GPT2)),
}
"""By name."""


def split(text: str, name: str) -> Iterator[str]:
    """The words of a text; together they are the text."""
    parts: Iterator[str] = iter([text] if text else [])
    for expression in _compiled(name):
        parts = _parts_of_each(expression, parts)
    return parts


def _parts_of_each(expression: Any, texts: Iterator[str]) -> Iterator[str]:
    for text in texts:
        yield from _parts(expression, text)


def _parts(expression: Any, text: str) -> Iterator[str]:
    """Texts that an expression matches, and texts between them."""
    at = 0
    for match in expression.finditer(text):
        if match.start() > at:
            yield text[at : match.start()]
        yield match[0]
        at = match.end()
    if at < len(text):
        yield text[at:]


@functools.cache
def _compiled(name: str) -> tuple[Any, ...]:
    regex = library("regex")
    return tuple(regex.compile(expression) for expression in PATTERNS[name].expressions)
