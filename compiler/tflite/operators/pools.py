"""Pools, and reductions of whole axes."""

from __future__ import annotations

import functools

from weft.compiler.tflite.builder import Order
from weft.compiler.tflite.context import Context, nchw
from weft.compiler.tflite.record import Record
from weft.compiler.tflite.windows import pads_of

_SHORTEST = 1e-6
"""The length that shorter rows count for."""


def pool(context: Context, operator: str) -> None:
    """A pool with a window, of which padding is no part."""
    data = context.image()
    kernel, strides = context.positive("FilterHeight", "FilterWidth"), context.positive("StrideH", "StrideW")
    pads = pads_of(context, data.shape[1:3], kernel, strides, (1, 1))
    value = context.real(0, Order.CHANNELS_FIRST)
    value = context.emit(operator, value, kernel_shape=kernel, strides=strides, pads=pads)
    context.finish(context.activated(value), Order.CHANNELS_FIRST)


def reduce(context: Context, operator: str) -> None:
    """A reduction of some axes, which may go or stay with one element."""
    rank, order = context.tensor().rank, context.order(0)
    axes = sorted(set(context.axes(1, "axis", rank)))
    if rank == 4 and axes == [1, 2]:
        order = Order.CHANNELS_FIRST  # rows and columns of images, wherever these come from
    if order is Order.CHANNELS_FIRST:
        axes = sorted(map(nchw, axes))
    if not axes:
        return context.finish(context.real(0, order), order)
    value = context.emit(operator, context.real(0, order), context.array(axes), keepdims=1)
    if context.output().rank == rank:
        return context.finish(value, order)
    return context.finish_reshaped(value, order)


def extreme(context: Context, operator: str) -> None:
    """The place of the largest or smallest element along an axis: the first of several."""
    rank, order = context.tensor().rank, context.order(0)
    places = context.numbers(1, "the axis")
    if places.size != 1:
        raise context.refuse(f"has {places.size} axes; it takes one")
    axis = context.axis(int(places[0]), "axis", rank)
    axis = nchw(axis) if order is Order.CHANNELS_FIRST else axis
    value = context.emit(operator, context.stored(0, order), axis=axis, keepdims=1)
    context.store_reshaped(context.cast(value), order)


def normalise(context: Context) -> None:
    """Rows divided by their length, along the last axis of the file."""
    order, rank = context.order(0), context.tensor().rank
    if not rank:
        raise context.refuse("has an input without dimensions")
    value = context.real(0, order)
    axis = context.array([1 if order is Order.CHANNELS_FIRST else rank - 1])
    length = context.emit("ReduceL2", value, axis, suffix="length", keepdims=1)
    length = context.emit("Max", length, context.array(_SHORTEST, "float32"), suffix="shortest")
    context.finish(context.activated(context.emit("Div", value, length)), order)


OPERATORS = (
    Record(("L2_NORMALIZATION",), (1, 1), "ReduceL2, Max, Div", normalise),
    *(
        Record((name,), (1, 1), made, functools.partial(pool, operator=made))
        for name, made in (("AVERAGE_POOL_2D", "AveragePool"), ("MAX_POOL_2D", "MaxPool"))
    ),
    *(
        Record((name,), (2, 2), made, functools.partial(reduce, operator=made))
        for name, made in (
            ("MEAN", "ReduceMean"),
            ("SUM", "ReduceSum"),
            ("REDUCE_MAX", "ReduceMax"),
            ("REDUCE_MIN", "ReduceMin"),
            ("REDUCE_PROD", "ReduceProd"),
        )
    ),
    *(
        Record((name,), (2, 2), f"{made}, Cast", functools.partial(extreme, operator=made))
        for name, made in (("ARG_MAX", "ArgMax"), ("ARG_MIN", "ArgMin"))
    ),
)
