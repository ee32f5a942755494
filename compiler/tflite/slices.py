"""Slices of tensors, as SLICE and STRIDED_SLICE say."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.compiler.tflite.builder import FIRST, Order
from weft.compiler.tflite.context import Context

Range = tuple[int, int, int]
"""Where a slice of one axis starts, in front of what it ends, and its step, as ONNX's Slice takes them."""


def sliced(context: Context, ranges: Sequence[Range]) -> None:
    """Make the result a slice of the first input, given for each axis of the file."""
    order = context.order(0)
    axes = FIRST if order is Order.CHANNELS_FIRST else tuple(range(len(ranges)))
    numbers = [context.array([ranges[axis][part] for axis in axes]) for part in range(3)]
    starts, ends, steps = numbers
    places = context.array(list(range(len(axes))))
    whole = context.tensor().shape
    left = tuple(len(range(size)[slice(*part)]) for size, part in zip(whole, ranges, strict=True))
    if math.prod(left) != math.prod(context.output().shape):
        raise context.refuse(
            f"takes {math.prod(left):,} elements for {math.prod(context.output().shape):,} of its result"
        )
    reshape = left != context.output().shape
    context.move("Slice", 0, starts, ends, places, steps, order=order, reshape=reshape)


def slices_of(context: Context) -> list[Range]:
    """The ranges of a STRIDED_SLICE for all axes of its input. Axes that it drops have one element, and new ones are
    not there: the shape of the result says where they are.
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
            whole = (bool(masks["Begin"] >> at & 1), bool(masks["End"] >> at & 1))
            ranges.append(
                _one(context, first, size) if shrink else _range(context, (first, last, step), size, whole)
            )
    return ranges + [(0, size, 1) for size in tensor.shape[len(ranges) :]]


def _one(context: Context, place: int, size: int) -> Range:
    """The one element that an axis is dropped for."""
    if not -size <= place < size:
        raise context.refuse(f"takes element {place} of {size}")
    return place % size, place % size + 1, 1


def _range(context: Context, given: Range, size: int, whole: tuple[bool, bool]) -> Range:
    """A range of an axis, whose ends are those of the axis where a mask says so."""
    first, last, step = given
    if not step:
        raise context.refuse("has stride 0")
    first = (0 if step > 0 else size - 1) if whole[0] else first
    last = (size if step > 0 else -size - 1) if whole[1] else last
    return first, last, step
