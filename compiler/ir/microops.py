"""What every graph operator means: a few lines of micro-ops, and a small numpy interpreter that runs them.

Values are integer arrays whose axes have names, like the letters of an einsum: ``n h w c`` for an image, ``y x`` for
the rows and columns of a window, ``g`` for groups and ``o`` for outputs of a group. There are four micro-ops:

- `reindex` builds an array by reading another at computed coordinates, with a fill value where they are out of range;
- `elementwise` combines arrays, matched by axis name;
- `reduce` sums or takes the maximum over axes;
- `select` chooses by a condition.

Requantisation is the fixed-point arithmetic of `weft.hdl.isa.Vec`, so the results equal the device's bit for bit.
Attention and softmax are the exception: what the device computes depends on the size of its array, and the results
here are the float64 reference of `weft.compiler.ir.reference` (`exact` tells).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from weft.compiler.ir.graph import (
    Add,
    Attention,
    Conv,
    DeviceOp,
    DeviceSegment,
    Pool,
    Rescale,
    Softmax,
    View,
    Window,
    sources,
)
from weft.compiler.ir.reference import attention, softmax
from weft.compiler.ir.scales import quantise_pair, quantise_scale


@dataclass(frozen=True, eq=False)
class Value:
    """An integer array with one letter an axis."""

    array: np.ndarray
    axes: str

    def size(self, axis: str) -> int:
        return self.array.shape[self.axes.index(axis)]

    def spread(self, axes: str) -> np.ndarray:
        """The array with `axes` in this order, missing ones of size 1."""
        present = [axis for axis in axes if axis in self.axes]
        moved = self.array.transpose([self.axes.index(axis) for axis in present])
        return moved[tuple(slice(None) if axis in self.axes else None for axis in axes)]


def reindex(source: Value, axes: str, coordinates: dict[str, Value], fill: int = 0) -> Value:
    """``result[axes] = source[coordinates]``; `coordinates` gives an index for each axis of the source.

    Axes of the source that are not in `coordinates` are kept under their name.
    """
    grids, valid = [], np.ones((1,) * len(axes), bool)
    for axis in source.axes:
        size = source.size(axis)
        index = coordinates[axis].spread(axes) if axis in coordinates else iota(axis, size).spread(axes)
        valid = valid & (index >= 0) & (index < size)
        grids.append(np.clip(index, 0, size - 1))
    read = source.array[tuple(grids)]
    return Value(read if valid.all() else np.where(valid, read, fill), axes)


def iota(axis: str, size: int) -> Value:
    """0, 1, 2, ... along one axis."""
    return Value(np.arange(size, dtype=np.int64), axis)


def elementwise(function: Callable[..., np.ndarray], *values: Value) -> Value:
    """A function of arrays that are matched by axis name and broadcast."""
    axes = "".join(dict.fromkeys("".join(value.axes for value in values)))
    return Value(function(*(value.spread(axes) for value in values)), axes)


def reduce(kind: str, value: Value, axes: str) -> Value:
    """The sum ("add") or maximum ("maximum") over `axes`."""
    function = {"add": np.add, "maximum": np.maximum}[kind]
    kept = "".join(axis for axis in value.axes if axis not in axes)
    return Value(function.reduce(value.array, axis=tuple(value.axes.index(axis) for axis in axes)), kept)


def product_sum(a: Value, b: Value, axes: str) -> Value:
    """``reduce("add", elementwise(multiply, a, b), axes)`` without the intermediate array.

    Products and sums below 2**53 are exact in float64, which is much faster than int64.
    """
    kept = "".join(dict.fromkeys(axis for axis in a.axes + b.axes if axis not in axes))
    result = np.einsum(
        f"{a.axes},{b.axes}->{kept}", a.array.astype(np.float64), b.array.astype(np.float64), optimize=True
    )
    return Value(result.astype(np.int64), kept)


def select(condition: Value, yes: Value, no: Value) -> Value:
    """`yes` where the condition holds, else `no`."""
    return elementwise(np.where, condition, yes, no)


def scalar(value: int) -> Value:
    return Value(np.asarray(value, np.int64), "")


def wrap32(value: Value) -> Value:
    """Modulo 2**32, as int32."""
    return elementwise(lambda x: ((x + (1 << 31)) & 0xFFFFFFFF) - (1 << 31), value)


def divide_half_even(value: Value, shift: Value) -> Value:
    """``round_half_even(value / 2**shift)``, exactly."""
    floor = elementwise(lambda p, s: p >> s, value, shift)
    rest = elementwise(lambda p, s, q: p - (q << s), value, shift, floor)
    half = elementwise(lambda s: np.where(s > 0, np.int64(1) << np.maximum(s - 1, 0), 1), shift)
    odd = elementwise(lambda q: q & 1, floor)
    up = elementwise(lambda r, h, o: (r > h) | ((r == h) & (o == 1)), rest, half, odd)
    return select(up, elementwise(lambda q: q + 1, floor), floor)


def clamp(value: Value, op: DeviceOp) -> Value:
    """Zero point and clamp."""
    return elementwise(lambda q: np.clip(q + op.y_zero, op.low, op.high), value)


def window_of(x: Value, window: Window, out: tuple[int, int], fill: int) -> Value:
    """The elements of each window: axes ``n h w y x`` and the channel axes of `x`."""
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
    rest = "".join(axis for axis in x.axes if axis not in "nhw")
    return reindex(x, "nhwyx" + rest, {"h": rows, "w": columns}, fill)


def requantise(value: Value, scale: np.ndarray | float, axes: str, op: DeviceOp, bits: int) -> Value:
    """The accumulator `value` times `scale` (one per element of `axes`), rounded, with zero point and clamp."""
    pairs = [quantise_scale(float(item), bits) for item in np.atleast_1d(scale).reshape(-1)]
    shape = np.shape(scale)
    mantissa = Value(np.array([pair[0] for pair in pairs], np.int64).reshape(shape), axes)
    shift = Value(np.array([pair[1] for pair in pairs], np.int64).reshape(shape), axes)
    return clamp(divide_half_even(elementwise(np.multiply, wrap32(value), mantissa), shift), op)


def conv(op: Conv, values: Sequence[Value], bits: int) -> Value:
    """Sum of products over the window and the channels of a group, bias, requantisation, maximum over the pool, and
    what comes then."""
    x = values[0]
    out, kh, kw, cin = op.weight.shape
    _, h, w, _ = op.src.shape
    weight = Value(op.weight.astype(np.int64).reshape(op.groups, out // op.groups, kh, kw, cin), "goyxi")
    groups = elementwise(lambda g, i: g * cin + i, iota("g", op.groups), iota("i", cin))
    centred = elementwise(lambda v: v - op.x_zero, x)
    grouped = reindex(centred, "nhwgi", {"c": groups})
    acc = product_sum(window_of(grouped, op.window, op.window.output(h, w), 0), weight, "yxi")
    split = {"g": elementwise(lambda c: c // (out // op.groups), iota("c", out))}
    split["o"] = elementwise(lambda c: c % (out // op.groups), iota("c", out))
    acc = reindex(acc, "nhwc", split)
    acc = elementwise(np.add, acc, Value(op.bias.astype(np.int64), "c"))
    q = requantise(acc, op.scale, "c", op, bits)
    if op.pool is not None:
        q = reduce("maximum", window_of(q, op.pool, op.dst.shape[1:3], -128), "yx")
    if isinstance(op.then, Add):
        return add(op.then, q, values[1], bits)
    return q if op.then is None else rescale(op.then, q, bits)


def pool(op: Pool, x: Value, bits: int) -> Value:
    """Maximum, or sum divided by the number of elements, over each window."""
    out = (op.dst.shape[1], op.dst.shape[2])
    if op.kind == "max":
        most = reduce("maximum", window_of(x, op.window, out, -(1 << 31)), "yx")
        return requantise(elementwise(lambda v: v - op.x_zero, most), op.scale, "", op, bits)
    centred = elementwise(lambda v: v - op.x_zero, x)
    total = reduce("add", window_of(centred, op.window, out, 0), "yx")
    ones = elementwise(np.ones_like, centred)
    counts = reduce("add", window_of(ones, op.window, out, int(op.include_pad)), "yx")
    number = np.maximum(counts.array[0, :, :, 0], 1)  # a window may lie in the padding
    return requantise(total, op.scale / number, "hw", op, bits)


def add(op: Add, a: Value, b: Value, bits: int) -> Value:
    """Both operands times their mantissas at a common shift."""
    a_mantissa, b_mantissa, shift = quantise_pair(op.a_scale, op.b_scale, bits)
    total = elementwise(lambda p, q: (p - op.a_zero) * a_mantissa + (q - op.b_zero) * b_mantissa, a, b)
    return clamp(divide_half_even(total, scalar(shift)), op)


def rescale(op: Rescale, x: Value, bits: int) -> Value:
    return requantise(elementwise(lambda v: v - op.x_zero, x), op.scale, "", op, bits)


def exact(segment: DeviceSegment) -> bool:
    """Whether `run_ops` gives the device's bytes: not if there is attention or softmax, which it does in float64."""
    return not any(isinstance(op, Attention | Softmax) for op in segment.ops)


