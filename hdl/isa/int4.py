"""Values of 4 bits in memory: two's complement, two a byte, the low nibble first, as ONNX and TFLite pack them."""

from __future__ import annotations

import numpy as np

LEAST, MOST = -8, 7
"""Least and largest value."""


def pack(values: np.ndarray) -> bytes:
    """Integers from `LEAST` to `MOST`, in order; behind an odd number of them a nibble of 0."""
    nibbles = values.astype(np.uint8).ravel() & 15
    if nibbles.size % 2:
        nibbles = np.append(nibbles, np.uint8(0))
    return bytes((nibbles[::2] | nibbles[1::2] << 4).tobytes())


def unpack(packed: np.ndarray) -> np.ndarray:
    """The values in uint8 bytes, two for each: int8."""
    nibbles = np.stack([packed & 15, packed >> 4], axis=-1).reshape(-1)
    return ((nibbles ^ 8) - np.uint8(8)).view(np.int8)
