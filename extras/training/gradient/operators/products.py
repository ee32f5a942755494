"""Products, convolutions, pooling, attention, reductions, softmax and normalisations, as expressions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from weft.extras.training.gradient.expression import (
    Axis,
    Expression,
    Place,
    Reduce,
    Reindex,
    Stop,
    apply,
    broadcast_to,
)
from weft.extras.training.gradient.meaning import (
    Context,
    axes_of,
    constant,
    elementwise,
    handles,
    match_axes,
    permute,
    rename_axes,
    reshape,
)


def reduce_over(x: Expression, over: Sequence[Axis], kind: str = "add") -> Expression:
    return Reduce(kind, x, tuple(over)) if over else x


def mean(x: Expression, over: Sequence[Axis]) -> Expression:
    return apply("mul", reduce_over(x, over), 1 / math.prod(axis.size for axis in over))


@handles("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceSumSquare", "ReduceL2", "GlobalAveragePool",
         "GlobalMaxPool")  # fmt: skip
def _reduce(context: Context) -> Expression:
    op, x = context.node.op, context.x
    if op.startswith("Global"):
        over, keep = tuple(x.axes[2:]), True
    else:
        chosen = context.integers(1, "axes")
        if not chosen and context.get("noop_with_empty_axes", 0):
            return x
        rank = len(x.axes)
        over = tuple(x.axes[at % rank] for at in chosen) or x.axes
        keep = bool(context.get("keepdims", 1))
    if op in ("ReduceSumSquare", "ReduceL2"):
        result = reduce_over(apply("mul", x, x), over)
        result = apply("sqrt", result) if op == "ReduceL2" else result
    elif op in ("ReduceMax", "GlobalMaxPool"):
        result = reduce_over(x, over, "maximum")
    elif op == "ReduceMin":
        result = apply("neg", reduce_over(apply("neg", x), over, "maximum"))
    else:
        result = reduce_over(x, over) if op == "ReduceSum" else mean(x, over)
    result = broadcast_to(result, tuple(axis for axis in x.axes if axis not in over))
    if not keep:
        return result
    return broadcast_to(result, tuple(Axis(1, axis.label) if axis in over else axis for axis in x.axes))


def softmax(x: Expression, axis: Axis) -> Expression:
    """Return the softmax over one axis, with the maximum subtracted first."""
    grown = apply("exp", _less_maximum(x, axis))
    return apply("mul", grown, apply("reciprocal", reduce_over(grown, (axis,))))


def _less_maximum(x: Expression, axis: Axis) -> Expression:
    # The maximum only avoids overflow: it cancels out, so it needs no gradient.
    return apply("sub", x, Stop(reduce_over(x, (axis,), "maximum")))


@handles("Softmax", "LogSoftmax")
def _softmax(context: Context) -> Expression:
    axis = context.x.axes[context.get("axis", -1)]
    if context.node.op == "Softmax":
        return broadcast_to(softmax(context.x, axis), context.x.axes)
    less = _less_maximum(context.x, axis)
    return broadcast_to(
        apply("sub", less, apply("log", reduce_over(apply("exp", less), (axis,)))), context.x.axes
    )


def normalise(x: Expression, over: Sequence[Axis], epsilon: float, *, centred: bool = True) -> Expression:
    """Return numbers less their mean (if `centred`), divided by their root mean square."""
    distance = apply("sub", x, mean(x, over)) if centred else x
    square = apply("add", mean(apply("mul", distance, distance), over), epsilon)
    return broadcast_to(apply("mul", distance, apply("reciprocal", apply("sqrt", square))), x.axes)


@handles("LayerNormalization", "RMSNormalization")
def _layer_norm(context: Context) -> Expression:
    x = context.x
    first = context.get("axis", -1) % len(x.axes)
    centred = context.node.op == "LayerNormalization"
    result = normalise(x, x.axes[first:], context.get("epsilon", 1e-5), centred=centred)
    result = elementwise("mul", result, context.operand(1))
    bias = context.optional(2)
    return result if bias is None else elementwise("add", result, bias)


def along_channels(x: Expression, vector: Expression) -> Expression:
    """Return a vector that broadcasts along the second axis of `x`."""
    return rename_axes(vector, (x.axes[1],))


@handles("InstanceNormalization")
def _instance_norm(context: Context) -> Expression:
    x = context.x
    result = normalise(x, x.axes[2:], context.get("epsilon", 1e-5))
    result = apply("mul", result, along_channels(x, context.operand(1)))
    return broadcast_to(apply("add", result, along_channels(x, context.operand(2))), x.axes)


@handles("BatchNormalization")
def _batch_norm(context: Context) -> Expression:
    x = context.x
    scale, bias, middle, variance = (along_channels(x, context.operand(at)) for at in (1, 2, 3, 4))
    root = apply("sqrt", apply("add", variance, context.get("epsilon", 1e-5)))
    result = apply("mul", apply("sub", x, middle), apply("mul", scale, apply("reciprocal", root)))
    return broadcast_to(apply("add", result, bias), x.axes)


def contract(a: Expression, b: Expression, over: Sequence[Axis]) -> Expression:
    """Return the sum of products over axes."""
    return Reduce("add", apply("mul", a, b), tuple(over))


@handles("MatMul")
def _matmul(context: Context) -> Expression:
    return matrix_product(context.x, context.operand(1))


def matrix_product(a: Expression, b: Expression) -> Expression:
    """Return the product as numpy's matmul defines it."""
    if len(a.axes) == 1:
        a_wide = broadcast_to(a, (Axis(1), *a.axes))
        return reshape(matrix_product(a_wide, b), (*b.shape[:-2], b.shape[-1]))
    if len(b.axes) == 1:
        b_wide = broadcast_to(b, (*b.axes, Axis(1)))
        return reshape(matrix_product(a, b_wide), a.shape[:-1])
    depth, columns = a.axes[-1], Axis(b.axes[-1].size, "j")
    rank = max(len(a.axes), len(b.axes)) - 2
    lead: list[Axis] = []
    for at in range(-rank - 2, -2):
        sizes = [item.axes[at] for item in (a, b) if len(item.axes) >= -at]
        lead.append(max(sizes, key=lambda axis: axis.size))
    left = match_axes(a, _last_axes(a, (*lead, a.axes[-2], depth)))
    right = match_axes(b, _last_axes(b, (*lead, depth, columns)))
    return broadcast_to(contract(left, right, (depth,)), (*lead, a.axes[-2], columns))


