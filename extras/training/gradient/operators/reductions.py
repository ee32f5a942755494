"""Reductions, softmax and normalisations, as expressions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.extras.training.gradient.expression import Axis, Expression, Reduce, Stop, apply, broadcast_to
from weft.extras.training.gradient.meaning import Context, elementwise, handles, rename_axes


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


def along_channels(x: Expression, given: Expression) -> Expression:
    """Return a vector that broadcasts along the second axis of `x`."""
    return rename_axes(given, (x.axes[1],))


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
