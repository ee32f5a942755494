"""Reader of the tokenizer's vocabulary in a GGUF file's metadata.

It checks everything that a tokenizer relies on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from weft.compiler.errors import CompileError
from weft.extras.language.compiler.vocabulary import Kind, Vocabulary, find_ends
from weft.extras.language.compiler.words import PATTERNS
from weft.extras.language.gguf.file import Value
from weft.extras.language.gguf.metadata import Metadata
from weft.hdl.schema import short_repr

_PREFIX = "tokenizer.ggml."
_BYTE = re.compile(r"<0x[0-9A-F]{2}>")
_MAX_TOKEN_CHARACTERS = 1 << 12
_MODELS = ("llama", "gpt2")


def read_vocabulary(metadata: Metadata) -> Vocabulary:
    """Read the vocabulary of a file.

    Raises
    ------
    CompileError
        If there is no vocabulary, if it is of another kind, or if it is inconsistent.
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
    if (longest := max(map(len, tokens))) > _MAX_TOKEN_CHARACTERS:
        raise CompileError(
            f"{_PREFIX}tokens has a token of {longest:,} characters; weft takes up to {_MAX_TOKEN_CHARACTERS:,}"
        )
    pieces = model == "llama"
    kinds = _read_types(metadata, tokens)
    pre = "" if pieces else _read_splitter(metadata)
    count, end = len(tokens), _read_token(metadata, "eos", len(tokens), 2 if pieces else None)
    others = (_read_token(metadata, name, count, None) for name in ("eot", "eom"))
    return Vocabulary(
        model=model,
        pre=pre,
        tokens=tokens,
        kinds=kinds,
        scores=_read_scores(metadata, count) if pieces else (),
        merges=() if pieces else _read_merges(metadata, tokens),
        begin=(begin := _read_token(metadata, "bos", count, 1 if pieces else None)),
        end=end,
        unknown=_read_token(metadata, "unknown", count, 0 if pieces else None),
        ends=find_ends(tokens, kinds).union(token for token in (end, *others) if token is not None),
        add_begin=_read_add_flag(metadata, "bos", begin, pieces or PATTERNS[pre].adds_begin),
        add_end=_read_add_flag(metadata, "eos", end, False),
        add_space=pieces and metadata.flag(f"{_PREFIX}add_space_prefix", True),
    )


def _read_splitter(metadata: Metadata) -> str:
    pre = metadata.text(f"{_PREFIX}pre", "default")
    if pre not in PATTERNS:
        raise CompileError(
            f"{_PREFIX}pre is {short_repr(pre)}; weft splits text into words as {', '.join(map(repr, PATTERNS))} do"
        )
    return pre


def _read_types(metadata: Metadata, tokens: Sequence[str]) -> tuple[Kind, ...]:
    """Return the type of each token: NORMAL for all if the file has no types."""
    key = f"{_PREFIX}token_type"
    if key not in metadata:
        return (Kind.NORMAL,) * len(tokens)
    types = metadata.numbers(key, "iu", "an array of integers")
    _check_length(key, types, len(tokens))
    if types.size and not min(Kind) <= types.min() <= types.max() <= max(Kind):
        wrong = int(types.max()) if types.max() > max(Kind) else int(types.min())
        raise CompileError(f"{key} has {wrong}; kinds of tokens are {min(Kind):d} to {max(Kind):d}")
    kinds = tuple(map(Kind, types.tolist()))
    for at, (token, kind) in enumerate(zip(tokens, kinds, strict=True)):
        if kind is Kind.BYTE and not _BYTE.fullmatch(token):
            raise CompileError(
                f"token {at} is {short_repr(token)}, said to be a byte; bytes are written as '<0x0A>'"
            )
    return kinds


def _read_scores(metadata: Metadata, count: int) -> tuple[float, ...]:
    key = f"{_PREFIX}scores"
    scores = metadata.numbers(key, "f", "an array of numbers")
    _check_length(key, scores, count)
    if np.isnan(scores).any():
        raise CompileError(
            f"{key} has NaN for token {int(np.isnan(scores).argmax())}; scores must be numbers"
        )
    return tuple(scores.tolist())


def _read_merges(metadata: Metadata, tokens: Sequence[str]) -> tuple[tuple[str, str], ...]:
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


def _check_length(key: str, values: np.ndarray, count: int) -> None:
    if values.size != count:
        raise CompileError(f"{key} has {values.size:,} elements for {count:,} tokens")


def _read_token(metadata: Metadata, name: str, count: int, default: int | None) -> int | None:
    """Return the number of a special token, or None if the file has none."""
    key = f"{_PREFIX}{name}_token_id"
    value: Value | None = metadata.value(key)
    if value is None:
        return default if default is not None and default < count else None
    return metadata.integer(key, low=0, high=count - 1)


def _read_add_flag(metadata: Metadata, name: str, token: int | None, default: bool) -> bool:
    """Return whether the tokenizer adds the special token `name` to texts."""
    key = f"{_PREFIX}add_{name}_token"
    adds = metadata.flag(key, default and token is not None)
    if adds and token is None:
        raise CompileError(f"{key} is true, and the file has no {_PREFIX}{name}_token_id")
    return adds
