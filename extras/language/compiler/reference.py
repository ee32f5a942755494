"""Float32 reference of a language model, with which devices are compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from weft.extras.language.compiler.encoders import TokenError
from weft.extras.language.compiler.model import Block, LanguageModel, Linear, Matrix, Norm, dense

_CHUNK = 256
"""Tokens that are computed together; more need memory for scores and are not faster."""


@dataclass(eq=False)
class Cache:
    """Keys and values of the preceding tokens, for each block.

    Attributes
    ----------
    keys, values : list of numpy.ndarray of float32, shape (key_value_heads, tokens, length)
    """

    keys: list[np.ndarray] = field(default_factory=list)
    values: list[np.ndarray] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Number of preceding tokens."""
        return self.keys[0].shape[1] if self.keys else 0


class Reference:
    """Evaluator of a model in float32; matrices in blocks are dequantised once.

    Parameters
    ----------
    model : LanguageModel
    """

    def __init__(self, model: LanguageModel) -> None:
        self.model = model
        self._dense: dict[int, np.ndarray] = {}

    def start(self) -> Cache:
        """Return the cache of an empty text."""
        sizes = self.model.sizes
        keys = np.zeros((sizes.key_value_heads, 0, sizes.key_length), np.float32)
        values = np.zeros((sizes.key_value_heads, 0, sizes.value_length), np.float32)
        return Cache([keys] * sizes.blocks, [values] * sizes.blocks)

    def logits(self, tokens: Sequence[int], cache: Cache | None = None, *, last: bool = False) -> np.ndarray:
        """Return the logits after each token.

        Parameters
        ----------
        tokens : sequence of int
            Tokens after the text of `cache`; not empty.
        cache : Cache
            Extended by these tokens' keys and values; without a cache the text starts with `tokens`.
        last : bool
            Return only the logits after the last token.

        Returns
        -------
        numpy.ndarray of float32, shape (tokens or 1, vocabulary)

        Raises
        ------
        TokenError
            If there are no tokens, more than the model's context holds, or tokens outside the vocabulary; or if weights
            are so large that logits are not finite.
        """
        cache = self.start() if cache is None else cache
        self._check(tokens, cache)
        with np.errstate(all="ignore"):
            logits = np.concatenate(list(self._chunk_logits(tokens, cache, last)))
        if not np.isfinite(logits).all():
            raise TokenError("the model's logits are not finite: its weights are too large, or damaged")
        return logits

    def _chunk_logits(self, tokens: Sequence[int], cache: Cache, last: bool) -> Iterator[np.ndarray]:
        """Yield the logits of each chunk of tokens."""
        for start in range(0, len(tokens), _CHUNK):
            x = self._run_blocks(np.asarray(tokens[start : start + _CHUNK], np.int64), cache)
            if not last or start + _CHUNK >= len(tokens):
                rows = x[-1:] if last else x
                yield self._linear(self.model.output, self._norm(self.model.output_norm, rows))

    def _check(self, tokens: Sequence[int], cache: Cache) -> None:
        count, context = len(self.model.vocabulary.tokens), self.model.sizes.context
        if not len(tokens):
            raise TokenError("there are no tokens; a model needs at least one")
        if not 0 <= min(tokens) <= max(tokens) < count:
            wrong = next(token for token in tokens if not 0 <= token < count)
            raise TokenError(f"there is no token {wrong}; the vocabulary has {count:,}")
        if cache.length + len(tokens) > context:
            raise TokenError(
                f"the text has {cache.length + len(tokens):,} tokens; the model's context is {context:,}"
            )

    def _weights(self, matrix: Matrix) -> np.ndarray:
        """Return a matrix as float32; dequantised matrices are cached."""
        if isinstance(matrix, np.ndarray):
            return matrix
        if id(matrix) not in self._dense:  # ids stay valid because the model holds the matrices
            self._dense[id(matrix)] = dense(matrix)
        return self._dense[id(matrix)]

    def _run_blocks(self, tokens: np.ndarray, cache: Cache) -> np.ndarray:
        """Return the vectors of tokens after the last block: float32 of shape (tokens, width)."""
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
        """Append keys and values to the cache, and return attention's output."""
        # Heads of queries form groups, each of which reads one head of keys and values.
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
        # Causal mask.
        scores[:, np.arange(scores.shape[2]) > positions[:, None]] = -np.inf
        result = self._softmax(block, scores).reshape(groups, -1, scores.shape[2]) @ values
        result = result.reshape(sizes.heads, count, -1).swapaxes(0, 1).reshape(count, -1)
        return self._linear(block.attention_output, result)

    def _softmax(self, block: Block, scores: np.ndarray) -> np.ndarray:
        probabilities = np.exp(scores - scores.max(axis=-1, keepdims=True))
        probabilities /= probabilities.sum(axis=-1, keepdims=True)
        return probabilities

    def _heads(
        self, linear: Linear, x: np.ndarray, heads: int, angles: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the heads, rotated by `angles` if given: float32 of shape (heads, tokens, length)."""
        projected = self._linear(linear, x).reshape(len(x), heads, -1).swapaxes(0, 1)
        return projected if angles is None else rotate_pairs(projected, angles)

    def _feed_forward(self, block: Block, x: np.ndarray) -> np.ndarray:
        return self._linear(block.down, self._inner(block, x))

    def _inner(self, block: Block, x: np.ndarray) -> np.ndarray:
        up = self._linear(block.up, x)
        return _gelu(up) if block.gate is None else _silu(self._linear(block.gate, x)) * up


def rotate_pairs(heads: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Rotate adjacent elements by angles; elements after the last pair stay.

    Parameters
    ----------
    heads : numpy.ndarray of float32, shape (heads, tokens, length)
    angles : numpy.ndarray, shape (tokens, pairs)
        In radians.
    """
    sine, cosine = np.sin(angles).astype(np.float32), np.cos(angles).astype(np.float32)
    rotated = heads.copy()
    end = 2 * angles.shape[1]
    even, odd = heads[..., 0:end:2], heads[..., 1:end:2]
    rotated[..., 0:end:2] = even * cosine - odd * sine
    rotated[..., 1:end:2] = even * sine + odd * cosine
    return rotated


def _silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))  # far below zero the exponential overflows to infinity, and the result is 0


def _gelu(x: np.ndarray) -> np.ndarray:
    """Return GELU by the hyperbolic tangent, as GPT-2 defines it."""
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
    return np.float32(0.5) * x * (1 + np.tanh(inner))
