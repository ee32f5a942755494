"""Operations of StableHLO and TOSA that move elements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from weft.extras.mlir.builder import compact, compact_equal
from weft.extras.mlir.context import ELEMENTS, Context, Record
from weft.extras.mlir.operators.tosa_products import zero_point

_ENDLESS = -(1 << 62)
"""End of a slice with negative step that includes the first element."""


def reshape(context: Context) -> None:
    if context.operand().type.size != context.result().type.size:
        raise context.refuse(
            f"makes {context.result().type} of {context.operand().type}, which has a different number of elements"
        )
    context.move("Reshape", context.emit_constant(list(context.result().type.shape)))


def transpose(context: Context) -> None:
    rank = len(context.shape())
    perm = context.axes(context.integers("dims", "permutation", "perms", rank=rank), rank, "permutation")
    quantisation = context.operand().type.quantisation
    if quantisation is not None and quantisation.axis is not None:
        name = context.builder.emit_transposed_real(context.operand(), perm)
        return context.finish(name)
    return context.move("Transpose", perm=perm)


def broadcast(context: Context) -> None:
    sizes, shape = context.shape(), context.result().type.shape
    dims = context.integers("dims", "broadcast_dimensions", rank=len(sizes))
    context.axes(dims, len(shape), "broadcast_dimensions")
    if any(size not in (1, shape[axis]) for size, axis in zip(sizes, dims, strict=True)):
        raise context.refuse(
            f"repeats {context.operand().type} as {context.result().type} along axes {list(dims)}"
        )
    quantisation, array = context.operand().type.quantisation, context.array(0)
    if array is not None and context.operand().type.dtype == context.result().type.dtype:
        repeated = np.broadcast_to(_broadcast_fold(context, array), shape)
        context.builder.arrays[context.result()] = repeated
        return None
    name = context.stored_operand() if quantisation is None else context.builder.real_value(context.operand())
    if list(dims) != sorted(dims):
        name = context.transpose(name, np.argsort(dims).tolist())
        sizes = tuple(sizes[axis] for axis in np.argsort(dims))
        dims = tuple(sorted(dims))
    wide = [1] * len(shape)
    for size, axis in zip(sizes, dims, strict=True):
        wide[axis] = size
    if tuple(wide) != sizes:
        name = context.reshape(name, wide)
    if tuple(wide) != shape and quantisation is None:
        builder, op, result = context.builder, context.op, context.result()
        # ONNX's operators broadcast by themselves: emit Expand only if something reads all elements.
        builder.before_broadcast[result] = name

        def emit_expanded() -> str:
            builder.op = op
            sizes = builder.constant(np.array(shape, np.int64), "sizes")
            return builder.emit("Expand", (name, sizes), "expand")

        def emit_real() -> str:
            stored = builder.stored_value(result)
            is_float = result.type.dtype.startswith(("float", "bfloat"))
            return stored if is_float else builder.emit("Cast", (stored,), "cast", to=ELEMENTS["float32"])

        return builder.set_lazy(result, emit_expanded, emit_real)
    if tuple(wide) != shape:
        name = context.emit("Expand", name, context.emit_constant(list(shape)), suffix="expand")
    if quantisation is None:
        # A result has a network value of its own, whose type is checked.
        return context.put(name if name != context.stored_operand() else context.emit("Identity", name))
    return context.finish(name)


def emit_slice(context: Context, ranges: Sequence[tuple[int, int, int]]) -> None:
    """Emit a slice: (start, stop, step) for each axis; stop is exclusive."""
    shape = context.shape()
    for (start, stop, step), size in zip(ranges, shape, strict=True):
        if not (0 <= start < stop <= size and step > 0) and step > 0:
            raise context.refuse(f"takes {start}:{stop}:{step} of an axis of {size}")
    numbers = [context.emit_constant([item[part] for item in ranges]) for part in range(3)]
    starts, stops, steps = numbers
    context.move("Slice", starts, stops, context.emit_constant(list(range(len(shape)))), steps)


def slice_(context: Context) -> None:
    rank = len(context.shape())
    words = context.attribute("words")
    if words is not None:
        if len(words) != 1 or not all(isinstance(item, list) and len(item) in (2, 3) for item in words[0]):
            raise context.refuse("has no ranges as [0:4, 2:8:2]")
        ranges = [(int(item[0]), int(item[1]), int((*item, 1)[2])) for item in words[0]]
    else:
        starts = context.integers("start_indices", rank=rank)
        stops = context.integers("limit_indices", rank=rank)
        steps = context.integers("strides", default=[1] * rank, rank=rank)
        ranges = list(zip(starts, stops, steps, strict=True))
    if len(ranges) != rank:
        raise context.refuse(f"has {len(ranges)} ranges for {rank} dimensions")
    emit_slice(context, ranges)


def reverse(context: Context) -> None:
    rank, axes = len(context.shape()), context.attribute("dims", "dimensions", "axis")
    chosen = context.axes(tuple(axes) if isinstance(axes, list) else (axes,), rank, "dimensions")
    numbers = [context.emit_constant([number] * len(chosen)) for number in (-1, _ENDLESS, -1)]
    context.move("Slice", numbers[0], numbers[1], context.emit_constant(list(chosen)), numbers[2])


def concatenate(context: Context) -> None:
    (axis,) = context.axes(
        [context.attribute("dim", "dimension", "axis", default=-1)], len(context.shape()), "axis"
    )
    result = context.result().type
    alike = all(
        operand.type.dtype == result.dtype
        and (operand.type.quantisation is None or operand.type.quantisation.same(result.quantisation))
        for operand in context.op.operands
    )
    if alike:
        names = [context.builder.stored_value(operand) for operand in context.op.operands]
        return context.put(context.emit("Concat", *names, axis=axis))
    names = [context.builder.real_value(operand) for operand in context.op.operands]
    return context.finish(context.emit("Concat", *names, axis=axis))


def pad(context: Context) -> None:
    """Read pad; negative padding removes elements."""
    rank, fill = len(context.shape()), context.array(1)
    low = context.integers("low", "edge_padding_low", rank=rank)
    high = context.integers("high", "edge_padding_high", rank=rank)
    interior = context.integers("interior", "interior_padding", default=[0] * rank, rank=rank)
    if any(interior):
        raise context.refuse(f"has padding {list(interior)} between elements; weft reads it around them")
    emit_pad(context, (*low, *high), fill)


def emit_pad(context: Context, pads: Sequence[int], fill: np.ndarray | None) -> None:
    """Emit padding with a constant, in stored form."""
    if fill is None or compact_equal(fill).size != 1:
        raise context.refuse("fills with a value that is not one constant")
    one, result = context.operand().type, context.result().type
    if one.dtype != result.dtype or (
        one.quantisation is not None and not one.quantisation.same(result.quantisation)
    ):
        raise context.refuse(f"makes {result} of {one}; their quantisations must be equal")
    value = context.builder.constant(compact_equal(fill).reshape(()), "fill")
    context.put(context.emit("Pad", context.stored_operand(), context.emit_constant(list(pads)), value))


def fold_reshape(context: Context, array: np.ndarray) -> np.ndarray:
    """Reshape a constant; a repeated number stays one element."""
    shape = context.result().type.shape
    if array.size == 1:
        return array.reshape((1,) * len(shape))
    return np.broadcast_to(array, context.shape()).reshape(shape)


def _transpose_fold(context: Context, array: np.ndarray) -> np.ndarray:
    return array.transpose(context.integers("dims", "permutation", "perms", rank=array.ndim))


def _broadcast_fold(context: Context, array: np.ndarray) -> np.ndarray:
    shape = context.result().type.shape
    dims = context.integers("dims", "broadcast_dimensions", rank=array.ndim)
    context.axes(dims, len(shape), "broadcast_dimensions")
    order = np.argsort(dims).tolist() if dims else []
    wide = [1] * len(shape)
    for axis in dims:
        wide[axis] = array.shape[dims.index(axis)]
    return compact(array.transpose(order).reshape(wide))


def _numbers(context: Context, index: int, name: str) -> tuple[int, ...]:
    """Return a list of numbers from a constant operand, or from an attribute in older versions of TOSA."""
    if index < len(context.op.operands):
        return tuple(int(item) for item in context.constant_operand(index, name).reshape(-1).tolist())
    return context.integers(name, f"new_{name}", default=None)


def tosa_transpose(context: Context) -> None:
    rank = len(context.shape())
    perm = context.axes(_numbers(context, 1, "perms"), rank, "perms")
    if len(perm) != rank:
        raise context.refuse(f"has {len(perm)} perms for {rank} dimensions")
    context.move("Transpose", perm=perm)


def tosa_slice(context: Context) -> None:
    starts, sizes = _numbers(context, 1, "start"), _numbers(context, 2, "size")
    if len(starts) != len(sizes) or len(starts) != len(context.shape()):
        raise context.refuse(
            f"has {len(starts)} starts and {len(sizes)} sizes for {len(context.shape())} dimensions"
        )
    emit_slice(context, [(start, start + size, 1) for start, size in zip(starts, sizes, strict=True)])


def tosa_pad(context: Context) -> None:
    numbers = np.array(_numbers(context, 1, "padding"), np.int64)
    rank = len(context.shape())
    if numbers.size != 2 * rank or numbers.min() < 0:
        raise context.refuse(
            f"has padding {numbers.tolist()[:16]} for {rank} dimensions; it must not be negative"
        )
    fill = context.array(2) if len(context.op.operands) > 2 else None
    if len(context.op.operands) < 3:
        fill = np.array([zero_point(context, 3, "input_zp")], context.operand().type.dtype)
    # TOSA lists the padding before and after each axis, ONNX all axes before, then all after.
    emit_pad(context, numbers.reshape(rank, 2).T.reshape(-1).tolist(), fill)


def tile(context: Context) -> None:
    context.move("Tile", context.emit_constant(list(_numbers(context, 1, "multiples"))))


OPERATORS = (
    Record(("stablehlo.reshape",), (1, 1), "Reshape", reshape, fold_reshape),
    Record(("stablehlo.transpose",), (1, 1), "Transpose", transpose, _transpose_fold),
    Record(("stablehlo.broadcast_in_dim",), (1, 1), "Reshape, Expand", broadcast, _broadcast_fold),
    Record(("stablehlo.slice",), (1, 1), "Slice", slice_),
    Record(("stablehlo.reverse",), (1, 1), "Slice", reverse),
    Record(("stablehlo.concatenate",), (1, None), "Concat", concatenate),
    Record(("stablehlo.pad",), (2, 2), "Pad", pad),
    Record(("tosa.reshape",), (1, 2), "Reshape", reshape, fold_reshape),
    Record(("tosa.transpose",), (1, 2), "Transpose", tosa_transpose),
    Record(("tosa.slice",), (1, 3), "Slice", tosa_slice),
    Record(("tosa.pad",), (2, 3), "Pad", tosa_pad),
    Record(("tosa.concat",), (1, None), "Concat", concatenate),
    Record(("tosa.reverse",), (1, 1), "Slice", reverse),
    Record(("tosa.tile",), (1, 2), "Tile", tile),
)
