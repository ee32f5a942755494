"""TOSA's rescale, table, clamp and cast, and arithmetic on 32-bit integers."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from weft.extras.mlir import rescaling
from weft.extras.mlir.builder import Builder, Sum, compact_equal
from weft.extras.mlir.context import Context, Record
from weft.extras.mlir.forms import recognise_addition, recognise_requantisation
from weft.extras.mlir.operators.tosa_products import zero_point
from weft.extras.mlir.program import Value
from weft.extras.mlir.rescaling import (
    BYTES,
    ONE,
    Scale,
    all_bytes,
    emit_byte_function,
    emit_lookup,
    find_mantissa,
    find_scales,
    quantise_integral,
    sum_of_byte,
)

INT32 = np.iinfo(np.int32)
_ROUNDINGS = {"SINGLE_ROUND": False, "INEXACT_ROUND": False, "DOUBLE_ROUND": True}


# Rescale


def parse_scales(context: Context) -> list[Scale]:
    """Return the scales of a rescale: one, or one per channel."""
    numbers = []
    for index, name in ((1, "multiplier"), (2, "shift")):
        if len(context.op.operands) > 2:
            numbers.append(context.constant_operand(index, f"its {name}").reshape(-1).tolist())
        else:
            numbers.append(list(context.integers(name)))
    text = str(context.attribute("rounding_mode", default="SINGLE_ROUND")).strip('"')
    if text not in _ROUNDINGS:
        raise context.refuse(f"has rounding_mode {text[:40]!r}; expected one of {', '.join(_ROUNDINGS)}")
    double = bool(context.attribute("double_round", default=_ROUNDINGS[text]))
    channels = (*context.shape(), 1)[len(context.shape()) - 1] if context.shape() else 1
    if len(numbers[0]) != len(numbers[1]) or len(numbers[0]) not in (1, channels):
        raise context.refuse(
            f"has {len(numbers[0])} multipliers and {len(numbers[1])} shifts for {channels} channels"
        )
    if min(numbers[0]) < 0 or min(numbers[1]) < 2 or max(numbers[1]) > 62:
        raise context.refuse("has a multiplier below 0, or a shift that is not from 2 to 62")
    pairs = dict.fromkeys(zip(*numbers, strict=True))
    scales = [Scale(int(factor), int(shift), double) for factor, shift in zip(*numbers, strict=True)]
    return scales[:1] if len(pairs) == 1 else scales


def rescale(context: Context) -> None:
    """Read a rescale of 8-bit integers or 32-bit sums, to 8 or 32 bits."""
    one, result = context.operand().type, context.result().type
    for flag, dtype in (("input_unsigned", one.dtype), ("output_unsigned", result.dtype)):
        if context.attribute(flag, default=False) and not dtype.startswith("u"):
            raise context.refuse(f"takes {dtype} as unsigned; weft reads ui8 as such, and i8 as signed")
    if (
        one.dtype not in (*BYTES, "int32")
        or result.dtype not in (*BYTES, "int32")
        or one.shape != result.shape
    ):
        raise context.refuse(f"makes {result} of {one}; weft reads 8 and 32 bits, of one shape")
    scales, builder, value = parse_scales(context), context.builder, context.operand()
    zeros = zero_point(context, 3, "input_zp"), zero_point(context, 4, "output_zp")
    if (one.dtype == "int32" and zeros[0]) or (result.dtype == "int32" and zeros[1]):
        raise context.refuse("has a zero point for 32 bits, which must be 0")
    known = builder.sums.get(value)
    if one.dtype in BYTES and len(scales) == 1:
        known = sum_of_byte(builder, value, all_bytes(one.dtype) - zeros[0])
    if known is not None and known.source is not None and known.table is not None and len(scales) == 1:
        return _rescale_byte(context, known.source, known.table, scales[0], zeros[1])
    if one.dtype in BYTES:
        raise context.refuse("has a scale for each channel of 8 bits; weft reads one there")
    return _rescale_sum(context, known, scales, zeros[1])


def _rescale_byte(context: Context, source: Value, table: np.ndarray, scale: Scale, zero: int) -> None:
    """Read a rescale of a function of one byte."""
    builder, op, result = context.builder, context.op, context.result()
    results = np.array([scale.apply(int(number)) for number in table.tolist()], np.int64)
    if result.type.dtype == "int32":
        if results.min() < INT32.min or results.max() > INT32.max:
            raise context.refuse("makes numbers that do not fit 32 bits")

        def emit_stored() -> str:
            builder.op = op
            return rescaling.emit_cast(builder, emit_lookup(builder, source, results), "int32")

        return builder.set_sum(result, sum_of_byte(builder, source, results), emit_stored)
    base = sum_of_byte(builder, source, table)

    def emit_clamped(low: int, high: int) -> str:
        builder.op = op
        # One of 256 results for each byte: the device's requantisation if it gives the same, else a table.
        entries = np.clip(results + zero, low, high)
        pair = find_mantissa(scale, (int(table.min()), int(table.max())), (low - zero, high - zero))
        if pair is None or not _linear(table):
            return emit_byte_function(builder, source, entries, result.type.dtype)
        factor = np.array([math.ldexp(pair[0], -pair[1])], np.float32)
        if not factor.all():
            return emit_byte_function(builder, source, entries, result.type.dtype)
        return quantise_integral(builder, base.emit_scaled(factor), zero, (low, high), result.type.dtype)

    return builder.set_clampable(result, emit_clamped)


def _linear(table: np.ndarray) -> bool:
    return bool((np.diff(table) == 1).all())


def _rescale_sum(context: Context, known: Sum | None, scales: list[Scale], zero: int) -> None:
    """Read a rescale of a 32-bit sum."""
    builder, op, result, value = context.builder, context.op, context.result(), context.operand()
    if result.type.dtype == "int32":

        def emit_stored() -> str:
            builder.op = op
            bounds = (int(INT32.min), int(INT32.max))
            return rescaling.emit_rescale(builder, builder.stored_value(value), scales, 0, "int32", bounds)

        return builder.set_lazy(
            result,
            emit_stored,
            lambda: rescaling.emit_cast(builder, builder.stored_value(result), "float32"),
        )

    def emit_clamped(low: int, high: int) -> str:
        builder.op = op
        device_scale = None if known is None else _device_scale(known, scales, (low - zero, high - zero))
        if known is not None and device_scale is not None:
            return quantise_integral(
                builder, known.emit_scaled(device_scale), zero, (low, high), result.type.dtype
            )
        return rescaling.emit_rescale(
            builder, builder.stored_value(value), scales, zero, result.type.dtype, (low, high)
        )

    return builder.set_clampable(result, emit_clamped)


def _device_scale(known: Sum, scales: list[Scale], levels: tuple[int, int]) -> np.ndarray | None:
    """Return the device's scales with which no byte changes; None if there are none, or one is 0."""
    count = max(len(scales), known.low.size)
    ranges = list(
        zip(*(np.broadcast_to(end, (count,)).tolist() for end in (known.low, known.high)), strict=True)
    )
    if len(scales) == 1:  # one scale for all channels, which has one mantissa
        union = (min(low for low, _ in ranges), max(high for _, high in ranges))
        common = find_scales(scales, [union], levels)
        if common is not None:
            return common if common.all() else None
    device = find_scales(scales * count if len(scales) == 1 else scales, ranges, levels)
    return device if device is not None and device.all() else None


