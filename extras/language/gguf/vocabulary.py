"""The vocabulary in a file's metadata, checked: whatever passes, a tokenizer can be made of."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from weft.compiler.ir.graph import CompileError
from weft.extras.language.compiler.vocabulary import Kind, Vocabulary, find_ends
from weft.extras.language.compiler.words import PATTERNS
from weft.extras.language.gguf.file import Value
from weft.extras.language.gguf.metadata import Metadata
from weft.hdl.schema import short_repr

_PREFIX = "tokenizer.ggml."
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_LONGEST = 1 << 12
"""Characters of the longest token."""
_MODELS = ("llama", "gpt2")


def read_vocabulary(metadata: Metadata) -> Vocabulary:
    """The vocabulary of a file.

    Raises
    ------
    CompileError
        If there is none, if it is of another kind, or does not fit together.
    """
    model = metadata.text(f"{_PREFIX}model")
    if model not in _MODELS:
        raise CompileError(
            f"{_PREFIX}model is {short_repr(model)}; weft has tokenizers for 'llama' (SentencePiece) and 'gpt2' "
            "(byte pairs)"
        )
    tokens = metadata.texts(f"{_PREFIX}tokens")
    if not tokens:
        raise CompileError(f"{_PREFIX}tokens is empty; a language model needs a vocabulary")
    if (longest := max(map(len, tokens))) > _LONGEST:
        raise CompileError(
            f"{_PREFIX}tokens has a token of {longest:,} characters; weft takes up to {_LONGEST:,}"
        )
    pieces = model == "llama"
    kinds = _kinds(metadata, tokens)
    pre = "" if pieces else _pre(metadata)
    count, end = len(tokens), _token(metadata, "eos", len(tokens), 2 if pieces else None)
    others = (_token(metadata, name, count, None) for name in ("eot", "eom"))
    return Vocabulary(
        model=model,
        pre=pre,
        tokens=tokens,
        kinds=kinds,
        scores=_scores(metadata, count) if pieces else (),
        merges=() if pieces else _merges(metadata, tokens),
        begin=(begin := _token(metadata, "bos", count, 1 if pieces else None)),
        end=end,
        unknown=_token(metadata, "unknown", count, 0 if pieces else None),
        ends=find_ends(tokens, kinds).union(token for token in (end, *others) if token is not None),
        add_begin=_adds(metadata, "bos", begin, pieces or PATTERNS[pre].begins),
        add_end=_adds(metadata, "eos", end, False),
        add_space=pieces and metadata.flag(f"{_PREFIX}add_space_prefix", True),
    )


def _pre(metadata: Metadata) -> str:
    pre = metadata.text(f"{_PREFIX}pre", "default")
    if pre not in PATTERNS:
        raise CompileError(
            f"{_PREFIX}pre is {short_repr(pre)}; weft splits text into words as {', '.join(map(repr, PATTERNS))} do"
        )
    return pre


def _kinds(metadata: Metadata, tokens: Sequence[str]) -> tuple[Kind, ...]:
    """What tokens are; all are normal if the file does not say."""
    key = f"{_PREFIX}token_type"
    if key not in metadata:
        return (Kind.NORMAL,) * len(tokens)
    given = metadata.numbers(key, "iu", "an array of integers")
    _check_length(key, given, len(tokens))
    if given.size and not min(Kind) <= given.min() <= given.max() <= max(Kind):
        wrong = int(given.max()) if given.max() > max(Kind) else int(given.min())
        raise CompileError(f"{key} has {wrong}; kinds of tokens are {min(Kind):d} to {max(Kind):d}")
    kinds = tuple(map(Kind, given.tolist()))
    for at, (token, kind) in enumerate(zip(tokens, kinds, strict=True)):
        if kind is Kind.BYTE and not _BYTE.fullmatch(token):
            raise CompileError(
                f"token {at} is {short_repr(token)}, said to be a byte; bytes are written as '<0x0A>'"
            )
    return kinds


def _scores(metadata: Metadata, count: int) -> tuple[float, ...]:
    key = f"{_PREFIX}scores"
    given = metadata.numbers(key, "f", "an array of numbers")
    _check_length(key, given, count)
    if np.isnan(given).any():
        raise CompileError(f"{key} has NaN for token {int(np.isnan(given).argmax())}; scores must be numbers")
    return tuple(given.tolist())


def _merges(metadata: Metadata, tokens: Sequence[str]) -> tuple[tuple[str, str], ...]:
    known, merges = set(tokens), []
    for at, text in enumerate(metadata.texts(f"{_PREFIX}merges", ())):
        left, _, right = text.partition(" ")
        if not left or not right or " " in right:
            raise CompileError(
                f"merge {at} is {short_repr(text)}; a merge is two texts with a space between them"
            )
        if left + right not in known:
            raise CompileError(f"merge {at} makes {short_repr(left + right)}, which is no token")
        merges.append((left, right))
    return tuple(merges)


def _check_length(key: str, given: np.ndarray, count: int) -> None:
    if given.size != count:
        raise CompileError(f"{key} has {given.size:,} elements for {count:,} tokens")


def _token(metadata: Metadata, name: str, count: int, default: int | None) -> int | None:
    """The number of a special token; one that the file does not name may be missing."""
    key = f"{_PREFIX}{name}_token_id"
    value: Value | None = metadata.value(key)
    if value is None:
        return default if default is not None and default < count else None
    return metadata.integer(key, low=0, high=count - 1)


def _adds(metadata: Metadata, name: str, token: int | None, default: bool) -> bool:
    """Whether texts are given a special token."""
    key = f"{_PREFIX}add_{name}_token"
    adds = metadata.flag(key, default and token is not None)
    if adds and token is None:
        raise CompileError(f"{key} is true, and the file has no {_PREFIX}{name}_token_id")
    return adds
