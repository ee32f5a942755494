"""Rows of values on the device, and recognition of expressions on their elements and of per-row factors."""

from __future__ import annotations

import dataclasses
import math
from typing import NamedTuple

import numpy as np

from weft.compiler.ir.graph import Rounding
from weft.compiler.ir.layout import Layout
from weft.compiler.ir.quantisation import Quantisation
from weft.compiler.ir.scales import SCORE_REACH, Bounds, Pair, common_rounding, exceeded_pairs
from weft.compiler.machine.emit import ceil_div
from weft.compiler.machine.target import PITCH_MAX
from weft.compiler.onnx.attention import largest_score, score_range, scores_reach
from weft.compiler.onnx.functions import Entries, Function, key_of
from weft.compiler.onnx.operator import QUANTISE, NodeContext
from weft.compiler.onnx.qdq import Activation, Probabilities, Quant, Scores, Tensor
from weft.compiler.onnx.reorder import to_layout
from weft.hdl.isa.config import Config

_BYTES = np.arange(-128, 128, dtype=np.float64)
_CLOSE = 1e-5
"""Relative error of float32 arithmetic."""


class Rows(NamedTuple):
    """A value with some axes as the device's channels, in the order `axes`, and all others as pixels."""

    tensor: Tensor
    layout: Layout
    axes: tuple[int, ...]


def rows_of(tensor: Tensor, shape: tuple[int, ...], axes: tuple[int, ...]) -> Rows | None:
    """Return a value of `shape` with rows along `axes`, unchanged or by copies; None if it needs too many."""
    orders = [axes]
    if len(shape) == 4 and 1 in axes:
        orders.append((*(axis for axis in axes if axis != 1), 1))
    layouts = [row_layout(shape, order) for order in orders]
    for find in (Tensor.in_layout, to_layout):
        for order, layout in zip(orders, layouts, strict=True):
            tensor_rows = find(tensor, layout)
            if tensor_rows is not None:
                return Rows(tensor_rows, layout, order)
    return None


def row_layout(shape: tuple[int, ...], axes: tuple[int, ...]) -> Layout:
    """Return the layout of a value of `shape` with `axes` as channels, in this order."""
    pixel_axes = tuple(axis for axis in range(len(shape)) if axis not in axes)
    pixels, count = (math.prod(shape[axis] for axis in group) for group in (pixel_axes, axes))
    return Layout(shape, (*pixel_axes, *axes), (1, 1, pixels, count))


def row_fits(config: Config, count: int) -> bool:
    """Return whether rows of `count` elements fit the scratchpad with all constants that kernels read."""
    return count <= PITCH_MAX and 8 * ceil_div(count, config.n) <= config.scratchpad_size


def repeats(part: tuple[int, ...], shape: tuple[int, ...], axes: tuple[int, ...]) -> bool:
    """Return whether a value of shape `part` has one number for all elements of `shape` along `axes`."""
    padded = (1,) * (len(shape) - len(part)) + part
    return padded == tuple(1 if axis in axes else size for axis, size in enumerate(shape))


def along(values: np.ndarray, shape: tuple[int, ...], axes: tuple[int, ...]) -> np.ndarray | None:
    """Return a constant that is equal for all rows as the elements along `axes`; None if rows differ."""
    if values.ndim > len(shape):
        return None
    padded = values.reshape((1,) * (len(shape) - values.ndim) + values.shape)
    expected = tuple(size if axis in axes else 1 for axis, size in enumerate(shape))
    if any(size not in (1, most) for size, most in zip(padded.shape, expected, strict=True)):
        return None
    pixel_axes = tuple(axis for axis in range(len(shape)) if axis not in axes)
    return np.broadcast_to(padded, expected).transpose(*pixel_axes, *axes).reshape(-1).astype(np.float64)


def same_values(a: Activation, b: Activation) -> bool:
    """Return whether two activations are equal values."""
    alike = (a.quant.zero, a.quant.unsigned) == (b.quant.zero, b.quant.unsigned)
    return (
        alike
        and key_of(a.tensor) == key_of(b.tensor)
        and math.isclose(a.quant.scale, b.quant.scale, rel_tol=1e-4)
    )


