"""The Attention operator, and attention written out as products, scale, mask and Softmax."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from weft.compiler.errors import CompileError
from weft.compiler.ir.graph import Attention, Rounding
from weft.compiler.ir.network import Node
from weft.compiler.onnx.attention import (
    FORM,
    MASKED,
    attention_mask,
    fuse,
    heads_become_columns,
    mask_of,
    problem_of,
    score_factor,
    scores_reach,
)
from weft.compiler.onnx.conditions import normalised_axis, softmax_unit
from weft.compiler.onnx.key_masks import KeyMask, is_mask
from weft.compiler.onnx.model import Model
from weft.compiler.onnx.operator import DEQUANTISE, QUANTISE, STEP, NodeContext, Operator
from weft.compiler.onnx.qdq import Activation, NanMask, Pending, Probabilities, Scores
from weft.compiler.onnx.row_forms import (
    masked_apart,
    pair,
    pairs_constant,
    probabilities_whole,
    rounding_of,
    scores_clamped,
    scores_not_clamped,
)


def check_attention(model: Model, node: Node) -> None:
    """Raise `CompileError` for an Attention node whose shapes or attributes contradict each other."""
    label = node.label
    scale = node.attributes.get("scale")
    if scale is not None and not (math.isfinite(scale) and scale > 0):
        raise CompileError(f"{label} has scale {scale:g}; the scale of scores must be finite and above zero")
    q, k, v = (model.shapes[name] for name in node.inputs[:3])
    if not len(q) == len(k) == len(v):
        raise CompileError(f"{label} has queries {q}, keys {k} and values {v} of different ranks")
    heads = [int(node.attributes.get(name, 0)) for name in ("q_num_heads", "kv_num_heads")]
    if len(q) == 3:
        for name, count, shape in zip(("q_num_heads", "kv_num_heads", "kv_num_heads"),
                                      (heads[0], heads[1], heads[1]), (q, k, v), strict=True):  # fmt: skip
            if shape[2] % count:
                raise CompileError(
                    f"{label} has hidden size {shape[2]}, which {name} {count} does not divide"
                )
        sizes = (q[2] // heads[0], k[2] // heads[1])
    else:
        heads, sizes = [q[1], k[1]], (q[3], k[3])
    if heads[0] % heads[1]:
        raise CompileError(
            f"{label} has {heads[0]} query heads, which {heads[1]} key and value heads do not divide"
        )
    if sizes[0] != sizes[1]:
        raise CompileError(f"{label} has queries of size {sizes[0]} but keys of size {sizes[1]}")
    if (q[0], k[-2] if len(q) == 4 else k[1]) != (v[0], v[-2] if len(q) == 4 else v[1]) or k[0] != q[0]:
        raise CompileError(f"{label} has keys {k} but values {v}; batch and rows must agree")
    _check_lengths(model, node, label, q[0], k[-2])


def _check_lengths(model: Model, node: Node, label: str, images: int, keys: int) -> None:
    lengths = model.constants.get(node.input(6))
    if lengths is None:
        return
    if lengths.size != images:
        raise CompileError(
            f"{label} has {lengths.size} lengths in nonpad_kv_seqlen for {images} batch entries"
        )
    bad = lengths[(lengths < 0) | (lengths > keys)]
    if bad.size:
        raise CompileError(
            f"{label} has length {int(bad.flat[0])} in nonpad_kv_seqlen, but there are {keys} keys"
        )


def operands_quantised(context: NodeContext) -> str | None:
    """Queries, keys and values must be activations quantised to int8 or uint8."""
    for name, symbol in list(zip(context.node.inputs, context.symbols, strict=True))[:3]:
        if not isinstance(symbol, Activation):
            return f"input {name!r} is not"
    return None


def attention_state(context: NodeContext) -> str | None:
    """Attention must have no past keys and values, and only its first output may be used."""
    for index in (4, 5):
        if context.node.input(index):
            return f"input {context.node.input(index)!r}"
    for name in context.node.outputs[1:]:
        if name and (context.model.users(name) or name in context.model.outputs):
            return f"output {name!r}"
    return None


def attention_plain(context: NodeContext) -> str | None:
    """Attention must have no softcap and no window."""
    for name, plain in (("softcap", 0.0), ("left_window_size", -1), ("right_window_size", -1)):
        if context.attribute(name, plain) != plain:
            return f"{name} is {context.attribute(name)}"
    return None


def mask_constant(context: NodeContext) -> str | None:
    """Masks and lengths must be constant: True or 0 for keys that take part, False or at most -10000 for others."""
    if context.node.input(6) and context.node.input(6) not in context.model.constants:
        return f"input {context.node.input(6)!r} is not"
    name = context.node.input(3)
    return f"input {name!r} is not" if name and attention_mask(context) is None else None


def mask_leaves_keys(context: NodeContext) -> str | None:
    """An additive mask with finite values must leave every query at least one key."""
    floats = context.floats(3)
    if floats is None or not (np.isfinite(floats) & (floats != 0)).any():
        return None
    return None if problem_of(context).allowed.any(-1).all() else f"input {context.node.input(3)!r}"


def attention(context: NodeContext) -> Pending:
    """Return the device's Attention."""
    problem = problem_of(context)
    rank = len(context.output)
    beside = rank == 3 or heads_become_columns(context.model, context.node.outputs[0])
    return fuse(context, problem, score_factor(context), beside, (context.node.index,), ())


