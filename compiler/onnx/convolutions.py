"""Convolutions of the device: products with weights, and constants per channel."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from weft.compiler.ir.graph import Conv, Pad
from weft.compiler.ir.layout import Layout, row_major_layout, spatial
from weft.compiler.ir.views import View
from weft.compiler.ir.windows import Axis, Window, axes
from weft.compiler.machine.target import has_coordinates
from weft.compiler.onnx.operator import NodeContext
from weft.compiler.onnx.qdq import (
    Activation,
    Constant,
    Pending,
    Quant,
    Recipe,
    Symbol,
    Tensor,
    is_conv,
    result,
    result_of,
)
from weft.compiler.onnx.reorder import to_layout
from weft.compiler.onnx.wide import move_planes


def pair_operands(context: NodeContext) -> tuple[Symbol, ...]:
    """Return the operands of Add, Sub or Mul.

    An 8-bit constant counts as an activation, unless it is a scalar or has one value per channel.
    """
    for index in range(2):
        one, other = context.symbol(index), context.symbol(1 - index)
        if not (isinstance(one, Activation) and isinstance(other, Constant)) or other.activation is None:
            continue
        if channel_constant(context, one, other) is not None:
            return (one, other.activation) if index == 0 else (other.activation, one)
    return context.symbols


def constant_factor(context: NodeContext) -> float | None:
    """Return the positive scalar constant by which a Mul or Div node scales an activation; None if there is none."""
    for index in {"Div": (1,), "Mul": (1, 0)}.get(context.node.op, ()):
        one, constant = context.symbol(1 - index), context.symbol(index)
        if isinstance(one, Activation) and isinstance(constant, Constant) and constant.values.size == 1:
            factor = float(constant.floats.reshape(-1)[0])
            if factor > 0 and math.isfinite(factor) and context.shape(1 - index) == context.output:
                return 1 / factor if context.node.op == "Div" else factor
    return None


def same_order(context: NodeContext) -> str | None:
    """Next to a constant, the input's elements must be in the device's order, or at most 256 copies must bring them
    into it.
    """
    if constant_factor(context) is not None:
        return None
    constants = [symbol for symbol in context.symbols if isinstance(symbol, Constant)]
    value = None if context.node.op == "BatchNormalization" else constants[0]
    for symbol in context.symbols:
        layout = channel_layout(context, symbol, value) if isinstance(symbol, Activation) else None
        if layout is not None and isinstance(symbol, Activation) and to_layout(symbol.tensor, layout) is None:
            return f"inputs {context.inputs}"
    return None


def channel_operands(context: NodeContext) -> str | None:
    """Return None for a device value and a constant with one value per channel, else the violation."""
    for one, other in (context.symbols, context.symbols[::-1]):
        if takes_constants(one) and isinstance(other, Constant):
            return channel_constant(context, one, other)
    return f"inputs are {context.inputs}"


def takes_constants(symbol: Symbol) -> bool:
    """Return whether a convolution, existing or new, can apply a constant per channel to a value."""
    return isinstance(symbol, Activation) or (isinstance(symbol, Pending) and is_conv(symbol))


def channel_constant(context: NodeContext, operand: Symbol, value: Constant) -> str | None:
    """Return None for a constant with one value per channel of an operand, else the violation."""
    shape = context.output
    if not np.isfinite(value.floats).all():
        return "the constant is not finite"
    if shape not in (context.shape(0), context.shape(1)):
        return f"the result has shape {shape}"
    if isinstance(operand, Activation) and math.prod(operand.tensor.layout.shape) != math.prod(shape):
        return f"the activation would have to be broadcast to shape {shape}"
    if not layouts(shape, operand):
        return "the result was reshaped before"
    matches = channel_layout(context, operand, value) is not None
    return None if matches else f"the constant has shape {value.values.shape}"


def channel_layout(context: NodeContext, operand: Symbol, value: Constant | None) -> Layout | None:
    """Return a layout of an operand whose channels match a constant, or without `value` axis 1; None if there is none.

    The operand's present layout comes first.
    """
    shape = context.output
    candidates = layouts(shape, operand)
    if isinstance(operand, Activation):
        tensor = operand.tensor
        candidates = dict(sorted(candidates.items(), key=lambda item: tensor.in_layout(item[1]) is None))
    if value is None:
        return candidates.get(1)
    full = (1,) * (len(shape) - value.values.ndim) + value.values.shape
    for axis, layout in candidates.items():
        expected = [shape[axis] if other == axis else 1 for other in range(len(shape))]
        if len(full) == len(shape) and all(
            size in (1, most) for size, most in zip(full, expected, strict=True)
        ):
            return layout
    return None


def layouts(shape: tuple[int, ...], operand: Symbol) -> dict[int, Layout]:
    """Return the possible layouts of a value of `shape`, by the axis that becomes channels on the device."""
    last = len(shape) - 1
    known = (
        {1: spatial(shape), last: row_major_layout(shape)}
        if len(shape) == 4
        else {last: row_major_layout(shape)}
    )
    if len(shape) in (3, 5):
        known.setdefault(1, spatial(shape))
    if not isinstance(operand, Pending):
        return known
    known = {last: row_major_layout(shape)} | known
    return {
        axis: layout
        for axis, layout in known.items()
        if operand.layout == layout and operand.ops[0].dst.shape[3] == shape[axis]
    }


INT32 = np.iinfo(np.int32)
_FAR = 2.0**62
"""Stand-in for infinity: any sum with it is clamped to int32."""
ADD_WEIGHT = 64
"""Weight of the depthwise convolution that adds a constant: the sum is exact to 1/64 of the input's scale."""


