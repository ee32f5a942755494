"""Attention and softmax from the model's nodes: handlers, as in `weft.compiler.onnx.operators`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from weft.compiler.ir.graph import Attention, Softmax
from weft.compiler.ir.score_pairs import CLAMP, NEGLIGIBLE, Pair, followed, k_zero_shift, product_ends
from weft.compiler.onnx.attention import Problem, heads_layout, heads_move_behind_rows
from weft.compiler.onnx.case import Case
from weft.compiler.onnx.qdq import Activation, Pending, Probabilities, Scores, Symbol, Undefined, result
from weft.compiler.onnx.support_attention import added_mask, problem_of, score_factor, scores_factor
from weft.compiler.onnx.support_rounding import clipping_pairs, pair
from weft.compiler.onnx.support_softmax import softmax_rows, softmax_zero

ROUNDING = (
    "the model's rounding of scores and probabilities to 8 bits is not followed: "
    "the fused form is closer to float"
)
FOLLOWED = (
    "scores are rounded and clamped to [{low:.4g}, {high:.4g}] as the model does; "
    "its other roundings within attention are not followed"
)
"""What is said where the range of a Q/DQ pair of scores can clip."""
SATURATES = (
    "scores beyond {reach:.0f} are clamped; queries and keys at the ends of their ranges make {most:.4g}"
)
"""What is said where the device's own range of scores can clip."""


def softmax(case: Case) -> Pending:
    source, found = case.symbol(0), softmax_rows(case)
    assert isinstance(source, Activation)
    zero = softmax_zero(case)
    assert found is not None
    assert zero is not None
    tensor, layout = found
    op = Softmax(case.node.name, tensor.view(), result(layout.nhwc), source.quant.scale, x_zero=zero)
    return Pending((op,), layout, (tensor,), (case.node.index,))


def attention(case: Case) -> Pending:
    problem = problem_of(case)
    rank = len(case.output)
    behind = rank == 3 or heads_move_behind_rows(case.model, case.node.outputs[0])
    return _fused(case, problem, score_factor(case), behind, (case.node.index,), ())


def _fused(
    case: Case, problem: Problem, factor: float, behind: bool, nodes: tuple[int, ...], notes: tuple[str, ...]
) -> Pending:
    """The device's operator; `behind` has the heads of the result beside each other in its rows."""
    found = next(problem.solutions())
    (q, q_shape), (k, k_shape), (v, v_shape) = found.operands
    quants = [operand.activation.quant for operand in (problem.q, problem.k, problem.v)]
    order = "ishd" if behind else "ihsd"
    axes = problem.q.axes
    layout = heads_layout(axes, order, found.images, found.heads, problem.q.rows, problem.v.size)
    op = Attention(
        case.node.name,
        q=q.view(q_shape),
        k=k.view(k_shape),
        v=v.view(v_shape),
        dst=result(layout.nhwc),
        images=found.images,
        heads=found.heads,
        kv_heads=found.kv_heads,
        score_scale=quants[0].scale * quants[1].scale * factor,
        lengths=found.mask.lengths,
        scale=quants[2].scale,
        causal=found.mask.causal,
        offset=found.mask.offset,
        q_zero=quants[0].zero,
        k_zero=quants[1].zero,
        v_zero=quants[2].zero,
    )
    return Pending((op,), layout, (q, k, v), nodes, notes=(*notes, *_saturation(op)))


def _saturation(op: Attention) -> tuple[str, ...]:
    """What to say of scores that the device may have to clamp."""
    ends = product_ends(op.q_zero, op.k_zero)
    most = max(map(abs, ends)) * op.head_size * op.score_scale
    shift = k_zero_shift(op.k_zero, op.head_size, op.score_scale)
    reach = CLAMP - (shift if shift <= NEGLIGIBLE else 0)
    return () if most <= reach else (SATURATES.format(reach=reach, most=most),)


