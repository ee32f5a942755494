"""Attention and softmax from the model's nodes: handlers, as in `weft.compiler.operators`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from weft.compiler.attention import Problem, heads_layout, heads_move_behind_rows
from weft.compiler.case import Case
from weft.compiler.ir import Attention, Softmax
from weft.compiler.qdq import Activation, Pending, Probabilities, Scores, Symbol, Undefined, result
from weft.compiler.support_attention import added_mask, problem_of, scores_factor, softmax_rows, softmax_zero

ROUNDING = (
    "the model's rounding of scores and probabilities to 8 bits is not followed: "
    "the fused form is closer to float"
)


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
    scale = case.attribute("scale") or 1 / math.sqrt(problem.q.size)
    assert isinstance(scale, float)
    rank = len(case.output)
    behind = rank == 3 or heads_move_behind_rows(case.model, case.node.outputs[0])
    return _fused(case, problem, scale, behind, (case.node.index,), ())


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
    return Pending((op,), layout, (q, k, v), nodes, notes=notes)


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
    found = _scores(case)
    if case.node.op == "QuantizeLinear":
        found = dataclasses.replace(found, rounded=True)
    return Probabilities(found) if isinstance(case.symbol(0), Probabilities) else found


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
    notes = (ROUNDING,) if found.rounded else ()
    return _fused(case, problem_of(case), found.factor, behind, (*found.nodes, case.node.index), notes)


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
"""How each of `weft.compiler.support_attention.PARTS` becomes a symbol."""
