"""Conv and ConvTranspose with constant weights."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from weft.compiler.ir.graph import Conv, DeviceOp
from weft.compiler.ir.layout import spatial
from weft.compiler.ir.views import View
from weft.compiler.ir.windows import Window
from weft.compiler.machine.target import COUNT_MAX, STEP_MAX, has_coordinates
from weft.compiler.onnx.conditions import (
    bias_constant,
    depth_alone,
    image,
    image_operand,
    image_order,
    input_quantised,
    weights_constant,
    weights_per_output,
)
from weft.compiler.onnx.convolutions import bias_of, depth_tap, pad_separately, product_of, window_of
from weft.compiler.onnx.operator import NodeContext, Operator
from weft.compiler.onnx.qdq import Constant, Pending, Symbol, result
from weft.compiler.onnx.reorder import MAX_COPIES


def pads_fit(context: NodeContext) -> str | None:
    """Pads must not be negative, and must be at most 4095 along axes with strides or dilations above 127."""
    if min(context.ints("pads", (0,))) < 0:
        return f"pads is {context.ints('pads', ())}"
    window = window_of(context, context.shape(1)[2:])
    far = [axis for axis in (0, 1) if not has_coordinates(window, axis)]
    most = max((max(window.pad[axis], window.pad[axis + 2]) for axis in far), default=0)
    return None if most <= COUNT_MAX else f"pads are {window.pad}"


def conv(context: NodeContext) -> Symbol:
    """Return the device's Conv, with weights (outputs, rows, columns, inputs)."""
    source, quant = image_operand(context)
    weight = context.symbol(1)
    assert isinstance(weight, Constant)
    kernel = weight.values.shape[2:]
    values = np.moveaxis(weight.values, 1, -1)
    if len(kernel) == 3:
        tap = depth_tap(context, kernel)
        assert tap is not None
        values = values[:, tap]
    elif len(kernel) == 1:
        values = values[:, None]
    source, window = pad_separately(source, quant, window_of(context, kernel))
    return product_of(context, source, source.view(), quant, values, weight, window, spatial(context.output))


CONV_OPERATORS = (
    Operator(
        ("Conv",),
        (
            image,
            depth_alone,
            input_quantised,
            image_order,
            weights_constant,
            weights_per_output,
            bias_constant,
            pads_fit,
        ),
        conv,
    ),
)


class Phase(NamedTuple):
    """`length` results of a ConvTranspose along one axis, from `first` on with its stride: a convolution with stride 1.

    Attributes
    ----------
    taps : tuple of int
        Kernel elements, in the order of their inputs; empty if no input contributes.
    dilation : int
        Distance of these inputs.
    before, after : int
        Padding; negative if inputs are not read.
    """

    first: int
    length: int
    taps: tuple[int, ...]
    dilation: int
    before: int
    after: int