def _last_axes(x: Expression, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """Return as many of the last axes as an operand has."""
    return axes[len(axes) - len(x.axes) :]


@handles("Gemm")
def _gemm(context: Context) -> Expression:
    a, b, c = context.x, context.operand(1), context.optional(2)
    a = permute(a, (1, 0)) if context.get("transA", 0) else a
    b = permute(b, (1, 0)) if context.get("transB", 0) else b
    result = apply("mul", matrix_product(a, b), float(context.get("alpha", 1.0)))
    if c is None:
        return result
    return elementwise("add", result, apply("mul", c, float(context.get("beta", 1.0))))


@handles("Attention")
def _attention(context: Context) -> Expression:
    q, k, v = (context.operand(at) for at in (0, 1, 2))
    if len(q.axes) != 4 or context.optional(3) is not None or context.get("is_causal", 0):
        raise context.refuse("but of four dimensions and without a mask")
    if q.shape[1] != k.shape[1]:
        raise context.refuse("where queries share heads of keys")
    factor = context.get("scale", 0.0) or 1 / math.sqrt(q.shape[-1])
    scores = apply("mul", matrix_product(q, permute(k, (0, 1, 3, 2))), factor)
    return matrix_product(softmax(scores, scores.axes[-1]), v)


def _geometry(context: Context, kernel: Sequence[int], sizes: Sequence[int]) -> tuple[list[int], ...]:
    """Return strides, dilations, and padding before and after each axis of a window."""
    rank = len(kernel)
    strides = list(context.get("strides", (1,) * rank))
    dilations = list(context.get("dilations", (1,) * rank))
    auto, pads = context.get("auto_pad", "NOTSET"), list(context.get("pads", (0,) * 2 * rank))
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        before, after = [], []
        for size, k, s, d in zip(sizes, kernel, strides, dilations, strict=True):
            total = max((-(-size // s) - 1) * s + (k - 1) * d + 1 - size, 0)
            less, more = total // 2, total - total // 2
            before.append(less if auto == "SAME_UPPER" else more)
            after.append(more if auto == "SAME_UPPER" else less)
        return strides, dilations, before, after
    if auto == "VALID":
        pads = [0] * 2 * rank
    return strides, dilations, pads[:rank], pads[rank:]


def _windows(
    context: Context, x: Expression, kernel: Sequence[int], lead: int = 2
) -> tuple[Reindex, tuple[Axis, ...], tuple[Axis, ...]]:
    """Return an image's windows, with axes for the first `lead` dimensions, outputs and taps; padding is 0."""
    strides, dilations, before, after = _geometry(context, kernel, x.shape[lead:])
    up = bool(context.get("ceil_mode", 0))
    outs, places = [], {axis: Place.of(axis) for axis in x.axes[:lead]}
    inner = axes_of(kernel, "yx")
    for at, axis in enumerate(x.axes[lead:]):
        room = axis.size + before[at] + after[at] - (kernel[at] - 1) * dilations[at] - 1
        count = (-(-room // strides[at]) if up else room // strides[at]) + 1
        # ONNX leaves out a window that would begin in the padding after the image.
        if up and (count - 1) * strides[at] >= axis.size + before[at]:
            count -= 1
        outs.append(Axis(count, "hw"[at] if at < 2 else "i"))
        places[axis] = Place(((outs[-1], strides[at]), (inner[at], dilations[at])), -before[at])
    return Reindex(x, (*x.axes[:lead], *outs, *inner), places), tuple(outs), inner


@handles("Conv")
def _conv(context: Context) -> Expression:
    x, weight, bias = context.x, context.operand(1), context.optional(2)
    groups, outputs = context.get("group", 1), weight.axes[0].size
    # Groups get an axis of their own before the channels.
    skip = 1 if groups > 1 else 0
    if skip:
        x = reshape(x, (x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]))
        weight = reshape(weight, (groups, outputs // groups, *weight.shape[1:]))
    group, inside, filters = x.axes[1 : 1 + skip], x.axes[1 + skip], weight.axes[skip]
    read, outs, inner = _windows(context, x, weight.shape[2 + skip :], 2 + skip)
    kernel = rename_axes(weight, (*group, filters, inside, *inner))
    result = broadcast_to(contract(read, kernel, (inside, *inner)), (x.axes[0], *group, filters, *outs))
    return _with_bias(reshape(result, (x.shape[0], outputs, *(axis.size for axis in outs))), bias)


def _with_bias(result: Expression, bias: Expression | None) -> Expression:
    """Add a bias per channel to a result (n, c, ...), if there is one."""
    if bias is None:
        return result
    return broadcast_to(apply("add", result, rename_axes(bias, (result.axes[1],))), result.axes)


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
    x = reshape(x, (x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])) if groups > 1 else x
    shape = weight.shape
    weight = reshape(weight, (groups, shape[0] // groups, *shape[1:])) if groups > 1 else weight
    skip = 1 if groups > 1 else 0
    group = x.axes[1 : 1 + skip]
    inside, images = x.axes[1 + skip], x.axes[2 + skip :]
    strides, dilations, before, _ = _geometry(context, shape[2:], [axis.size for axis in images])
    outs, inner, filters = axes_of(sizes[2:], "hw"), axes_of(shape[2:], "yx"), Axis(shape[1], "o")
    places = {axis: Place.of(axis) for axis in (x.axes[0], *group, inside)}
    for at, axis in enumerate(images):
        # The stride divides: fractions lie between pixels, and read 0.
        places[axis] = Place(((outs[at], 1), (inner[at], -dilations[at])), before[at], strides[at])
    read = Reindex(x, (x.axes[0], *group, inside, *outs, *inner), places)
    kernel = rename_axes(weight, (*group, inside, filters, *inner))
    result = broadcast_to(contract(read, kernel, (inside, *inner)), (x.axes[0], *group, filters, *outs))
    return _with_bias(reshape(result, sizes), bias)


@handles("MaxPool")
def _max_pool(context: Context) -> Expression:
    x = context.x
    read, outs, inner = _windows(context, x, context.get("kernel_shape"))
    return broadcast_to(reduce_over(replace(read, fill=-np.inf), inner, "maximum"), (*x.axes[:2], *outs))


@handles("AveragePool")
def _average_pool(context: Context) -> Expression:
    x = context.x
    kernel = context.get("kernel_shape")
    read, outs, inner = _windows(context, x, kernel)
    result = broadcast_to(reduce_over(read, inner), (*x.axes[:2], *outs))
    if context.get("count_include_pad", 0) and not context.get("ceil_mode", 0):
        return apply("mul", result, 1 / math.prod(kernel))
    # Windows at the border have fewer elements, unless the padding counts.
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
    return broadcast_to(apply("mul", result, rename_axes(constant(1 / counts), outs)), result.axes)
