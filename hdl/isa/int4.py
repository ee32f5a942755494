"""Values of 4 bits in memory: two's complement, two a byte, the low nibble first, as ONNX and TFLite pack them.

Blocks of `GROUP` values that follow each other in a row of weights may have a factor each, as in GGUF's Q4_0: LOAD
multiplies by it, so that what comes on the chip is int8 with one scale for the row. In memory a group of words of N,
for N rows and a block of each, stands behind the factors of its rows: word w of the group is that of row ``w mod N``.
"""

from __future__ import annotations

import numpy as np

LEAST, MOST = -8, 7
"""Least and largest value."""
GROUP = 32
"""Words of N values in a group, and values of a row's block: N blocks have ``GROUP / N`` words of each row."""
FACTOR_PLACES = 3
"""Binary places of a factor, of 8 bits and signed: up to 15.875, times 8, reaches the largest int8."""
FACTORS_SHIFT = (GROUP // 2).bit_length() - 1
"""A group's factors take as many bytes as its values shifted by so much: 1 for 16."""


def group_bytes(n: int) -> int:
    """Bytes of a group's values, without its factors, in words of `n`."""
    return GROUP * n // 2


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


def pack_groups(values: np.ndarray, factors: np.ndarray) -> bytes:
    """Groups in memory: values from `LEAST` to `MOST`, shape (groups, `GROUP`, N), and int8 factors (groups, N)."""
    nibbles = values.reshape(len(values), -1).astype(np.uint8) & 15
    packed = nibbles[:, ::2] | nibbles[:, 1::2] << 4
    return np.concatenate([factors.astype(np.int8).view(np.uint8), packed], axis=1).tobytes()


def unpack_groups(packed: np.ndarray, n: int) -> np.ndarray:
    """What LOAD makes of groups in uint8 bytes, with words of `n` values: int8, shape (groups, `GROUP`, `n`)."""
    groups = packed.reshape(-1, n + group_bytes(n))
    values = unpack(groups[:, n:]).reshape(len(groups), GROUP, n)
    return multiplied(values, groups[:, :n].view(np.int8))


def multiplied(values: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Values of 4 bits (groups, `GROUP`, N) times the factors (groups, N) of their rows, as int8 of that shape."""
    return times(values, np.tile(factors, (1, GROUP // values.shape[-1]))[:, :, None])


def times(values: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """Values of 4 bits times int8 factors of shapes that go together, as int8."""
    products = values.astype(np.int32) * factors
    rounded = (products + (1 << FACTOR_PLACES - 1)) >> FACTOR_PLACES
    return np.clip(rounded, -128, 127).astype(np.int8)
