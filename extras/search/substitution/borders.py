"""Convolutions in parts, of which each leaves out what is padding to all of its outputs.

An output near a border sees some of a kernel's elements in the padding, where the input is its zero point, so that they
add nothing. With large dilations, or large kernels on small images, these are most. A part of the outputs, a box of
rows and columns, then is a convolution with fewer elements of the kernel, on a box of the input, without what it never
sees. Such transformations, equal on a part of the tensor only, are those of H. Wang et al., PET, OSDI 2021.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, product

from weft.compiler.ir.graph import Conv, IrError, View, Window

WORTH = 0.93
"""Share of the products of a convolution that its parts have at most: each part takes some time to begin."""
Ranges = Callable[[Window, int, int, int], list["Part"]]
"""Takes a window, an axis, and the numbers of inputs and outputs along it."""


@dataclass(frozen=True)
class Part:
    """Outputs along an axis that follow each other, and what they see.

    Attributes
    ----------
    outputs : range
    taps : range
        Elements of the kernel; all others are in the padding for each of the outputs.
    inputs : range
        Elements of the input, without padding.
    before, behind : int
        Padding of this part.
    """

    outputs: range
    taps: range
    inputs: range
    before: int
    behind: int


def whole(window: Window, axis: int, size: int, outputs: int) -> list[Part]:
    """One part, without the elements of the kernel that no output sees in the input."""
    return [_part(window, axis, size, range(outputs))]


def borders(window: Window, axis: int, size: int, outputs: int) -> list[Part]:
    """As many parts as there are sets of elements of the kernel that outputs see in the input."""
    seen = [(at, _taps(window, axis, size, at)) for at in range(outputs)]
    runs = [[at for at, _ in group] for _, group in groupby(seen, lambda item: item[1])]
    return [_part(window, axis, size, range(run[0], run[-1] + 1)) for run in runs]


def split(op: Conv, rows: Ranges, columns: Ranges) -> list[Conv] | None:
    """A convolution as one for each of the parts of its rows and columns; None if that is what it is already, if an
    output sees nothing of the input, or if more than the convolution itself makes its outputs.

    Raises
    ------
    IrError
        If an output would be the sum of other products than before: a bug, never the user's mistake.
    """
    if op.pool is not None or op.epilogue is not None or 0 in op.src.step:
        return None
    (_, h, w, _), (_, oh, ow, _) = op.src.shape, op.dst.shape
    parts = [rows(op.window, 0, h, oh), columns(op.window, 1, w, ow)]
    if any(not part.taps for own in parts for part in own):
        return None
    if all(len(own) == 1 and len(own[0].taps) == op.window.kernel[axis] for axis, own in enumerate(parts)):
        return None
    for axis, (own, size) in enumerate(zip(parts, (h, w), strict=True)):
        if not same_products(op.window, axis, size, (oh, ow)[axis], own):
            raise IrError(f"parts of {op.name} along axis {axis} would add other products: {own}")
    return [_of_part(op, index, y, x) for index, (y, x) in enumerate(product(*parts))]


def useful(op: Conv) -> float:
    """Products of a convolution of which no factor is padding; all of them if it goes on with what it makes."""
    if op.pool is not None or op.epilogue is not None:
        return op.macs
    share = 1.0
    for axis in range(2):
        size, outputs = op.src.shape[1 + axis], op.dst.shape[1 + axis]
        seen = sum(len(_taps(op.window, axis, size, at)) for at in range(outputs))
        share *= seen / (outputs * op.window.kernel[axis])
    return share * op.macs


def same_products(window: Window, axis: int, size: int, outputs: int, parts: Sequence[Part]) -> bool:
    """Whether each output of the parts is the sum of the products that it was before along an axis: pairs of elements
    of input and kernel."""
    wanted = {
        (at, tap, _input(window, axis, at, tap))
        for at in range(outputs)
        for tap in _taps(window, axis, size, at)
    }
    found = []
    for part in parts:
        own = _window_of(window, axis, part)
        for at, tap in product(range(len(part.outputs)), range(len(part.taps))):
            place = _input(own, axis, at, tap)
            if 0 <= place < len(part.inputs):
                found.append((part.outputs[at], part.taps[tap], part.inputs[place]))
    return sorted(wanted) == sorted(found)


def _input(window: Window, axis: int, at: int, tap: int) -> int:
    """The element of the input, or of the padding around it, that an output sees by an element of the kernel."""
    return at * window.stride[axis] + tap * window.dilation[axis] - window.pad[axis]


def _taps(window: Window, axis: int, size: int, at: int) -> range:
    """The elements of the kernel by which an output sees the input: they follow each other."""
    inside = [tap for tap in range(window.kernel[axis]) if 0 <= _input(window, axis, at, tap) < size]
    return range(inside[0], inside[-1] + 1) if inside else range(0)


def _part(window: Window, axis: int, size: int, outputs: range) -> Part:
    seen = [taps for at in outputs if (taps := _taps(window, axis, size, at))]
    if not seen:
        return Part(outputs, range(0), range(0), 0, 0)
    taps = range(min(item[0] for item in seen), max(item[-1] for item in seen) + 1)
    first = _input(window, axis, outputs[0], taps[0])
    last = _input(window, axis, outputs[-1], taps[-1])
    inputs = range(max(first, 0), min(last, size - 1) + 1)
    return Part(outputs, taps, inputs, inputs[0] - first, last - inputs[-1])


def _window_of(window: Window, axis: int, part: Part) -> Window:
    (h, w), (top, left, bottom, right) = window.kernel, window.pad
    taps, before, behind = len(part.taps), part.before, part.behind
    if axis == 0:
        return dataclasses.replace(window, kernel=(taps, w), pad=(before, left, behind, right))
    return dataclasses.replace(window, kernel=(h, taps), pad=(top, before, bottom, behind))


def _of_part(op: Conv, index: int, y: Part, x: Part) -> Conv:
    window = _window_of(_window_of(op.window, 0, y), 1, x)
    weight = op.weight[:, y.taps.start : y.taps.stop, x.taps.start : x.taps.stop]
    return op.replace(
        name=f"{op.name}/part{index}",
        src=box(op.src, y.inputs, x.inputs),
        dst=box(op.dst, y.outputs, x.outputs),
        weight=weight,
        window=window,
    )


def box(view: View, rows: range, columns: range) -> View:
    """Some rows and columns of a view, which does not repeat any."""
    (n, _, _, c), (down, right) = view.shape, view.step
    y, x = view.y + rows.start * down, view.x + columns.start * right
    return dataclasses.replace(view, y=y, x=x, shape=(n, len(rows), len(columns), c))


def ways(op: Conv) -> Iterator[list[Conv]]:
    """The parts that a convolution may become, with so many products fewer that it can be worth it."""
    for rows, columns in ((whole, whole), (borders, whole), (whole, borders), (borders, borders)):
        parts = split(op, rows, columns)
        if parts is not None and sum(part.macs for part in parts) <= WORTH * op.macs:
            yield parts
