"""Reductions, softmax and normalisations, as micro-operations."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.extras.training.gradient.context import Context, elementwise, handles, renamed
from weft.extras.training.gradient.expression import Axis, Expression, Reduce, Stop, apply, spread


def total(x: Expression, over: Sequence[Axis], kind: str = "add") -> Expression:
    return Reduce(kind, x, tuple(over)) if over else x


def mean(x: Expression, over: Sequence[Axis]) -> Expression:
    return apply("mul", total(x, over), 1 / math.prod(axis.size for axis in over))


@handles("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceSumSquare", "ReduceL2", "GlobalAveragePool",
         "GlobalMaxPool")  # fmt: skip
def _reduce(context: Context) -> Expression:
    op, x = context.node.op, context.x
    if op.startswith("Global"):
        over, keep = tuple(x.axes[2:]), True
    else:
        chosen = context.whole(1, "axes")
        if not chosen and context.get("noop_with_empty_axes", 0):
            return x
        rank = len(x.axes)
        over = tuple(x.axes[at % rank] for at in chosen) or x.axes
        keep = bool(context.get("keepdims", 1))
    if op in ("ReduceSumSquare", "ReduceL2"):
        result = total(apply("mul", x, x), over)
        result = apply("sqrt", result) if op == "ReduceL2" else result
    elif op in ("ReduceMax", "GlobalMaxPool"):
        result = total(x, over, "maximum")
    elif op == "ReduceMin":
        result = apply("neg", total(apply("neg", x), over, "maximum"))
    else:
        result = total(x, over) if op == "ReduceSum" else mean(x, over)
    result = spread(result, tuple(axis for axis in x.axes if axis not in over))
    if not keep:
        return result
    return spread(result, tuple(Axis(1, axis.label) if axis in over else axis for axis in x.axes))


def softmax(x: Expression, axis: Axis) -> Expression:
    """Softmax over one axis, of numbers less their maximum."""
    grown = apply("exp", _less_maximum(x, axis))
    return apply("mul", grown, apply("reciprocal", total(grown, (axis,))))


def _less_maximum(x: Expression, axis: Axis) -> Expression:
    return apply("sub", x, Stop(total(x, (axis,), "maximum")))


@handles("Softmax", "LogSoftmax")
def _softmax(context: Context) -> Expression:
    axis = context.x.axes[context.get("axis", -1)]
    if context.node.op == "Softmax":
        return spread(softmax(context.x, axis), context.x.axes)
    less = _less_maximum(context.x, axis)
    return spread(apply("sub", less, apply("log", total(apply("exp", less), (axis,)))), context.x.axes)


def normalised(x: Expression, over: Sequence[Axis], epsilon: float, *, centred: bool = True) -> Expression:
    """Numbers less their mean, divided by the root of their mean square."""
    distance = apply("sub", x, mean(x, over)) if centred else x
    square = apply("add", mean(apply("mul", distance, distance), over), epsilon)
    return spread(apply("mul", distance, apply("reciprocal", apply("sqrt", square))), x.axes)


@handles("LayerNormalization", "RMSNormalization")
def _layer_norm(context: Context) -> Expression:
    x = context.x
    first = context.get("axis", -1) % len(x.axes)
    centred = context.node.op == "LayerNormalization"
    result = normalised(x, x.axes[first:], context.get("epsilon", 1e-5), centred=centred)
    result = elementwise("mul", result, context.operand(1))
    bias = context.optional(2)
    return result if bias is None else elementwise("add", result, bias)


def by_channel(x: Expression, given: Expression) -> Expression:
    """A vector as a factor or summand of the second axis."""
    return renamed(given, (x.axes[1],))


@handles("InstanceNormalization")
def _instance_norm(context: Context) -> Expression:
    x = context.x
    result = normalised(x, x.axes[2:], context.get("epsilon", 1e-5))
    result = apply("mul", result, by_channel(x, context.operand(1)))
    return spread(apply("add", result, by_channel(x, context.operand(2))), x.axes)


@handles("BatchNormalization")
def _batch_norm(context: Context) -> Expression:
    x = context.x
    scale, bias, middle, variance = (by_channel(x, context.operand(at)) for at in (1, 2, 3, 4))
    root = apply("sqrt", apply("add", variance, context.get("epsilon", 1e-5)))
    result = apply("mul", apply("sub", x, middle), apply("mul", scale, apply("reciprocal", root)))
    return spread(apply("add", result, bias), x.axes)
