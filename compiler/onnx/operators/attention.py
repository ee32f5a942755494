"""The Attention operator."""

from __future__ import annotations

import math

import numpy as np

from weft.compiler.ir.graph import CompileError
from weft.compiler.ir.network import Node
from weft.compiler.onnx.attention import heads_move_behind_rows
from weft.compiler.onnx.attention_form import (
    FORM,
    attention_mask,
    fused,
    problem_of,
    score_factor,
    scores_reach,
)
from weft.compiler.onnx.conditions import softmax_unit
from weft.compiler.onnx.context import NodeContext
from weft.compiler.onnx.model import Model
from weft.compiler.onnx.operator import Operator
from weft.compiler.onnx.qdq import Activation, Pending


def check_attention(model: Model, node: Node) -> None:
    """Raise `CompileError` for an Attention node that contradicts itself."""
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
    """Queries, keys and values must be int8 or uint8 activations behind DequantizeLinear."""
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
    """Masks and lengths must be constant: True or 0 for keys that take part, False or -10000 and less for others."""
    if context.node.input(6) and context.node.input(6) not in context.model.constants:
        return f"input {context.node.input(6)!r} is not"
    name = context.node.input(3)
    return f"input {name!r} is not" if name and attention_mask(context) is None else None


def mask_leaves_keys(context: NodeContext) -> str | None:
    """A mask that adds finite numbers must leave every query some key."""
    floats = context.floats(3)
    if floats is None or not (np.isfinite(floats) & (floats != 0)).any():
        return None
    return None if problem_of(context).allowed.any(-1).all() else f"input {context.node.input(3)!r}"


def attention(context: NodeContext) -> Pending:
    """The device's Attention."""
    problem = problem_of(context)
    rank = len(context.output)
    behind = rank == 3 or heads_move_behind_rows(context.model, context.node.outputs[0])
    return fused(context, problem, score_factor(context), behind, (context.node.index,), ())


_STATE = (operands_quantised, attention_state, attention_plain, mask_constant, mask_leaves_keys)

OPERATORS = (
    Operator(("Attention",), (softmax_unit, *_STATE, *FORM, scores_reach), attention, check=check_attention),
)