# Other operations


def table(context: Context) -> None:
    """Read a table of 256 entries for bytes."""
    value, entries = context.operand(), context.constant_operand(1, "its table")
    if value.type.dtype != "int8" or entries.dtype != np.int8 or entries.shape != (256,):
        raise context.refuse(
            f"is of {value.type} with {context.operand(1).type}; weft reads 256 entries of i8 for i8"
        )
    context.put(emit_byte_function(context.builder, value, entries.astype(np.int64), "int8"))


def clamp(context: Context) -> None:
    """Read a clamp; the rescale that makes its operand absorbs it if possible."""
    builder, value = context.builder, context.operand()
    low, high = context.attribute("min_val", "min_int"), context.attribute("max_val", "max_int")
    if value.type.dtype.startswith(("float", "bfloat")):
        low, high = context.attribute("min_val", "min_fp"), context.attribute("max_val", "max_fp")
        if not isinstance(low, float | int) or not isinstance(high, float | int):
            raise context.refuse("has no min_val and max_val")
        ends = [context.emit_constant(end, value.type.dtype) for end in (low, high)]
        return context.put(context.emit("Clip", context.stored_operand(), *ends))
    if value.type.dtype not in BYTES or not isinstance(low, int) or not isinstance(high, int):
        raise context.refuse(f"is of {value.type}; weft reads it of i8 and floats, with min_val and max_val")
    limits = np.iinfo(value.type.dtype)
    low, high = max(low, int(limits.min)), min(high, int(limits.max))
    if low > high:
        raise context.refuse(f"has min_val {low} above max_val {high}")
    # The device clamps while it requantises: a single reader's clamp costs nothing there.
    if value in builder.clampable and builder.use_counts[value] == 1 and low < high:
        return context.put(builder.clampable[value](low, high))
    return context.put(
        emit_byte_function(builder, value, np.clip(all_bytes(value.type.dtype), low, high), value.type.dtype)
    )