class Form(NamedTuple):
    """An input as "values", "squares" or "magnitudes" of an activation, and the nodes that compute it."""

    kind: str
    source: Activation
    nodes: tuple[int, ...]


def form_of(context: NodeContext, index: int) -> Form | None:
    """Return an input as values, squares or magnitudes of an activation, however the model expresses that."""
    symbol = context.symbol(index)
    if isinstance(symbol, Activation):
        return Form("values", symbol, ())
    for function in context.arguments[index]:
        for kind, power in (("squares", 2), ("magnitudes", 1)):
            quant = _fit_power(function, power)
            if quant is not None:
                return Form(kind, Activation(function.root, quant), function.nodes)
    return None


def _fit_power(function: Function, power: int) -> Quant | None:
    """Return parameters with which a function is a power of the root's magnitudes; None if it is not."""
    if function.root.wide:
        return None
    entries = function.entries
    if not entries.is_defined or entries.values.dtype.kind != "f":
        return None
    values = entries.values.astype(np.float64)
    if not np.isfinite(values).all() or values.min() < 0:
        return None
    # The roots must be a V of slope `scale` with its tip at the zero point: both ends determine it.
    roots = values ** (1 / power)
    scale = (roots[0] + roots[-1]) / 255
    if scale <= 0:
        return None
    zero = int(np.rint(roots[0] / scale)) - 128
    expected = (scale * np.abs(_BYTES - zero)) ** power
    close = np.abs(values - expected) <= _CLOSE * expected + 1e-12 * values.max()
    return Quant(float(scale), zero, function.root.unsigned) if close.all() else None


class Divisor(NamedTuple):
    """A factor per row from a tensor: ``gain * g``, with `by`, `zero` and `offset` as in `RowScale`."""

    tensor: Tensor
    by: str
    gain: float
    zero: int
    offset: float
    nodes: tuple[int, ...]


def divisor_of(context: NodeContext, index: int, *, divides: bool) -> Divisor | None:
    """Return an input of a Mul, or with `divides` the divisor of a Div, as a factor per row; None if it is none."""
    symbol = context.symbol(index)
    if isinstance(symbol, Activation):
        by, gain = ("over", 1 / symbol.quant.scale) if divides else ("times", symbol.quant.scale)
        return Divisor(symbol.tensor, by, gain, symbol.quant.zero, 0.0, ())
    for function in context.arguments[index]:
        root = None if function.root.wide else _fit_root(function.entries, divides=divides)
        if root is not None:
            slope, zero, offset = root
            return Divisor(function.root, "root", 1 / math.sqrt(slope), zero, offset, function.nodes)
    return None


def _fit_root(entries: Entries, *, divides: bool) -> tuple[float, int, float] | None:
    """Return (slope, zero, offset) if entries are ``sqrt(slope * (byte - zero + offset))``, without `divides` its
    reciprocal.

    Entries that are no numbers are ignored. `offset` is below 1, or positive with a zero of -128. None for other
    functions.
    """
    with np.errstate(all="ignore"):
        values = entries.values.astype(np.float64)
        squares = values**2 if divides else values**-2.0
    known = np.flatnonzero(~entries.undefined & np.isfinite(squares))
    if len(known) < 16 or (entries.values[known] < 0).any():
        return None
    first, last = known[0], known[-1]
    slope = (squares[last] - squares[first]) / (last - first)
    if slope <= 0:
        return None
    begin = squares[first] / slope - (first - 128)
    expected = slope * (_BYTES + begin)
    if (np.abs(squares - expected)[known] > 2 * _CLOSE * slope * 256).any() or (
        expected[known] < -slope / 8
    ).any():
        return None
    # Beyond -128 a zero point is no byte: the rest becomes the offset.
    zero = max(-math.floor(begin + 1e-3), -128)
    offset = begin + zero
    return float(slope), zero, float(offset if offset > 1e-3 else 0.0)


RANGES = {
    "int4": (-8, 7), "uint4": (0, 15), "int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767),
    "uint16": (0, 65535),
}  # fmt: skip
"""Least and greatest integer of QuantizeLinear's output types."""


