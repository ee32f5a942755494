"""Micro-ops: the executable definition of device operators, and a numpy interpreter for it.

Values are integer arrays with named axes, like the letters of an einsum: ``n h w c`` for an image, ``y x`` for the
rows and columns of a window, ``g`` for groups and ``o`` for outputs of a group. There are four micro-ops:

- `reindex` builds an array by reading another at computed coordinates, with a fill value where they are out of range;
- `elementwise` combines arrays, matched by axis name;
- `reduce` sums or takes the maximum over axes;
- `select` chooses by a condition.

Requantisation is the fixed-point arithmetic of `weft.hdl.isa.Vec`, so that results equal the device's bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from weft.compiler.ir.graph import DeviceOp
from weft.compiler.ir.scales import quantise_scales
from weft.compiler.ir.windows import Window


@dataclass(frozen=True, eq=False)
class Value:
    """Integer array with one letter per axis."""

    array: np.ndarray
    axes: str

    @classmethod
    def image(cls, array: np.ndarray) -> Value:
        """Return the contents of a view, (n, h, w, c), as a value."""
        return cls(array.astype(np.int64), "nhwc")

    def int8(self) -> np.ndarray:
        """Return the value as the contents of a view, int8 (n, h, w, c)."""
        return self.spread("nhwc").astype(np.int8)

    def size(self, axis: str) -> int:
        return self.array.shape[self.axes.index(axis)]

    def spread(self, axes: str) -> np.ndarray:
        """Return the array with `axes` in this order, missing axes of size 1."""
        present = [axis for axis in axes if axis in self.axes]
        moved = self.array.transpose([self.axes.index(axis) for axis in present])
        return moved[tuple(slice(None) if axis in self.axes else None for axis in axes)]


def reindex(source: Value, axes: str, coordinates: dict[str, Value], fill: int = 0) -> Value:
    """Return ``source[coordinates]`` over `axes`; `coordinates` has an index for each axis of the source.

    Source axes without coordinates keep their names.
    """
    grids, valid = [], np.ones((1,) * len(axes), bool)
    for axis in source.axes:
        size = source.size(axis)
        index = coordinates[axis].spread(axes) if axis in coordinates else iota(axis, size).spread(axes)
        # Out-of-range elements read a clipped index, and are replaced by `fill` below.
        valid = valid & (index >= 0) & (index < size)
        grids.append(np.clip(index, 0, size - 1))
    read = source.array[tuple(grids)]
    return Value(read if valid.all() else np.where(valid, read, fill), axes)


def iota(axis: str, size: int) -> Value:
    """Return 0, 1, 2, ... along one axis."""
    return Value(np.arange(size, dtype=np.int64), axis)


def elementwise(function: Callable[..., np.ndarray], *values: Value) -> Value:
    """Apply a function to arrays that are matched by axis name and broadcast."""
    axes = "".join(dict.fromkeys("".join(value.axes for value in values)))
    return Value(function(*(value.spread(axes) for value in values)), axes)


def reduce(kind: str, value: Value, axes: str) -> Value:
    """Return the sum ("add") or maximum ("maximum") over `axes`."""
    function = {"add": np.add, "maximum": np.maximum}[kind]
    axes_left = "".join(axis for axis in value.axes if axis not in axes)
    return Value(function.reduce(value.array, axis=tuple(value.axes.index(axis) for axis in axes)), axes_left)


def product_sum(a: Value, b: Value, axes: str) -> Value:
    """Return ``reduce("add", elementwise(multiply, a, b), axes)`` without the intermediate array.

    Products and sums below 2**53 are exact in float64, which is much faster than int64.
    """
    axes_left = "".join(dict.fromkeys(axis for axis in a.axes + b.axes if axis not in axes))
    result = np.einsum(
        f"{a.axes},{b.axes}->{axes_left}",
        a.array.astype(np.float64),
        b.array.astype(np.float64),
        optimize=True,
    )
    return Value(result.astype(np.int64), axes_left)


def select(condition: Value, yes: Value, no: Value) -> Value:
    """Return `yes` where the condition holds, else `no`."""
    return elementwise(np.where, condition, yes, no)


def scalar(value: int) -> Value:
    return Value(np.asarray(value, np.int64), "")


def wrap32(value: Value) -> Value:
    """Return values modulo 2**32, as int32."""
    return elementwise(lambda x: ((x + (1 << 31)) & 0xFFFFFFFF) - (1 << 31), value)


def divide_half_even(value: Value, shift: Value) -> Value:
    """Return ``round_half_even(value / 2**shift)``, exactly."""
    # An arithmetic shift rounds down; then add 1 above one half, and at one half if the floor is odd.
    floor = elementwise(lambda p, s: p >> s, value, shift)
    remainder = elementwise(lambda p, s, q: p - (q << s), value, shift, floor)
    half = elementwise(lambda s: np.where(s > 0, np.int64(1) << np.maximum(s - 1, 0), 1), shift)
    odd = elementwise(lambda q: q & 1, floor)
    up = elementwise(lambda r, h, o: (r > h) | ((r == h) & (o == 1)), remainder, half, odd)
    return select(up, elementwise(lambda q: q + 1, floor), floor)


def clamp(value: Value, op: DeviceOp) -> Value:
    """Add the operator's zero point, and clamp to its range."""
    return elementwise(lambda q: np.clip(q + op.y_zero, op.low, op.high), value)


def apply_lookup(value: Value, op: DeviceOp) -> Value:
    """Apply the operator's look-up table, if it has one."""
    table = op.lookup
    return value if table is None else elementwise(lambda q: table[q + 128].astype(np.int64), value)


def window_of(x: Value, window: Window, out: tuple[int, int], fill: int) -> Value:
    """Return the elements of each window: axes ``n h w y x`` and the channel axes of `x`."""
    rows = elementwise(
        lambda o, k: o * window.stride[0] + k * window.dilation[0] - window.pad[0],
        iota("h", out[0]),
        iota("y", window.kernel[0]),
    )
    columns = elementwise(
        lambda o, k: o * window.stride[1] + k * window.dilation[1] - window.pad[1],
        iota("w", out[1]),
        iota("x", window.kernel[1]),
    )
    other_axes = "".join(axis for axis in x.axes if axis not in "nhw")
    return reindex(x, "nhwyx" + other_axes, {"h": rows, "w": columns}, fill)


def requantise(value: Value, scale: np.ndarray | float, axes: str, op: DeviceOp, bits: int) -> Value:
    """Return sums times `scale` (one per element of `axes`), rounded, with zero point and clamp."""
    mantissa, shift = (Value(item, axes) for item in quantise_scales(scale, bits))
    return clamp(divide_half_even(elementwise(np.multiply, wrap32(value), mantissa), shift), op)
