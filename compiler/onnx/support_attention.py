"""What the device can do of attention and softmax: constraints, as in `weft.compiler.onnx.support`."""

from __future__ import annotations

import math

import numpy as np

from weft.compiler.ir.graph import CompileError
from weft.compiler.ir.network import Node
from weft.compiler.ir.score_pairs import CLAMP
from weft.compiler.onnx.attention import MASKED, Operand, Problem, mask_of, splits
from weft.compiler.onnx.case import Case, Constraint
from weft.compiler.onnx.model import Model
from weft.compiler.onnx.qdq import Activation, Constant, Probabilities, Scores, Undefined
from weft.compiler.onnx.support_rounding import (
    masked_apart,
    pairs_constant,
    probabilities_whole,
    scores_clamped,
)
from weft.compiler.onnx.support_softmax import normalised_axis, softmax_unit
from weft.hdl.isa import COORDINATE_MAX

KEYS = COORDINATE_MAX
"""Largest number of keys: lengths are int16 in instructions, and sums of probabilities fit 32 bits."""

SIZE, ROW = (1 << 15) - 1, (1 << 16) - 1  # of sums of products, of pitches
"""Largest numbers of elements of a head, and of all heads in a row."""


def check_attention(model: Model, node: Node) -> None:
    """Raise `CompileError` for an Attention node that contradicts itself."""
    label = f"node {node.name!r} (Attention)"
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


def operands_quantised(case: Case) -> str | None:
    """Queries, keys and values must be int8 or uint8 activations behind DequantizeLinear."""
    for name, symbol in list(zip(case.node.inputs, case.symbols, strict=True))[:3]:
        if not isinstance(symbol, Activation):
            return f"input {name!r} is not"
    return None


def attention_state(case: Case) -> str | None:
    """Attention must have no past keys and values, and only its first output may be used."""
    for index in (4, 5):
        if case.node.input(index):
            return f"input {case.node.input(index)!r}"
    for name in case.node.outputs[1:]:
        if name and (case.model.users(name) or name in case.model.outputs):
            return f"output {name!r}"
    return None


def attention_plain(case: Case) -> str | None:
    """Attention must have no softcap and no window."""
    for name, plain in (("softcap", 0.0), ("left_window_size", -1), ("right_window_size", -1)):
        if case.attribute(name, plain) != plain:
            return f"{name} is {case.attribute(name)}"
    return None


def mask_constant(case: Case) -> str | None:
    """Masks and lengths must be constant: True or 0 for keys that take part, False or -10000 and less for others."""
    if case.node.input(6) and case.node.input(6) not in case.model.constants:
        return f"input {case.node.input(6)!r} is not"
    name = case.node.input(3)
    return f"input {name!r} is not" if name and attention_mask(case) is None else None


def attention_mask(case: Case) -> np.ndarray | None:
    """The keys that the mask of an Attention node allows, as long as there are keys; None if it is of no such kind."""
    floats = constant_floats(case, 3)
    values = case.model.constants.get(case.node.input(3))
    if values is not None and values.dtype == np.bool_:
        allowed = values
    else:
        found = None if floats is None else mask_of(floats)
        if found is None:
            return None
        allowed = found
    keys = case.shape(1)[-2]
    if allowed.ndim < 1 or allowed.shape[-1] > keys:
        return None
    return np.pad(allowed, [(0, 0)] * (allowed.ndim - 1) + [(0, keys - allowed.shape[-1])])


def mask_leaves_keys(case: Case) -> str | None:
    """A mask that adds finite numbers must leave every query some key."""
    floats = constant_floats(case, 3)
    if floats is None or not (np.isfinite(floats) & (floats != 0)).any():
        return None
    return None if problem_of(case).allowed.any(-1).all() else f"input {case.node.input(3)!r}"


def constant_floats(case: Case, index: int) -> np.ndarray | None:
    symbol = case.symbol(index)
    return symbol.floats if isinstance(symbol, Constant) else None


def problem_of(case: Case) -> Problem:
    """The attention that an Attention node, or the product with values that ends one, stands for."""
    return _operator(case) if case.node.op == "Attention" else _written_out(case)


