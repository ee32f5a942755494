"""TFLite operators that move elements."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.compiler.tflite.builder import FIRST, Order
from weft.compiler.tflite.context import Context, nchw
from weft.compiler.tflite.record import Record

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
        [int(value) for value in context.numbers(index, label)]
        for index, label in ((1, "where it begins"), (2, "where it ends"), (3, "strides"))
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
    # Ranges of axes of the input: not of new axes, and not the ellipsis.
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
    # Backwards, the end is one place before element 0; ONNX would count -1 from the end.
    last = (size if step > 0 else -size - 1) if masked[1] else last
    return first, last, step


INDICES = 1 << 20
"""Largest size of a dimension whose elements are listed by index."""


def in_order(values: Sequence[int], order: Order) -> list[int]:
    """Return numbers per axis of the file in the order of a value's axes."""
    return [values[axis] for axis in FIRST] if order is Order.CHANNELS_FIRST else list(values)


def place(axis: int, order: Order) -> int:
    """Return the position of an axis of the file in a value."""
    return nchw(axis) if order is Order.CHANNELS_FIRST else axis


def reshape(context: Context) -> None:
    """Convert to Reshape."""
    before, after = math.prod(context.tensor().shape), math.prod(context.output().shape)
    if before != after:
        raise context.refuse(f"reshapes {before:,} elements to {after:,}")
    context.move("Reshape", 0, context.array(context.output().shape))


def transpose(context: Context) -> None:
    """Convert to Transpose; images stay between two orders with channels first."""
    rank = context.tensor().rank
    perm = [int(axis) for axis in context.axes(1, "axis", rank)]
    if sorted(perm) != list(range(rank)):
        raise context.refuse(f"has axes {perm}; it must have each of {rank} once")
    value, finish = context.movable(0)
    finish(context.builder.transpose(value, perm, context.name))


def concatenate(context: Context) -> None:
    """Convert to Concat."""
    rank, order = context.output().rank, context.order()
    axis = place(context.axis(int(context.option("Axis")), "axis", rank), order)
    for tensor in context.inputs:
        if tensor.rank != rank:
            raise context.refuse(f"joins {tensor.label} of {tensor.rank} dimensions to one of {rank}")
    same = context.same_encoding(*context.inputs) and not context.option("FusedActivationFunction")
    read, finish = (context.raw, context.store) if same else (context.real, context.finish)
    values = [read(index, order) for index in range(len(context.operator.inputs))]
    finish(context.activate(context.emit("Concat", *values, axis=axis)), order)


def pack(context: Context) -> None:
    """Convert to Concat along a new axis."""
    output = context.output()
    axis = context.axis(int(context.option("Axis")), "axis", output.rank)
    shape = [1 if other == axis else size for other, size in enumerate(output.shape)]
    same = context.same_encoding(*context.inputs)
    read, finish = (context.raw, context.store) if same else (context.real, context.finish)
    values = []
    for index, tensor in enumerate(context.inputs):
        if math.prod(tensor.shape) != math.prod(shape):
            raise context.refuse(f"packs {tensor.label}, whose shape does not fit {output.label}")
        values.append(context.reshape(read(index), shape))
    finish(context.emit("Concat", *values, axis=axis))


def unpack(context: Context) -> None:
    """Convert to Split; each element along an axis becomes a result."""
    rank = context.tensor().rank
    axis = context.axis(int(context.option("Axis")), "axis", rank)
    same = _all_same_encoding(context, 0)
    value = context.raw() if same else context.real()
    for index, part in enumerate(
        context.parts(value, _equal_parts(context, context.tensor().shape[axis]), axis)
    ):
        (context.store_reshaped if same else context.finish_reshaped)(part, index=index)


def split(context: Context) -> None:
    """Convert SPLIT, whose first input is the axis, to equal parts."""
    _split(context, 1, 0, None)


