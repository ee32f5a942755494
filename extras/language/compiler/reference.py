"""What a language model computes, in float32: the measure of what a device makes of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from weft.extras.language.compiler.encoders import TokenError
from weft.extras.language.compiler.model import Block, LanguageModel, Linear, Matrix, Norm, dense

_AT_ONCE = 256
"""Tokens that are computed side by side: more would take memory for their scores, and be no quicker."""


@dataclass(eq=False)
class Cache:
    """Keys and values of the tokens so far, of each block.

    Attributes
    ----------
    keys, values : list of numpy.ndarray of float32, shape (key_value_heads, tokens, length)
    """

    keys: list[np.ndarray] = field(default_factory=list)
    values: list[np.ndarray] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Tokens so far."""
        return self.keys[0].shape[1] if self.keys else 0


class Reference:
    """Computes logits of a model from its weights, which are made float32 once.

    Parameters
    ----------
    model : LanguageModel
    """

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self._dense: dict[int, np.ndarray] = {}

    def start(self) -> Cache:
        """The cache of an empty text."""
        sizes = self.model.sizes
        keys = np.zeros((sizes.key_value_heads, 0, sizes.key_length), np.float32)
        values = np.zeros((sizes.key_value_heads, 0, sizes.value_length), np.float32)
        return Cache([keys] * sizes.blocks, [values] * sizes.blocks)

    def logits(self, tokens: Sequence[int], cache: Cache | None = None, *, last: bool = False) -> np.ndarray:
        """The logits behind each token.

        Parameters
        ----------
        tokens : sequence of int
            What follows the text of `cache`; not empty.
        cache : Cache
            Takes up these tokens' keys and values; without one the text starts with `tokens`.
        last : bool
            Only those behind the last token.

        Returns
        -------
        numpy.ndarray of float32, shape (tokens or 1, vocabulary)

        Raises
        ------
        TokenError
            If there is no such token, none at all, or if there are more than the model's context has; or if weights are
            so large that logits are no finite numbers.
        """
        cache = self.start() if cache is None else cache
        self._check(tokens, cache)
        with np.errstate(all="ignore"):
            found = np.concatenate(list(self._parts(tokens, cache, last)))
        if not np.isfinite(found).all():
            raise TokenError(
                "the model's logits are no finite numbers: its weights are too large, or damaged"
            )
        return found

    def _parts(self, tokens: Sequence[int], cache: Cache, last: bool) -> Iterator[np.ndarray]:
        """Logits of some tokens at once."""
        for start in range(0, len(tokens), _AT_ONCE):
            x = self._behind_blocks(np.asarray(tokens[start : start + _AT_ONCE], np.int64), cache)
            if not last or start + _AT_ONCE >= len(tokens):
                rows = x[-1:] if last else x
                yield self._linear(self.model.output, self._norm(self.model.output_norm, rows))

    def _check(self, tokens: Sequence[int], cache: Cache) -> None:
        count, context = len(self.model.vocabulary.tokens), self.model.sizes.context
        if not len(tokens):
            raise TokenError("there are no tokens; a model needs one at least")
        if not 0 <= min(tokens) <= max(tokens) < count:
            wrong = next(token for token in tokens if not 0 <= token < count)
            raise TokenError(f"there is no token {wrong}; the vocabulary has {count:,}")
        if cache.length + len(tokens) > context:
            raise TokenError(
                f"the text has {cache.length + len(tokens):,} tokens; the model's context is {context:,}"
            )

    def _weights(self, matrix: Matrix) -> np.ndarray:
        """A matrix as float32; those in blocks are dequantised once."""
        if isinstance(matrix, np.ndarray):
            return matrix
        if id(matrix) not in self._dense:  # the model holds all of them
            self._dense[id(matrix)] = dense(matrix)
        return self._dense[id(matrix)]

    def _behind_blocks(self, tokens: np.ndarray, cache: Cache) -> np.ndarray:
        """The vectors of tokens behind the last block: float32 of shape (tokens, width)."""
        model = self.model
        positions = cache.length + np.arange(len(tokens))
        x = self._weights(model.token_embedding)[tokens]
        if model.positions is not None:
            x = x + self._weights(model.positions)[positions]
        for index, block in enumerate(model.blocks):
            x = x + self._attention(block, self._norm(block.attention_norm, x), positions, cache, index)
            x = x + self._feed_forward(block, self._norm(block.feed_forward_norm, x))
        return x

    def _linear(self, linear: Linear, x: np.ndarray) -> np.ndarray:
        product = x @ self._weights(linear.weight).T
        return product if linear.bias is None else product + linear.bias

    def _norm(self, norm: Norm, x: np.ndarray) -> np.ndarray:
        if norm.bias is not None:
            x = x - x.mean(axis=-1, keepdims=True)
        square = np.mean(np.square(x), axis=-1, keepdims=True) + np.float32(self.model.epsilon)
        x = x / np.sqrt(square) * norm.weight
        return x if norm.bias is None else x + norm.bias

    def _attention(
        self, block: Block, x: np.ndarray, positions: np.ndarray, cache: Cache, index: int
    ) -> np.ndarray:
        """Heads of queries lie in groups, each of which reads one head of keys and values."""
        sizes, count = self.model.sizes, len(x)
        groups = sizes.key_value_heads
        angles = None if self.model.rotary is None else self.model.rotary.angles(positions)
        queries = self._heads(block.query, x, sizes.heads, angles)
        keys, values = self._heads(block.key, x, groups, angles), self._heads(block.value, x, groups)
        cache.keys[index] = keys = np.concatenate([cache.keys[index], keys], axis=1)
        cache.values[index] = values = np.concatenate([cache.values[index], values], axis=1)
        queries = queries.reshape(groups, -1, sizes.key_length)
        scores = queries @ keys.swapaxes(1, 2) * np.float32(sizes.key_length**-0.5)
        scores = scores.reshape(sizes.heads, count, -1)
        scores[:, np.arange(scores.shape[2]) > positions[:, None]] = -np.inf
        attended = self._shares(block, scores).reshape(groups, -1, scores.shape[2]) @ values
        attended = attended.reshape(sizes.heads, count, -1).swapaxes(0, 1).reshape(count, -1)
        return self._linear(block.attention_output, attended)

    def _shares(self, block: Block, scores: np.ndarray) -> np.ndarray:
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        return shares

    def _heads(
        self, linear: Linear, x: np.ndarray, heads: int, angles: np.ndarray | None = None
    ) -> np.ndarray:
        """Heads turned by `angles`, if there are any: float32 of shape (heads, tokens, length)."""
        made = self._linear(linear, x).reshape(len(x), heads, -1).swapaxes(0, 1)
        return made if angles is None else rotated(made, angles)

    def _feed_forward(self, block: Block, x: np.ndarray) -> np.ndarray:
        return self._linear(block.down, self._inner(block, x))

    def _inner(self, block: Block, x: np.ndarray) -> np.ndarray:
        up = self._linear(block.up, x)
        return _gelu(up) if block.gate is None else _silu(self._linear(block.gate, x)) * up


def rotated(heads: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Neighbours turned by angles, and what follows them as it is.

    Parameters
    ----------
    heads : numpy.ndarray of float32, shape (heads, tokens, length)
    angles : numpy.ndarray, shape (tokens, pairs)
        In radians.
    """
    sine, cosine = np.sin(angles).astype(np.float32), np.cos(angles).astype(np.float32)
    turned = heads.copy()
    end = 2 * angles.shape[1]
    even, odd = heads[..., 0:end:2], heads[..., 1:end:2]
    turned[..., 0:end:2] = even * cosine - odd * sine
    turned[..., 1:end:2] = even * sine + odd * cosine
    return turned


def _silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))  # far below zero the exponential is infinite, and this zero


def _gelu(x: np.ndarray) -> np.ndarray:
    """With the hyperbolic tangent, as GPT-2 has it."""
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
    return np.float32(0.5) * x * (1 + np.tanh(inner))
