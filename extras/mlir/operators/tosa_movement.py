"""Operations of TOSA that move elements."""

from __future__ import annotations

import numpy as np

from weft.extras.mlir.context import Context
from weft.extras.mlir.operators import movement
from weft.extras.mlir.operators.tosa_products import zero_point
from weft.extras.mlir.record import Record


def _numbers(context: Context, index: int, name: str) -> tuple[int, ...]:
    """A list of numbers: a constant operand, or in texts of older versions an attribute."""
    if index < len(context.op.operands):
        return tuple(int(item) for item in context.constant(index, name).reshape(-1).tolist())
    return context.integers(name, f"new_{name}", default=None)


def transpose(context: Context) -> None:
    """Axes in another order."""
    rank = len(context.shape())
    perm = context.axes(_numbers(context, 1, "perms"), rank, "perms")
    if len(perm) != rank:
        raise context.refuse(f"has {len(perm)} perms for {rank} dimensions")
    context.move("Transpose", perm=perm)


def slice_(context: Context) -> None:
    """A part along each axis: where it starts, and how many elements it has."""
    starts, sizes = _numbers(context, 1, "start"), _numbers(context, 2, "size")
    if len(starts) != len(sizes) or len(starts) != len(context.shape()):
        raise context.refuse(
            f"has {len(starts)} starts and {len(sizes)} sizes for {len(context.shape())} dimensions"
        )
    movement.sliced(context, [(start, start + size, 1) for start, size in zip(starts, sizes, strict=True)])


def pad(context: Context) -> None:
    """A constant around the elements."""
    numbers = np.array(_numbers(context, 1, "padding"), np.int64)
    rank = len(context.shape())
    if numbers.size != 2 * rank or numbers.min() < 0:
        raise context.refuse(
            f"has padding {numbers.tolist()[:16]} for {rank} dimensions; it must not be negative"
        )
    fill = context.array(2) if len(context.op.operands) > 2 else None
    if len(context.op.operands) < 3:
        fill = np.array([zero_point(context, 3, "input_zp")], context.operand().type.dtype)
    movement.padded(context, numbers.reshape(rank, 2).T.reshape(-1).tolist(), fill)


def tile(context: Context) -> None:
    """Elements again and again along axes."""
    context.move("Tile", context.numbers(list(_numbers(context, 1, "multiples"))))


OPERATORS = (
    Record(("tosa.reshape",), (1, 2), "Reshape", movement.reshape, movement.convert_free),
    Record(("tosa.transpose",), (1, 2), "Transpose", transpose),
    Record(("tosa.slice",), (1, 3), "Slice", slice_),
    Record(("tosa.pad",), (2, 3), "Pad", pad),
    Record(("tosa.concat",), (1, None), "Concat", movement.concatenate),
    Record(("tosa.reverse",), (1, 1), "Slice", movement.reverse),
    Record(("tosa.tile",), (1, 2), "Tile", tile),
)
