"""What a language model consists of: a decoder-only transformer with its weights and its vocabulary.

A block computes ``x += attention_output(attention(norm(x)))`` and then ``x += feed_forward(norm(x))``. The two
architectures differ in a few fields:

================  =======================================  =====================================
field             ``llama``                                ``gpt2``
================  =======================================  =====================================
norms             RMSNorm: `Norm.bias` is None             LayerNorm with a bias
positions         `LanguageModel.rotary`                   `LanguageModel.positions`, added
feed forward      down(silu(gate(x)) * up(x))              down(gelu(up(x))), `Block.gate` is None
heads             keys and values may have fewer           as many keys and values as queries
================  =======================================  =====================================

Rotation turns neighbours, elements ``2i`` and ``2i + 1`` of a head's queries and keys, together. The rows of
`Block.query` and `Block.key` are in this order, as they are in GGUF files of architecture ``llama``. PyTorch models
often turn element ``i`` with ``i + dimensions / 2``; `interleaved` reorders the rows of those.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from weft.extras.language.compiler.vocabulary import Vocabulary


@dataclass(frozen=True, eq=False)
class BlockTensor:
    """A matrix of integers in blocks along its rows, each block with a scale and perhaps a minimum.

    Attributes
    ----------
    values : numpy.ndarray of int8, shape (rows, columns)
    scales : numpy.ndarray of float32, shape (rows, columns // block)
        They may be negative.
    minimums : numpy.ndarray of float32, shape (rows, columns // block), or None
        What is added to the elements of a block.
    block : int
        Elements that share a scale.
    """

    values: np.ndarray
    scales: np.ndarray
    minimums: np.ndarray | None
    block: int

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)."""
        rows, columns = self.values.shape
        return rows, columns

    def dense(self) -> np.ndarray:
        """``values * scales + minimums``, float32 of shape (rows, columns)."""
        blocks = self.values.reshape(*self.scales.shape, self.block).astype(np.float32)
        blocks *= self.scales[..., None]
        if self.minimums is not None:
            blocks += self.minimums[..., None]
        return blocks.reshape(self.shape)

    def rows(self, start: int, stop: int) -> BlockTensor:
        """The rows from `start` up to `stop`."""
        minimums = None if self.minimums is None else self.minimums[start:stop]
        return BlockTensor(self.values[start:stop], self.scales[start:stop], minimums, self.block)


Matrix: TypeAlias = np.ndarray | BlockTensor
"""float32 of shape (rows, columns), or blocks of integers."""


def dense(matrix: Matrix) -> np.ndarray:
    """The matrix as float32, shape (rows, columns)."""
    return matrix.dense() if isinstance(matrix, BlockTensor) else matrix


def rows(matrix: Matrix, start: int, stop: int) -> Matrix:
    """The rows of a matrix from `start` up to `stop`."""
    return matrix.rows(start, stop) if isinstance(matrix, BlockTensor) else matrix[start:stop]


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """The rows of a query's or key's projection (or its bias) for a rotation of neighbours.

    Parameters
    ----------
    weight : numpy.ndarray of shape (heads * length, ...)
        For a rotation that turns element ``i`` of a head with element ``i + length / 2``.
    heads : int
        How many heads the rows belong to.
    """
    halves = weight.reshape(heads, 2, -1, *weight.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))


@dataclass(frozen=True, eq=False)
class Linear:
    """``x @ weight.T + bias``: a matrix of shape (outputs, inputs), and float32 of shape (outputs,) or None."""

    weight: Matrix
    bias: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Norm:
    """RMSNorm if there is no bias, else LayerNorm: float32 of shape (width,)."""

    weight: np.ndarray
    bias: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Block:
    """One layer. `gate` is None where the feed-forward network is no SwiGLU."""

    attention_norm: Norm
    query: Linear
    key: Linear
    value: Linear
    attention_output: Linear
    feed_forward_norm: Norm
    gate: Linear | None
    up: Linear
    down: Linear


@dataclass(frozen=True, eq=False)
class Rotary:
    """How queries and keys are turned by their position.

    Attributes
    ----------
    dimensions : int
        Elements at the start of every head that are turned; an even number.
    base : float
        Pair ``i`` turns by ``base ** (-2 * i / dimensions)`` from token to token,
    scale : float
        divided by this number (linear scaling),
    factors : numpy.ndarray of float32, shape (dimensions // 2,), or None
        and by the pair's own factor.
    """

    dimensions: int
    base: float
    scale: float = 1.0
    factors: np.ndarray | None = None

    def angles(self, positions: np.ndarray) -> np.ndarray:
        """By how much pairs are turned, in radians: float64 of shape (positions, dimensions // 2)."""
        steps = self.base ** (-np.arange(0, self.dimensions, 2) / self.dimensions) / self.scale
        if self.factors is not None:
            steps = steps / self.factors.astype(np.float64)
        return np.asarray(positions, np.float64)[:, None] * steps


@dataclass(frozen=True)
class Sizes:
    """The numbers that shapes follow from.

    Attributes
    ----------
    context : int
        Most tokens that the model was made for.
    width : int
        Elements of a token's vector.
    blocks : int
        Layers.
    heads, key_value_heads : int
        Heads of queries, and those of keys and values, each of which serves ``heads / key_value_heads`` of queries.
    key_length, value_length : int
        Elements of a head's query or key, and of its value.
    feed_forward : int
        Elements between the two products of a feed-forward network.
    vocabulary : int
        Tokens.
    """

    context: int
    width: int
    blocks: int
    heads: int
    key_value_heads: int
    key_length: int
    value_length: int
    feed_forward: int
    vocabulary: int


@dataclass(frozen=True, eq=False)
class LanguageModel:
    """A language model.

    Attributes
    ----------
    name : str
        As the file calls it; may be empty.
    architecture : str
        ``"llama"`` or ``"gpt2"``.
    epsilon : float
        Added to the variance, or to the mean square, in every norm.
    token_embedding : Matrix of shape (vocabulary, width)
    rotary : Rotary or None
    positions : Matrix of shape (context, width), or None
        Added to the vectors of tokens.
    output : Linear
        From the last norm to logits. Its weight is `token_embedding` itself where the file has no other (`tied`).
    notes : tuple of str
        Sentences about what the file has and weft does not use.
    chat_template : str
        How the messages of a conversation become a text, in the language of Jinja; empty if nobody says.
    """

    name: str
    architecture: str
    sizes: Sizes
    epsilon: float
    token_embedding: Matrix
    rotary: Rotary | None
    positions: Matrix | None
    blocks: tuple[Block, ...]
    output_norm: Norm
    output: Linear
    vocabulary: Vocabulary
    notes: tuple[str, ...] = ()
    chat_template: str = ""

    @property
    def tied(self) -> bool:
        """Whether logits are products with the embeddings of tokens."""
        return self.output.weight is self.token_embedding