def cast(context: Context) -> None:
    """Read a cast; the patterns of `weft.extras.mlir.forms` end here."""
    builder, one, result = context.builder, context.operand().type, context.result().type
    if (
        result.dtype == "int8"
        and one.dtype == "int32"
        and (recognise_requantisation(context) or recognise_addition(context))
    ):
        return None
    if one.dtype in BYTES and result.dtype in ("int32", "float32"):
        description = sum_of_byte(builder, context.operand(), all_bytes(one.dtype))
        if result.dtype == "float32":
            return context.put(description.emit_scaled(ONE))
        name, op = context.operand(), context.op

        def emit_stored() -> str:
            builder.op = op
            return rescaling.emit_cast(builder, builder.stored_value(name), "int32")

        return builder.set_sum(context.result(), description, emit_stored)
    return context.put(rescaling.emit_cast(builder, context.stored_operand(), result.dtype))


def _defer(context: Context, make: Callable[[list[str]], str]) -> None:
    """Set the function that emits an integer result for the host."""
    builder, op = context.builder, context.op

    def emit_stored() -> str:
        builder.op = op
        return make([_operand(builder, operand) for operand in op.operands])

    result = context.result()
    builder.set_lazy(
        result, emit_stored, lambda: rescaling.emit_cast(builder, builder.stored_value(result), "float32")
    )


def _operand(builder: Builder, value: Value) -> str:
    """Return an operand in stored form; a constant gets only as many elements as broadcasting needs."""
    if value in builder.arrays:
        return builder.constant(compact_equal(builder.arrays[value]), "constant")
    return builder.stored_value(value)


def arithmetic(context: Context) -> None:
    """Read add and sub of 32-bit integers and of floats."""
    operator = {"add": "Add", "sub": "Sub"}[context.short]
    if context.result().type.dtype.startswith(("float", "bfloat")):
        return context.put(context.emit(operator, context.real_operand(0), context.real_operand(1)))
    if context.result().type.dtype not in ("int32", "int64"):
        raise context.refuse(f"is of {context.result().type}; weft reads it of i32 and floats")
    _defer(context, lambda names: context.builder.emit(operator, names))
    pair = [context.builder.sums.get(operand) for operand in context.op.operands]
    array = context.array(1)
    if (
        pair[0] is not None
        and pair[0].table is not None
        and pair[0].source is not None
        and array is not None
        and array.size
        and compact_equal(array).size == 1
    ):
        # A function of one byte plus a constant is a function of that byte.
        number = int(compact_equal(array).item()) * (1 if operator == "Add" else -1)
        context.builder.sums[context.result()] = sum_of_byte(
            context.builder, pair[0].source, pair[0].table + number
        )
    return None


