"""Metadata of a GGUF file: names of keys and tensors, values with checks of type and range, and the vocabulary.

The reader of the vocabulary checks everything that a tokenizer relies on.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

from weft.compiler.errors import CompileError
from weft.extras.language.compiler.encoders import PATTERNS
from weft.extras.language.compiler.model import Kind, Vocabulary, find_ends
from weft.extras.language.gguf.file import Value
from weft.hdl.schema import short_repr

MAX_INTEGER = 1 << 30
"""Limit for any integer in a model's metadata."""


class Metadata:
    """Typed access to metadata, which also records the keys that were looked up.

    `integer` and `number` also accept arrays with one element per layer, if all elements are equal.
    """

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values = values
        self._used: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def unused(self, prefix: str) -> list[str]:
        """Return the keys that begin with `prefix` and were never looked up."""
        return [key for key in self._values if key.startswith(prefix) and key not in self._used]

    def integer(self, key: str, default: int | None = None, low: int = 1, high: int = MAX_INTEGER) -> int:
        """Return an integer from `low` to `high`."""
        value = self._uniform(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._type_error(key, value, "an integer")
        if not low <= value <= high:
            raise self._type_error(key, value, f"an integer from {low:,} to {high:,}")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Return a number above zero."""
        value = self._uniform(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._type_error(key, value, "a number")
        if not (math.isfinite(value) and value > 0):
            raise self._type_error(key, value, "a number above zero")
        return float(value)

    def text(self, key: str, default: str | None = None) -> str:
        value = self._look_up(key, default)
        if not isinstance(value, str):
            raise self._type_error(key, value, "text")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._look_up(key, default)
        if not isinstance(value, bool):
            raise self._type_error(key, value, "a truth value")
        return value

    def texts(self, key: str, default: tuple[str, ...] | None = None) -> tuple[str, ...]:
        value = self._look_up(key, default)
        if isinstance(value, np.ndarray) and not value.size:
            return ()  # an empty array may have any type
        if not isinstance(value, tuple):
            raise self._type_error(key, value, "an array of texts")
        return value

    def numbers(self, key: str, kinds: str, expected: str) -> np.ndarray:
        """Return an array whose dtype kind is in `kinds` (numpy's letters); messages call that `expected`."""
        value = self._look_up(key, None)
        if not isinstance(value, np.ndarray) or value.dtype.kind not in kinds:
            raise self._type_error(key, value, expected)
        return value

    def value(self, key: str) -> Value | None:
        """Return a value of any type, or None if the key is missing."""
        self._used.add(key)
        return self._values.get(key)

    def _look_up(self, key: str, default: Value | None) -> Value:
        self._used.add(key)
        if key in self._values:
            return self._values[key]
        if default is None:
            raise CompileError(f"the file has no metadata {key!r}, which a language model must have")
        return default

    def _uniform(self, key: str, default: int | float | None) -> Value:
        """Return a number; an array of equal numbers counts as that number."""
        value = self._look_up(key, default)
        if isinstance(value, np.ndarray) and value.size:
            first, other = value[0], value[value != value[0]]
            if other.size:
                raise CompileError(
                    f"{key} is {first.item()} for some layers and {other[0].item()} for others; weft reads models "
                    "whose layers are alike"
                )
            return first.item()
        return value

    def _type_error(self, key: str, value: Value, wanted: str) -> CompileError:
        actual = "an array" if isinstance(value, np.ndarray | tuple) else short_repr(value)
        return CompileError(f"{key} is {actual}; it must be {wanted}")


TOKEN_EMBEDDING = "token_embd.weight"
POSITIONS = "position_embd.weight"
ROTARY_FACTORS = "rope_freqs.weight"
OUTPUT_NORM = "output_norm"
OUTPUT = "output"

FUSED = "attn_qkv"
"""Queries, keys and values as one matrix, one after the other, in ``gpt2`` files."""
LINEARS = {
    "query": "attn_q",
    "key": "attn_k",
    "value": "attn_v",
    "attention_output": "attn_output",
    "gate": "ffn_gate",
    "up": "ffn_up",
    "down": "ffn_down",
}
"""Fields of `weft.extras.language.compiler.model.Block`, and their tensors' names."""
NORMS = {"attention_norm": "attn_norm", "feed_forward_norm": "ffn_norm"}

SIZES = {
    "context": "context_length",
    "width": "embedding_length",
    "blocks": "block_count",
    "heads": "attention.head_count",
    "key_value_heads": "attention.head_count_kv",
    "key_length": "attention.key_length",
    "value_length": "attention.value_length",
    "feed_forward": "feed_forward_length",
    "vocabulary": "vocab_size",
}
"""Fields of `weft.extras.language.compiler.model.Sizes`, and their keys after the architecture's name."""
EPSILON = {"llama": "attention.layer_norm_rms_epsilon", "gpt2": "attention.layer_norm_epsilon"}
"""Key of the norms' epsilon, by architecture."""
ROTARY_DIMENSIONS = "rope.dimension_count"
ROTARY_BASE = "rope.freq_base"
SCALING_TYPE = "rope.scaling.type"
SCALING_FACTOR = "rope.scaling.factor"
OLD_SCALING_FACTOR = "rope.scale_linear"
"""Key of older files, which have no scaling type."""
CHAT_TEMPLATE = "tokenizer.chat_template"


def block(index: int, name: str) -> str:
    """Return the name of a tensor of block `index`, without ``.weight`` or ``.bias``."""
    return f"blk.{index}.{name}"


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
    # SentencePiece's own numbers: unknown 0, begin 1, end 2.
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