@dataclass(frozen=True)
class Spread:
    """ConvTranspose along one axis: input i and kernel element k contribute to result i * stride + k * dilation -
    before.
    """

    size: int
    output: int
    kernel: int
    stride: int
    dilation: int
    before: int

    def phases(self) -> tuple[Phase, ...]:
        return tuple(self._phase(first) for first in range(min(self.stride, self.output)))

    def _phase(self, first: int) -> Phase:
        length = -(-(self.output - first) // self.stride)
        place = first + self.before
        # Inputs and kernel elements run in opposite directions, so the taps are reversed.
        taps = [k for k in range(self.kernel) if (place - k * self.dilation) % self.stride == 0][::-1]
        reads = [(place - k * self.dilation) // self.stride for k in taps]
        if not taps or reads[0] >= self.size or reads[-1] + length <= 0:
            return self.empty_phase(first, length)
        dilation = reads[1] - reads[0] if len(taps) > 1 else 1
        return Phase(first, length, tuple(taps), dilation, -reads[0], reads[-1] + length - self.size)

    def empty_phase(self, first: int, length: int) -> Phase:
        """Return the phase of results without contributions."""
        return Phase(first, length, (), 1, 0, length - self.size)

    def inputs_read(self, phase: Phase) -> int:
        """Return the number of inputs that a phase reads."""
        return self.size + min(phase.before, 0) + min(phase.after, 0)


def spreads(context: NodeContext) -> tuple[Spread, ...]:
    """Return the ConvTranspose along each axis."""
    sizes, outputs, kernel = context.shape()[2:], context.output[2:], context.shape(1)[2:]
    ones = (1,) * len(sizes)
    strides, dilations = context.ints("strides", ones), context.ints("dilations", ones)
    pads, auto = context.ints("pads", (0,) * 2 * len(sizes)), context.attribute("auto_pad", "NOTSET")
    extra = context.ints("output_padding", (0,) * len(sizes))
    per_axis = []
    for at, size in enumerate(sizes):
        before = 0 if auto == "VALID" else pads[at]
        if "output_shape" in context.node.attributes or auto in ("SAME_UPPER", "SAME_LOWER"):
            full_size = (size - 1) * strides[at] + extra[at] + (kernel[at] - 1) * dilations[at] + 1
            total = max(full_size - outputs[at], 0)
            before = total // 2 if auto == "SAME_UPPER" else total - total // 2
        per_axis.append(Spread(size, outputs[at], kernel[at], strides[at], dilations[at], before))
    return tuple(per_axis)


def rows_or_images(context: NodeContext) -> str | None:
    """The input of ConvTranspose must have shape (N, C, L) or (N, C, H, W)."""
    supported = len(context.shape()) == len(context.output) in (3, 4)
    return None if supported else f"the input has shape {context.shape()}, the result {context.output}"


def strides_few(context: NodeContext) -> str | None:
    """The product of ConvTranspose's strides must be at most 64, its dilations at most 127, and its
    pads not negative.
    """
    axes = spreads(context)
    strides, dilations = ([getattr(axis, name) for axis in axes] for name in ("stride", "dilation"))
    if min(context.ints("pads", (0,))) < 0:
        return f"pads is {context.ints('pads', ())}"
    supported = math.prod(strides) <= MAX_COPIES and max(dilations) <= STEP_MAX
    return None if supported else f"strides are {strides}, dilations {dilations}"


def conv_transpose(context: NodeContext) -> Symbol:
    """Return a convolution for each phase of rows and columns."""
    source, quant = image_operand(context)
    weight, layout = context.symbol(1), spatial(context.output)
    assert isinstance(weight, Constant)
    groups = int(context.node.attributes.get("group", 1))
    each = layout.nhwc[3] // groups
    scale = quant.scale * np.tile(np.broadcast_to(weight.scale.reshape(-1), each), groups)
    bias, notes = bias_of(context, scale)
    values = _by_output(weight.values, groups)
    ops: list[DeviceOp] = []
    for piece in _pieces(context, source.view(), result(layout.nhwc), values):
        name = f"{context.node.name}.{len(ops)}"
        ops.append(
            Conv(name, piece.src, piece.dst, piece.weight, bias, scale, piece.window, groups, quant.zero)
        )
    return Pending(tuple(ops), layout, (source,), (context.node.index,), notes=notes)


class Piece(NamedTuple):
    """Convolution of a box of the input into results with steps between them."""

    src: View
    dst: View
    weight: np.ndarray
    window: Window


def _pieces(context: NodeContext, source: View, target: View, values: np.ndarray) -> Iterator[Piece]:
    """Yield the convolutions, with weights from `values` (outputs, rows, columns, inputs)."""
    per_axis = spreads(context)
    down, across = per_axis if len(per_axis) == 2 else (Spread(1, 1, 1, 1, 1, 0), *per_axis)
    (n, _, _, inputs), outputs = source.shape, target.shape[3]
    for y, x in itertools.product(down.phases(), across.phases()):
        weight = values[:, list(y.taps)][:, :, list(x.taps)]
        if not (y.taps and x.taps):  # no input contributes: a zero weight leaves the bias
            y, x = down.empty_phase(y.first, y.length), across.empty_phase(x.first, x.length)
            weight = np.zeros_like(values[:, :1, :1])
        box = (n, down.inputs_read(y), across.inputs_read(x), inputs)
        src = View(source.buffer, box, max(-y.before, 0), max(-x.before, 0))
        steps = (down.stride if y.length > 1 else 1, across.stride if x.length > 1 else 1)
        dst = View(target.buffer, (n, y.length, x.length, outputs), y.first, x.first, step=steps)
        pad = (max(y.before, 0), max(x.before, 0), max(y.after, 0), max(x.after, 0))
        kernel = (weight.shape[1], weight.shape[2])
        yield Piece(src, dst, weight, Window(kernel, (1, 1), (y.dilation, x.dilation), pad))


def _by_output(values: np.ndarray, groups: int) -> np.ndarray:
    """Return weights (inputs, outputs / groups, ...) as (outputs, rows, columns, inputs / groups)."""
    if values.ndim == 3:
        values = values[:, :, None]
    inputs, each, h, w = values.shape
    split = values.reshape(groups, inputs // groups, each, h, w).transpose(0, 2, 3, 4, 1)
    return np.ascontiguousarray(split.reshape(groups * each, h, w, inputs // groups)).astype(np.int16)


_COMMON = (rows_or_images, input_quantised, image_order, weights_constant, weights_per_output, bias_constant)

CONV_TRANSPOSE_OPERATORS = (Operator(("ConvTranspose",), (*_COMMON, strides_few), conv_transpose),)


OPERATORS = (*CONV_OPERATORS, *CONV_TRANSPOSE_OPERATORS)