def multiply(context: Context) -> None:
    """Read mul of 32-bit integers or of floats."""
    builder = context.builder
    if context.result().type.dtype.startswith(("float", "bfloat")):
        return context.put(context.emit("Mul", context.real_operand(0), context.real_operand(1)))
    shift = context.array(2) if len(context.op.operands) > 2 else np.zeros(1)
    if (
        context.result().type.dtype != "int32"
        or shift is None
        or shift.any()
        or context.attribute("shift", default=0)
    ):
        raise context.refuse(f"makes {context.result().type} with a shift; weft reads it of i32 without")
    _defer(context, lambda names: builder.emit("Mul", names[:2]))
    one, other = (builder.sums.get(operand) for operand in context.op.operands[:2])
    if one is None or other is None or one.low.size > 1 or other.low.size > 1:
        return None
    # A product has its extremes at the ends of both ranges.
    ends = [int(a) * int(b) for a in (one.low[0], one.high[0]) for b in (other.low[0], other.high[0])]
    if min(ends) < INT32.min or max(ends) > INT32.max:
        raise context.refuse("may make products that do not fit 32 bits")
    op = context.op

    def emit_scaled(scale: np.ndarray) -> str:
        builder.op = op
        return builder.emit("Mul", (one.emit_scaled(scale), other.emit_scaled(ONE)))

    builder.sums[context.result()] = Sum(np.array([min(ends)]), np.array([max(ends)]), emit_scaled)
    return None


_BITS = {"bitwise_and": "BitwiseAnd", "bitwise_or": "BitwiseOr", "bitwise_xor": "BitwiseXor",
         "logical_and": "And", "logical_or": "Or", "logical_xor": "Xor", "maximum": "Max", "minimum": "Min",
         "equal": "Equal", "greater": "Greater", "greater_equal": "GreaterOrEqual", "select": "Where"}  # fmt: skip


def elements(context: Context) -> None:
    """Read comparisons, logic, maximum, minimum and select."""
    if any(operand.type.dtype.startswith(("float", "bfloat")) for operand in context.op.operands):
        return context.put(
            context.emit(
                _BITS[context.short], *(context.real_operand(at) for at in range(len(context.op.operands)))
            )
        )
    return _defer(context, lambda names: context.builder.emit(_BITS[context.short], names))


def shift(context: Context) -> None:
    """Read arithmetic_right_shift."""
    builder, by = context.builder, context.constant_operand(1, "its shift")
    if context.result().type.dtype != "int32" or by.min() < 0 or by.max() > 31:
        raise context.refuse("must be of i32, by 0 to 31 places")
    if context.attribute("round", default=False):
        raise context.refuse("rounds; weft reads it without")

    def make(names: list[str]) -> str:
        wide = rescaling.emit_cast(builder, names[0], "int64")
        return rescaling.emit_cast(
            builder, rescaling.emit_right_shift(builder, wide, compact_equal(by)), "int32"
        )

    _defer(context, make)


OPERATORS = (
    Record(("tosa.rescale",), (1, 5), "integers; or Mul, Add, Mod and Div of integers", rescale),
    Record(("tosa.table",), (2, 2), "LabelEncoder", table),
    Record(("tosa.clamp",), (1, 1), "Clip", clamp),
    Record(("tosa.cast",), (1, 1), "Cast, real numbers", cast),
    Record(("tosa.add", "tosa.sub"), (2, 2), "Add, Sub", arithmetic),
    Record(("tosa.mul",), (2, 3), "Mul", multiply),
    Record(
        tuple(f"tosa.{name}" for name in _BITS if name != "select"),
        (2, 2),
        "comparisons, logic, Max, Min",
        elements,
    ),
    Record(("tosa.select",), (3, 3), "Where", elements),
    Record(("tosa.arithmetic_right_shift",), (2, 2), "Mod, Div", shift),
)
