"""Convolutions and pooling, as micro-operations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from weft.extras.training.gradient.context import Context, axes_of, constant, handles, renamed, reshaped
from weft.extras.training.gradient.expression import Axis, Expression, Place, Reindex, apply, spread
from weft.extras.training.gradient.operators.products import contracted
from weft.extras.training.gradient.operators.reductions import total


def _geometry(context: Context, kernel: Sequence[int], sizes: Sequence[int]) -> tuple[list[int], ...]:
    """Strides, dilations, pads ahead and behind of a window."""
    rank = len(kernel)
    strides = list(context.get("strides", (1,) * rank))
    dilations = list(context.get("dilations", (1,) * rank))
    auto, pads = context.get("auto_pad", "NOTSET"), list(context.get("pads", (0,) * 2 * rank))
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        ahead, behind = [], []
        for size, k, s, d in zip(sizes, kernel, strides, dilations, strict=True):
            whole = max((-(-size // s) - 1) * s + (k - 1) * d + 1 - size, 0)
            less, more = whole // 2, whole - whole // 2
            ahead.append(less if auto == "SAME_UPPER" else more)
            behind.append(more if auto == "SAME_UPPER" else less)
        return strides, dilations, ahead, behind
    if auto == "VALID":
        pads = [0] * 2 * rank
    return strides, dilations, pads[:rank], pads[rank:]


def _windows(
    context: Context, x: Expression, kernel: Sequence[int], lead: int = 2
) -> tuple[Reindex, tuple[Axis, ...], tuple[Axis, ...]]:
    """An image's windows, with its first `lead` axes, outputs and taps; 0 in the padding."""
    strides, dilations, ahead, behind = _geometry(context, kernel, x.shape[lead:])
    up = bool(context.get("ceil_mode", 0))
    outs, places = [], {axis: Place.of(axis) for axis in x.axes[:lead]}
    inner = axes_of(kernel, "yx")
    for at, axis in enumerate(x.axes[lead:]):
        room = axis.size + ahead[at] + behind[at] - (kernel[at] - 1) * dilations[at] - 1
        count = (-(-room // strides[at]) if up else room // strides[at]) + 1
        if up and (count - 1) * strides[at] >= axis.size + ahead[at]:
            count -= 1
        outs.append(Axis(count, "hw"[at] if at < 2 else "i"))
        places[axis] = Place(((outs[-1], strides[at]), (inner[at], dilations[at])), -ahead[at])
    return Reindex(x, (*x.axes[:lead], *outs, *inner), places), tuple(outs), inner


@handles("Conv")
def _conv(context: Context) -> Expression:
    x, weight, bias = context.x, context.operand(1), context.optional(2)
    groups, outputs = context.get("group", 1), weight.axes[0].size
    skip = 1 if groups > 1 else 0
    if skip:
        x = reshaped(x, (x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]))
        weight = reshaped(weight, (groups, outputs // groups, *weight.shape[1:]))
    group, inside, filters = x.axes[1 : 1 + skip], x.axes[1 + skip], weight.axes[skip]
    read, outs, inner = _windows(context, x, weight.shape[2 + skip :], 2 + skip)
    kernel = renamed(weight, (*group, filters, inside, *inner))
    result = spread(contracted(read, kernel, (inside, *inner)), (x.axes[0], *group, filters, *outs))
    return _with_bias(reshaped(result, (x.shape[0], outputs, *(axis.size for axis in outs))), bias)


def _with_bias(result: Expression, bias: Expression | None) -> Expression:
    """A result (n, c, ...) with a bias for each channel, if there is one."""
    if bias is None:
        return result
    return spread(apply("add", result, renamed(bias, (result.axes[1],))), result.axes)


@handles("ConvTranspose")
def _conv_transpose(context: Context) -> Expression:
    x, weight, bias = context.x, context.operand(1), context.optional(2)
    groups = context.get("group", 1)
    kind = context.network.type_of(context.node.outputs[0])
    sizes = None if kind is None else kind.sizes
    if (
        sizes is None
        or context.get("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
        or context.get("output_shape")
    ):
        raise context.refuse("but with explicit pads")
    x = reshaped(x, (x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])) if groups > 1 else x
    shape = weight.shape
    weight = reshaped(weight, (groups, shape[0] // groups, *shape[1:])) if groups > 1 else weight
    skip = 1 if groups > 1 else 0
    group = x.axes[1 : 1 + skip]
    inside, images = x.axes[1 + skip], x.axes[2 + skip :]
    strides, dilations, ahead, _ = _geometry(context, shape[2:], [axis.size for axis in images])
    outs, inner, filters = axes_of(sizes[2:], "hw"), axes_of(shape[2:], "yx"), Axis(shape[1], "o")
    places = {axis: Place.of(axis) for axis in (x.axes[0], *group, inside)}
    for at, axis in enumerate(images):
        places[axis] = Place(((outs[at], 1), (inner[at], -dilations[at])), ahead[at], strides[at])
    read = Reindex(x, (x.axes[0], *group, inside, *outs, *inner), places)
    kernel = renamed(weight, (*group, inside, filters, *inner))
    result = spread(contracted(read, kernel, (inside, *inner)), (x.axes[0], *group, filters, *outs))
    return _with_bias(reshaped(result, sizes), bias)


@handles("MaxPool")
def _max_pool(context: Context) -> Expression:
    x = context.x
    read, outs, inner = _windows(context, x, context.get("kernel_shape"))
    return spread(total(replace(read, fill=-np.inf), inner, "maximum"), (*x.axes[:2], *outs))


@handles("AveragePool")
def _average_pool(context: Context) -> Expression:
    x = context.x
    kernel = context.get("kernel_shape")
    read, outs, inner = _windows(context, x, kernel)
    result = spread(total(read, inner), (*x.axes[:2], *outs))
    if context.get("count_include_pad", 0) and not context.get("ceil_mode", 0):
        return apply("mul", result, 1 / math.prod(kernel))
    counts = np.ones([axis.size for axis in outs])
    for at, axis in enumerate(x.axes[2:]):
        place = dict(read.places[axis].terms)
        first = read.places[axis].constant + np.arange(outs[at].size) * place[outs[at]]
        taps = first[:, None] + np.arange(kernel[at]) * place[inner[at]]
        pad = _geometry(context, kernel, x.shape[2:])
        low, high = (
            (-pad[2][at], axis.size + pad[3][at]) if context.get("count_include_pad", 0) else (0, axis.size)
        )
        valid = ((taps >= low) & (taps < high)).sum(axis=1)
        counts = counts * valid.reshape([-1 if index == at else 1 for index in range(len(outs))])
    if counts.size and bool((counts == counts.flat[0]).all()):
        return apply("mul", result, 1 / float(counts.flat[0]))
    return spread(apply("mul", result, renamed(constant(1 / counts), outs)), result.axes)
