"""Operators that move elements."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from weft.compiler.tflite.builder import FIRST, Order
from weft.compiler.tflite.context import Context, nchw
from weft.compiler.tflite.record import Record
from weft.compiler.tflite.slices import sliced, slices_of

INDICES = 1 << 20
"""Most elements of a dimension that are listed."""


def ordered(values: Sequence[int], order: Order) -> list[int]:
    """Numbers of the file's axes in the order of a value's axes."""
    return [values[axis] for axis in FIRST] if order is Order.CHANNELS_FIRST else list(values)


def place(axis: int, order: Order) -> int:
    """Where an axis of the file is in a value."""
    return nchw(axis) if order is Order.CHANNELS_FIRST else axis


def reshape(context: Context) -> None:
    """Another shape for the same elements, which the file tells."""
    before, after = math.prod(context.tensor().shape), math.prod(context.output().shape)
    if before != after:
        raise context.refuse(f"makes {after:,} elements of {before:,}")
    context.move("Reshape", 0, context.array(context.output().shape))


def transpose(context: Context) -> None:
    """The axes in another order; for images, between two orders with channels first."""
    rank = context.tensor().rank
    perm = [int(axis) for axis in context.axes(1, "axis", rank)]
    if sorted(perm) != list(range(rank)):
        raise context.refuse(f"has axes {perm}; it must have each of {rank} once")
    if context.alike(context.tensor()):
        return context.builder.transpose_to(context.stored(), perm, context.output(), context.name)
    return context.finish(context.builder.transposed(context.real(), perm, context.name))


def concatenate(context: Context) -> None:
    """Inputs behind each other, as bytes if they all have the result's scale."""
    rank, order = context.output().rank, context.order()
    axis = place(context.axis(int(context.option("Axis")), "axis", rank), order)
    for tensor in context.inputs:
        if tensor.rank != rank:
            raise context.refuse(f"joins {tensor.label} of {tensor.rank} dimensions to one of {rank}")
    places = range(len(context.operator.inputs))
    if context.alike(*context.inputs) and not context.option("FusedActivationFunction"):
        return context.put(
            "Concat", *(context.stored(index, order) for index in places), order=order, axis=axis
        )
    value = context.emit("Concat", *(context.real(index, order) for index in places), axis=axis)
    return context.finish(context.activated(value), order)


def pack(context: Context) -> None:
    """Inputs behind each other along a new axis."""
    output = context.output()
    axis = context.axis(int(context.option("Axis")), "axis", output.rank)
    shape = [1 if other == axis else size for other, size in enumerate(output.shape)]
    alike = context.alike(*context.inputs)
    values = []
    for index, tensor in enumerate(context.inputs):
        if math.prod(tensor.shape) != math.prod(shape):
            raise context.refuse(f"makes {output.label} of {tensor.label}, which has another shape")
        values.append(context.reshaped(context.stored(index) if alike else context.real(index), shape))
    if alike:
        return context.put("Concat", *values, axis=axis)
    return context.finish(context.emit("Concat", *values, axis=axis))


def unpack(context: Context) -> None:
    """The elements along an axis as results of their own."""
    rank = context.tensor().rank
    axis = context.axis(int(context.option("Axis")), "axis", rank)
    alike = _alike(context, 0)
    value = context.stored() if alike else context.real()
    for index, part in enumerate(context.parts(value, _sizes(context, context.tensor().shape[axis]), axis)):
        (context.store_reshaped if alike else context.finish_reshaped)(part, index=index)


def split(context: Context) -> None:
    """Equal parts along an axis, which is the first input."""
    _split(context, 1, 0, None)


def split_sizes(context: Context) -> None:
    """Parts of given sizes along an axis, of which one may be what is left."""
    sizes = [int(size) for size in context.numbers(1, "sizes")]
    if len(sizes) != len(context.operator.outputs):
        raise context.refuse(f"has {len(sizes)} sizes for {len(context.operator.outputs)} results")
    _split(context, 0, 2, [output.shape for output in map(context.output, range(len(sizes)))])


def _split(context: Context, data: int, axes: int, shapes: list[tuple[int, ...]] | None) -> None:
    tensor, order = context.tensor(data), context.order(data)
    given = context.numbers(axes, "the axis")
    if given.size != 1:
        raise context.refuse(f"has {given.size} axes; it takes one")
    axis = context.axis(int(given[0]), "axis", tensor.rank)
    for index in range(len(context.operator.outputs)):
        if context.output(index).rank != tensor.rank:
            raise context.refuse(
                f"makes {context.output(index).label} of another number of dimensions than its input"
            )
    sizes = _sizes(context, tensor.shape[axis]) if shapes is None else [shape[axis] for shape in shapes]
    if _alike(context, data):
        parts = context.array(sizes)
        return context.put_all(
            "Split", context.stored(data, order), parts, order=order, axis=place(axis, order)
        )
    for index, value in enumerate(context.parts(context.real(data, order), sizes, place(axis, order))):
        context.finish(value, order, index)


