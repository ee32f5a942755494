"""What the device can do of softmax alone: constraints, as in `weft.compiler.onnx.support`."""

from __future__ import annotations

import math

from weft.compiler.ir.layout import Layout
from weft.compiler.ir.score_pairs import OCTAVES
from weft.compiler.onnx.case import Case, Constraint
from weft.compiler.onnx.qdq import Activation, Quant, Tensor

SOFTMAX_LENGTH = (1 << 16) - 1
"""Largest number of elements of a stand-alone softmax."""


def softmax_unit(case: Case) -> str | None:
    """The configuration must have a softmax unit ('probability_bits' 7 or 8)."""
    return None if case.model.softmax else ""


def softmax_input(case: Case) -> str | None:
    """The input of Softmax must be an int8 or uint8 activation behind DequantizeLinear, or scores of attention."""
    return None if isinstance(case.symbol(0), Activation) else f"input {case.node.inputs[0]!r} is not"


def softmax_axis(case: Case) -> str | None:
    """Softmax must be over one axis, whose elements are the channels on the device."""
    return None if softmax_rows(case) is not None else f"axis is {case.attribute('axis', 'the default')}"


def softmax_length(case: Case) -> str | None:
    """Softmax takes at most 65535 elements: a row's pitch and the sum of its probabilities have no more bits."""
    axis = normalised_axis(case)
    assert axis is not None
    return None if case.shape()[axis] <= SOFTMAX_LENGTH else f"there are {case.shape()[axis]}"


def softmax_range(case: Case) -> str | None:
    """The scale of Softmax's input must be at most 1.386: -128 to 127 times that are all logits that the device has."""
    return None if softmax_zero(case) is not None else f"it is {_quant(case).scale:.4g}"


def softmax_zero(case: Case) -> int | None:
    """What to subtract from Softmax's int8 input so that no logit is clamped, None if that cannot be.

    It is the zero point if possible; any number gives the same probabilities.
    """
    quant = _quant(case)
    octaves = quant.scale * math.log2(math.e)
    return next((zero for zero in (quant.zero, 0) if (128 + abs(zero)) * octaves <= OCTAVES), None)


def _quant(case: Case) -> Quant:
    symbol = case.symbol(0)
    assert isinstance(symbol, Activation)
    return symbol.quant


def softmax_rows(case: Case) -> tuple[Tensor, Layout] | None:
    """The input with the axis of a Softmax as channels, all others as pixels."""
    symbol, shape, axis = case.symbol(0), case.shape(), normalised_axis(case)
    if axis is None:
        return None
    assert isinstance(symbol, Activation)
    others = tuple(other for other in range(len(shape)) if other != axis)
    layouts = [Layout(shape, (*others, axis), (1, 1, math.prod(shape) // shape[axis], shape[axis]))]
    if symbol.tensor.layout.perm[-1:] == (axis,) and symbol.tensor.layout.shape == shape:
        layouts.insert(0, symbol.tensor.layout)
    for layout in layouts:
        tensor = symbol.tensor.arranged(layout)
        if tensor is not None:
            return tensor, layout
    return None


def normalised_axis(case: Case) -> int | None:
    """The single axis a Softmax normalises over; before opset 13 it is all from `axis` on."""
    shape = case.shape()
    if case.model.network.opset >= 13:
        return int(case.node.attributes.get("axis", -1)) % len(shape) if shape else None
    axis = int(case.node.attributes.get("axis", 1))
    axes = [other for other in range(axis % len(shape), len(shape)) if shape[other] > 1]
    return (axes or [len(shape) - 1])[0] if len(axes) <= 1 else None


SOFTMAX: tuple[Constraint, ...] = (softmax_unit, softmax_input, softmax_axis, softmax_length, softmax_range)
