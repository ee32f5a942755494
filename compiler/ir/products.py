"""Device operators whose second operand is no weight: matrix products of activations, and embeddings."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

import numpy as np

from weft.compiler.errors import CompileError
from weft.compiler.ir.graph import Attention, DeviceOp, Softmax
from weft.compiler.ir.scales import causal
from weft.compiler.ir.views import View
from weft.hdl.isa import PAGE_ENTRY

Counts = tuple[int, int]
"""Images, and heads per image."""


@dataclass(frozen=True, eq=False)
class Product(DeviceOp):
    """Matrix product of activations A and B, for each head of each image::

        sum = sum_k (a[i, k] - a_zero) * (b[k, j] - b_zero)
        q   = sat(round_half_even(sum * scale) + y_zero), clamped to [low, high]

    With `transposed`, B is stored as b[j, k]: a row for each column of the result. With `a_transposed`, A is stored
    as a[k, i]: a row for each element of the contraction.

    Heads lie side by side in the channels, shape (images, 1, rows, heads * size), or one after the other as images,
    shape (images * heads, 1, rows, size); operands may differ in this. `counts` are the images and heads of the
    result. An operand may have fewer: 1 image for all, or one head for several consecutive heads.
    """

    name: str
    a: View
    b: View
    dst: View
    counts: Counts
    a_counts: Counts
    b_counts: Counts
    transposed: bool = False
    scale: float = 1.0
    a_zero: int = 0
    b_zero: int = 0
    y_zero: int = 0
    low: int = -128
    high: int = 127
    a_transposed: bool = False

    @property
    def sources(self) -> tuple[View, ...]:
        return self.a, self.b

    @property
    def rows(self) -> int:
        """Rows of the result."""
        return _width(self.a, self.a_counts) if self.a_transposed else self.a.shape[2]

    @property
    def depth(self) -> int:
        """Elements of the contraction."""
        return self.a.shape[2] if self.a_transposed else _width(self.a, self.a_counts)

    @property
    def columns(self) -> int:
        """Columns of the result."""
        return self.b.shape[2] if self.transposed else _width(self.b, self.b_counts)

    @property
    def macs(self) -> int:
        return prod(self.counts) * self.rows * self.depth * self.columns

    def place(self, counts: Counts, image: int, head: int) -> Counts:
        """Return the image and head of an operand with `counts` that belong to a matrix of the result."""
        return image % counts[0], head * counts[1] // self.counts[1]


def _width(view: View, counts: Counts) -> int:
    """Return the elements in a row of one matrix of an operand."""
    n, h, w, c = view.shape
    return n * h * w * c // (prod(counts) * w)


INDICES = ("int32", "int64")
"""Types of indices."""
_BLOCK = 1 << 22
"""Elements of a table to quantise at a time."""


@dataclass(frozen=True)
class RowIndices:
    """Row indices of type `dtype` that the host stores as 32-bit byte offsets of rows.

    The table has `rows` rows of `pitch` bytes; negative indices count from the end.
    """

    dtype: str
    rows: int
    pitch: int

    def offsets(self, name: str, value: np.ndarray) -> np.ndarray:
        """Return the byte offsets of the indices of a value called `name`, int8 (1, 1, count, 4).

        Raises
        ------
        CompileError
            If an index has no row.
        """
        # Check here: on the device a wrong index would read other memory.
        wrong = np.argwhere((value < -self.rows) | (value >= self.rows))
        if len(wrong):
            at = tuple(wrong[0].tolist())
            raise CompileError(
                f"{name!r} has index {value[at]} at {list(at)}, but the table has {self.rows:,} rows"
            )
        rows = np.where(value < 0, value.astype(np.int64) + self.rows, value)
        return (rows * self.pitch).astype("<u4").reshape(-1).view(np.int8).reshape(1, 1, -1, PAGE_ENTRY)


@dataclass(frozen=True, eq=False)
class Embedding(DeviceOp):
    """Row look-up: q = sat(round_half_even(values[index] * scale) + y_zero), clamped to [low, high], for each index.

    `values` are numbers (rows, columns), and `scale` float64 broadcasts to them. All rows are known at compile time:
    memory holds `content`, and the device moves rows. `src` is a buffer of kind "table", shape (1, 1, count, 4). For
    each row of `dst`, (1, 1, count, columns), it has the little-endian 32-bit byte offset in `content`.
    """

    name: str
    src: View
    dst: View
    values: np.ndarray
    scale: np.ndarray
    y_zero: int = 0
    low: int = -128
    high: int = 127

    def quantise(self, least: int = -128, most: int = 127) -> np.ndarray:
        """Return the rows as integers from `least` to `most`, int16 (rows, columns)."""
        rows, columns = self.values.shape
        rows_quantised = np.empty(self.values.shape, np.int16)
        scale = np.broadcast_to(self.scale, self.values.shape)
        low, high = max(self.low, least), min(self.high, most)
        step = max(1, _BLOCK // columns)
        for first in range(0, rows, step):
            part = slice(first, first + step)
            rows_quantised[part] = np.clip(np.rint(self.values[part] * scale[part]) + self.y_zero, low, high)
        return rows_quantised

    @cached_property
    def content(self) -> np.ndarray:
        """Rows as stored in memory, int8."""
        return self.quantise().astype(np.int8)


def attention(op: Attention, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return the output of attention without pages, int8 of the shape of `op.dst`."""
    return quantise(op, unrounded_attention(op, q, k, v))


