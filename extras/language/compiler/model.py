"""Data model of a decoder-only transformer with its weights and its vocabulary.

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

Rotation pairs adjacent elements, ``2i`` and ``2i + 1`` of a head's query or key. The rows of `Block.query` and
`Block.key` are in this order, as in GGUF files of architecture ``llama``. PyTorch models often pair elements ``i`` and
``i + dimensions / 2``; `interleave_heads` reorders their rows.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

_END_TEXTS = frozenset({
    "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<turn|>",
    "<end_of_utterance>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "[e~[", "<eos>", "</s>", "<|return|>", "<|call|>",
    "<|calls|>", "<|flush|>", "<|tool_response>", "<\uff5cend\u2581of\u2581sentence\uff5c>",
    # Padding, and the separator of files in code models
    "<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]", "<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>",
    "<reponame>", "<|file_sep|>",
})  # fmt: skip
"""Texts of control tokens that end a turn or a text, from llama.cpp; many files name only one of them by number."""
_PART_ENDS = (
    ("<|end|>", {"<|return|>", "<|call|>"}), ("<|end|>", {"<|calls|>", "<|flush|>"}), ("</s>", {"<|tool_response>"}),
)  # fmt: skip
"""Tokens that end only part of a turn if the vocabulary also has the tokens in the set."""


class Kind(enum.IntEnum):
    """Kind of a token, with GGUF's numbers."""

    NORMAL = 1
    UNKNOWN = 2  # for text that the vocabulary cannot represent
    CONTROL = 3  # no text: the begin or the end of a text, for example
    USER_DEFINED = 4  # text that is always one token
    UNUSED = 5  # takes part in merging, and is split again
    BYTE = 6  # one byte of UTF-8


@dataclass(frozen=True)
class Vocabulary:
    """Tokens, and the rules by which text becomes tokens.

    Attributes
    ----------
    model : str
        ``"llama"``: SentencePiece's merging of characters by scores. ``"gpt2"``: merging of bytes by a list of merges.
    pre : str
        For ``"gpt2"``, the name of the rule that first splits text into words, such as ``"llama-bpe"``.
    tokens : tuple of str
        In ``"llama"`` the character U+2581 stands for a space; in ``"gpt2"`` every byte is written as a character.
    kinds : tuple of Kind
        Kind of each token.
    scores : tuple of float
        Score of each token, higher ones merge first. Only for ``"llama"``.
    merges : tuple of (str, str)
        Pairs that merge, in order of priority. Only for ``"gpt2"``.
    begin, end, unknown : int or None
        Tokens for the begin and the end of a text, and for text that cannot be represented.
    ends : frozenset of int
        All tokens that end a text or a turn: those that the file names, and those of `find_ends`.
    add_begin, add_end : bool
        Whether the tokenizer adds these tokens to texts.
    add_space : bool
        Whether the tokenizer adds a space before a text (``"llama"``).
    """

    model: str
    pre: str
    tokens: tuple[str, ...]
    kinds: tuple[Kind, ...]
    scores: tuple[float, ...] = ()
    merges: tuple[tuple[str, str], ...] = ()
    begin: int | None = None
    end: int | None = None
    unknown: int | None = None
    ends: frozenset[int] = frozenset()
    add_begin: bool = False
    add_end: bool = False
    add_space: bool = False


def find_ends(tokens: Sequence[str], kinds: Sequence[Kind]) -> frozenset[int]:
    """Find the control tokens that end a turn or a text, by their texts.

    Parameters
    ----------
    tokens : sequence of str
    kinds : sequence of Kind
        Kind of each token.
    """
    pairs = enumerate(zip(tokens, kinds, strict=False))
    end_texts = {at: text for at, (text, kind) in pairs if kind is Kind.CONTROL and text in _END_TEXTS}
    texts = set(end_texts.values())
    part_ends = {text for text, others in _PART_ENDS if others <= texts}
    return frozenset(at for at, text in end_texts.items() if text not in part_ends)


