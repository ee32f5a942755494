"""Resize by linear interpolation: a depthwise convolution for each place of results between elements.

Places are fractions of small integers, the weights are these integers: nothing is rounded before the result.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import NamedTuple

import numpy as np

from weft.compiler.ir.graph import Conv, DeviceOp, Rescale, View, Window
from weft.compiler.ir.layout import spatial
from weft.compiler.onnx.conditions import activation, image_operand, input_quantised
from weft.compiler.onnx.convolutions import RANKS
from weft.compiler.onnx.indices import source_coordinates
from weft.compiler.onnx.operator import NodeContext, Operator
from weft.compiler.onnx.qdq import Pending, Quant, Symbol, result
from weft.compiler.onnx.reorder import to_layout
from weft.compiler.onnx.runs import Run, find_runs

PIECES = 128
"""Most convolutions that a node may become."""
WEIGHT = 255
"""Largest weight of the device."""
FRACTIONS = 64
"""Largest denominator of a place that is looked for, and how far from it float32 may be."""
_NEAR = 1e-3


class Line(NamedTuple):
    """Results along an axis that are at the same place between elements: `run` in units of 1 / `unit` elements."""

    run: Run
    unit: int

    @property
    def weights(self) -> np.ndarray:
        """Of the elements on both sides of the place, or of the one that is there: integers without common divisor."""
        part = self.run.source % self.unit
        common = math.gcd(part, self.unit)
        return np.array([self.unit - part, part] if part else [1]) // (common if part else 1)

    @property
    def first(self) -> int:
        return self.run.source // self.unit

    @property
    def step(self) -> int:
        """Elements from one result to the next; 0 if all are of the same one."""
        return self.run.step // self.unit if self.run.length > 1 else 1


def image_ranks(context: NodeContext) -> str | None:
    """Linear Resize must be of rows, images or several images: inputs of 3 to 5 dimensions."""
    return None if len(context.shape()) in RANKS else f"the input has shape {context.shape()}"


def linear_order(context: NodeContext) -> str | None:
    """The input of Resize must be in the device's order, or be brought into it by at most 256 copies."""
    good = to_layout(activation(context).tensor, spatial(context.shape())) is not None
    return None if good else f"input {context.node.inputs[0]!r}"


def between_elements(context: NodeContext) -> str | None:
    """Linear Resize must be along rows and columns, without antialiasing or a region, by constant scales or sizes."""
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
    """Linear Resize must become at most 128 convolutions, of weights of at most 255: places repeat between elements."""
    found = lines(context)
    if found is None or math.prod(map(len, found)) > PIECES:
        return f"the input has shape {context.shape()}, the result {context.output}"
    most = math.prod(max(int(line.weights.max()) for line in axis) for axis in found)
    return None if most <= WEIGHT else f"a weight would be {most}"


@functools.lru_cache(maxsize=1)
def lines(context: NodeContext) -> tuple[list[Line], list[Line]] | None:
    """The results along rows and along columns; None if they are too many."""
    lanes = source_coordinates(context)
    assert lanes is not None
    made = (
        [_lines(lane[:, 0]) for lane in lanes[-2:]] if len(lanes) > 3 else [[_ALONE], _lines(lanes[2][:, 0])]
    )
    down, across = made
    return None if down is None or across is None else (down, across)


_ALONE = Line(Run(0, 0, 1, 1, 1), 1)


def _lines(lane: np.ndarray) -> list[Line] | None:
    for unit in range(1, FRACTIONS + 1):
        numerators = np.rint(lane.astype(np.float64) * unit).astype(np.int64)
        if np.abs(lane * unit - numerators).max() < _NEAR * unit:
            found = [item for item in (find_runs(numerators, PIECES, unit), _apart(numerators, unit)) if item]
            return min(([Line(run, unit) for run in item] for item in found), key=len, default=None)
    return None


def _apart(numerators: np.ndarray, unit: int) -> list[Run] | None:
    """Runs with those of the first and of the last element by themselves, which places outside are taken to be."""
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
    """A convolution for each pair of lines; where results are elements it is a copy."""
    source, quant = image_operand(context)
    layout = spatial(context.output)
    found = lines(context)
    assert found is not None
    ops: list[DeviceOp] = []
    for y, x in itertools.product(*found):
        piece = _piece(y, x, source.view(), result(layout.nhwc), quant)
        ops.append(piece.replace(name=f"{context.node.name}.{len(ops)}"))
    return Pending(tuple(ops), layout, (source,), (context.node.index,))


def _piece(y: Line, x: Line, source: View, target: View, quant: Quant) -> DeviceOp:
    """The results on lines `y` and `x`."""
    n, _, _, c = source.shape
    apart = (y.run.target_step if y.run.length > 1 else 1, x.run.target_step if x.run.length > 1 else 1)
    dst = View(target.buffer, (n, y.run.length, x.run.length, c), y.run.target, x.run.target, step=apart)
    weights = y.weights[:, None] * x.weights
    if weights.size == 1:
        src = View(source.buffer, dst.shape, y.first, x.first, step=(y.step, x.step))
        return Rescale("", src, dst, quant.scale, quant.zero)
    # Strides are the window's, but for elements that are repeated.
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