def unrounded_attention(op: Attention, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return attention's output before rounding, zero point and clamp: float64, in steps of the output."""
    if op.page:
        raise ValueError(f"{op.name}: pages are only known on the device")
    queries = split_heads(q, op.images, op.heads) - op.q_zero
    group = op.heads // op.kv_heads
    keys, values = (
        np.repeat(split_heads(array, op.images, op.kv_heads) - zero, group, axis=1)
        for array, zero in ((k, op.k_zero), (v, op.v_zero))
    )
    scores = queries @ keys.swapaxes(2, 3)
    if op.rounding is not None:
        to = op.rounding
        scores = np.clip(np.rint(scores * to.scale), to.low - to.zero, to.high - to.zero)
    # Softmax in float64: the device's bytes differ by a few levels (`is_exact`).
    result = probabilities(scores * op.score_scale, visible_keys(op)[:, None]) @ values
    if op.dst.shape[0] == op.images and op.dst.shape[3] == op.heads * op.v_size:
        result = result.transpose(0, 2, 1, 3)
    return (result * op.scale).reshape(op.dst.shape)


def softmax(op: Softmax, x: np.ndarray) -> np.ndarray:
    """Return the output of softmax over the channels, int8."""
    scores = (x.astype(np.float64) - op.x_zero) * op.score_scale
    return quantise(op, probabilities(scores, np.ones(1, bool)) * op.scale)


def split_heads(array: np.ndarray, images: int, heads: int) -> np.ndarray:
    """Return an operand, whose heads are channels or images, as float64 (images, heads, rows, size)."""
    rows = array.shape[2]
    if array.shape[0] == images:
        return array.reshape(images, rows, heads, -1).transpose(0, 2, 1, 3).astype(np.float64)
    return array.reshape(images, heads, rows, -1).astype(np.float64)


def visible_keys(op: Attention) -> np.ndarray:
    """Return which keys each query of each image sees: bool (images, queries, keys)."""
    queries, keys = op.q.shape[2], op.k.shape[2]
    below = np.arange(keys) < np.array(op.lengths)[:, None, None]
    return below & (causal(queries, keys, op.offset) if op.causal else np.ones((queries, 1), bool))


def probabilities(scores: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Return the softmax over the unmasked elements of the last axis; zeros where all are masked."""
    mask = np.broadcast_to(mask, scores.shape)
    most = np.max(scores, axis=-1, keepdims=True, where=mask, initial=-np.inf)
    powers = np.exp(np.where(mask, scores - np.where(np.isfinite(most), most, 0), -np.inf))
    return powers / np.maximum(powers.sum(-1, keepdims=True), np.finfo(np.float64).tiny)


def quantise(op: Attention | Softmax, values: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(values) + op.y_zero, op.low, op.high).astype(np.int8)
