"""Attention as models describe it: masks that are numbers for the device, and heads that lie as it takes them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from weft.compiler.ir.layout import Layout, Shape4
from weft.compiler.ir.masks import causal
from weft.compiler.onnx.key_masks import KeyMask
from weft.compiler.onnx.model import Model
from weft.compiler.onnx.qdq import Activation, Tensor
from weft.compiler.onnx.reorder import placed

MASKED = -9999.0
"""Scores that a float mask lowers by this much have no weight; the -10000 of many models, rounded by a quantiser."""
PASSING = ("QuantizeLinear", "DequantizeLinear", "Identity", "Mul", "Div", "Relu", "Clip")
"""Operators that leave the order of elements as it is."""

Find = Callable[[Tensor, Layout], Tensor | None]
"""A tensor in a layout, None if it cannot be: `Tensor.arranged`, or `placed`."""


@dataclass(frozen=True)
class Mask:
    """Keys below ``lengths[image]``, and if `causal` query i sees those up to ``i + offset``."""

    lengths: tuple[int, ...]
    causal: bool
    offset: int

    def allowed(self, queries: int, keys: int) -> np.ndarray:
        """bool (images, queries, keys)."""
        key = np.arange(keys)
        below = np.broadcast_to(
            key < np.array(self.lengths)[:, None, None], (len(self.lengths), queries, keys)
        )
        return below & causal(queries, keys, self.offset) if self.causal else below


def mask_of(floats: np.ndarray) -> np.ndarray | None:
    """The keys that an additive mask allows; None if it holds anything but 0 and values of `MASKED` or less."""
    allowed = floats == 0
    return allowed if (allowed | (floats <= MASKED)).all() else None


def recognise(allowed: np.ndarray) -> Mask | None:
    """The lengths and the diagonal that a mask of shape (images, queries, keys) consists of; None if it is another."""
    _, queries, keys = allowed.shape
    counts = allowed.sum(2)
    lengths = counts.max(1)
    rows = np.arange(queries)[None, :]
    # Of a causal mask, rows that end before the length tell the offset, all others bound it.
    least = np.where(counts > 0, counts - 1 - rows, -queries)
    most = np.where(counts < lengths[:, None], counts - 1 - rows, keys)
    low, high = int(least.max()), int(most.min())
    found = Mask(tuple(int(length) for length in lengths), bool((counts < lengths[:, None]).any()), low)
    if not found.causal:
        found = Mask(found.lengths, False, 0)
    elif low > high:
        return None
    return found if np.array_equal(found.allowed(queries, keys), allowed) else None


@dataclass(frozen=True)
class Operand:
    """Queries, keys or values: an activation, and the order of its value's axes.

    `axes` are i (image), h (head), s (row) and d (element), such as "ihsd" for heads that are a dimension.
    """

    activation: Activation
    axes: str
    rows: int
    size: int

    def arranged(self, images: int, heads: int, find: Find) -> tuple[Tensor, Shape4] | None:
        """The tensor in a layout of `weft.compiler.ir.graph.Attention` that `find` gives, and its shape there; None if
        it is in none."""
        tensor = self.activation.tensor
        layouts = [
            heads_layout(self.axes, order, images, heads, self.rows, self.size) for order in ("ishd", "ihsd")
        ]
        for layout in sorted(layouts, key=lambda layout: not tensor.layout.same(layout)):
            found = find(tensor, layout)
            if found is not None:
                return found, layout.nhwc
        return None


def heads_layout(axes: str, order: str, images: int, heads: int, rows: int, size: int) -> Layout:
    """The layout of a value with `axes`: heads as channels for `order` "ishd", as images for "ihsd"."""
    sizes = {"i": images, "h": heads, "s": rows, "d": size}
    nhwc = (images, 1, rows, heads * size) if order == "ishd" else (images * heads, 1, rows, size)
    return Layout(tuple(sizes[axis] for axis in axes), tuple(axes.index(axis) for axis in order), nhwc)


@dataclass(frozen=True, eq=False)
class Problem:
    """An attention of the model.

    `splits` are (images, query heads, key and value heads) it may be seen as, the best first. `allowed` has a shape
    that broadcasts to `full`, whose last two dimensions are queries and keys and whose others are images and heads.
    `key_mask` leaves out further keys when the model runs.
    """

    q: Operand
    k: Operand
    v: Operand
    splits: tuple[tuple[int, int, int], ...]
    allowed: np.ndarray
    full: tuple[int, ...]
    key_mask: KeyMask | None = None

    def masks(self) -> Iterator[tuple[tuple[int, int, int], Mask]]:
        """The splits for which the mask is the same for all heads, and of the device's kind."""
        for split in self.splits:
            images, heads, _ = split
            if self.key_mask is not None and self.key_mask.images not in (1, images):
                continue
            whole = np.broadcast_to(self.allowed, self.full)
            whole = whole.reshape(images, heads, *self.full[-2:])
            mask = recognise(whole[:, 0]) if (whole == whole[:, :1]).all() else None
            if mask is not None:
                yield split, mask

    def solutions(self) -> Iterator[Solution]:
        """Where operands lie as the device takes them, and then where they are brought into such an order."""
        for find, ((images, heads, kv_heads), mask) in itertools.product(
            (Tensor.arranged, placed), self.masks()
        ):
            q = self.q.arranged(images, heads, find)
            k, v = (operand.arranged(images, kv_heads, find) for operand in (self.k, self.v))
            if q is not None and k is not None and v is not None:
                yield Solution(images, heads, kv_heads, mask, (q, k, v))


@dataclass(frozen=True, eq=False)
class Solution:
    """A split of a `Problem` with its mask, and the tensors of queries, keys and values with their shapes."""

    images: int
    heads: int
    kv_heads: int
    mask: Mask
    operands: tuple[tuple[Tensor, Shape4], ...]


def splits(lead: tuple[int, ...]) -> tuple[tuple[int, int, int], ...]:
    """The ways in which leading dimensions can be images and heads: (images, heads) first if there are two."""
    count = math.prod(lead)
    images = [size for size in range(1, count + 1) if count % size == 0]
    if len(lead) == 2:
        images.sort(key=lambda size: size != lead[0])
    return tuple((size, count // size, count // size) for size in images)


def heads_move_behind_rows(model: Model, value: str) -> bool:
    """Whether the only reader of a value (..., heads, rows, size) transposes it to (..., rows, heads, size)."""
    rank = len(model.shapes[value])
    wanted = (*range(rank - 3), rank - 2, rank - 3, rank - 1)
    while len(model.users(value)) == 1:
        (node,) = model.users(value)
        if node.op == "Transpose":
            return tuple(node.attributes.get("perm", ())) == wanted
        if node.op not in PASSING:
            return False
        value = node.outputs[0]
    return False