def scores(case: Case) -> Scores:
    q, k = case.symbols
    assert isinstance(q, Activation)
    assert isinstance(k, Activation)
    return Scores(q, k, case.shape(0), case.shape(1), 1.0, None, (case.node.index,), (case.node.outputs[0],))


def _scores(case: Case) -> Scores:
    """The scores a node reads, with the node among those they stand for."""
    symbol = next(symbol for symbol in case.symbols if isinstance(symbol, Scores | Probabilities))
    old = symbol.scores if isinstance(symbol, Probabilities) else symbol
    return dataclasses.replace(
        old, nodes=(*old.nodes, case.node.index), values=(*old.values, case.node.outputs[0])
    )


def scale(case: Case) -> Scores:
    found, factor = _scores(case), scores_factor(case)
    assert factor is not None
    return dataclasses.replace(found, factor=found.factor * factor)


def mask(case: Case) -> Scores:
    return dataclasses.replace(_scores(case), allowed=added_mask(case))


def normalise(case: Case) -> Probabilities:
    return Probabilities(_scores(case))


def rounding(case: Case) -> Scores | Probabilities:
    """One half of a Q/DQ pair, of scores or of probabilities; an Identity is neither."""
    found, weights = _scores(case), isinstance(case.symbol(0), Probabilities)
    if case.node.op == "QuantizeLinear":
        found = dataclasses.replace(found, quantised=pair(case))
    elif case.node.op == "DequantizeLinear" and weights:
        assert found.quantised is not None
        passed = (*found.weight_pairs, found.quantised)
        found = dataclasses.replace(found, quantised=None, weight_pairs=passed)
    elif case.node.op == "DequantizeLinear":
        assert found.quantised is not None
        found = dataclasses.replace(found, quantised=None, pairs=(*found.pairs, found.quantised))
    return Probabilities(found) if weights else found


def undefined(case: Case) -> Undefined:
    return Undefined(_scores(case))


def defined(case: Case) -> Probabilities:
    """What is not a number replaced by 0, which changes nothing."""
    guard, found = case.symbol(0), _scores(case)
    assert isinstance(guard, Undefined)
    nodes, names = dict.fromkeys((*found.nodes, *guard.scores.nodes)), (*found.values, *guard.scores.values)
    return Probabilities(dataclasses.replace(found, nodes=tuple(nodes), values=tuple(dict.fromkeys(names))))


def values(case: Case) -> Pending:
    symbol = case.symbol(0)
    assert isinstance(symbol, Probabilities)
    found = symbol.scores
    behind = len(case.output) > 2 and heads_move_behind_rows(case.model, case.node.outputs[0])
    clipping, _ = clipping_pairs(found)
    notes = (ROUNDING,) if found.pairs or found.weight_pairs else ()
    made = _fused(case, problem_of(case), found.factor, behind, (*found.nodes, case.node.index), notes)
    return _rounded(made, found, clipping) if clipping else made


def _rounded(made: Pending, found: Scores, clipping: tuple[Pair, ...]) -> Pending:
    """Attention whose scores are requantised as the Q/DQ pairs that can clip them say."""
    known = followed(clipping, found.unit, found.factor)
    assert known is not None
    to, nats = known
    (op,) = made.ops
    assert isinstance(op, Attention)
    note = FOLLOWED.format(low=(to.low - to.zero) * nats, high=(to.high - to.zero) * nats)
    return dataclasses.replace(
        made, ops=(dataclasses.replace(op, rounding=to, score_scale=nats),), notes=(note,)
    )


PARTS: dict[str, Callable[[Case], Symbol]] = {
    "scores": scores,
    "scale": scale,
    "mask": mask,
    "softmax": normalise,
    "rounding": rounding,
    "undefined": undefined,
    "defined": defined,
    "values": values,
}
"""How each of `weft.compiler.onnx.support_attention.PARTS` becomes a symbol."""