def pad_separately(source: Tensor, quant: Quant, window: Window) -> tuple[Tensor, Window]:
    """Return a convolution's input and window, with padding beyond coordinates as an operator of its own.

    The pass `fuse_pad` merges it again where a plan needs no coordinates.
    """
    keep = [has_coordinates(window, axis) for axis in (0, 1)]
    inner = tuple(0 if keep[at % 2] else pad for at, pad in enumerate(window.pad))
    if not any(inner):
        return source, window
    top, left, bottom, right = inner
    around = Window(pad=(top, left, bottom, right))
    n, h, w, c = source.layout.nhwc
    shape = (n, *around.output(h, w), c)
    name = f"{source.storage}:around{'x'.join(map(str, inner))}by{quant.zero}"
    op = Pad(name, source.view(), result_of(name, shape), around, quant.zero)
    layout = row_major_layout(shape)
    layout = dataclasses.replace(layout, nhwc=shape)
    output = Tensor(name, name, layout, layout, source.unsigned, from_host=False, wide=source.wide)
    ops = move_planes((op,)) if source.wide else (op,)
    padded = dataclasses.replace(output, recipe=Recipe(output, ops, (source,), source.via, ()))
    window_pad = (pad - out for pad, out in zip(window.pad, inner, strict=True))
    top, left, bottom, right = window_pad
    return padded, dataclasses.replace(window, pad=(top, left, bottom, right))


def product_of(
    context: NodeContext,
    source: Tensor,
    view: View,
    quant: Quant,
    values: np.ndarray,
    weight: Constant,
    window: Window,
    layout: Layout,
) -> Pending:
    """Return the convolution of `view` with weights `values` (outputs, rows, columns, inputs), which are `weight`
    reordered.
    """
    outputs = values.shape[0]
    scale = quant.scale * np.broadcast_to(weight.scale.reshape(-1), (outputs,))
    bias, notes = bias_of(context, scale)
    groups = int(context.node.attributes.get("group", 1))
    op = Conv(
        context.node.name,
        view,
        result(layout.nhwc),
        values.astype(np.int16),
        bias,
        scale,
        window,
        groups,
        quant.zero,
    )
    return Pending((op,), layout, (source,), (context.node.index,), notes=notes)


