"""Chains of float operations that exporters write for quantisation and its reverse."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from weft.extras.mlir.builder import Builder, compact_equal
from weft.extras.mlir.program import Op, Quantisation, Value

STORED = ("int4", "int8", "uint8", "int16", "uint16")
"""Storage types of quantised numbers."""
_ADD, _SUBTRACT = ("stablehlo.add", "tosa.add"), ("stablehlo.subtract", "tosa.sub")
_CONVERT = ("stablehlo.convert", "tosa.cast")
_LEAST, _MOST = ("stablehlo.maximum", "tosa.maximum"), ("stablehlo.minimum", "tosa.minimum")
_LENGTH = 32
"""Largest number of operations in a chain."""


@dataclass(frozen=True)
class Integers:
    """A value equal to ``source - zero``; `zero` has integral numbers and broadcasts."""

    source: Value
    zero: np.ndarray


@dataclass(frozen=True)
class Quantised:
    """A value equal to `source` with this quantisation."""

    source: Value
    quantisation: Quantisation


def constant_operand(builder: Builder, op: Op) -> tuple[Value, np.ndarray, int] | None:
    """Return the variable operand, the constant operand and the latter's index, or None if not exactly one is
    constant."""
    for at in (1, 0):
        if (
            len(op.operands) == 2
            and op.operands[at] in builder.arrays
            and op.operands[1 - at] not in builder.arrays
        ):
            return op.operands[1 - at], compact_equal(builder.arrays[op.operands[at]]), at
    return None


def find_integers(builder: Builder, value: Value) -> Integers | None:
    """Return the stored numbers that `value` is, less a zero point, in any type; None if it is something else."""
    zero = np.zeros((1,) * len(value.type.shape))
    for _ in range(_LENGTH):
        if value.type.quantisation is not None:
            return None
        # Lists of int32 constants may be weights, which products narrow to int8.
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
        other = constant_operand(builder, op) if op.name in (*_ADD, *_SUBTRACT) else None
        if other is None or (op.name in _SUBTRACT and other[2] == 0):
            return None
        value = other[0]
        zero = zero - other[1].astype(np.float64) * (1 if op.name in _ADD else -1)
    return None


def find_dequantisation(builder: Builder, op: Op) -> Quantised | None:
    """Return the stored numbers and the quantisation if `op` multiplies them by a constant scale, else None."""
    for at in (1, 0):
        scale = builder.arrays.get(op.operands[at])
        stored = find_integers(builder, op.operands[1 - at]) if scale is not None else None
        if scale is not None and stored is not None:
            quantisation = to_quantisation(compact_equal(scale), stored.zero, stored.source)
            return None if quantisation is None else Quantised(stored.source, quantisation)
    return None


def to_quantisation(scale: np.ndarray, zero: np.ndarray, value: Value) -> Quantisation | None:
    """Return scales and zero points as a quantisation, or None if they are not valid for the stored type of `value`."""
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


def find_quantisation(builder: Builder, op: Op) -> Quantised | None:
    """Return the real numbers and their quantisation if `op` converts them to stored numbers.

    The chain is ``convert(clamp(round(x / scale) + zero))``, with operations after the rounding in any order. None
    for other chains.
    """
    value, result = op.operands[0], op.results[0].type
    if result.dtype not in STORED or result.dtype == "int4" or result.quantisation is not None:
        return None
    # Walk from the conversion back to the rounding. `offset` collects the zero point, and bounds before it move by it.
    offset = np.zeros((1,) * len(result.shape))
    low, high = -math.inf, math.inf
    for _ in range(_LENGTH):
        maker = builder.producers.get(value)
        if maker is None or value.type.quantisation is not None:
            return None
        if maker.name in ("stablehlo.round_nearest_even",):
            return _find_scale(builder, maker.operands[0], offset, (low, high), op)
        if maker.name in _CONVERT:
            value = maker.operands[0]
        elif maker.name in ("stablehlo.clamp", "tosa.clamp", *_LEAST, *_MOST):
            bounds = _bounds(builder, maker)
            # Bounds before a zero point per channel would differ from channel to channel.
            if bounds is None or offset.size > 1:
                return None
            value, least, most = bounds
            low, high = max(low, least + offset.item()), min(high, most + offset.item())
        else:
            other = constant_operand(builder, maker) if maker.name in (*_ADD, *_SUBTRACT) else None
            if other is None or (maker.name in _SUBTRACT and other[2] == 0):
                return None
            value = other[0]
            offset = offset + other[1].astype(np.float64) * (1 if maker.name in _ADD else -1)
    return None


def _bounds(builder: Builder, op: Op) -> tuple[Value, float, float] | None:
    """Return operand, lower and upper bound of a clamp, minimum or maximum."""
    if op.name == "tosa.clamp":
        return op.operands[0], float(op.attributes["min_val"]), float(op.attributes["max_val"])
    if op.name == "stablehlo.clamp":
        ends = [builder.arrays.get(op.operands[at]) for at in (0, 2)]
        numbers = [compact_equal(end) for end in ends if end is not None]
        if len(numbers) < 2 or any(end.size > 1 for end in numbers):
            return None
        return op.operands[1], float(numbers[0].item()), float(numbers[1].item())
    other = constant_operand(builder, op)
    if other is None or other[1].size > 1:
        return None
    number = float(other[1].item())
    return (other[0], number, math.inf) if op.name in _LEAST else (other[0], -math.inf, number)


def _find_scale(
    builder: Builder, value: Value, zero: np.ndarray, bounds: tuple[float, float], op: Op
) -> Quantised | None:
    """Return what is divided by a scale, or multiplied by its reciprocal, before the rounding."""
    scale = np.ones((1,) * len(value.type.shape), np.float32)
    maker = builder.producers.get(value)
    if maker is not None and maker.name in ("stablehlo.divide", "stablehlo.multiply", "tosa.mul"):
        other = constant_operand(builder, maker) if len(maker.operands) == 2 else None
        if other is not None and (other[2] == 1 or maker.name != "stablehlo.divide") and (other[1] > 0).all():
            value, factor, _ = other
            scale = factor if maker.name == "stablehlo.divide" else reciprocal(factor)
    quantisation = to_quantisation(scale, zero, op.results[0])
    if quantisation is None:
        return None
    # Bounds may be infinite, which ceil and floor refuse; no stored type reaches a million.
    low, high = (
        max(quantisation.low, math.ceil(max(bounds[0], -1e6))),
        min(quantisation.high, math.floor(min(bounds[1], 1e6))),
    )
    # `Builder.quantise` clips real numbers to a narrower range, which one scale can express.
    if low >= high or (
        (low, high) != (quantisation.low, quantisation.high) and quantisation.axis is not None
    ):
        return None
    return Quantised(
        value, Quantisation(quantisation.scales, quantisation.zeros, quantisation.axis, low, high)
    )


def reciprocal(factor: np.ndarray) -> np.ndarray:
    """Return scales whose float32 reciprocal is `factor`, or the nearest ones."""
    # Exporters store 1 / scale in float32: of the neighbours, prefer a scale whose reciprocal is exact.
    wanted = factor.astype(np.float32)
    with np.errstate(all="ignore"):
        first = (np.float32(1) / wanted).astype(np.float32)
        for other in (np.nextafter(first, np.float32(np.inf)), np.nextafter(first, np.float32(0))):
            better = (np.float32(1) / other == wanted) & (np.float32(1) / first != wanted)
            first = np.where(better, other, first)
    return first