def split_sizes(context: Context) -> None:
    """Convert SPLIT_V to parts of given sizes, one of which may be the remainder."""
    sizes = [int(size) for size in context.numbers(1, "sizes")]
    if len(sizes) != len(context.operator.outputs):
        raise context.refuse(f"has {len(sizes)} sizes for {len(context.operator.outputs)} results")
    _split(context, 0, 2, [output.shape for output in map(context.output, range(len(sizes)))])


def _split(context: Context, data: int, axes: int, shapes: list[tuple[int, ...]] | None) -> None:
    tensor, order = context.tensor(data), context.order(data)
    axis_values = context.numbers(axes, "the axis")
    if axis_values.size != 1:
        raise context.refuse(f"has {axis_values.size} axes; it takes one")
    axis = context.axis(int(axis_values[0]), "axis", tensor.rank)
    for index in range(len(context.operator.outputs)):
        if context.output(index).rank != tensor.rank:
            raise context.refuse(
                f"makes {context.output(index).label} of another number of dimensions than its input"
            )
    sizes = _equal_parts(context, tensor.shape[axis]) if shapes is None else [shape[axis] for shape in shapes]
    same = _all_same_encoding(context, data)
    read, finish = (context.raw, context.store) if same else (context.real, context.finish)
    for index, value in enumerate(context.parts(read(data, order), sizes, place(axis, order))):
        finish(value, order, index)


def _all_same_encoding(context: Context, data: int) -> bool:
    """Return whether an input's stored values have the type and scale of all results."""
    count = len(context.operator.outputs)
    return context.same_encoding(context.tensor(data)) and all(
        context.result_has_same_encoding(index) for index in range(count)
    )