def bias_of(context: NodeContext, scale: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the third input at the accumulator's `scale` (0 if omitted), with a note if that rounds."""
    bias, symbol = np.zeros(len(scale), np.int32), context.symbol(2)
    return add_bias(bias, symbol, scale) if isinstance(symbol, Constant) else (bias, ())


def add_bias(bias: np.ndarray, value: Constant, scale: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return `bias` plus a constant of one value per channel at the accumulator's `scale`, with a
    note if that rounds.
    """
    value_scale = np.broadcast_to(np.broadcast_to(value.scale, value.values.shape).reshape(-1), scale.shape)
    integers = np.broadcast_to(value.values.reshape(-1), scale.shape)
    # The file's scale of a bias is a product of two others, rounded to float32: a difference of that size does not
    # count.
    with np.errstate(all="ignore"):  # the quotient of very different scales may overflow
        exact = integers * (
            1.0 if np.allclose(value_scale, scale, rtol=1e-6, atol=0) else value_scale / scale
        )
    exact = np.nan_to_num(exact, nan=0.0, posinf=_FAR, neginf=-_FAR)
    rounded = np.rint(exact)
    notes = [] if np.array_equal(rounded, exact) else ["the bias was rounded to the accumulator's scale"]
    total = rounded + bias
    if (total < INT32.min).any() or (total > INT32.max).any():
        notes.append("the bias was clamped to int32")
    return np.clip(total, INT32.min, INT32.max).astype(np.int32), tuple(notes)


def with_constant(context: NodeContext, operand: Symbol, value: Constant) -> Pending:
    """Return Add or Mul with a constant per channel: in the preceding convolution, or as a
    depthwise 1x1 convolution.
    """
    layout = channel_layout(context, operand, value)
    if context.node.op == "Add":
        return add_offsets(context, convolution(context, operand, layout, ADD_WEIGHT), value.floats)
    return scale_channels(context, convolution(context, operand, layout, 1), value.floats)


def convolution(context: NodeContext, operand: Symbol, layout: Layout | None, weight: int) -> Pending:
    """Return the convolution that computes a value; for an activation a depthwise identity in `layout`."""
    if isinstance(operand, Activation):
        assert layout is not None
        return _depthwise(context, operand, layout, weight)
    pending = operand
    assert isinstance(pending, Pending)
    return pending


def scale_channels(context: NodeContext, operand: Pending, factors: np.ndarray) -> Pending:
    """Return convolutions multiplied by a factor, or a factor per channel; signs go into the weights."""
    ops = []
    for op in operand.ops:
        assert isinstance(op, Conv)
        values = np.broadcast_to(factors.reshape(-1), op.scale.shape)
        sign = np.sign(values).astype(np.int16)  # a factor 0 gives weights 0, and keeps the scale positive
        # Minus -2**31 does not fit int32.
        bias = np.minimum(op.bias * sign.astype(np.int64), INT32.max).astype(np.int32)
        scale = op.scale * np.where(sign, np.abs(values), 1)
        ops.append(op.replace(weight=op.weight * sign[:, None, None, None], bias=bias, scale=scale))
    return dataclasses.replace(operand, ops=tuple(ops), nodes=_nodes(context, operand))


def add_offsets(context: NodeContext, operand: Pending, offsets: np.ndarray) -> Pending:
    """Return convolutions plus an offset, or an offset per channel."""
    ops, notes = [], operand.notes
    for op in operand.ops:
        assert isinstance(op, Conv)
        values = np.broadcast_to(offsets.reshape(-1), op.scale.shape)
        bias, added = add_bias(op.bias, Constant(values, np.ones(1), exact=True), op.scale)
        ops.append(op.replace(bias=bias))
        notes = tuple(dict.fromkeys((*notes, *added)))
    return dataclasses.replace(operand, ops=tuple(ops), nodes=_nodes(context, operand), notes=notes)


def _nodes(context: NodeContext, operand: Pending) -> tuple[int, ...]:
    return tuple(dict.fromkeys((*operand.nodes, context.node.index)))


def _depthwise(context: NodeContext, source: Activation, layout: Layout, weight: int) -> Pending:
    """Return a convolution of every channel with `weight`, at a scale that makes it the identity."""
    tensor = to_layout(source.tensor, layout)
    assert tensor is not None
    count = layout.nhwc[3]
    op = Conv(
        context.node.name,
        tensor.view(),
        result(layout.nhwc),
        np.full((count, 1, 1, 1), weight, np.int16),
        np.zeros(count, np.int32),
        np.full(count, source.quant.scale / weight),
        groups=count,
        x_zero=source.quant.zero,
    )
    return Pending((op,), layout, (tensor,), (context.node.index,))


_NONE = Axis(1, 1, 1)
"""Stand-in for missing axes of values with fewer dimensions."""
RANKS = (3, 4, 5)
"""Ranks of values that are images, with batch and channels."""


def spatial_axes(context: NodeContext, kernel: tuple[int, ...]) -> tuple[Axis, Axis, Axis]:
    """Return the windows of a Conv or pool node along depth, rows and columns."""
    per_axis = axes(context.shape()[2:], {**context.node.attributes, "kernel_shape": kernel})
    depth, y, x = (*[_NONE] * (3 - len(per_axis)), *per_axis)
    return depth, y, x


def window_of(context: NodeContext, kernel: tuple[int, ...]) -> Window:
    """Return the window of a Conv or pool node, with explicit padding for auto_pad and ceil_mode."""
    _, y, x = spatial_axes(context, kernel)
    pad = (y.before, x.before, y.padding_after, x.padding_after)
    return Window((y.kernel, x.kernel), (y.stride, x.stride), (y.dilation, x.dilation), pad)


def depth_tap(context: NodeContext, kernel: tuple[int, ...]) -> int | None:
    """Return the only kernel element along depth that meets the input; None if there are several."""
    depth, _, _ = spatial_axes(context, kernel)
    if depth.size == depth.count == 1:
        # There is one element and one window, so only the kernel element at the distance of the padding can meet it.
        tap, remainder = divmod(depth.before, depth.dilation)
        return tap if not remainder and tap < depth.kernel else None
    plain = (depth.kernel, depth.stride, depth.before, depth.padding_after) == (1, 1, 0, 0)
    return 0 if plain else None
