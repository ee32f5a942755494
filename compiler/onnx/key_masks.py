"""Attention masks that are only known at run time: some keys take no part, equally for all queries and heads.

The device's attention masks only by constant lengths and diagonals. Other masks become additional elements of queries
and keys. Every query gets elements of one value. Keys get their zero point there, or, if they are masked, the value
farthest from it. So products with masked keys are lower by a constant, chosen so that these keys have no weight for any
int8 values.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from weft.compiler.ir.graph import Conv, DeviceOp, Rescale
from weft.compiler.ir.layout import Layout, Shape4
from weft.compiler.ir.scales import SCORE_REACH, product_ends
from weft.compiler.ir.views import Buffer, View
from weft.compiler.onnx.qdq import Activation, Quant, Recipe, Tensor
from weft.compiler.onnx.reorder import to_layout

MAX_ELEMENTS = 1024
"""Most elements that a mask may add to a head."""
_GAIN = 128
"""Factor that takes every step of a mask to the end of int8's range."""


@dataclass(frozen=True)
class KeyMask:
    """Activation that is added to the scores of each key, of shape (images or 1, 1, 1, keys)."""

    activation: Activation
    shape: tuple[int, ...]

    @classmethod
    def of(cls, activation: Activation, keys: int) -> KeyMask:
        """Return an activation as the mask of `keys` keys."""
        return cls(activation, (math.prod(activation.tensor.layout.shape) // keys, 1, 1, keys))

    @property
    def images(self) -> int:
        return self.shape[0]

    @property
    def keys(self) -> int:
        return self.shape[-1]

    def tensor(self) -> Tensor | None:
        """Return the mask with keys as pixels of one channel; None if no layout allows that."""
        layout = Layout(self.shape, (0, 1, 2, 3), (self.images, 1, self.keys, 1))
        return to_layout(self.activation.tensor, layout)


def is_mask(quant: Quant) -> bool:
    """Return whether each value is 0, or lowers a score so far that the key has no weight.

    The zero point must be the largest integer, so that no value is positive.
    """
    return quant.zero == 127 and quant.bits == 8 and quant.scale >= SCORE_REACH


@dataclass(frozen=True)
class Extension:
    """Additional elements of a head: their number, and the bytes of queries and of masked keys."""

    size: int
    query: int
    key: int


def extension(q: Quant, k: Quant, size: int, nats: float) -> Extension | None:
    """Return the extension that masks keys for all int8 values; None if it needs more than `MAX_ELEMENTS` elements.

    `size` products of integers, of `nats` each, make a score.
    """
    # Opposite ends of the range: the product of query and key is then as negative as possible.
    ways = ((127, -128), (-128, 127))
    query, key = min(ways, key=lambda way: (way[0] - q.zero) * (way[1] - k.zero))
    lowered = -(query - q.zero) * (key - k.zero) * nats
    low, high = product_ends(q.zero, k.zero)
    # Masked scores must stay this far below all others.
    apart = (high - low) * size * nats + SCORE_REACH
    if lowered <= 0 or apart > MAX_ELEMENTS * lowered:
        return None
    return Extension(math.ceil(apart / lowered), query, key)


@dataclass(frozen=True, eq=False)
class Heads:
    """Queries or keys of attention, in one of the two shapes of `weft.compiler.ir.graph.Attention`."""

    tensor: Tensor
    shape: Shape4
    quant: Quant
    images: int
    heads: int

    @property
    def size(self) -> int:
        """Elements of a head."""
        return self.shape[0] * self.shape[3] // (self.images * self.heads)

    def extend(self, suffix: str, extra: int) -> tuple[Tensor, Shape4, list[DeviceOp]]:
        """Return a tensor of heads with `extra` more elements each, its shape, and the operator that copies the present
        elements.
        """
        n, _, rows, channels = self.shape
        across = channels // self.size
        name = f"{self.tensor.storage}:{extra} elements for {suffix}"
        shape = (n, 1, rows, across * (self.size + extra))
        layout = Layout(shape, (0, 1, 2, 3), shape)
        tensor = Tensor(name, name, layout, layout, self.tensor.unsigned, from_host=False)
        source = self.tensor.view((n, rows, across, self.size))
        copy = Rescale(f"{name}.heads", source, self.part(tensor, extra, 0, self.size))
        return tensor, shape, [copy]

    def part(self, tensor: Tensor, extra: int, first: int, count: int) -> View:
        """Return elements `first` to `first + count` of all heads of an extended tensor."""
        n, _, rows, channels = self.shape
        across = channels // self.size
        buffer = Buffer(tensor.storage, (n, rows, across, self.size + extra))
        return View(buffer, (n, rows, across, count), c=first)


def masked_queries(q: Heads, ext: Extension, mask: Tensor) -> tuple[Tensor, Shape4]:
    """Return queries with the additional elements of a mask, and their shape."""
    tensor, shape, ops = q.extend(mask.storage, ext.size)
    n, _, rows, channels = q.shape
    for first in range(0, ext.size, q.size):
        count = min(q.size, ext.size - first)
        buffer = Buffer(q.tensor.storage, (n, rows, channels // q.size, q.size))
        source = View(buffer, (n, rows, channels // q.size, count))
        target = q.part(tensor, ext.size, q.size + first, count)
        # The clamp replaces every byte by the query's value.
        ops.append(Rescale(f"{tensor.storage}.{first}", source, target, low=ext.query, high=ext.query))
    return _with_recipe(tensor, ops, (q.tensor,)), shape


def masked_keys(k: Heads, ext: Extension, mask: KeyMask, mask_tensor: Tensor) -> tuple[Tensor, Shape4]:
    """Return keys with the additional elements of a mask, and their shape."""
    tensor, shape, ops = k.extend(mask_tensor.storage, ext.size)
    spread = _spread(mask, mask_tensor, ext, k.heads)
    n, _, rows, channels = k.shape
    across = channels // k.size
    extended = Buffer(tensor.storage, (1, n * rows, across, k.size + ext.size))
    source = Buffer(spread.storage, (1, mask.images * rows, k.heads, ext.size))
    # Images and rows are one axis. A copy covers all rows with one mask.
    count = n * rows if across == k.heads and mask.images == k.images else rows
    for index, first in enumerate(range(0, n * rows, count)):
        image = index // (n // k.images)
        size = (1, count, across, ext.size)
        read = View(source, size, y=image % mask.images * rows)  # heads share the mask
        target = View(extended, size, y=first, c=k.size)
        # The scale 2 reaches the end of the range for every zero point.
        ops.append(Rescale(f"{tensor.storage}.{index}", read, target, 2.0, 0, k.quant.zero))
    return _with_recipe(tensor, ops, (k.tensor, spread)), shape


def _with_recipe(tensor: Tensor, ops: list[DeviceOp], inputs: tuple[Tensor, ...]) -> Tensor:
    via = tuple(dict.fromkeys(index for item in inputs for index in item.via))
    return dataclasses.replace(tensor, recipe=Recipe(tensor, tuple(ops), inputs, via, ()))


def _spread(mask: KeyMask, source: Tensor, ext: Extension, heads: int) -> Tensor:
    """Return 0 for keys that take part, and the end of int8's range for others, per head and additional element."""
    count = heads * ext.size
    name = f"{source.storage}:{count} of {ext.key}"
    shape = (mask.images, 1, mask.keys, count)
    layout = Layout(shape, (0, 1, 2, 3), shape)
    tensor = Tensor(name, name, layout, layout, unsigned=False, from_host=False)
    # The mask is at most its zero point: a large gain saturates all lower values at the key's end of int8.
    weight = np.full((count, 1, 1, 1), -_GAIN if ext.key > 0 else _GAIN, np.int16)
    op = Conv(
        name,
        source.view((mask.images, 1, mask.keys, 1)),
        View(Buffer(name, shape), shape),
        weight,
        np.zeros(count, np.int32),
        np.ones(count),
        x_zero=mask.activation.quant.zero,
    )
    return _with_recipe(tensor, [op], (source,))
