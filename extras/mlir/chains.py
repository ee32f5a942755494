"""Chains of float operations that are quantisation: what exporters write for QuantizeLinear and DequantizeLinear."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from weft.extras.mlir.builder import Builder, compact_equal
from weft.extras.mlir.program import Op, Quantisation, Value

STORED = ("int4", "int8", "uint8", "int16", "uint16")
"""Types that quantised numbers are stored in."""
_ADD, _SUBTRACT = ("stablehlo.add", "tosa.add"), ("stablehlo.subtract", "tosa.sub")
_CONVERT = ("stablehlo.convert", "tosa.cast")
_LEAST, _MOST = ("stablehlo.maximum", "tosa.maximum"), ("stablehlo.minimum", "tosa.minimum")
_LENGTH = 32
"""Most operations of a chain."""


@dataclass(frozen=True)
class Integers:
    """A value that is ``source - zero``; `zero` broadcasts, of whole numbers."""

    source: Value
    zero: np.ndarray


@dataclass(frozen=True)
class Quantised:
    """A value that is `source` quantised so."""

    source: Value
    quantisation: Quantisation


def constant_operand(builder: Builder, op: Op) -> tuple[Value, np.ndarray, int] | None:
    """The other operand of an operation with a constant one, the constant, and which of the two it is."""
    for at in (1, 0):
        if (
            len(op.operands) == 2
            and op.operands[at] in builder.arrays
            and op.operands[1 - at] not in builder.arrays
        ):
            return op.operands[1 - at], compact_equal(builder.arrays[op.operands[at]]), at
    return None


def find_integers(builder: Builder, value: Value) -> Integers | None:
    """What a value is of stored numbers: a zero point is subtracted, in whatever type. None if it is something else."""
    zero = np.zeros((1,) * len(value.type.shape))
    for _ in range(_LENGTH):
        if value.type.quantisation is not None:
            return None
        wide = builder.arrays.get(value)
        if value.type.dtype in STORED or (
            value.type.dtype == "int32" and wide is not None and compact_equal(wide).size > 1
        ):
            return Integers(value, zero)
        op = builder.producers.get(value)
        if op is None:
            return None
        if op.name in _CONVERT:
            value = op.operands[0]
            continue
        found = constant_operand(builder, op) if op.name in (*_ADD, *_SUBTRACT) else None
        if found is None or (op.name in _SUBTRACT and found[2] == 0):
            return None
        value = found[0]
        zero = zero - found[1].astype(np.float64) * (1 if op.name in _ADD else -1)
    return None


def find_dequantisation(builder: Builder, op: Op) -> Quantised | None:
    """What the numbers are whose product with a constant, their scale, an operation makes; None if it is another."""
    for at in (1, 0):
        scale = builder.arrays.get(op.operands[at])
        found = find_integers(builder, op.operands[1 - at]) if scale is not None else None
        if scale is not None and found is not None:
            made = to_quantisation(compact_equal(scale), found.zero, found.source)
            return None if made is None else Quantised(found.source, made)
    return None


def to_quantisation(scale: np.ndarray, zero: np.ndarray, value: Value) -> Quantisation | None:
    """Scales and zero points as arrays that broadcast, if they are such; None else."""
    limits, shape = np.iinfo(value.type.dtype if value.type.dtype != "int4" else "int8"), value.type.shape
    rank = len(shape)
    if scale.ndim != rank or zero.ndim != rank or not (np.isfinite(scale).all() and (scale > 0).all()):
        return None
    if (zero != np.rint(zero)).any() or zero.min() < limits.min or zero.max() > limits.max:
        return None
    along = [axis for axis in range(rank) if max(scale.shape[axis], zero.shape[axis]) > 1]
    if len(along) > 1:
        return None
    axis = along[0] if along else None
    count = shape[axis] if axis is not None else 1
    scales, zeros = (np.broadcast_to(item.reshape(-1), (count,)) for item in (scale, zero))
    return Quantisation(
        scales.astype(np.float32), zeros.astype(np.int64), axis, int(limits.min), int(limits.max)
    )


def quantisation(builder: Builder, op: Op) -> Quantised | None:
    """What is quantised where an operation converts to stored numbers: ``convert(clamp(round(x / scale) + zero))`` in
    any order behind the rounding; None if it is none."""
    value, result = op.operands[0], op.results[0].type
    if result.dtype not in STORED or result.dtype == "int4" or result.quantisation is not None:
        return None
    offset = np.zeros((1,) * len(result.shape))
    low, high = -math.inf, math.inf
    for _ in range(_LENGTH):
        maker = builder.producers.get(value)
        if maker is None or value.type.quantisation is not None:
            return None
        if maker.name in ("stablehlo.round_nearest_even",):
            return _scaled(builder, maker.operands[0], offset, (low, high), op)
        if maker.name in _CONVERT:
            value = maker.operands[0]
        elif maker.name in ("stablehlo.clamp", "tosa.clamp", *_LEAST, *_MOST):
            bounds = _bounds(builder, maker)
            if bounds is None or offset.size > 1:
                return None
            value, least, most = bounds
            low, high = max(low, least + offset.item()), min(high, most + offset.item())
        else:
            found = constant_operand(builder, maker) if maker.name in (*_ADD, *_SUBTRACT) else None
            if found is None or (maker.name in _SUBTRACT and found[2] == 0):
                return None
            value = found[0]
            offset = offset + found[1].astype(np.float64) * (1 if maker.name in _ADD else -1)
    return None


def _bounds(builder: Builder, op: Op) -> tuple[Value, float, float] | None:
    """What a clamp, a minimum or a maximum is of, and between which numbers it leaves it."""
    if op.name == "tosa.clamp":
        return op.operands[0], float(op.attributes["min_val"]), float(op.attributes["max_val"])
    if op.name == "stablehlo.clamp":
        ends = [builder.arrays.get(op.operands[at]) for at in (0, 2)]
        found = [compact_equal(end) for end in ends if end is not None]
        if len(found) < 2 or any(end.size > 1 for end in found):
            return None
        return op.operands[1], float(found[0].item()), float(found[1].item())
    other = constant_operand(builder, op)
    if other is None or other[1].size > 1:
        return None
    number = float(other[1].item())
    return (other[0], number, math.inf) if op.name in _LEAST else (other[0], -math.inf, number)


def _scaled(
    builder: Builder, value: Value, zero: np.ndarray, bounds: tuple[float, float], op: Op
) -> Quantised | None:
    """What is divided by a scale, or multiplied with its reciprocal, ahead of the rounding."""
    scale = np.ones((1,) * len(value.type.shape), np.float32)
    maker = builder.producers.get(value)
    if maker is not None and maker.name in ("stablehlo.divide", "stablehlo.multiply", "tosa.mul"):
        found = constant_operand(builder, maker) if len(maker.operands) == 2 else None
        if found is not None and (found[2] == 1 or maker.name != "stablehlo.divide") and (found[1] > 0).all():
            value, factor, _ = found
            scale = factor if maker.name == "stablehlo.divide" else reciprocal(factor)
    made = to_quantisation(scale, zero, op.results[0])
    if made is None:
        return None
    low, high = (
        max(made.low, math.ceil(max(bounds[0], -1e6))),
        min(made.high, math.floor(min(bounds[1], 1e6))),
    )
    if low >= high or ((low, high) != (made.low, made.high) and made.axis is not None):
        return None
    return Quantised(value, Quantisation(made.scales, made.zeros, made.axis, low, high))


def reciprocal(factor: np.ndarray) -> np.ndarray:
    """Scales whose reciprocals in float32 are `factor`, as near as there are such."""
    wanted = factor.astype(np.float32)
    with np.errstate(all="ignore"):
        first = (np.float32(1) / wanted).astype(np.float32)
        for other in (np.nextafter(first, np.float32(np.inf)), np.nextafter(first, np.float32(0))):
            better = (np.float32(1) / other == wanted) & (np.float32(1) / first != wanted)
            first = np.where(better, other, first)
    return first