@dataclass(frozen=True, eq=False)
class BlockTensor:
    """Matrix of integers in blocks along its rows, each block with a scale and perhaps a minimum.

    Attributes
    ----------
    values : numpy.ndarray of int8, shape (rows, columns)
    scales : numpy.ndarray of float32, shape (rows, columns // block)
        May be negative.
    minimums : numpy.ndarray of float32, shape (rows, columns // block), or None
        Added to the elements of a block.
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
        """Return ``values * scales + minimums``, float32 of shape (rows, columns)."""
        blocks = self.values.reshape(*self.scales.shape, self.block).astype(np.float32)
        blocks *= self.scales[..., None]
        if self.minimums is not None:
            blocks += self.minimums[..., None]
        return blocks.reshape(self.shape)

    def rows(self, start: int, stop: int) -> BlockTensor:
        """Return the rows from `start` up to `stop`."""
        minimums = None if self.minimums is None else self.minimums[start:stop]
        return BlockTensor(self.values[start:stop], self.scales[start:stop], minimums, self.block)


Matrix: TypeAlias = np.ndarray | BlockTensor
"""Float32 matrix of shape (rows, columns), or blocks of integers."""


def dense(matrix: Matrix) -> np.ndarray:
    """Return a matrix as float32, shape (rows, columns)."""
    return matrix.dense() if isinstance(matrix, BlockTensor) else matrix


def rows(matrix: Matrix, start: int, stop: int) -> Matrix:
    """Return the rows of a matrix from `start` up to `stop`."""
    return matrix.rows(start, stop) if isinstance(matrix, BlockTensor) else matrix[start:stop]


def interleave_heads(weight: np.ndarray, heads: int) -> np.ndarray:
    """Reorder the rows of a query or key projection (or its bias) for a rotation of adjacent elements.

    Parameters
    ----------
    weight : numpy.ndarray of shape (heads * length, ...)
        Rows for a rotation that pairs elements ``i`` and ``i + length / 2`` of a head.
    heads : int
        Number of heads.
    """
    halves = weight.reshape(heads, 2, -1, *weight.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(weight.shape))


@dataclass(frozen=True, eq=False)
class Linear:
    """Linear layer ``x @ weight.T + bias``: weight of shape (outputs, inputs), bias float32 (outputs,) or None."""

    weight: Matrix
    bias: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Norm:
    """RMSNorm without a bias, LayerNorm with a bias; both are float32 of shape (width,)."""

    weight: np.ndarray
    bias: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Block:
    """Transformer layer; `gate` is None unless the feed-forward network is SwiGLU."""

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
    """Rotary position embedding of queries and keys.

    Attributes
    ----------
    dimensions : int
        Number of rotated elements at the start of every head, even.
    base : float
        Pair ``i`` rotates by ``base ** (-2 * i / dimensions) / scale / factors[i]`` radians per token.
    scale : float
        Linear scaling.
    factors : numpy.ndarray of float32, shape (dimensions // 2,), or None
        Divisors for each pair; None means 1.
    """

    dimensions: int
    base: float
    scale: float = 1.0
    factors: np.ndarray | None = None

    def angles(self, positions: np.ndarray) -> np.ndarray:
        """Return the angles of pairs in radians: float64 of shape (positions, dimensions // 2)."""
        steps = self.base ** (-np.arange(0, self.dimensions, 2) / self.dimensions) / self.scale
        if self.factors is not None:
            steps = steps / self.factors.astype(np.float64)
        return np.asarray(positions, np.float64)[:, None] * steps


@dataclass(frozen=True)
class Sizes:
    """Sizes that determine all shapes.

    Attributes
    ----------
    context : int
        Largest number of tokens that the model was made for.
    width : int
        Elements of a token's vector.
    blocks : int
        Number of layers.
    heads, key_value_heads : int
        Heads of queries, and of keys and values; each of the latter serves ``heads / key_value_heads`` heads of
        queries.
    key_length, value_length : int
        Elements of a head's query or key, and of its value.
    feed_forward : int
        Elements between the two products of a feed-forward network.
    vocabulary : int
        Number of tokens.
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
    """Language model with weights, vocabulary and chat template.

    Attributes
    ----------
    name : str
        Name in the file; may be empty.
    architecture : str
        ``"llama"`` or ``"gpt2"``.
    epsilon : float
        Added to the variance, or the mean square, in every norm.
    token_embedding : Matrix of shape (vocabulary, width)
    rotary : Rotary or None
    positions : Matrix of shape (context, width), or None
        Added to the token embeddings.
    output : Linear
        From the last norm to logits. Its weight is `token_embedding` itself if the file has no other (`tied`).
    notes : tuple of str
        Sentences about contents of the file that weft does not use.
    chat_template : str
        Jinja template for conversations; empty if the file has none.
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
        """True if the output layer shares the token embedding's weights."""
        return self.output.weight is self.token_embedding