_STATE = (operands_quantised, attention_state, attention_plain, mask_constant, mask_leaves_keys)

ATTENTION_OPERATORS = (
    Operator(("Attention",), (softmax_unit, *_STATE, *FORM, scores_reach), attention, check=check_attention),
)


ROUNDING = "the fused form does not round scores and probabilities to 8 bits as the model does, and is closer to float"
"""Note on Q/DQ pairs that cannot clip scores."""
ROUNDED_SCORES = (
    "scores are rounded and clamped to [{low:.4g}, {high:.4g}] as in the model; "
    "its other roundings within attention are omitted"
)
"""Note on Q/DQ pairs whose range can clip scores."""


def same_lead(context: NodeContext) -> str | None:
    """Operands of a product in attention must have equal leading dimensions."""
    return None if context.shape(0)[:-2] == context.shape(1)[:-2] else f"shapes are {_shapes(context)}"


def _shapes(context: NodeContext) -> str:
    return f"{context.shape(0)} and {context.shape(1)}"


def scores_scale(context: NodeContext) -> str | None:
    """Scores may be multiplied or divided by one positive constant, before the mask."""
    factor = scores_factor(context)
    symbol = next(symbol for symbol in context.symbols if isinstance(symbol, Scores))
    if factor is None:
        return f"inputs are {context.inputs}"
    return None if symbol.allowed is None and symbol.key_mask is None else "the mask comes first"


def scores_factor(context: NodeContext) -> float | None:
    """Return the factor by which a Mul or Div node changes scores; None if it is not one positive number."""
    order = (1,) if context.node.op == "Div" else (0, 1)
    for index in order:
        floats = context.floats(index)
        if floats is not None and floats.size == 1 and context.output == context.shape(1 - index):
            factor = float(floats.reshape(-1)[0])
            if math.isfinite(factor) and factor > 0:
                return 1 / factor if context.node.op == "Div" else factor
    return None


def scores_mask(context: NodeContext) -> str | None:
    """Masks of scores must be constants of 0 and at most -10000, or one activation per key in steps
    of at least 11.1.
    """
    # An activation is added: int8 or uint8, and at most 0. A constant mask must leave every query a key.
    if key_mask(context) is not None:
        return None
    allowed = added_mask(context)
    if allowed is None:
        return f"inputs are {context.inputs}"
    return None if allowed.any(-1).all() else "some query has no keys"


def key_mask(context: NodeContext) -> Activation | None:
    """Return the mask of keys that an Add node adds to scores at run time; None if it adds something else."""
    index = next(index for index, symbol in enumerate(context.symbols) if isinstance(symbol, Scores))
    scores, other = context.symbols[index], context.symbol(1 - index)
    if context.node.op != "Add" or not isinstance(other, Activation) or not isinstance(scores, Scores):
        return None
    shape, output = context.shape(1 - index), context.output
    batches = len(shape) == 4 and shape[1:3] == (1, 1) and shape[0] in (1, output[0])
    first = scores.key_mask is None and not scores.pairs and scores.quantised is None
    supported = first and len(output) == 4 and batches and shape[3] == output[3] and is_mask(other.quant)
    return other if supported and KeyMask(other, shape).tensor() is not None else None


