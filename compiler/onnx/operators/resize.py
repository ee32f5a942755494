"""Resize by linear interpolation: a depthwise convolution for each position of results between elements.

Positions are fractions of small integers, and weights are these integers, so only the result is rounded.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import NamedTuple

import numpy as np

from weft.compiler.ir.graph import Conv, DeviceOp, Rescale
from weft.compiler.ir.layout import spatial
from weft.compiler.ir.views import View
from weft.compiler.ir.windows import Window
from weft.compiler.onnx.conditions import activation, image_operand, input_quantised
from weft.compiler.onnx.convolutions import RANKS
from weft.compiler.onnx.operator import NodeContext, Operator
from weft.compiler.onnx.qdq import Pending, Quant, Symbol, result
from weft.compiler.onnx.reorder import Run, find_runs, to_layout
from weft.compiler.onnx.selections import source_coordinates

PIECES = 128
"""Most convolutions per node."""
WEIGHT = 255
"""Largest weight of the device."""
FRACTIONS = 64
"""Largest denominator of a position."""
_NEAR = 1e-3
"""Tolerance of a float32 position, in elements."""


class Line(NamedTuple):
    """Results along an axis with equal position between elements; `run` is in units of 1 / `unit` elements."""

    run: Run
    unit: int

    @property
    def weights(self) -> np.ndarray:
        """Coprime integer weights of the elements on both sides, or of the single element at the position."""
        part = self.run.source % self.unit
        common = math.gcd(part, self.unit)
        return np.array([self.unit - part, part] if part else [1]) // (common if part else 1)

    @property
    def first(self) -> int:
        return self.run.source // self.unit

    @property
    def step(self) -> int:
        """Elements from one result to the next; 0 if all results come from one element."""
        return self.run.step // self.unit if self.run.length > 1 else 1


def image_ranks(context: NodeContext) -> str | None:
    """The input of a linear Resize must have 3 to 5 dimensions."""
    return None if len(context.shape()) in RANKS else f"the input has shape {context.shape()}"


def linear_order(context: NodeContext) -> str | None:
    """The input of Resize must be in the device's order, or at most 256 copies must bring it into it."""
    image = to_layout(activation(context).tensor, spatial(context.shape())) is not None
    return None if image else f"input {context.node.inputs[0]!r}"


def between_elements(context: NodeContext) -> str | None:
    """Linear Resize must act on rows and columns, without antialiasing or crop, by constant scales or sizes."""
    if (
        context.attribute("antialias", 0)
        or context.attribute("coordinate_transformation_mode") == "tf_crop_and_resize"
    ):
        return "it has"
    lanes = source_coordinates(context)
    if lanes is None:
        return "they are not"
    for axis in (0, 1, *((2,) if len(lanes) == 5 else ())):
        if (
            context.output[axis] != context.shape()[axis]
            or np.abs(lanes[axis] - lanes[axis][:, :1]).max() > _NEAR
        ):
            return f"the result has shape {context.output}"
    return None


def fractions_small(context: NodeContext) -> str | None:
    """Linear Resize must become at most 128 convolutions with weights of at most 255."""
    pair = lines(context)
    if pair is None or math.prod(map(len, pair)) > PIECES:
        return f"the input has shape {context.shape()}, the result {context.output}"
    most = math.prod(max(int(line.weights.max()) for line in axis) for axis in pair)
    return None if most <= WEIGHT else f"a weight would be {most}"


@functools.lru_cache(maxsize=1)
def lines(context: NodeContext) -> tuple[list[Line], list[Line]] | None:
    """Return the lines along rows and along columns; None if there are too many."""
    lanes = source_coordinates(context)
    assert lanes is not None
    pair = (
        [_axis_lines(lane[:, 0]) for lane in lanes[-2:]]
        if len(lanes) > 3
        else [[_SINGLE_ROW], _axis_lines(lanes[2][:, 0])]
    )
    down, across = pair
    return None if down is None or across is None else (down, across)


_SINGLE_ROW = Line(Run(0, 0, 1, 1, 1), 1)


def _axis_lines(lane: np.ndarray) -> list[Line] | None:
    for unit in range(1, FRACTIONS + 1):
        numerators = np.rint(lane.astype(np.float64) * unit).astype(np.int64)
        if np.abs(lane * unit - numerators).max() < _NEAR * unit:
            candidates = [
                item
                for item in (find_runs(numerators, PIECES, unit), _runs_with_ends(numerators, unit))
                if item
            ]
            return min(([Line(run, unit) for run in item] for item in candidates), key=len, default=None)
    return None


def _runs_with_ends(numerators: np.ndarray, unit: int) -> list[Run] | None:
    """Return runs with separate runs for the first and last element, which stand in for positions outside."""
    inside = np.flatnonzero((numerators != numerators[0]) & (numerators != numerators[-1]))
    if not inside.size:
        return None
    first, stop = int(inside[0]), int(inside[-1]) + 1
    between = find_runs(numerators[first:stop], PIECES, unit)
    if between is None or numerators[0] % unit or numerators[-1] % unit:
        return None
    middle = [run._replace(target=run.target + first) for run in between]
    last = Run(int(numerators[-1]), stop, len(numerators) - stop, 0, 1)
    return [Run(int(numerators[0]), 0, first, 0, 1), *middle, last]


def resize(context: NodeContext) -> Symbol:
    """Return a convolution for each pair of lines; a copy where results are elements."""
    source, quant = image_operand(context)
    layout = spatial(context.output)
    pair = lines(context)
    assert pair is not None
    ops: list[DeviceOp] = []
    for y, x in itertools.product(*pair):
        piece = _piece(y, x, source.view(), result(layout.nhwc), quant)
        ops.append(piece.replace(name=f"{context.node.name}.{len(ops)}"))
    return Pending(tuple(ops), layout, (source,), (context.node.index,))


def _piece(y: Line, x: Line, source: View, target: View, quant: Quant) -> DeviceOp:
    n, _, _, c = source.shape
    target_steps = (
        y.run.target_step if y.run.length > 1 else 1,
        x.run.target_step if x.run.length > 1 else 1,
    )
    dst = View(
        target.buffer, (n, y.run.length, x.run.length, c), y.run.target, x.run.target, step=target_steps
    )
    weights = y.weights[:, None] * x.weights
    if weights.size == 1:
        src = View(source.buffer, dst.shape, y.first, x.first, step=(y.step, x.step))
        return Rescale("", src, dst, quant.scale, quant.zero)
    # The window has the strides, except that repeated elements need a view with step 0.
    h, w = ((line.run.length - 1) * max(line.step, 1) + len(line.weights) for line in (y, x))
    src = View(source.buffer, (n, h, w, c), y.first, x.first, step=(min(y.step, 1), min(x.step, 1)))
    window = Window((len(y.weights), len(x.weights)), (max(y.step, 1), max(x.step, 1)))
    each = np.repeat(weights.astype(np.int16)[None, :, :, None], c, axis=0)
    scale = np.full(c, quant.scale / int(weights.sum()))
    return Conv("", src, dst, each, np.zeros(c, np.int32), scale, window, c, quant.zero)


def _linear(context: NodeContext) -> bool:
    return context.attribute("mode", "nearest") == "linear"


_CONDITIONS = (input_quantised, image_ranks, linear_order, between_elements, fractions_small)

OPERATORS = (Operator(("Resize", "Upsample"), _CONDITIONS, resize, applies=_linear),)
