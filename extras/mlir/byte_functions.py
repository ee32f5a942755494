"""Numbers of 8 bits less a zero point, and functions of them, as ONNX's operators."""

from __future__ import annotations

import numpy as np

from weft.extras.mlir.builder import Builder, Sum
from weft.extras.mlir.program import Quantisation, Value

BYTES = ("int8", "uint8")
"""Types that TOSA's operations take."""
ONE = np.ones(1, np.float32)
"""The scale of integers that stand for themselves."""


def scaled_bytes(scale: np.ndarray, zero: int, dtype: str, axis: int | None) -> Quantisation:
    """Stored numbers less a zero point, times a scale for each element of an axis or one for all."""
    limits, whole = np.iinfo(dtype), scale.size == 1
    scales = scale.reshape(-1).astype(np.float32)
    zeros = np.full(scales.shape, zero, np.int64)
    return Quantisation(scales, zeros, None if whole else axis, int(limits.min), int(limits.max))


def stored_as(builder: Builder, name: str, zero: int, bounds: tuple[int, int], dtype: str) -> str:
    """Whole real numbers plus a zero point as 8 bits between two bounds."""
    kind = Quantisation(ONE, np.array([zero]), None, *bounds)
    return builder.quantised(name, kind, dtype)


def looked_up(builder: Builder, value: Value, table: np.ndarray) -> str:
    """What a table of 256 numbers has for each byte from the least on, as floats that are whole."""
    dtype = value.type.dtype
    real = builder.dequantised(builder.stored(value), scaled_bytes(ONE, 0, dtype, None), value.type)
    limits = np.iinfo(dtype)
    keys = tuple(float(key) for key in range(int(limits.min), int(limits.max) + 1))
    entries = tuple(float(entry) for entry in table.tolist())
    return builder.emit(
        "ai.onnx.ml:LabelEncoder",
        (real,),
        "table",
        keys_floats=keys,
        values_floats=entries,
        default_float=0.0,
    )


def function(builder: Builder, value: Value, table: np.ndarray, dtype: str) -> str:
    """The same as 8 bits."""
    limits = np.iinfo(dtype)
    return stored_as(builder, looked_up(builder, value, table), 0, (int(limits.min), int(limits.max)), dtype)


def bytes_from_least(dtype: str) -> np.ndarray:
    """All numbers of 8 bits, int64 (256,)."""
    limits = np.iinfo(dtype)
    return np.arange(int(limits.min), int(limits.max) + 1)


def single(builder: Builder, value: Value, table: np.ndarray) -> Sum:
    """A number for each byte: the byte less a zero point times a power of two if that is so, else a table."""
    dtype = value.type.dtype
    steps = np.diff(table)
    linear = (
        steps[0] > 0
        and (steps == steps[0]).all()
        and not table[0] % steps[0]
        and not steps[0] & (steps[0] - 1)
    )
    zero = int(bytes_from_least(dtype)[0] - table[0] // steps[0]) if linear else 0
    linear = bool(linear and zero in bytes_from_least(dtype))

    def scaled(scale: np.ndarray) -> str:
        if linear:
            kind = scaled_bytes(scale * np.float32(steps[0]), zero, dtype, len(value.type.shape) - 1)
            return builder.dequantised(builder.stored(value), kind, value.type)
        return builder.emit(
            "Mul", (looked_up(builder, value, table), builder.constant(scale, "scale")), "scaled"
        )

    return Sum(np.array([table.min()]), np.array([table.max()]), scaled, value, table)