def _operator(case: Case) -> Problem:
    activations = [symbol for symbol in case.symbols[:3] if isinstance(symbol, Activation)]
    shapes = [case.shape(index) for index in range(3)]
    if len(shapes[0]) == 3:
        heads, kv_heads = (int(case.node.attributes[name]) for name in ("q_num_heads", "kv_num_heads"))
        counts, axes, row = (heads, kv_heads, kv_heads), "ishd", 1
    else:
        counts, axes, row = (shapes[0][1], shapes[1][1], shapes[1][1]), "ihsd", 2
    q, k, v = (
        Operand(activation, axes, shape[row], shape[-1] // (count if row == 1 else 1))
        for activation, shape, count in zip(activations, shapes, counts, strict=True)
    )
    images = shapes[0][0]
    allowed = np.ones((1, 1), bool) if not case.node.input(3) else attention_mask(case)
    assert allowed is not None
    lengths = case.model.constants.get(case.node.input(6))
    rows, keys = np.arange(q.rows)[:, None], np.arange(k.rows)
    behind = np.zeros((1, 1, 1, 1), np.int64)
    if lengths is not None:
        allowed = allowed & (keys < lengths.reshape(-1, 1, 1, 1))
        behind = lengths.reshape(-1, 1, 1, 1) - q.rows
    if case.attribute("is_causal", 0):
        allowed = allowed & (keys <= rows + behind)
    return Problem(q, k, v, ((images, counts[0], counts[1]),), allowed, (images, counts[0], q.rows, k.rows))


def _written_out(case: Case) -> Problem:
    symbol, values = case.symbol(0), case.symbol(1)
    assert isinstance(symbol, Probabilities)
    assert isinstance(values, Activation)
    scores = symbol.scores
    *lead, rows, size = scores.q_shape
    keys = scores.k_shape[-1]
    return Problem(
        Operand(scores.q, "ihsd", rows, size),
        Operand(scores.k, "ihds", keys, size),
        Operand(values, "ihsd", keys, case.shape(1)[-1]),
        splits(tuple(lead)),
        np.ones((1, 1), bool) if scores.allowed is None else scores.allowed,
        (*lead, rows, keys),
    )


def mask_kind(case: Case) -> str | None:
    """Masks must be lengths, one for each batch entry, or causal with one offset, or both; alike for all heads."""
    return None if next(problem_of(case).masks(), None) is not None else ""


def heads_order(case: Case) -> str | None:
    """Heads of queries, keys and values must lie side by side in every row, or one after the other."""
    return None if next(problem_of(case).solutions(), None) is not None else ""


def keys_fit(case: Case) -> str | None:
    """Attention takes at most 32767 queries and keys."""
    most = max(problem_of(case).full[-2:])
    return None if most <= KEYS else f"there are {most}"


def rows_fit(case: Case) -> str | None:
    """Attention takes heads of at most 32767 elements, and rows of 65535: sums of products and pitches have no more."""
    problem = problem_of(case)
    for operand in (problem.q, problem.k, problem.v):
        if operand.size > SIZE:
            return f"there are {operand.size} in a head"
        row = operand.activation.tensor.layout.nhwc[3]
        if row > ROW:
            return f"there are {row} in a row"
    return None


def scores_scale_fits(case: Case) -> str | None:
    """A step of scores, the product of the scales of queries and keys and the factor, must be below 177."""
    problem = problem_of(case)
    step = problem.q.activation.quant.scale * problem.k.activation.quant.scale * score_factor(case)
    return None if step < CLAMP else f"it is {step:.4g}"


def score_factor(case: Case) -> float:
    """What an attention multiplies its products by, all in all."""
    symbol = case.symbol(0)
    if isinstance(symbol, Probabilities):
        return symbol.scores.factor
    scale = case.attribute("scale") or 1 / math.sqrt(problem_of(case).q.size)
    assert isinstance(scale, float)
    return scale


def attended(case: Case) -> str | None:
    """A product of two activations must be part of attention: scaled, masked, softmax, and times the values."""
    return None if len(case.shape(0)) >= 2 and len(case.shape(1)) >= 2 else f"shapes are {_shapes(case)}"


def same_lead(case: Case) -> str | None:
    """The operands of products of attention must agree in their leading dimensions."""
    return None if case.shape(0)[:-2] == case.shape(1)[:-2] else f"shapes are {_shapes(case)}"


def _shapes(case: Case) -> str:
    return f"{case.shape(0)} and {case.shape(1)}"


def scores_scale(case: Case) -> str | None:
    """Scores are multiplied or divided by one constant above zero, before they are masked."""
    factor = scores_factor(case)
    symbol = next(symbol for symbol in case.symbols if isinstance(symbol, Scores))
    if factor is None:
        return f"inputs are {' and '.join(repr(name) for name in case.node.inputs)}"
    return None if symbol.allowed is None else "the mask comes first"


def scores_factor(case: Case) -> float | None:
    """What a Mul or Div node multiplies scores by."""
    order = (1,) if case.node.op == "Div" else (0, 1)
    for index in order:
        floats = constant_floats(case, index)
        if floats is not None and floats.size == 1 and case.output == case.shape(1 - index):
            factor = float(floats.reshape(-1)[0])
            if math.isfinite(factor) and factor > 0:
                return 1 / factor if case.node.op == "Div" else factor
    return None


def scores_mask(case: Case) -> str | None:
    """Masks of scores must be constant, 0 for keys that take part and -10000 or less for others, and leave some."""
    allowed = added_mask(case)
    if allowed is None:
        return f"inputs are {' and '.join(repr(name) for name in case.node.inputs)}"
    return None if allowed.any(-1).all() else "some query has no keys"


def added_mask(case: Case) -> np.ndarray | None:
    """The keys that scores still have after an Add or Where node; None if it is no mask. (..., queries, keys)"""
    where = case.node.op == "Where"
    index = next(index for index, symbol in enumerate(case.symbols) if isinstance(symbol, Scores))
    scores = case.symbols[index]
    assert isinstance(scores, Scores)
    if case.output != case.shape(index):
        return None
    if where:
        chosen, floats = case.model.constants.get(case.node.inputs[0]), constant_floats(case, 3 - index)
        if chosen is None or floats is None or not (floats <= MASKED).all():
            return None
        allowed: np.ndarray | None = chosen if index == 1 else ~chosen
    else:
        floats = constant_floats(case, 1 - index)
        allowed = None if floats is None else mask_of(floats)
    if allowed is None:
        return None
    allowed = np.broadcast_to(allowed, np.broadcast_shapes(allowed.shape, case.output[-2:]))
    return allowed if scores.allowed is None else allowed & scores.allowed


def scores_axis(case: Case) -> str | None:
    """Softmax of scores must be over the keys, the last axis."""
    axis = normalised_axis(case)
    return None if axis == len(case.shape()) - 1 else f"axis is {case.attribute('axis', 'the default')}"


def values_quantised(case: Case) -> str | None:
    """The values of attention must be an int8 or uint8 activation behind DequantizeLinear."""
    return None if isinstance(case.symbol(1), Activation) else f"input {case.node.inputs[1]!r} is not"


def private(case: Case) -> str | None:
    """Scores and probabilities of attention must have no other reader, and be no outputs of the model."""
    symbol = case.symbol(0)
    assert isinstance(symbol, Probabilities)
    inside = {*symbol.scores.nodes, case.node.index}
    for name in symbol.scores.values:
        if name in case.model.outputs:
            return f"{name!r} is an output"
        others = [node.name for node in case.model.users(name) if node.index not in inside]
        if others:
            return f"{name!r} is read by {' and '.join(map(repr, others))}"
    return None


def undefined_zero(case: Case) -> str | None:
    """Probabilities that are not a number may be replaced by 0."""
    floats = constant_floats(case, 1)
    kinds = [type(case.symbol(index)) for index in (0, 2)]
    good = (
        kinds == [Undefined, Probabilities] and floats is not None and floats.size == 1 and not floats.any()
    )
    return None if good else f"inputs are {' and '.join(repr(name) for name in case.node.inputs)}"


STATE = (operands_quantised, attention_state, attention_plain, mask_constant, mask_leaves_keys)
FORM = (keys_fit, rows_fit, scores_scale_fits, mask_kind, heads_order)
ATTENTION: tuple[Constraint, ...] = (softmax_unit, *STATE, *FORM)

PARTS: dict[str, tuple[Constraint, ...]] = {
    "scores": (softmax_unit, attended, same_lead),
    "scale": (scores_scale,),
    "mask": (scores_mask,),
    "softmax": (scores_axis,),
    "rounding": (pairs_constant,),
    "undefined": (),
    "defined": (undefined_zero,),
    "values": (
        values_quantised,
        same_lead,
        private,
        *FORM,
        scores_clamped,
        masked_apart,
        probabilities_whole,
    ),
}
"""What must hold for the nodes of an attention that is written out as single operators."""

_BETWEEN = {"Identity": "rounding", "QuantizeLinear": "rounding", "DequantizeLinear": "rounding"}
_ON_SCORES = {
    "Mul": "scale",
    "Div": "scale",
    "Add": "mask",
    "Where": "mask",
    "Softmax": "softmax",
    **_BETWEEN,
}
_ON_PROBABILITIES = {"IsNaN": "undefined", "Where": "defined", **_BETWEEN}


def part(case: Case) -> str | None:
    """Which of `PARTS` a node is, None if it is no part of a written-out attention."""
    op, kinds = case.node.op, [type(symbol) for symbol in case.symbols]
    if op == "MatMul":
        if kinds == [Activation, Activation] and (len(case.shape(1)) > 2 or len(case.shape()) == 2):
            return "scores"
        return "values" if kinds[0] is Probabilities else None
    if Scores in kinds:
        return _ON_SCORES.get(op)
    return _ON_PROBABILITIES.get(op) if Probabilities in kinds else None
