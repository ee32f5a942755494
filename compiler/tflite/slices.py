"""Slices of tensors, for SLICE and STRIDED_SLICE."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.compiler.tflite.builder import FIRST, Order
from weft.compiler.tflite.context import Context

Range = tuple[int, int, int]
"""Start, end (exclusive) and step of a slice along one axis, as in ONNX's Slice."""


def slice_input(context: Context, ranges: Sequence[Range]) -> None:
    """Write the result as a slice of the first input, with a range for each of the file's axes."""
    order = context.order(0)
    axes = FIRST if order is Order.CHANNELS_FIRST else tuple(range(len(ranges)))
    numbers = [context.array([ranges[axis][part] for axis in axes]) for part in range(3)]
    starts, ends, steps = numbers
    places = context.array(list(range(len(axes))))
    shape = context.tensor().shape
    result_shape = tuple(len(range(size)[slice(*part)]) for size, part in zip(shape, ranges, strict=True))
    if math.prod(result_shape) != math.prod(context.output().shape):
        raise context.refuse(
            f"takes {math.prod(result_shape):,} elements for a result of {math.prod(context.output().shape):,}"
        )
    reshape = result_shape != context.output().shape
    context.move("Slice", 0, starts, ends, places, steps, order=order, reshape=reshape)


def slices_of(context: Context) -> list[Range]:
    """Return the ranges of a STRIDED_SLICE for all axes of its input.

    Dropped axes have one element. New axes do not appear, because the shape of the result determines them.
    """
    tensor = context.tensor()
    begin, end, strides = (
        [int(value) for value in context.numbers(index, what)]
        for index, what in ((1, "where it begins"), (2, "where it ends"), (3, "strides"))
    )
    if not len(begin) == len(end) == len(strides):
        raise context.refuse(
            f"has {len(begin)} places to begin, {len(end)} to end and {len(strides)} strides"
        )
    if context.option("Offset"):
        raise context.refuse("has ends that count from where it begins, which weft does not read")
    masks = {
        name: int(context.option(f"{name}Mask"))
        for name in ("Begin", "End", "Ellipsis", "NewAxis", "ShrinkAxis")
    }
    old = [at for at in range(len(begin)) if not (masks["NewAxis"] | masks["Ellipsis"]) >> at & 1]
    if len(old) > tensor.rank or masks["Ellipsis"].bit_count() > 1:
        raise context.refuse(f"has {len(old)} ranges for {tensor.rank} dimensions")
    ranges: list[Range] = []
    for at, (first, last, step) in enumerate(zip(begin, end, strides, strict=True)):
        if masks["Ellipsis"] >> at & 1:
            ranges += [
                (0, size, 1) for size in tensor.shape[len(ranges) : len(ranges) + tensor.rank - len(old)]
            ]
        elif not masks["NewAxis"] >> at & 1:
            size = tensor.shape[len(ranges)]
            shrink = bool(masks["ShrinkAxis"] >> at & 1)
            masked = (bool(masks["Begin"] >> at & 1), bool(masks["End"] >> at & 1))
            ranges.append(
                _single_element(context, first, size)
                if shrink
                else _range(context, (first, last, step), size, masked)
            )
    return ranges + [(0, size, 1) for size in tensor.shape[len(ranges) :]]


def _single_element(context: Context, place: int, size: int) -> Range:
    if not -size <= place < size:
        raise context.refuse(f"takes element {place} of {size}")
    return place % size, place % size + 1, 1


def _range(context: Context, range_: Range, size: int, masked: tuple[bool, bool]) -> Range:
    """Return a range of an axis; masked ends are the ends of the axis."""
    first, last, step = range_
    if not step:
        raise context.refuse("has stride 0")
    first = (0 if step > 0 else size - 1) if masked[0] else first
    last = (size if step > 0 else -size - 1) if masked[1] else last
    return first, last, step
