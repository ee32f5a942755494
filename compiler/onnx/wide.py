"""Forms of operators that read or write values of 16 bits.

Handlers of nodes create 8-bit operators. If one reads or writes 16-bit values, this module replaces it. Elements of 16
bits are two planes of bytes (`View.planes`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from weft.compiler.errors import CompileError, NarrowError
from weft.compiler.ir.graph import Add, Conv, DeviceOp, Multiply, Pad, Pool, Rescale
from weft.compiler.ir.layout import fill_planes, split_planes
from weft.compiler.ir.products import Embedding
from weft.compiler.ir.views import Buffer, View
from weft.compiler.ir.windows import Window
from weft.compiler.kernel.evaluate import LIMITS, WideElements
from weft.compiler.kernel.operators import LayerNorm, RowOp
from weft.compiler.kernel.products import RowScale
from weft.compiler.kernel.rows import RowPair
from weft.compiler.kernel.wide import WideConv, WideLayerNorm

OPERATORS = (
    "Add", "AveragePool", "Clip", "Concat", "Conv", "ConvTranspose", "DequantizeLinear", "Div", "Expand", "Flatten",
    "Gather", "Gemm", "GlobalAveragePool", "GlobalMaxPool", "Identity", "LayerNormalization", "MatMul", "Max",
    "MaxPool", "Min", "Mul", "Pad", "RMSNormalization", "Relu", "Reshape", "Resize", "Slice", "Split",
    "Squeeze", "Sub", "Tile", "Transpose", "Unsqueeze",
)  # fmt: skip
"""ONNX operators that accept values of 16 bits."""


def is_wide(view: View) -> bool:
    """Return whether elements of a view have 16 bits, that is, its buffer has a plane for each byte."""
    return view.buffer.shape[0] == 2 * view.shape[0]


def upper_plane(view: View) -> View:
    """Return a view of the upper plane of 16-bit elements."""
    if is_wide(view):
        return view
    n, h, w, c = view.buffer.shape
    buffer = Buffer(view.buffer.name, (2 * n, h, w, c), view.buffer.kind)
    return View(buffer, view.shape, view.y, view.x, view.c, view.step, view.image)


def move_planes(ops: Iterable[DeviceOp]) -> tuple[DeviceOp, ...]:
    """Return operators that only move bytes, once for each plane.

    Raises
    ------
    NarrowError
        If an operator does more than move bytes.
    """
    planes: list[DeviceOp] = []
    for op in ops:
        if isinstance(op, Pad) and op.keeps_values:
            planes += _pad_planes(op)
            continue
        if not _moves(op):
            raise NarrowError(_no_form(op))
        upper = op.map_views(upper_plane)
        lower = upper.map_views(lambda view: view.planes[1])
        if isinstance(op, Conv):  # its zero point fills channels that are not from the input
            high, low = fill_planes(op.y_zero)
            upper, lower = upper.replace(x_zero=high, y_zero=high), lower.replace(x_zero=low, y_zero=low)
        planes += [upper, lower]
    return tuple(planes)


def _moves(op: DeviceOp) -> bool:
    if isinstance(op, Rescale):
        return op.is_identity
    if not isinstance(op, Conv) or op.pool is not None or op.window.kernel != (1, 1):
        return False
    plain = not op.bias.any() and bool((op.scale == 1).all()) and op.x_zero == op.y_zero and op.groups == 1
    ones = bool((op.weight >= 0).all() and (op.weight.sum(axis=(1, 2, 3)) <= 1).all())
    return plain and ones and (op.low, op.high) == (-128, 127)


def widen(op: DeviceOp, *, wide: bool) -> tuple[DeviceOp, ...]:
    """Return the operator's form for inputs of 16 bits where buffers have planes, and with `wide` for such results.

    Clamps of `op` are in units of the result.

    Raises
    ------
    NarrowError
        If there is no such form.
    """
    make = _FORMS.get(type(op))
    if make is None or op.lookup is not None:
        raise NarrowError(_no_form(op))
    forms = _as_tuple(make(op, wide))
    for form in forms:
        try:
            _ = form.kernel if isinstance(form, WideConv | RowOp) else None
        except CompileError as error:
            raise NarrowError(str(error)) from None
    return forms


def _no_form(op: DeviceOp) -> str:
    return f"{op.name!r} has no 16-bit form"


def _result_fields(op: DeviceOp, wide: bool) -> dict[str, Any]:
    dst = upper_plane(op.dst) if wide else op.dst
    return {"name": op.name, "dst": dst, "y_zero": op.y_zero, "clamp": (op.low, op.high), "wide": wide}


def _conv(op: Conv, wide: bool) -> WideConv:
    return WideConv(
        **_result_fields(op, wide), src=op.src, weight=op.weight, bias=op.bias.astype(np.int64), scale=op.scale,
        window=op.window, groups=op.groups, x_zero=op.x_zero, x_wide=is_wide(op.src),
    )  # fmt: skip


def _elements(
    op: Add | Multiply | RowPair, wide: bool, kind: str, scales: tuple[float, float]
) -> WideElements:
    return WideElements(
        **_result_fields(op, wide), a=op.a, b=op.b, kind=kind, a_scale=scales[0], b_scale=scales[1], a_zero=op.a_zero,
        b_zero=op.b_zero, a_wide=is_wide(op.a), b_wide=is_wide(op.b),
    )  # fmt: skip


def _add(op: Add, wide: bool) -> WideElements:
    return _elements(op, wide, "sum", (op.a_scale, op.b_scale))


def _multiply(op: Multiply, wide: bool) -> WideElements:
    return _elements(op, wide, "product", (op.scale, 1.0))


def _pair(op: RowPair, wide: bool) -> WideElements:
    if op.kind not in ("minimum", "maximum") or op.a.shape[3] != op.b.shape[3]:
        raise NarrowError(_no_form(op))
    return _elements(op, wide, op.kind, (op.a_scale, op.b_scale))


def _row_scale(op: RowScale, wide: bool) -> WideElements:
    if op.by != "times" or op.number is None or op.centre or op.weight is not None:
        raise NarrowError(_no_form(op))
    return WideElements(
        **_result_fields(op, wide), a=op.src, b=op.number, kind="product", a_scale=op.scale * op.gain, a_zero=op.x_zero,
        b_zero=op.r_zero, a_wide=is_wide(op.src), b_wide=is_wide(op.number),
    )  # fmt: skip


def _rescale(op: Rescale, wide: bool) -> WideElements | tuple[DeviceOp, ...]:
    if _keeps_wide_values(op, wide):
        return move_planes([op.replace(x_zero=0, y_zero=0, low=-128, high=127)])
    return WideElements(
        **_result_fields(op, wide),
        a=op.src,
        kind="requantise",
        a_scale=op.scale,
        a_zero=op.x_zero,
        a_wide=is_wide(op.src),
    )


def _pad(op: Pad, wide: bool) -> tuple[DeviceOp, ...]:
    if not _keeps_wide_values(op, wide):
        raise NarrowError(_no_form(op))
    return _pad_planes(op)


def _keeps_wide_values(op: Rescale | Pad, wide: bool) -> bool:
    return wide and is_wide(op.src) and op.keeps_values and (op.low, op.high) == LIMITS


def _pad_planes(op: Pad) -> tuple[DeviceOp, ...]:
    bytes_only = op.replace(x_zero=0, y_zero=0, low=-128, high=127).map_views(upper_plane)
    high, low = fill_planes(op.fill)
    return bytes_only.replace(fill=high), bytes_only.map_views(lambda view: view.planes[1]).replace(fill=low)


def _embedding(op: Embedding, wide: bool) -> tuple[DeviceOp, ...]:
    """Return an embedding for each plane, with the table's bytes of that plane."""
    # The rows are quantised at compile time, so each plane is a plain table of bytes.
    upper, lower = split_planes(op.quantise(*LIMITS))
    plain = op.replace(scale=np.ones((1, 1)), y_zero=0, low=-128, high=127, dst=upper_plane(op.dst))
    return plain.replace(values=upper), plain.replace(values=lower, dst=plain.dst.planes[1])


