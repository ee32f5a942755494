"""Values of 8 and 16 bits as the device stores them: signed, and those of 16 bits as two planes of bytes."""

from __future__ import annotations

import numpy as np

BITS = {"int8": 8, "uint8": 8, "int16": 16, "uint16": 16}
"""Types of the values that the device has, and their bits."""
PACKED = ("int4", "uint4")
"""Types of which files have two values in a byte: of the device's values, only weights have them."""


def signed(values: np.ndarray) -> np.ndarray:
    """Unsigned integers less half of their range."""
    size = values.dtype.itemsize
    return (values ^ np.array(1 << 8 * size - 1, values.dtype)).view(f"i{size}")


def unsigned(values: np.ndarray) -> np.ndarray:
    """The inverse of `signed`."""
    size = values.dtype.itemsize
    return values.view(f"u{size}") ^ np.array(1 << 8 * size - 1, f"u{size}")


def split(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Integers from -32768 to 32767 as int8 planes: upper bytes, and lower bytes less 128."""
    return (values >> 8).astype(np.int8), ((values & 255) - 128).astype(np.int8)


def fills(value: int) -> tuple[int, int]:
    """The same of one number."""
    return value >> 8, (value & 255) - 128


def joined(upper: np.ndarray, lower: np.ndarray) -> np.ndarray:
    """The integers of two planes, int32."""
    return np.asarray(upper.astype(np.int32) * 256 + lower + 128)
