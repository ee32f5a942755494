"""Matrix products and attention, as micro-operations."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.extras.training.gradient.context import Context, elementwise, handles, matched, permuted, reshaped
from weft.extras.training.gradient.expression import Axis, Expression, Reduce, apply, spread
from weft.extras.training.gradient.operators.reductions import softmax


def contracted(a: Expression, b: Expression, over: Sequence[Axis]) -> Expression:
    """The sum of products over axes."""
    return Reduce("add", apply("mul", a, b), tuple(over))


@handles("MatMul")
def _matmul(context: Context) -> Expression:
    return matrix_product(context.x, context.operand(1))


def matrix_product(a: Expression, b: Expression) -> Expression:
    """As numpy's matmul."""
    if len(a.axes) == 1:
        a_wide = spread(a, (Axis(1), *a.axes))
        return reshaped(matrix_product(a_wide, b), (*b.shape[:-2], b.shape[-1]))
    if len(b.axes) == 1:
        b_wide = spread(b, (*b.axes, Axis(1)))
        return reshaped(matrix_product(a, b_wide), a.shape[:-1])
    depth, columns = a.axes[-1], Axis(b.axes[-1].size, "j")
    rank = max(len(a.axes), len(b.axes)) - 2
    lead: list[Axis] = []
    for at in range(-rank - 2, -2):
        sizes = [item.axes[at] for item in (a, b) if len(item.axes) >= -at]
        lead.append(max(sizes, key=lambda axis: axis.size))
    left = matched(a, _own(a, (*lead, a.axes[-2], depth)))
    right = matched(b, _own(b, (*lead, depth, columns)))
    return spread(contracted(left, right, (depth,)), (*lead, a.axes[-2], columns))


def _own(x: Expression, axes: tuple[Axis, ...]) -> tuple[Axis, ...]:
    """The last axes, as many as an operand has."""
    return axes[len(axes) - len(x.axes) :]


@handles("Gemm")
def _gemm(context: Context) -> Expression:
    a, b, c = context.x, context.operand(1), context.optional(2)
    a = permuted(a, (1, 0)) if context.get("transA", 0) else a
    b = permuted(b, (1, 0)) if context.get("transB", 0) else b
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
    scores = apply("mul", matrix_product(q, permuted(k, (0, 1, 3, 2))), factor)
    return matrix_product(softmax(scores, scores.axes[-1]), v)