def added_mask(context: NodeContext) -> np.ndarray | None:
    """Return the keys, (..., queries, keys), that an Add or Where node leaves; None if it is not a mask."""
    is_where = context.node.op == "Where"
    index = next(index for index, symbol in enumerate(context.symbols) if isinstance(symbol, Scores))
    scores = context.symbols[index]
    assert isinstance(scores, Scores)
    if context.output != context.shape(index):
        return None
    if is_where:
        selects, floats = context.model.constants.get(context.node.inputs[0]), context.floats(3 - index)
        if selects is None or floats is None or not (floats <= MASKED).all():
            return None
        allowed: np.ndarray | None = selects if index == 1 else ~selects
    else:
        floats = context.floats(1 - index)
        allowed = None if floats is None else mask_of(floats)
    if allowed is None:
        return None
    allowed = np.broadcast_to(allowed, np.broadcast_shapes(allowed.shape, context.output[-2:]))
    return allowed if scores.allowed is None else allowed & scores.allowed


def scores_axis(context: NodeContext) -> str | None:
    """Softmax of scores must be over the keys, the last axis."""
    axis = normalised_axis(context)
    return None if axis == len(context.shape()) - 1 else f"axis is {context.attribute('axis', 'the default')}"


def values_quantised(context: NodeContext) -> str | None:
    """The values of attention must be an activation quantised to int8 or uint8."""
    return None if isinstance(context.symbol(1), Activation) else f"input {context.node.inputs[1]!r} is not"


def private(context: NodeContext) -> str | None:
    """Scores and probabilities of attention must have no other reader, and must not be outputs of the model."""
    symbol = context.symbol(0)
    assert isinstance(symbol, Probabilities)
    inside = {*symbol.scores.nodes, context.node.index}
    for name in symbol.scores.values:
        if name in context.model.outputs:
            return f"{name!r} is an output"
        others = [node.name for node in context.model.users(name) if node.index not in inside]
        if others:
            return f"{name!r} is read by {' and '.join(map(repr, others))}"
    return None


def undefined_zero(context: NodeContext) -> str | None:
    """NaNs among probabilities may be replaced by 0."""
    floats = context.floats(1)
    kinds = [type(context.symbol(index)) for index in (0, 2)]
    supported = (
        kinds == [NanMask, Probabilities] and floats is not None and floats.size == 1 and not floats.any()
    )
    return None if supported else f"inputs are {context.inputs}"


def scores(context: NodeContext) -> Scores:
    """Return the product of queries and keys."""
    q, k = context.symbols
    assert isinstance(q, Activation)
    assert isinstance(k, Activation)
    return Scores(
        q, k, context.shape(0), context.shape(1), 1.0, None, (context.node.index,), (context.node.outputs[0],)
    )


def _with_node(context: NodeContext) -> Scores:
    """Return the scores that a node reads, directly or as probabilities, with the node added."""
    symbol = next(symbol for symbol in context.symbols if isinstance(symbol, Scores | Probabilities))
    old = symbol.scores if isinstance(symbol, Probabilities) else symbol
    nodes = (*old.nodes, *(index for index in (context.node.index,) if index not in (STEP, *old.nodes)))
    return dataclasses.replace(old, nodes=nodes, values=(*old.values, context.node.outputs[0]))


def scale(context: NodeContext) -> Scores:
    """Return scores times a number."""
    extended, factor = _with_node(context), scores_factor(context)
    assert factor is not None
    return dataclasses.replace(extended, factor=extended.factor * factor)


def mask(context: NodeContext) -> Scores:
    """Return scores without the masked keys."""
    run_time_mask = key_mask(context)
    if run_time_mask is not None:
        return dataclasses.replace(_with_node(context), key_mask=run_time_mask)
    return dataclasses.replace(_with_node(context), allowed=added_mask(context))


def normalise(context: NodeContext) -> Probabilities:
    """Return the Softmax of scores."""
    return Probabilities(dataclasses.replace(_with_node(context), softmax=context.node.name))


