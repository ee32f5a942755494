"""Masks of attention that are known when the model runs: some keys, the same for all queries and heads, take no part.

The device's attention masks by lengths and diagonals that are constant. Other masks become elements of queries and
keys: behind those of the model every query has elements of one value, and every key the zero point, or, if it is
masked, what is farthest from it. So the products with masked keys are lower than all others by a constant, which is
chosen such that they have no weight whatever the int8 values of queries and keys are.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np

from weft.compiler.ir.graph import Buffer, Conv, DeviceOp, Rescale, View
from weft.compiler.ir.layout import Layout, Shape4
from weft.compiler.ir.scales import SCORE_REACH, product_ends
from weft.compiler.onnx.qdq import Activation, Quant, Recipe, Tensor
from weft.compiler.onnx.reorder import to_layout

MAX_ELEMENTS = 1024
"""Elements that a mask may add to a head."""
_GAIN = 128
"""What takes each step of a mask to the end of the range of int8."""


@dataclass(frozen=True)
class KeyMask:
    """What is added to the scores of each key: an activation of shape (images or 1, 1, 1, keys)."""

    activation: Activation
    shape: tuple[int, ...]

    @classmethod
    def of(cls, activation: Activation, keys: int) -> KeyMask:
        """The mask of so many keys that an activation is."""
        return cls(activation, (math.prod(activation.tensor.layout.shape) // keys, 1, 1, keys))

    @property
    def images(self) -> int:
        return self.shape[0]

    @property
    def keys(self) -> int:
        return self.shape[-1]

    def tensor(self) -> Tensor | None:
        """The mask with keys as pixels of one channel; None if it cannot be laid out so."""
        layout = Layout(self.shape, (0, 1, 2, 3), (self.images, 1, self.keys, 1))
        return to_layout(self.activation.tensor, layout)


def is_mask(quant: Quant) -> bool:
    """Whether values leave scores as they are or lower them so far that they have no weight: 0 is the largest."""
    return quant.zero == 127 and quant.bits == 8 and quant.scale >= SCORE_REACH


@dataclass(frozen=True)
class Extension:
    """The elements behind those of a head: how many there are, and the bytes of queries and of masked keys."""

    size: int
    query: int
    key: int


def extension(q: Quant, k: Quant, size: int, nats: float) -> Extension | None:
    """What masks keys for certain; `nats` are those of a product of integers, of which `size` make a score.

    None if it would be more than `MAX_ELEMENTS` elements.
    """
    ways = ((127, -128), (-128, 127))
    query, key = min(ways, key=lambda way: (way[0] - q.zero) * (way[1] - k.zero))
    lowered = -(query - q.zero) * (key - k.zero) * nats
    low, high = product_ends(q.zero, k.zero)
    apart = (high - low) * size * nats + SCORE_REACH
    if lowered <= 0 or apart > MAX_ELEMENTS * lowered:
        return None
    return Extension(math.ceil(apart / lowered), query, key)


@dataclass(frozen=True, eq=False)
class Heads:
    """Queries or keys as attention reads them: in one of the two shapes of `weft.compiler.ir.graph.Attention`."""

    tensor: Tensor
    shape: Shape4
    quant: Quant
    images: int
    heads: int

    @property
    def size(self) -> int:
        """Elements of a head."""
        return self.shape[0] * self.shape[3] // (self.images * self.heads)

    def extended(self, behind: str, more: int) -> tuple[Tensor, Shape4, list[DeviceOp]]:
        """A tensor of the same heads with `more` elements each, its shape, and the copy of what there is."""
        n, _, rows, channels = self.shape
        across = channels // self.size
        name = f"{self.tensor.storage}:{more} elements for {behind}"
        shape = (n, 1, rows, across * (self.size + more))
        layout = Layout(shape, (0, 1, 2, 3), shape)
        tensor = Tensor(name, name, layout, layout, self.tensor.unsigned, from_host=False)
        whole = self.tensor.view((n, rows, across, self.size))
        copy = Rescale(f"{name}.heads", whole, self.part(tensor, more, 0, self.size))
        return tensor, shape, [copy]

    def part(self, tensor: Tensor, more: int, first: int, count: int) -> View:
        """Elements of all heads of an extended tensor."""
        n, _, rows, channels = self.shape
        across = channels // self.size
        buffer = Buffer(tensor.storage, (n, rows, across, self.size + more))
        return View(buffer, (n, rows, across, count), c=first)


def masked_queries(q: Heads, ext: Extension, mask: Tensor) -> tuple[Tensor, Shape4]:
    """Queries with the elements that go with a mask."""
    tensor, shape, ops = q.extended(mask.storage, ext.size)
    n, _, rows, channels = q.shape
    for first in range(0, ext.size, q.size):
        count = min(q.size, ext.size - first)
        buffer = Buffer(q.tensor.storage, (n, rows, channels // q.size, q.size))
        source = View(buffer, (n, rows, channels // q.size, count))
        target = q.part(tensor, ext.size, q.size + first, count)
        # Whatever is read is clamped to the one value.
        ops.append(Rescale(f"{tensor.storage}.{first}", source, target, low=ext.query, high=ext.query))
    return _made(tensor, ops, (q.tensor,)), shape


def masked_keys(k: Heads, ext: Extension, mask: KeyMask, given: Tensor) -> tuple[Tensor, Shape4]:
    """Keys with the elements of a mask, of which `given` is the tensor."""
    tensor, shape, ops = k.extended(given.storage, ext.size)
    spread = _spread(mask, given, ext, k.heads)
    n, _, rows, channels = k.shape
    across = channels // k.size
    whole = Buffer(tensor.storage, (1, n * rows, across, k.size + ext.size))
    source = Buffer(spread.storage, (1, mask.images * rows, k.heads, ext.size))
    # Images and rows are one axis, of which a copy takes what has the same mask, or one head.
    count = n * rows if across == k.heads and mask.images == k.images else rows
    for index, first in enumerate(range(0, n * rows, count)):
        image = index // (n // k.images)
        size = (1, count, across, ext.size)
        read = View(source, size, y=image % mask.images * rows)  # all heads have the same
        target = View(whole, size, y=first, c=k.size)
        # Twice the end of the range, so that it is reached whatever the zero point is.
        ops.append(Rescale(f"{tensor.storage}.{index}", read, target, 2.0, 0, k.quant.zero))
    return _made(tensor, ops, (k.tensor, spread)), shape


def _made(tensor: Tensor, ops: list[DeviceOp], inputs: tuple[Tensor, ...]) -> Tensor:
    via = tuple(dict.fromkeys(index for item in inputs for index in item.via))
    return dataclasses.replace(tensor, recipe=Recipe(tensor, tuple(ops), inputs, via, ()))


def _spread(mask: KeyMask, given: Tensor, ext: Extension, heads: int) -> Tensor:
    """0 for keys that take part and the end of the range for others, for each head and element of an extension."""
    count = heads * ext.size
    name = f"{given.storage}:{count} of {ext.key}"
    shape = (mask.images, 1, mask.keys, count)
    layout = Layout(shape, (0, 1, 2, 3), shape)
    tensor = Tensor(name, name, layout, layout, unsigned=False, from_host=False)
    weight = np.full((count, 1, 1, 1), -_GAIN if ext.key > 0 else _GAIN, np.int16)
    op = Conv(
        name,
        given.view((mask.images, 1, mask.keys, 1)),
        View(Buffer(name, shape), shape),
        weight,
        np.zeros(count, np.int32),
        np.ones(count),
        x_zero=mask.activation.quant.zero,
    )
    return _made(tensor, [op], (given,))
