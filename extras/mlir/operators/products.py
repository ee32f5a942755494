"""Convolutions and matrix products of StableHLO, on real numbers and on integers."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.extras.mlir.chains import Integers, find_integers
from weft.extras.mlir.context import Context, Record
from weft.extras.mlir.operators.elementwise import unit_quantisation
from weft.extras.mlir.program import Quantisation, TensorType, Value

_LETTERS = re.compile(r"\[([^\]]*)\]")
_BYTES = ("int8", "uint8")


@dataclass(frozen=True)
class Side:
    """One operand of a product.

    `emit_real` adds its real numbers with permuted axes, `emit_stored` its bytes, whose zero point is `zero`.
    """

    emit_real: Callable[[Sequence[int]], str]
    emit_stored: Callable[[Sequence[int]], str]
    zero: str | None = None


def product(context: Context, make: Callable[[Side, Side, str], str], integer: str) -> None:
    """Write a product with `make`: of floats, of quantised values, or of integers.

    Integer products become floats if they are read as such, else the operator `integer`.
    """
    builder, result = context.builder, context.result()
    if result.type.quantisation is not None or result.type.dtype in ("float32", "float16", "float64"):
        sides = [
            Side(lambda perm, value=value: builder.emit_transposed_real(value, perm), lambda _: "")  # type: ignore[misc]
            for value in context.op.operands[:2]
        ]
        _check_scale(context)
        return context.finish(make(sides[0], sides[1], ""))
    operands = [find_integers(builder, value) for value in context.op.operands[:2]]
    operands = [item and _narrow(context, item) for item in operands]
    if result.type.dtype != "int32" or any(
        item is None or item.source.type.dtype not in _BYTES for item in operands
    ):
        raise context.refuse(
            f"makes {result.type} of {context.operand(0).type} and {context.operand(1).type}; weft reads products of "
            "floats, of quantised types, and of i8 or ui8, less zero points, as i32"
        )
    op, kinds = context.op, [_side(context, item) for item in operands if item is not None]

    def emit_stored() -> str:
        builder.op = op
        return make(kinds[0], kinds[1], integer)

    def emit_real() -> str:
        builder.op = op
        return make(kinds[0], kinds[1], "")

    return builder.set_lazy(result, emit_stored, emit_real)


def _narrow(context: Context, operand: Integers) -> Integers:
    """Return constant 32-bit integers as int8 if they fit."""
    array = context.builder.arrays.get(operand.source)
    if operand.source.type.dtype != "int32" or array is None or array.min() < -128 or array.max() > 127:
        return operand
    value = Value(operand.source.name, TensorType("int8", operand.source.type.shape))
    context.builder.arrays[value] = array.astype(np.int8)
    return Integers(value, operand.zero)


def _side(context: Context, operand: Integers) -> Side:
    """Return the operand for bytes less a zero point."""
    builder, value = context.builder, operand.source
    dtype = value.type.dtype
    if operand.zero.size > 1:
        raise context.refuse("has a zero point for each channel; weft reads one")
    number, limits = int(operand.zero.item()), np.iinfo(dtype)
    # ConvInteger and MatMulInteger take a zero point in the type of their operand.
    if not limits.min <= number <= limits.max:
        raise context.refuse(f"subtracts {number} of {dtype}, where it does not fit")
    ones = unit_quantisation(dtype)
    kind = Quantisation(ones.scales, np.array([number]), None, ones.low, ones.high)

    def emit_stored(perm: Sequence[int]) -> str:
        if value in builder.arrays:
            return builder.constant(builder.arrays[value].transpose(perm), value.name or "constant")
        name = builder.stored_value(value)
        return (
            name
            if list(perm) == sorted(perm)
            else builder.emit("Transpose", (name,), "transpose", perm=tuple(perm))
        )

    def emit_real(perm: Sequence[int]) -> str:
        return builder.dequantise(emit_stored(perm), kind, TensorType(dtype, value.type.shape))

    return Side(emit_real, emit_stored, builder.constant(np.asarray(number, dtype), "zero"))


def _check_scale(context: Context) -> None:
    """Refuse 32-bit sums whose scale is not that of the products: they would be rounded a second time."""
    result = context.result().type
    kinds = [operand.type.quantisation for operand in context.op.operands[:2]]
    if result.dtype != "int32" or result.quantisation is None:
        return
    scales = np.ones(1)
    for kind in kinds:
        if kind is None:
            raise context.refuse(f"makes {result} of what is not quantised")
        scales = scales * kind.scales.astype(np.float64)
    if not np.allclose(result.quantisation.scales, scales, rtol=1e-4):
        raise context.refuse("makes sums of 32 bits whose scale is not the product of its operands' scales")


def _emit(
    context: Context,
    operator: str,
    integer: str,
    sides: tuple[Side, Side],
    names: tuple[str, str],
    **attributes: Any,
) -> str:
    """Emit the node of a product, with zero points if it is of integers."""
    zeros = tuple(side.zero or "" for side in sides) if integer else ()
    return context.builder.emit(integer or operator, (*names, *zeros), **attributes)


# Convolutions


@dataclass(frozen=True)
class Dimensions:
    """Permutations of a convolution's axes: images and filters into ONNX's order, results out of it."""

    images: tuple[int, ...]
    filters: tuple[int, ...]
    results: tuple[int, ...]


def dimensions(context: Context) -> Dimensions:
    """Return the permutations that `dim_numbers` describe."""
    orders = context.attribute("dim_numbers", "dimension_numbers")
    if isinstance(orders, str):
        orders = [[item.strip() for item in text.split(",")] for text in _LETTERS.findall(orders)]
    rank = len(context.shape())
    if not isinstance(orders, list) or len(orders) != 3 or any(len(item) != rank for item in orders):
        raise context.refuse("has no dim_numbers as [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]")
    names = [[str(item) for item in order] for order in orders]
    spatial = [str(axis) for axis in range(rank - 2)]
    wanted = (["b", "f", *spatial], ["o", "i", *spatial], ["b", "f", *spatial])
    if any(sorted(order) != sorted(letters) for order, letters in zip(names, wanted, strict=True)):
        raise context.refuse(
            f"has dim_numbers {names}; weft reads b, f, i, o and one number for each axis of the image"
        )
    perms = [
        tuple(order.index(letter) for letter in letters) for order, letters in zip(names, wanted, strict=True)
    ]
    back = tuple(wanted[2].index(letter) for letter in names[2])
    return Dimensions(perms[0], perms[1], back)


def _window(context: Context, rank: int) -> dict[str, tuple[int, ...]]:
    """Return strides, padding and dilations, from either assembly form."""
    window = context.attribute("window", default={})
    attributes = {**context.op.attributes, **(window if isinstance(window, dict) else {})}
    inner = Context(dataclasses.replace(context.op, attributes=attributes), context.builder)
    # StableHLO's left-hand side (lhs) is the image, its right-hand side the filters.
    strides = inner.integers("stride", "window_strides", default=[1] * rank, rank=rank)
    filters = inner.integers("rhs_dilate", "rhs_dilation", default=[1] * rank, rank=rank)
    images = inner.integers("lhs_dilate", "lhs_dilation", default=[1] * rank, rank=rank)
    pads = inner.attribute("pad", "padding", default=[[0, 0]] * rank)
    pairs = np.asarray(pads, np.int64).reshape(rank, 2)
    reverse = inner.attribute("reverse", "window_reversal", default=[])
    if any(
        str(item).lower() in ("true", "1")
        for item in (reverse if isinstance(reverse, list) else np.ravel(reverse).tolist())
    ):
        raise context.refuse("reverses its filters; weft reads them in order")
    if any(step != 1 for step in images):
        raise context.refuse("dilates its images, as a transposed convolution does; weft reads it without")
    if min((*strides, *filters)) < 1 or pairs.min() < 0:
        raise context.refuse("has strides or dilations below 1, or negative padding")
    return {"strides": strides, "dilations": filters, "pads": tuple(pairs.T.reshape(-1).tolist())}


def convolution(context: Context) -> None:
    order, rank = dimensions(context), len(context.shape()) - 2
    if rank not in (1, 2, 3):
        raise context.refuse(f"has {rank} axes of the image; weft reads 1 to 3")
    if context.attribute("batch_group_count", default=1) != 1:
        raise context.refuse("has batch_group_count above 1; weft reads groups of channels")
    groups = context.attribute("feature_group_count", default=1)
    window = _window(context, rank)
    if not isinstance(groups, int) or groups < 1:
        raise context.refuse(f"has feature_group_count {groups}")

    def make(images: Side, filters: Side, integer: str) -> str:
        if integer:
            names = images.emit_stored(order.images), filters.emit_stored(order.filters)
        else:
            names = images.emit_real(order.images), filters.emit_real(order.filters)
        result = _emit(context, "Conv", integer, (images, filters), names, group=groups, **window)
        return context.transpose(result, order.results)

    product(context, make, "ConvInteger")


# Matrix products


def dot_general(context: Context) -> None:
    """Read a matrix product with batch, contracting and free axes."""
    batches, summed = _dot_axes(context)
    ranks = [len(context.shape(at)) for at in (0, 1)]
    for side in (0, 1):
        context.axes([*batches[side], *summed[side]], ranks[side], "axes")
    if len(batches[0]) != len(batches[1]) or len(summed[0]) != len(summed[1]):
        raise context.refuse("has different numbers of axes on both sides")
    free = [
        [axis for axis in range(rank) if axis not in batches[side] and axis not in summed[side]]
        for side, rank in enumerate(ranks)
    ]
    shapes = [context.shape(0), context.shape(1)]
    if any(
        shapes[0][one] != shapes[1][other]
        for one, other in zip((*batches[0], *summed[0]), (*batches[1], *summed[1]), strict=True)
    ):
        raise context.refuse(
            f"multiplies {context.operand(0).type} and {context.operand(1).type} along axes of other sizes"
        )
    perms = [(*batches[0], *free[0], *summed[0]), (*batches[1], *summed[1], *free[1])]
    product(
        context,
        lambda one, other, integer: _matmul(context, perms, free, summed, (one, other), integer),
        "MatMulInteger",
    )


def _matmul(
    context: Context,
    perms: list[tuple[int, ...]],
    free: list[list[int]],
    summed: tuple[list[int], list[int]],
    sides: tuple[Side, Side],
    integer: str,
) -> str:
    """Emit MatMul of operands with permuted axes, where several axes are merged into one."""
    names = [
        (side.emit_stored if integer else side.emit_real)(perm)
        for side, perm in zip(sides, perms, strict=True)
    ]
    shapes = [context.shape(0), context.shape(1)]
    counts = [
        int(np.prod([shapes[0][axis] for axis in axes], dtype=np.int64)) for axes in (free[0], summed[0])
    ]
    width = int(np.prod([shapes[1][axis] for axis in free[1]], dtype=np.int64))
    batch = [shapes[0][axis] for axis in perms[0][: len(perms[0]) - len(free[0]) - len(summed[0])]]
    plain = len(summed[0]) == 1 and len(free[1]) == 1 and (len(free[0]) == 1 or not batch) and free[0]
    if not plain:  # MatMul takes one row axis, one column axis and one contracting axis
        names[0] = context.reshape(names[0], [*batch, counts[0], counts[1]])
        names[1] = context.reshape(names[1], [*batch, counts[1], width])
    product = _emit(context, "MatMul", integer, sides, (names[0], names[1]))
    return product if plain else context.reshape(product, context.result().type.shape)


def _dot_axes(context: Context) -> tuple[tuple[list[int], list[int]], tuple[list[int], list[int]]]:
    """Return the batch axes and the contracting axes, each for both sides."""
    text = context.attribute("dot_dimension_numbers")
    if isinstance(text, str):
        lists = {
            key: [int(item) for item in numbers.split(",") if item.strip()]
            for key, numbers in re.findall(r"(\w+)\s*=\s*\[([-\d,\s]*)\]", text)
        }
        sides = [
            (lists.get(f"{side}_batching_dimensions", []), lists.get(f"{side}_contracting_dimensions", []))
            for side in ("lhs", "rhs")
        ]
        return (sides[0][0], sides[1][0]), (sides[0][1], sides[1][1])
    batches = context.attribute("batching_dims", default=[[], []])
    summed = context.attribute("contracting_dims", default=None)
    if summed is None and context.short == "dot":
        # `dot` contracts the last axis of the left operand with the first of the right.
        summed = [[len(context.shape(0)) - 1], [0]]
    for pair in (batches, summed):
        if (
            not isinstance(pair, list)
            or len(pair) != 2
            or not all(
                isinstance(item, list) and all(isinstance(axis, int) for axis in item) for item in pair
            )
        ):
            raise context.refuse("has no contracting_dims as [1] x [0]")
    assert summed is not None
    return (batches[0], batches[1]), (summed[0], summed[1])


OPERATORS = (
    Record(("stablehlo.convolution",), (2, 2), "Conv, ConvInteger", convolution),
    Record(("stablehlo.dot_general", "stablehlo.dot"), (2, 2), "MatMul, MatMulInteger", dot_general),
)