def _alike(context: Context, data: int) -> bool:
    """Whether bytes of an input mean the same in all results."""
    count = len(context.operator.outputs)
    return context.alike(context.tensor(data)) and all(context.same_kind(index) for index in range(count))


def _sizes(context: Context, whole: int) -> list[int]:
    """Equal parts of an axis."""
    count = len(context.operator.outputs)
    if not count or whole % count:
        raise context.refuse(f"makes {count} parts of {whole} elements")
    return [whole // count] * count


def pad(context: Context) -> None:
    """A constant around the elements: what stands for 0, or what PADV2 is given."""
    tensor, order = context.tensor(), context.order(0)
    pads = _pads(context)
    before, behind = (ordered([pair[at] for pair in pads], order) for at in range(2))
    places = context.array((*before, *behind))
    alike = context.alike(tensor)
    if context.has(2):
        fill = context.tensor(2)
        if math.prod(fill.shape) != 1:
            raise context.refuse(
                f"fills with {fill.label}, which has {math.prod(fill.shape)} elements; it must have one"
            )
        alike = alike and context.alike(fill)
        value = context.reshaped(context.stored(2) if alike else context.real(2), ())
    elif alike:
        zero = 0 if tensor.quantisation is None else int(tensor.quantisation.zeros[0])
        value = context.array(zero, tensor.dtype)
    else:
        value = context.array(0.0, "float32")
    if alike:
        return context.put("Pad", context.stored(0, order), places, value, order=order, mode="constant")
    return context.finish(context.emit("Pad", context.real(0, order), places, value, mode="constant"), order)


def _pads(context: Context) -> list[tuple[int, int]]:
    """Elements in front of and behind each axis."""
    rank, given = context.tensor().rank, context.numbers(1, "pads")
    if given.size != 2 * rank or given.min(initial=0) < 0:
        raise context.refuse(f"has pads {given.tolist()[:16]}; it takes {2 * rank} numbers, none below 0")
    pads = [(int(before), int(behind)) for before, behind in given.reshape(rank, 2)]
    made = tuple(size + sum(pair) for size, pair in zip(context.tensor().shape, pads, strict=True))
    if made != context.output().shape:
        raise context.refuse(
            f"has pads {given.tolist()[:16]}, with which results have another shape than the file says"
        )
    return pads


def mirror(context: Context) -> None:
    """The elements mirrored around them: with the outermost ones twice (SYMMETRIC) or not (REFLECT)."""
    tensor, order = context.tensor(), context.order(0)
    pads, mode = _pads(context), int(context.option("Mode"))
    if mode not in (0, 1):
        raise context.refuse(f"has mode {mode}; there are REFLECT and SYMMETRIC")
    for size, pair in zip(tensor.shape, pads, strict=True):
        if max(pair) > size - (mode == 0):
            raise context.refuse(f"has pads {pair} around {size} elements, which are too few to mirror")
    if mode == 0:
        before, behind = (ordered([pair[at] for pair in pads], order) for at in range(2))
        return context.move("Pad", 0, context.array((*before, *behind)), order=order, mode="reflect")
    wanted = {
        axis: np.pad(np.arange(_few(context, size)), pair, mode="symmetric")
        for axis, (size, pair) in enumerate(zip(tensor.shape, pads, strict=True))
        if any(pair)
    }
    return _gathered(context, wanted, order)


def _few(context: Context, size: int) -> int:
    """A size of which there may be a list of indices."""
    if size > INDICES:
        raise context.refuse(
            f"takes {size:,} elements of a dimension one by one; weft takes up to {INDICES:,} there"
        )
    return size


def _gathered(context: Context, wanted: dict[int, np.ndarray], order: Order) -> None:
    """The elements of the first input at given places along some axes of the file."""
    alike = context.alike(context.tensor())
    value = context.stored(0, order) if alike else context.real(0, order)
    for axis, indices in wanted.items():
        value = context.emit("Gather", value, context.array(indices), axis=place(axis, order))
    (context.store if alike else context.finish)(value, order)


def slice_sizes(context: Context) -> None:
    """SLICE: from places on, as many elements as the result has."""
    tensor, output = context.tensor(), context.output()
    begin = [int(value) for value in context.numbers(1, "the places where it begins")]
    if len(begin) != tensor.rank or output.rank != tensor.rank:
        raise context.refuse(f"begins at {begin[:16]} in {tensor.rank} dimensions")
    sliced(context, [(start, start + size, 1) for start, size in zip(begin, output.shape, strict=True)])


def slice_strides(context: Context) -> None:
    """STRIDED_SLICE, with its masks."""
    sliced(context, slices_of(context))


def gather(context: Context) -> None:
    """Elements along an axis by indices."""
    tensor, indices = context.tensor(0), context.tensor(1)
    if context.option("BatchDims"):
        raise context.refuse("has batch dimensions, which weft does not read")
    axis = context.axis(int(context.option("Axis")), "axis", tensor.rank)
    order = context.order(0) if indices.rank == 1 else Order.FILE
    context.move("Gather", 0, context.stored(1), order=order, axis=place(axis, order))


def embedding(context: Context) -> None:
    """Rows of the second input by indices."""
    context.move("Gather", 1, context.stored(0), axis=0)


def tile(context: Context) -> None:
    """The elements several times along each axis."""
    order, given = context.order(0), [int(value) for value in context.numbers(1, "repetitions")]
    if len(given) != context.tensor().rank:
        raise context.refuse(f"has {len(given)} repetitions for {context.tensor().rank} dimensions")
    context.move("Tile", 0, context.array(ordered(given, order)), order=order)


def expand(context: Context) -> None:
    """The elements repeated to the shape of the result."""
    context.move("Expand", 0, context.array(context.output().shape))


def reverse(context: Context) -> None:
    """Some axes backwards."""
    tensor = context.tensor()
    axes = set(context.axes(1, "axis", tensor.rank))
    ends = [
        (size - 1, -size - 1, -1) if axis in axes else (0, size, 1) for axis, size in enumerate(tensor.shape)
    ]
    sliced(context, ends)


def blocks(context: Context, operator: str) -> None:
    """Blocks of rows and columns to channels, or back."""
    context.image()
    (size,) = context.positive("BlockSize")
    mode: dict[str, Any] = {"mode": "DCR"} if operator == "DepthToSpace" else {}
    context.move(operator, 0, order=Order.CHANNELS_FIRST, blocksize=size, **mode)


def resize_nearest(context: Context) -> None:
    """Rows and columns repeated or left out: a Resize by whole factors, else the very elements that TFLite takes."""
    tensor, output = context.image(), context.output()
    if output.rank != 4:
        raise context.refuse(f"makes {output.label} of {output.rank} dimensions; it must have 4")
    places = [_nearest(context, tensor.shape[axis], output.shape[axis]) for axis in (1, 2)]
    whole = all(
        many % size == 0 and np.array_equal(found, np.arange(many) // (many // size))
        for found, size, many in zip(places, tensor.shape[1:3], output.shape[1:3], strict=True)
    )
    order = Order.CHANNELS_FIRST
    if not whole:
        return _gathered(context, dict(zip((1, 2), places, strict=True)), order)
    sizes = context.array(ordered((*tensor.shape[:1], *output.shape[1:3], tensor.shape[3]), order))
    modes: dict[str, Any] = {
        "mode": "nearest",
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "floor",
    }
    return context.move("Resize", 0, "", "", sizes, order=order, **modes)


def _nearest(context: Context, size: int, many: int) -> np.ndarray:
    """The elements of `size` that `many` places take, in TFLite's float32."""
    if size < 1 or many < 1:
        raise context.refuse(f"makes {many} rows or columns of {size}")
    _few(context, many)
    corners, half = bool(context.option("AlignCorners")), bool(context.option("HalfPixelCenters"))
    scale = (
        np.float32(size - 1) / np.float32(many - 1)
        if corners and many > 1
        else np.float32(size) / np.float32(many)
    )
    exact = (np.arange(many, dtype=np.float32) + np.float32(0.5 * half)) * scale
    found = np.floor(exact + np.float32(0.5)) if corners else np.floor(exact)
    return np.clip(found.astype(np.int64), 0, size - 1)


def resize_linear(context: Context) -> None:
    """Rows and columns between those that are there."""
    tensor, output = context.image(), context.output()
    if output.rank != 4:
        raise context.refuse(f"makes {output.label} of {output.rank} dimensions; it must have 4")
    sizes = context.array(
        ordered((*tensor.shape[:1], *output.shape[1:3], tensor.shape[3]), Order.CHANNELS_FIRST)
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