def _equal_parts(context: Context, size: int) -> list[int]:
    count = len(context.operator.outputs)
    if not count or size % count:
        raise context.refuse(f"makes {count} parts of {size} elements")
    return [size // count] * count


def pad(context: Context) -> None:
    """Convert to Pad with the value for 0, or with PADV2's third input."""
    tensor, order = context.tensor(), context.order(0)
    pads = _pads(context)
    before, after = (in_order([pair[at] for pair in pads], order) for at in range(2))
    places = context.array((*before, *after))
    fills = []
    if context.has(2):
        fill = context.tensor(2)
        if math.prod(fill.shape) != 1:
            raise context.refuse(
                f"fills with {fill.label}, which has {math.prod(fill.shape)} elements; it must have one"
            )
        fills = [fill]
    same = context.same_encoding(tensor, *fills)
    read, finish = (context.raw, context.store) if same else (context.real, context.finish)
    value = read(0, order)
    fill_values = [context.reshape(read(2), ()) for _ in fills]
    finish(context.emit("Pad", value, places, *fill_values, mode="constant"), order)


def _pads(context: Context) -> list[tuple[int, int]]:
    rank, pads_value = context.tensor().rank, context.numbers(1, "pads")
    if pads_value.size != 2 * rank or pads_value.min(initial=0) < 0:
        raise context.refuse(
            f"has pads {pads_value.tolist()[:16]}; it takes {2 * rank} numbers, none below 0"
        )
    pads = [(int(before), int(after)) for before, after in pads_value.reshape(rank, 2)]
    result_shape = tuple(size + sum(pair) for size, pair in zip(context.tensor().shape, pads, strict=True))
    if result_shape != context.output().shape:
        raise context.refuse(f"has pads {pads_value.tolist()[:16]}, which give another shape than the file's")
    return pads


def mirror(context: Context) -> None:
    """Convert MIRROR_PAD: SYMMETRIC repeats the outermost elements, REFLECT does not."""
    tensor, order = context.tensor(), context.order(0)
    pads, mode = _pads(context), int(context.option("Mode"))
    if mode not in (0, 1):
        raise context.refuse(f"has mode {mode}; there are REFLECT and SYMMETRIC")
    for size, pair in zip(tensor.shape, pads, strict=True):
        if max(pair) > size - (mode == 0):
            raise context.refuse(f"has pads {pair} around {size} elements, which are too few to mirror")
    if mode == 0:
        before, after = (in_order([pair[at] for pair in pads], order) for at in range(2))
        return context.move("Pad", 0, context.array((*before, *after)), order=order, mode="reflect")
    selected = {
        axis: np.pad(np.arange(_few(context, size)), pair, mode="symmetric")
        for axis, (size, pair) in enumerate(zip(tensor.shape, pads, strict=True))
        if any(pair)
    }
    return _gather_axes(context, selected, order)


def _few(context: Context, size: int) -> int:
    """Return a size whose indices may be listed; raise an error for larger sizes."""
    if size > INDICES:
        raise context.refuse(
            f"takes {size:,} elements of a dimension one by one; weft takes up to {INDICES:,} there"
        )
    return size


def _gather_axes(context: Context, selected: dict[int, np.ndarray], order: Order) -> None:
    """Write the elements of the first input at given positions along some of the file's axes."""
    value, finish = context.movable(0, order)
    for axis, indices in selected.items():
        value = context.emit("Gather", value, context.array(indices), axis=place(axis, order))
    finish(value, order)


def slice_sizes(context: Context) -> None:
    """Convert SLICE, which takes as many elements as the result has."""
    tensor, output = context.tensor(), context.output()
    begin = [int(value) for value in context.numbers(1, "the places where it begins")]
    if len(begin) != tensor.rank or output.rank != tensor.rank:
        raise context.refuse(f"begins at {begin[:16]} in {tensor.rank} dimensions")
    slice_input(context, [(start, start + size, 1) for start, size in zip(begin, output.shape, strict=True)])


def slice_strides(context: Context) -> None:
    """Convert STRIDED_SLICE with its masks."""
    slice_input(context, slices_of(context))


def gather(context: Context) -> None:
    """Convert to Gather along an axis."""
    tensor, indices = context.tensor(0), context.tensor(1)
    if context.option("BatchDims"):
        raise context.refuse("has batch dimensions, which weft does not read")
    axis = context.axis(int(context.option("Axis")), "axis", tensor.rank)
    order = context.order(0) if indices.rank == 1 else Order.FILE
    context.move("Gather", 0, context.raw(1), order=order, axis=place(axis, order))


def embedding(context: Context) -> None:
    """Convert EMBEDDING_LOOKUP: rows of the second input by indices."""
    context.move("Gather", 1, context.raw(0), axis=0)


def tile(context: Context) -> None:
    """Convert to Tile."""
    order, repetitions = context.order(0), [int(value) for value in context.numbers(1, "repetitions")]
    if len(repetitions) != context.tensor().rank:
        raise context.refuse(f"has {len(repetitions)} repetitions for {context.tensor().rank} dimensions")
    context.move("Tile", 0, context.array(in_order(repetitions, order)), order=order)


def expand(context: Context) -> None:
    """Convert BROADCAST_TO to Expand."""
    context.move("Expand", 0, context.array(context.output().shape))


def reverse(context: Context) -> None:
    """Convert REVERSE_V2 to a Slice with negative steps."""
    tensor = context.tensor()
    axes = set(context.axes(1, "axis", tensor.rank))
    ends = [
        (size - 1, -size - 1, -1) if axis in axes else (0, size, 1) for axis, size in enumerate(tensor.shape)
    ]
    slice_input(context, ends)


def blocks(context: Context, operator: str) -> None:
    """Convert to SpaceToDepth or DepthToSpace."""
    context.image()
    (size,) = context.positive("BlockSize")
    mode: dict[str, Any] = {"mode": "DCR"} if operator == "DepthToSpace" else {}
    context.move(operator, 0, order=Order.CHANNELS_FIRST, blocksize=size, **mode)


def resize_nearest(context: Context) -> None:
    """Convert to Resize for whole factors, else to Gather of the elements that TFLite takes."""
    tensor, output = context.image(), context.output()
    if output.rank != 4:
        raise context.refuse(f"makes {output.label} of {output.rank} dimensions; it must have 4")
    places = [_nearest(context, tensor.shape[axis], output.shape[axis]) for axis in (1, 2)]
    regular = all(
        count % size == 0 and np.array_equal(indices, np.arange(count) // (count // size))
        for indices, size, count in zip(places, tensor.shape[1:3], output.shape[1:3], strict=True)
    )
    order = Order.CHANNELS_FIRST
    if not regular:
        return _gather_axes(context, dict(zip((1, 2), places, strict=True)), order)
    sizes = context.array(in_order((*tensor.shape[:1], *output.shape[1:3], tensor.shape[3]), order))
    modes: dict[str, Any] = {
        "mode": "nearest",
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
    }
    return context.move("Resize", 0, "", "", sizes, order=order, **modes)


def _nearest(context: Context, size: int, count: int) -> np.ndarray:
    """Return the `count` indices below `size` that TFLite computes in float32."""
    if size < 1 or count < 1:
        raise context.refuse(f"makes {count} rows or columns of {size}")
    _few(context, count)
    corners, half = bool(context.option("AlignCorners")), bool(context.option("HalfPixelCenters"))
    scale = (
        np.float32(size - 1) / np.float32(count - 1)
        if corners and count > 1
        else np.float32(size) / np.float32(count)
    )
    exact = (np.arange(count, dtype=np.float32) + np.float32(0.5 * half)) * scale
    indices = np.floor(exact + np.float32(0.5)) if corners else np.floor(exact)
    return np.clip(indices.astype(np.int64), 0, size - 1)


def resize_linear(context: Context) -> None:
    """Convert RESIZE_BILINEAR to Resize."""
    tensor, output = context.image(), context.output()
    if output.rank != 4:
        raise context.refuse(f"makes {output.label} of {output.rank} dimensions; it must have 4")
    sizes = context.array(
        in_order((*tensor.shape[:1], *output.shape[1:3], tensor.shape[3]), Order.CHANNELS_FIRST)
    )
    mode = "align_corners" if context.option("AlignCorners") else "asymmetric"
    mode = "half_pixel" if context.option("HalfPixelCenters") else mode
    value = context.real(0, Order.CHANNELS_FIRST)
    value = context.emit("Resize", value, "", "", sizes, mode="linear", coordinate_transformation_mode=mode)
    context.finish(value, Order.CHANNELS_FIRST)


OPERATORS = (
    Record(("RESHAPE",), (1, 2), "Reshape", reshape),
    Record(("SQUEEZE",), (1, 1), "Reshape", reshape),
    Record(("EXPAND_DIMS",), (2, 2), "Reshape", reshape),
    Record(("TRANSPOSE",), (2, 2), "Transpose", transpose),
    Record(("CONCATENATION",), (1, None), "Concat", concatenate),
    Record(("PACK",), (1, None), "Reshape, Concat", pack),
    Record(("UNPACK",), (1, 1), "Split, Reshape", unpack),
    Record(("SPLIT",), (2, 2), "Split", split),
    Record(("SPLIT_V",), (3, 3), "Split", split_sizes),
    Record(("PAD",), (2, 2), "Pad", pad),
    Record(("PADV2",), (3, 3), "Pad", pad),
    Record(("MIRROR_PAD",), (2, 2), "Pad, Gather", mirror),
    Record(("SLICE",), (3, 3), "Slice", slice_sizes),
    Record(("STRIDED_SLICE",), (4, 4), "Slice, Reshape", slice_strides),
    Record(("GATHER",), (2, 2), "Gather", gather),
    Record(("EMBEDDING_LOOKUP",), (2, 2), "Gather", embedding),
    Record(("TILE",), (2, 2), "Tile", tile),
    Record(("BROADCAST_TO",), (2, 2), "Expand", expand),
    Record(("REVERSE_V2",), (2, 2), "Slice", reverse),
    Record(("SPACE_TO_DEPTH",), (1, 1), "SpaceToDepth", functools.partial(blocks, operator="SpaceToDepth")),
    Record(("DEPTH_TO_SPACE",), (1, 1), "DepthToSpace", functools.partial(blocks, operator="DepthToSpace")),
    Record(("RESIZE_NEAREST_NEIGHBOR",), (2, 2), "Resize, Gather", resize_nearest),
    Record(("RESIZE_BILINEAR",), (2, 2), "Resize", resize_linear),
)
