"""Q/DQ pairs between the products of an attention that is written out in operators."""

from __future__ import annotations

import dataclasses

import numpy as np

from weft.compiler.ir.graph import Rounding
from weft.compiler.ir.network import Node
from weft.compiler.ir.score_pairs import REACH, Bounds, Pair, clipping, followed
from weft.compiler.onnx.attention_form import largest, score_range, scores_reach
from weft.compiler.onnx.context import NodeContext
from weft.compiler.onnx.model import Model
from weft.compiler.onnx.qdq import Probabilities, Scores

RANGES = {
    "int4": (-8, 7), "uint4": (0, 15), "int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767),
    "uint16": (0, 65535),
}  # fmt: skip
"""Smallest and largest integer of the types that QuantizeLinear may make."""


def pair_of(model: Model, node: Node, dtype: str) -> Pair | None:
    """Constant per-tensor parameters of a Q or DQ node whose integer side has `dtype`; None for anything else."""
    scale, zero = model.constants.get(node.input(1)), model.constants.get(node.input(2))
    if dtype not in RANGES or scale is None or scale.size != 1 or node.attributes.get("block_size", 0):
        return None
    if node.input(2) and (zero is None or zero.size != 1):
        return None
    lowest, highest = RANGES[dtype]
    offset = 0 if zero is None else int(zero.reshape(-1)[0])
    return Pair(float(np.float32(scale.reshape(-1)[0])), offset, lowest, highest)


def pair(context: NodeContext) -> Pair | None:
    """The pair that a Q or DQ node of scores is one half of; None if it has no constant parameters of one integer."""
    node, symbol = context.node, context.symbol(0)
    value = node.outputs[0] if node.op == "QuantizeLinear" else node.inputs[0]
    found = pair_of(context.model, node, context.model.dtypes[value])
    if found is None or not isinstance(symbol, Scores):
        return found
    return dataclasses.replace(found, factor=symbol.factor, masked=symbol.allowed is not None)


def pairs_constant(context: NodeContext) -> str | None:
    """Scores and probabilities are quantised to integers with one constant scale and zero point, and back with them."""
    symbol = context.symbol(0)
    if context.node.op == "Identity":
        return None
    found = pair(context)
    if found is None:
        return f"{context.node.name!r} has others"
    if isinstance(symbol, Scores) and symbol.key_mask is not None:
        return f"{context.node.name!r} is behind a mask that is known when the model runs"
    assert isinstance(symbol, Scores | Probabilities)
    before = (symbol.scores if isinstance(symbol, Probabilities) else symbol).quantised
    same = context.node.op == "QuantizeLinear" or (before is not None and before.same(found))
    return None if same else f"{context.node.name!r} has others than the QuantizeLinear before it"


def clipping_pairs(scores: Scores) -> tuple[tuple[Pair, ...], Bounds]:
    """Q/DQ pairs that can clip scores, and the bounds of scores behind all pairs."""
    return clipping(scores.pairs, scores.bounds)


def _scores_of(context: NodeContext) -> Scores:
    symbol = context.symbol(0)
    assert isinstance(symbol, Probabilities)
    return symbol.scores


def rounding_of(context: NodeContext) -> tuple[Rounding, float] | None:
    """The requantisation of scores to the 8 bits of the model's pairs, and the nats of its step; None without one.

    It is chosen where a pair can clip scores, or where scores of 32 bits could be clamped and those of 8 bits are not.
    """
    scores = _scores_of(context)
    clipping, _ = clipping_pairs(scores)
    if not clipping and (not scores.pairs or score_range(context).holds(largest(context))):
        return None
    return followed(clipping or scores.pairs, scores.unit, scores.factor, scores.bounds)


def scores_told_apart(context: NodeContext) -> str | None:
    """Scores must not be clamped, at 177: for any int8 values, by 1.25 times a calibration, or rounded to 8 bits."""
    clipping, _ = clipping_pairs(_scores_of(context))
    return None if clipping or rounding_of(context) is not None else scores_reach(context)


def scores_clamped(context: NodeContext) -> str | None:
    """Scores whose quantised range can clip them must have 8 bits, and steps fine enough for 177 to be all of them."""
    scores = _scores_of(context)
    found, _ = clipping_pairs(scores)
    if not found or rounding_of(context) is not None:
        return None
    first, bounds = found[0], scores.bounds
    could = f"{bounds.low * first.factor:.4g} to {bounds.high * first.factor:.4g}"
    return f"they reach from {first.low:.4g} to {first.high:.4g}, where {could} is possible"


def masked_apart(context: NodeContext) -> str | None:
    """Quantised scores must leave masked keys without weight: at least 11.1 below the least of the others."""
    scores = _scores_of(context)
    _, bounds = clipping_pairs(scores)
    if scores.allowed is None or scores.allowed.all():
        return None
    least, masked = bounds.low * scores.factor, bounds.masked * scores.factor
    return None if masked <= least - REACH else f"they become {masked:.4g}, others may be {least:.4g}"


def probabilities_whole(context: NodeContext) -> str | None:
    """Quantised probabilities must reach from 0 to 1."""
    short = next((item for item in _scores_of(context).weight_pairs if not item.whole), None)
    return None if short is None else f"they reach {short.high:.4g}"
