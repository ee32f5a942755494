"""What the device can do of pooling: constraints, as in `weft.compiler.onnx.support`."""

from __future__ import annotations

import math

import numpy as np

from weft.compiler.ir.windows import axes
from weft.compiler.onnx.case import Case

SIDE = 4095
"""Loops of the vector unit and rows of a LOAD have 12 bits."""
WINDOW = 1 << 16
"""Elements of a window that are worth computing on the device: sums are products with as many weights."""


def pool_values(case: Case) -> str | None:
    """MaxPool gives values only, no indices."""
    return None if len([name for name in case.node.outputs if name]) == 1 else "it has a second output"


def ceil_average(case: Case) -> str | None:
    """AveragePool with ceil_mode and count_include_pad must not reach past its padding."""
    if not (case.attribute("ceil_mode", 0) and case.attribute("count_include_pad", 0)):
        return None
    kernel, pads = case.ints("kernel_shape", ()), case.ints("pads", (0, 0, 0, 0))
    strides, dilations = case.ints("strides", (1, 1)), case.ints("dilations", (1, 1))
    for axis in range(2):
        reach = (case.output[2 + axis] - 1) * strides[axis] + (kernel[axis] - 1) * dilations[axis] + 1
        if reach > case.shape()[2 + axis] + pads[axis] + pads[axis + 2]:
            return f"the last window ends at {reach}"
    return None


def windows_filled(case: Case) -> str | None:
    """Every window of a pool must hold at least one element of the input."""
    for name, axis in zip(("height", "width"), axes(case.shape()[2:], case.node.attributes), strict=True):
        empty = axis.inside() == 0
        if empty.any():
            return f"along {name}, output {int(np.argmax(empty))} has none"
    return None


def window_size(case: Case) -> str | None:
    """Pools must have inputs of at most 4095 rows and columns, and windows of at most 65536 elements."""
    sides = case.shape()[2:] if len(case.shape()) == 4 else case.shape()[1:2]
    kernel = case.ints("kernel_shape", sides)
    if max(sides) > SIDE or max(kernel) > SIDE:
        return f"the input has shape {case.shape()}, the window {kernel}"
    return None if math.prod(kernel) <= WINDOW else f"the window is {kernel}"


def mean_axes(case: Case) -> str | None:
    """ReduceMean must be over both spatial dimensions of (N, C, H, W), or the rows of (N, rows, C); axes constant."""
    axes = reduced_axes(case)
    return None if axes == {4: (2, 3), 3: (1,)}.get(len(case.shape())) else f"axes are {axes}"


def reduced_axes(case: Case) -> tuple[int, ...] | None:
    """The constant, non-negative axes of a reduction; None if they are not known."""
    axes = case.node.attributes.get("axes")
    if axes is None and case.node.input(1):
        given = case.model.constants.get(case.node.input(1))
        axes = None if given is None else given.tolist()
    rank = len(case.shape())
    return None if axes is None else tuple(sorted(axis % rank for axis in axes))