def _layer_norm(op: LayerNorm, wide: bool) -> WideLayerNorm:
    if type(op) is not LayerNorm or op.least or not is_wide(op.src):
        raise NarrowError(_no_form(op))
    fields = {item.name: getattr(op, item.name) for item in dataclasses.fields(op)}
    # `clamp` limits the results; the other two limits are for bytes.
    return WideLayerNorm(**fields | _result_fields(op, wide) | {"low": -128, "high": 127})


def _pool(op: Pool, wide: bool) -> WideConv | tuple[DeviceOp, ...]:
    """Return an average as a depthwise convolution with weights 1, or a maximum as pairwise maxima."""
    if op.kind == "max":
        return tuple(_maxima(op, wide))
    if any(op.window.pad) and not op.include_pad:
        raise NarrowError(_no_form(op))
    channels, taps = op.src.shape[3], op.window.kernel[0] * op.window.kernel[1]
    return WideConv(
        **_result_fields(op, wide), src=op.src, weight=np.ones((channels, *op.window.kernel, 1), np.int16),
        bias=np.zeros(channels, np.int64), scale=np.full(channels, op.scale / taps), window=op.window, groups=channels,
        x_zero=op.x_zero, x_wide=is_wide(op.src),
    )  # fmt: skip


def _maxima(op: Pool, wide: bool) -> Iterator[DeviceOp]:
    """Yield pairwise maxima along rows, then along columns; the last operator requantises."""
    if not is_wide(op.src):
        raise NarrowError(_no_form(op))
    name, src = op.dst.buffer.name, op.src
    if any(op.window.pad):
        n, h, w, c = src.shape
        top, left, bottom, right = op.window.pad
        src = wide_buffer(f"{name}/padded", (n, h + top + bottom, w + left + right, c))
        # The least value never changes a maximum.
        around = Pad(f"{op.name}/padded", op.src, src, Window(pad=op.window.pad), LIMITS[0])
        yield from _pad_planes(around)
    for axis in (1, 0):
        taps = [_window_tap(src, op, axis, place) for place in range(op.window.kernel[axis])]
        src = taps[0]
        for place, tap in enumerate(taps[1:], 1):
            maximum = wide_buffer(f"{name}/{'rows' if axis else 'columns'}{place}", tap.shape)
            yield WideElements(
                name=f"{op.name}/{'rows' if axis else 'columns'}{place}", a=src, b=tap, dst=maximum, kind="maximum",
                a_wide=True, b_wide=True, wide=True,
            )  # fmt: skip
            src = maximum
    last = Rescale(op.name, src, op.dst, op.scale, op.x_zero, op.y_zero, op.low, op.high)
    yield from _as_tuple(_rescale(last, wide))