def rounding(context: NodeContext) -> Scores | Probabilities:
    """Return scores or probabilities after one half of a Q/DQ pair, or after Identity."""
    extended, weights = _with_node(context), isinstance(context.symbol(0), Probabilities)
    if context.node.op == QUANTISE:
        extended = dataclasses.replace(extended, quantised=pair(context))
    elif context.node.op == DEQUANTISE and weights:
        assert extended.quantised is not None
        pairs = (*extended.weight_pairs, extended.quantised)
        extended = dataclasses.replace(extended, quantised=None, weight_pairs=pairs)
    elif context.node.op == DEQUANTISE:
        assert extended.quantised is not None
        extended = dataclasses.replace(extended, quantised=None, pairs=(*extended.pairs, extended.quantised))
    return Probabilities(extended) if weights else extended


def is_nan(context: NodeContext) -> NanMask:
    """Return IsNaN of probabilities."""
    return NanMask(_with_node(context))


def replace_nan(context: NodeContext) -> Probabilities:
    """Return the probabilities: Where replaces no NaN, because every query has a key."""
    guard, extended = context.symbol(0), _with_node(context)
    assert isinstance(guard, NanMask)
    nodes, names = (
        dict.fromkeys((*extended.nodes, *guard.scores.nodes)),
        (*extended.values, *guard.scores.values),
    )
    return Probabilities(
        dataclasses.replace(extended, nodes=tuple(nodes), values=tuple(dict.fromkeys(names)))
    )


def values(context: NodeContext) -> Pending:
    """Return the product of probabilities and values, which ends an attention."""
    symbol = context.symbol(0)
    assert isinstance(symbol, Probabilities)
    source = symbol.scores
    beside = len(context.output) > 2 and heads_become_columns(context.model, context.node.outputs[0])
    notes = (ROUNDING,) if source.pairs or source.weight_pairs else ()
    fused = fuse(
        context, problem_of(context), source.factor, beside, (*source.nodes, context.node.index), notes
    )
    known = rounding_of(context)
    return fused if known is None else _round_scores(fused, *known)


def _round_scores(fused: Pending, to: Rounding, nats: float) -> Pending:
    """Return an attention with scores requantised to 8 bits, in steps of `nats`."""
    (op,) = fused.ops
    assert isinstance(op, Attention)
    note = ROUNDED_SCORES.format(low=(to.low - to.zero) * nats, high=(to.high - to.zero) * nats)
    return dataclasses.replace(
        fused, ops=(dataclasses.replace(op, rounding=to, score_scale=nats),), notes=(note,)
    )


def _may_start_attention(context: NodeContext) -> bool:
    """Return whether a product may be the scores of an attention, that is, no product with a weight matrix."""
    kinds = [type(symbol) for symbol in context.symbols]
    ranks = [len(context.model.shapes.get(name, ())) for name in context.node.inputs]
    matrices = min(ranks) > 1 and (ranks[1] > 2 or ranks[0] == 2)
    return context.alone is None and kinds == [Activation, Activation] and matrices


def _ends_attention(context: NodeContext) -> bool:
    return isinstance(context.symbol(0), Probabilities)


def _reads_scores(context: NodeContext) -> bool:
    return any(isinstance(symbol, Scores) for symbol in context.symbols)


def _reads_probabilities(context: NodeContext) -> bool:
    return not _reads_scores(context) and any(isinstance(symbol, Probabilities) for symbol in context.symbols)


def _reads_either(context: NodeContext) -> bool:
    return _reads_scores(context) or _reads_probabilities(context)


_VALUES = (
    values_quantised,
    same_lead,
    private,
    *FORM,
    scores_clamped,
    scores_not_clamped,
    masked_apart,
    probabilities_whole,
)

ATTENTION_WRITTEN_OUT_OPERATORS = tuple(
    Operator(names, constraints, handler, applies=applies, title="Attention written out")
    for names, constraints, handler, applies in (
        (("MatMul",), (softmax_unit, same_lead), scores, _may_start_attention),
        (("Mul", "Div"), (scores_scale,), scale, _reads_scores),
        (("Add", "Where"), (scores_mask,), mask, _reads_scores),
        (("Softmax",), (scores_axis,), normalise, _reads_scores),
        (("Identity", QUANTISE, DEQUANTISE), (pairs_constant,), rounding, _reads_either),
        (("IsNaN",), (), is_nan, _reads_probabilities),
        (("Where",), (undefined_zero,), replace_nan, _reads_probabilities),
        (("MatMul",), _VALUES, values, _ends_attention),
    )
)


OPERATORS = (*ATTENTION_OPERATORS, *ATTENTION_WRITTEN_OUT_OPERATORS)
