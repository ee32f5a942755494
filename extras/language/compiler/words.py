"""Rules that split text into words before byte-pair encoding, by their names in GGUF files.

The regular expressions are those of the tokenizers that the names stand for, from llama.cpp (src/llama-vocab.cpp). Each
expression splits the parts of the previous one; text between matches is a part, too.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from weft.extras.language.compiler.libraries import import_library

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_HEAD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"


@dataclass(frozen=True)
class Pattern:
    """Rule for splitting text.

    Attributes
    ----------
    expressions : tuple of str
        Regular expressions, in the order of application.
    keep_whole : bool
        Whether a word that is a token becomes this token, whatever the merges say.
    adds_begin : bool
        Whether texts start with the begin token, unless the file says otherwise.
    """

    expressions: tuple[str, ...]
    keep_whole: bool = False
    adds_begin: bool = False


_LLAMA3 = Pattern((_HEAD + r"\p{N}{1,3}" + _TAIL,), keep_whole=True, adds_begin=True)
_QWEN2 = Pattern((_HEAD + r"\p{N}" + _TAIL,))
PATTERNS = {
    "default": Pattern((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")),
    "gpt-2": Pattern((_GPT2,)),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": _QWEN2,
    "smollm": Pattern((r"\p{N}", _GPT2)),
}
"""Rules by name."""


def split(text: str, name: str) -> Iterator[str]:
    """Return the words of a text, which concatenate to the text."""
    parts: Iterator[str] = iter([text] if text else [])
    for expression in _compile(name):
        parts = _split_each(expression, parts)
    return parts


def _split_each(expression: Any, texts: Iterator[str]) -> Iterator[str]:
    for text in texts:
        yield from _split_one(expression, text)


def _split_one(expression: Any, text: str) -> Iterator[str]:
    """Yield the matches of an expression, and the texts between them."""
    at = 0
    for match in expression.finditer(text):
        if match.start() > at:
            yield text[at : match.start()]
        yield match[0]
        at = match.end()
    if at < len(text):
        yield text[at:]


@functools.cache
def _compile(name: str) -> tuple[Any, ...]:
    regex = import_library("regex")
    return tuple(regex.compile(expression) for expression in PATTERNS[name].expressions)
