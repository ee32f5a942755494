"""Float32 reference of a language model, with which devices are compared; its ranges and perplexity on texts.

Fixed quantisation steps are chosen from the ranges.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
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
    # Far below zero the exponential overflows to infinity, and the result is 0.
    return x / (1 + np.exp(-x))


def _gelu(x: np.ndarray) -> np.ndarray:
    """Return GELU by the hyperbolic tangent, as GPT-2 defines it."""
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
    return np.float32(0.5) * x * (1 + np.tanh(inner))


@dataclass
class Ranges:
    """Largest magnitudes on the texts, of all blocks together or of each block.

    Attributes
    ----------
    residual : float
        Of the residual stream.
    query, key, value : list of float
        For each block; queries and keys both before and after rotation.
    scores : list of float
        Of the largest score of each row, for each block.
    mixed : list of float
        Of attention's results, for each block.
    gate, up, inner : float
        Of the products of feed-forward networks, and of the input of the last product. `gate` is 0 for a model without
        gates.
    logits : float
    """

    residual: float
    query: list[float]
    key: list[float]
    value: list[float]
    scores: list[float]
    mixed: list[float]
    gate: float
    up: float
    inner: float
    logits: float


class _Observer(Reference):
    """Reference that records the largest magnitudes."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__(model)
        self.outputs: dict[int, float] = {}
        self.inputs: dict[int, float] = {}  # by product
        self.scores: dict[int, float] = {}
        self.residual = self.inner = 0.0

    def _record_output(self, linear: Linear, values: np.ndarray) -> np.ndarray:
        self.outputs[id(linear)] = max(self.outputs.get(id(linear), 0.0), float(np.abs(values).max()))
        return values

    def _linear(self, linear: Linear, x: np.ndarray) -> np.ndarray:
        self.inputs[id(linear)] = max(self.inputs.get(id(linear), 0.0), float(np.abs(x).max()))
        return self._record_output(linear, super()._linear(linear, x))

    def _heads(
        self, linear: Linear, x: np.ndarray, heads: int, angles: np.ndarray | None = None
    ) -> np.ndarray:
        # `_linear` has recorded the values before rotation.
        return self._record_output(linear, super()._heads(linear, x, heads, angles))

    def _softmax(self, block: Block, scores: np.ndarray) -> np.ndarray:
        largest = float(np.abs(scores.max(axis=-1)).max())
        self.scores[id(block)] = max(self.scores.get(id(block), 0.0), largest)
        return super()._softmax(block, scores)

    def _norm(self, norm: Norm, x: np.ndarray) -> np.ndarray:
        # A norm follows every addition to the stream, so that norms see all of its values.
        self.residual = max(self.residual, float(np.abs(x).max()))
        return super()._norm(norm, x)

    def _feed_forward(self, block: Block, x: np.ndarray) -> np.ndarray:
        inner = self._inner(block, x)
        self.inner = max(self.inner, float(np.abs(inner).max()))
        return self._linear(block.down, inner)


def measure_ranges(model: LanguageModel, texts: Sequence[Sequence[int]]) -> Ranges:
    """Return the ranges on texts, each of at most as many tokens as the model's context."""
    observer = _Observer(model)
    largest = 0.0
    for text in texts:
        cache: Cache = observer.start()
        largest = max(largest, float(np.abs(observer.logits(text, cache)).max()))
    outputs = observer.outputs
    blocks = model.blocks
    return Ranges(
        residual=observer.residual,
        query=[outputs[id(block.query)] for block in blocks],
        key=[outputs[id(block.key)] for block in blocks],
        value=[outputs[id(block.value)] for block in blocks],
        scores=[observer.scores[id(block)] for block in blocks],
        mixed=[observer.inputs[id(block.attention_output)] for block in blocks],
        gate=max((outputs[id(block.gate)] for block in blocks if block.gate is not None), default=0.0),
        up=max(outputs[id(block.up)] for block in blocks),
        inner=observer.inner,
        logits=largest,
    )


@dataclass(frozen=True)
class Perplexity:
    """Perplexity: the exponential of the mean negative log-likelihood over `tokens` tokens."""

    value: float
    tokens: int


def perplexity(
    logits: Callable[[Sequence[int]], np.ndarray],
    tokens: Sequence[int],
    *,
    window: int,
    stride: int | None = None,
) -> Perplexity:
    """Return the perplexity of a text, computed in overlapping windows.

    Parameters
    ----------
    logits : callable
        Returns the logits after each token of a text, shape (tokens, vocabulary), for example
        `weft.extras.language.compiler.reference.Reference.logits`.
    tokens : sequence of int
        At least two; the first one is not predicted.
    window : int
        Tokens of a window; at most the model's context.
    stride : int
        Distance of windows, by default half a window. Every token counts once, with at least ``window - stride`` tokens
        before it, except at the start of the text.

    Raises
    ------
    TokenError
        If there are too few tokens, or if window and stride do not fit.
    """
    stride = max(window // 2, 1) if stride is None else stride
    if len(tokens) < 2:
        raise TokenError(f"a perplexity needs two tokens at least; the text has {len(tokens)}")
    if window < 2 or not 0 < stride < window:
        raise TokenError(
            f"the window has {window} tokens and moves by {stride}; it must have two at least, and move by fewer"
        )
    total, counted = 0.0, 1
    for start in range(0, len(tokens), stride):
        window_tokens = tokens[start : start + window]
        # Tokens that an earlier window has counted are context only.
        new_tokens = start + len(window_tokens) - counted
        total += float(_token_losses(logits(window_tokens[:-1]), window_tokens[1:])[-new_tokens:].sum())
        counted += new_tokens
        if counted == len(tokens):
            break
    return Perplexity(math.exp(total / (counted - 1)), counted - 1)


def _token_losses(logits: np.ndarray, targets: Sequence[int]) -> np.ndarray:
    """Return the negative log-likelihoods of tokens: float64 of shape (tokens,)."""
    logits = logits.astype(np.float64)
    logits -= logits.max(axis=-1, keepdims=True)
    target_logits = np.take_along_axis(logits, np.asarray(targets, np.int64)[:, None], axis=-1)[:, 0]
    losses: np.ndarray = np.log(np.exp(logits).sum(axis=-1)) - target_logits
    return losses