def pair_of(quantisation: Quantisation | None) -> Pair | None:
    """Return per-tensor parameters; None if there are none."""
    if quantisation is None or not quantisation.per_tensor or quantisation.dtype.name not in RANGES:
        return None
    lowest, highest = RANGES[quantisation.dtype.name]
    return Pair(float(np.float32(quantisation.scales)), int(quantisation.zeros), lowest, highest)


def pair(context: NodeContext) -> Pair | None:
    """Return the parameters of scores in a step; None if they are not per tensor."""
    symbol = context.symbol(0)
    parameters = pair_of(context.quantisation)
    if parameters is None or not isinstance(symbol, Scores):
        return parameters
    return dataclasses.replace(parameters, factor=symbol.factor, masked=symbol.allowed is not None)


def pairs_constant(context: NodeContext) -> str | None:
    """Scores and probabilities must be quantised and dequantised with equal constant per-tensor parameters."""
    symbol = context.symbol(0)
    if context.node.op == "Identity":
        return None
    parameters = pair(context)
    if parameters is None:
        return f"{context.node.name!r} has others"
    if isinstance(symbol, Scores) and symbol.key_mask is not None:
        return f"{context.node.name!r} comes after a mask that is only known at run time"
    assert isinstance(symbol, Scores | Probabilities)
    before = (symbol.scores if isinstance(symbol, Probabilities) else symbol).quantised
    same = context.node.op == QUANTISE or (before is not None and before.same(parameters))
    return None if same else f"{context.node.name!r} has others than the value before it"


def clipping_pairs(scores: Scores) -> tuple[tuple[Pair, ...], Bounds]:
    """Return the Q/DQ pairs that can clip scores, and the bounds of scores after all pairs."""
    return exceeded_pairs(scores.pairs, scores.bounds)


def _scores_of(context: NodeContext) -> Scores:
    symbol = context.symbol(0)
    assert isinstance(symbol, Probabilities)
    return symbol.scores


def rounding_of(context: NodeContext) -> tuple[Rounding, float] | None:
    """Return the requantisation of scores to the 8 bits of the model's pairs, and the nats of its step.

    None if no pair can clip scores, unless 32-bit scores could be clamped and 8-bit scores are not.
    """
    scores = _scores_of(context)
    clipping, _ = clipping_pairs(scores)
    if not clipping and (not scores.pairs or score_range(context).holds(largest_score(context))):
        return None
    return common_rounding(clipping or scores.pairs, scores.unit, scores.factor, scores.bounds)


def scores_not_clamped(context: NodeContext) -> str | None:
    """No score may be clamped, at 177: for any int8 values, for 1.25 times a calibration's largest, or once rounded to
    8 bits.
    """
    clipping, _ = clipping_pairs(_scores_of(context))
    return None if clipping or rounding_of(context) is not None else scores_reach(context)


def scores_clamped(context: NodeContext) -> str | None:
    """Scores that their quantised range can clip must have 8 bits, and steps fine enough that none exceeds 177."""
    scores = _scores_of(context)
    clipping, _ = clipping_pairs(scores)
    if not clipping or rounding_of(context) is not None:
        return None
    first, bounds = clipping[0], scores.bounds
    could = f"{bounds.low * first.factor:.4g} to {bounds.high * first.factor:.4g}"
    return f"they reach from {first.low:.4g} to {first.high:.4g}, where {could} is possible"


def masked_apart(context: NodeContext) -> str | None:
    """Quantised scores must leave masked keys without weight: at least 11.1 below the least of the others."""
    scores = _scores_of(context)
    _, bounds = clipping_pairs(scores)
    if scores.allowed is None or scores.allowed.all():
        return None
    least, masked = bounds.low * scores.factor, bounds.masked * scores.factor
    return None if masked <= least - SCORE_REACH else f"they become {masked:.4g}, others may be {least:.4g}"


def probabilities_whole(context: NodeContext) -> str | None:
    """Quantised probabilities must cover the range from 0 to 1."""
    narrow = next((item for item in _scores_of(context).weight_pairs if not item.keeps_probabilities), None)
    return None if narrow is None else f"they reach {narrow.high:.4g}"