def wide_buffer(name: str, shape: tuple[int, int, int, int]) -> View:
    """Return a view of a new 16-bit buffer."""
    return upper_plane(View(Buffer(name, shape), shape))


def _window_tap(view: View, op: Pool, axis: int, place: int) -> View:
    """Return the elements at one position of all windows, along columns (axis 1) or rows (0)."""
    first, stride = place * op.window.dilation[axis], op.window.stride[axis]
    shape, step = list(view.shape), list(view.step)
    shape[1 + axis] = op.dst.shape[1 + axis]
    at = [view.y, view.x]
    at[axis] += first * step[axis]
    step[axis] *= stride if shape[1 + axis] > 1 else 1
    n, h, w, c = shape
    return dataclasses.replace(view, shape=(n, h, w, c), y=at[0], x=at[1], step=(step[0], step[1]))


def _as_tuple(ops: DeviceOp | tuple[DeviceOp, ...]) -> tuple[DeviceOp, ...]:
    return ops if isinstance(ops, tuple) else (ops,)


_FORMS: dict[type[DeviceOp], Callable[..., DeviceOp | tuple[DeviceOp, ...]]] = {
    Add: _add, Conv: _conv, Embedding: _embedding, LayerNorm: _layer_norm, Multiply: _multiply, Pad: _pad, Pool: _pool,
    Rescale: _rescale,
    RowPair: _pair, RowScale: _row_scale,
}  # fmt: skip
"""16-bit form of each kind of operator."""
