"""Convolutions split into parts that skip padding.

For an output near a border, some kernel elements fall into the padding, where the input is its zero point, so that they
add nothing. With large dilations, or large kernels on small images, these are the majority. A part computes a box of
outputs by a convolution with fewer kernel elements on a box of the input. H. Wang et al., PET, OSDI 2021, describe such
transformations, which are equal only on parts of a tensor.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, product

from weft.compiler.errors import IrError
from weft.compiler.ir.graph import Conv
from weft.compiler.ir.views import View
from weft.compiler.ir.windows import Window

MAX_SHARE = 0.93
"""Largest share of the original products for which a split pays off; each part has a start-up time."""
Ranges = Callable[[Window, int, int, int], list["Part"]]
"""Splits an axis: from window, axis, number of inputs and number of outputs to parts."""


@dataclass(frozen=True)
class Part:
    """Range of outputs along an axis, and the elements that contribute to it.

    Attributes
    ----------
    outputs : range
    taps : range
        Kernel elements; all others fall into the padding for every output.
    inputs : range
        Input elements, without padding.
    before, after : int
        Padding of this part.
    """

    outputs: range
    taps: range
    inputs: range
    before: int
    after: int


def single_part(window: Window, axis: int, size: int, outputs: int) -> list[Part]:
    """Return one part, without the kernel elements that fall into the padding for every output."""
    return [_make_part(window, axis, size, range(outputs))]


def border_parts(window: Window, axis: int, size: int, outputs: int) -> list[Part]:
    """Return a part for each distinct set of contributing kernel elements."""
    taps_by_output = [(at, _taps(window, axis, size, at)) for at in range(outputs)]
    runs = [[at for at, _ in group] for _, group in groupby(taps_by_output, lambda item: item[1])]
    return [_make_part(window, axis, size, range(run[0], run[-1] + 1)) for run in runs]


def split(op: Conv, rows: Ranges, columns: Ranges) -> list[Conv] | None:
    """Split a convolution into one for each pair of row and column parts.

    Return None if that changes nothing, if an output has no contributing element, or if the convolution has a pool or
    an epilogue.

    Raises
    ------
    IrError
        If an output would sum other products than before, which is a bug of weft.
    """
    if op.pool is not None or op.epilogue is not None or 0 in op.src.step:
        return None
    (_, h, w, _), (_, oh, ow, _) = op.src.shape, op.dst.shape
    parts = [rows(op.window, 0, h, oh), columns(op.window, 1, w, ow)]
    if any(not part.taps for axis_parts in parts for part in axis_parts):
        return None
    if all(
        len(axis_parts) == 1 and len(axis_parts[0].taps) == op.window.kernel[axis]
        for axis, axis_parts in enumerate(parts)
    ):
        return None
    for axis, (axis_parts, size) in enumerate(zip(parts, (h, w), strict=True)):
        if not same_products(op.window, axis, size, (oh, ow)[axis], axis_parts):
            raise IrError(f"parts of {op.name} along axis {axis} would add other products: {axis_parts}")
    return [_part_convolution(op, index, y, x) for index, (y, x) in enumerate(product(*parts))]


def useful_products(op: Conv) -> float:
    """Return the number of products without padding; all products if the convolution has a pool or an epilogue."""
    if op.pool is not None or op.epilogue is not None:
        return op.macs
    share = 1.0
    for axis in range(2):
        size, outputs = op.src.shape[1 + axis], op.dst.shape[1 + axis]
        visible = sum(len(_taps(op.window, axis, size, at)) for at in range(outputs))
        share *= visible / (outputs * op.window.kernel[axis])
    return share * op.macs


def same_products(window: Window, axis: int, size: int, outputs: int, parts: Sequence[Part]) -> bool:
    """Return whether each output still sums the same pairs of input and kernel elements along an axis."""
    expected = {
        (at, tap, _input(window, axis, at, tap))
        for at in range(outputs)
        for tap in _taps(window, axis, size, at)
    }
    actual = []
    for part in parts:
        part_window = _part_window(window, axis, part)
        # Padding of the part contributes nothing.
        for at, tap in product(range(len(part.outputs)), range(len(part.taps))):
            element = _input(part_window, axis, at, tap)
            if 0 <= element < len(part.inputs):
                actual.append((part.outputs[at], part.taps[tap], part.inputs[element]))
    return sorted(expected) == sorted(actual)


def _input(window: Window, axis: int, at: int, tap: int) -> int:
    """Return the input index of a kernel element for an output; it is out of range in the padding."""
    return at * window.stride[axis] + tap * window.dilation[axis] - window.pad[axis]


def _taps(window: Window, axis: int, size: int, at: int) -> range:
    """Return the range of kernel elements that contribute to an output."""
    inside = [tap for tap in range(window.kernel[axis]) if 0 <= _input(window, axis, at, tap) < size]
    # Input indices grow with the kernel element, so that those inside are contiguous.
    return range(inside[0], inside[-1] + 1) if inside else range(0)


def _make_part(window: Window, axis: int, size: int, outputs: range) -> Part:
    visible = [taps for at in outputs if (taps := _taps(window, axis, size, at))]
    if not visible:
        return Part(outputs, range(0), range(0), 0, 0)
    taps = range(min(item[0] for item in visible), max(item[-1] for item in visible) + 1)
    first = _input(window, axis, outputs[0], taps[0])
    last = _input(window, axis, outputs[-1], taps[-1])
    inputs = range(max(first, 0), min(last, size - 1) + 1)
    return Part(outputs, taps, inputs, inputs[0] - first, last - inputs[-1])


def _part_window(window: Window, axis: int, part: Part) -> Window:
    (h, w), (top, left, bottom, right) = window.kernel, window.pad
    taps, before, after = len(part.taps), part.before, part.after
    if axis == 0:
        return dataclasses.replace(window, kernel=(taps, w), pad=(before, left, after, right))
    return dataclasses.replace(window, kernel=(h, taps), pad=(top, before, bottom, after))


def _part_convolution(op: Conv, index: int, y: Part, x: Part) -> Conv:
    window = _part_window(_part_window(op.window, 0, y), 1, x)
    weight = op.weight[:, y.taps.start : y.taps.stop, x.taps.start : x.taps.stop]
    return op.replace(
        name=f"{op.name}/part{index}",
        src=box(op.src, y.inputs, x.inputs),
        dst=box(op.dst, y.outputs, x.outputs),
        weight=weight,
        window=window,
    )


def box(view: View, rows: range, columns: range) -> View:
    """Return some rows and columns of a view that does not repeat any."""
    (n, _, _, c), (down, right) = view.shape, view.step
    y, x = view.y + rows.start * down, view.x + columns.start * right
    return dataclasses.replace(view, y=y, x=x, shape=(n, len(rows), len(columns), c))


def find_splits(op: Conv) -> Iterator[list[Conv]]:
    """Yield the splits of a convolution that save enough products."""
    for rows, columns in (
        (single_part, single_part),
        (border_parts, single_part),
        (single_part, border_parts),
        (border_parts, border_parts),
    ):
        parts = split(op, rows, columns)
        if parts is not None and sum(part.macs for part in parts) <= MAX_SHARE * op.macs:
            yield parts
