"""What the device can do of pooling: constraints, as in `weft.compiler.support`."""

from __future__ import annotations

import numpy as np

from weft.compiler.case import Case


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
    kernel, pads = case.ints("kernel_shape", ()), case.ints("pads", (0, 0, 0, 0))
    strides, dilations = case.ints("strides", (1, 1)), case.ints("dilations", (1, 1))
    if case.attribute("auto_pad", b"NOTSET") != b"NOTSET":
        return None
    for axis in range(2):
        starts = np.arange(case.output[2 + axis]) * strides[axis] - pads[axis]
        elements = starts[:, None] + np.arange(kernel[axis]) * dilations[axis]
        inside = ((elements >= 0) & (elements < case.shape()[2 + axis])).any(1)
        if not inside.all():
            return f"along {'height' if axis == 0 else 'width'}, output {int(np.argmin(inside))} has none"
    return None


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