def evaluate(op: DeviceOp, given: tuple[np.ndarray, ...], bits: int = 24) -> np.ndarray:
    """An operator's output (int8, shape of `op.dst`) for the contents of its source views.

    `bits` is the width of requantisation mantissas (`weft.hdl.isa.config.Config.mantissa_bits`).
    """
    if isinstance(op, Attention):
        return attention(op, *given)
    if isinstance(op, Softmax):
        return softmax(op, *given)
    values = [Value(source.astype(np.int64), "nhwc") for source in given]
    if isinstance(op, Conv):
        value = conv(op, values, bits)
    elif isinstance(op, Pool):
        value = pool(op, values[0], bits)
    elif isinstance(op, Add):
        value = add(op, values[0], values[1], bits)
    else:
        value = rescale(op, values[0], bits)
    return value.spread("nhwc").astype(np.int8)


def run_ops(segment: DeviceSegment, inputs: dict[str, np.ndarray], bits: int = 24) -> dict[str, np.ndarray]:
    """Run a device segment on the contents of its input buffers.

    `inputs` maps buffer names to int8 arrays; the result maps the names of all buffers (those, "temp" and "output"
    ones) to their contents, flat. They are the device's bytes if `exact` says so; otherwise attention and softmax may
    be a few levels off, and what is computed from them more.
    """
    memory = {name: np.ascontiguousarray(value).reshape(-1).copy() for name, value in inputs.items()}
    for op in segment.ops:
        target = memory.setdefault(op.dst.buffer.name, np.zeros(op.dst.buffer.size, np.int8))
        _box(target, op.dst)[...] = evaluate(
            op, tuple(_box(memory[view.buffer.name], view) for view in sources(op)), bits
        )
    return memory


def _box(memory: np.ndarray, view: View) -> np.ndarray:
    """A view's elements, writable, in the flat contents of its buffer."""
    _, h, w, c = view.shape
    whole = memory.reshape(view.buffer.shape)
    return whole[:, view.y : view.y + h, view.x : view.x + w, view.c : view.c + c]
