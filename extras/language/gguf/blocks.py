"""The bytes of GGUF's types of tensors as float32, or as integers with scales; nothing is rounded.

Blocks of 32 elements have a scale of half precision (``Q8_0``, ``Q4_0``, ``Q5_0``), and some a minimum (``Q4_1``,
``Q5_1``). Blocks of ``Q2_K`` to ``Q6_K`` have 256 elements: 8 or 16 scales of up to 8 bits, as many minimums or none,
and a factor of half precision for all scales and for all minimums. Products of these are exact in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from weft.extras.language.compiler.model import BlockTensor, Matrix

_Decoded = tuple[np.ndarray, np.ndarray, np.ndarray | None]
"""Of blocks: int8 (blocks, elements), float32 (blocks, scales), minimums like the scales."""


def _halves(raw: np.ndarray) -> np.ndarray:
    """Numbers of half precision: float32 (blocks, numbers)."""
    return np.ascontiguousarray(raw).view("<f2").astype(np.float32)


def _nibbles(raw: np.ndarray) -> np.ndarray:
    """Two numbers of 4 bits in a byte; all lower ones come first."""
    return np.concatenate([raw & 15, raw >> 4], axis=1).astype(np.int8)


def _fifth_bits(raw: np.ndarray) -> np.ndarray:
    """16 where one of 32 bits is set, else 0."""
    return np.unpackbits(raw, axis=1, bitorder="little").astype(np.int8) << 4


def _q8_0(raw: np.ndarray) -> _Decoded:
    return np.ascontiguousarray(raw[:, 2:]).view(np.int8), _halves(raw[:, :2]), None


def _q4_0(raw: np.ndarray) -> _Decoded:
    return _nibbles(raw[:, 2:]) - np.int8(8), _halves(raw[:, :2]), None


def _q4_1(raw: np.ndarray) -> _Decoded:
    return _nibbles(raw[:, 4:]), _halves(raw[:, :2]), _halves(raw[:, 2:4])


def _q5_0(raw: np.ndarray) -> _Decoded:
    return (_nibbles(raw[:, 6:]) | _fifth_bits(raw[:, 2:6])) - np.int8(16), _halves(raw[:, :2]), None


def _q5_1(raw: np.ndarray) -> _Decoded:
    return _nibbles(raw[:, 8:]) | _fifth_bits(raw[:, 4:8]), _halves(raw[:, :2]), _halves(raw[:, 2:4])


def _fields(raw: np.ndarray, bits: int) -> np.ndarray:
    """Numbers of so many bits in bytes: (blocks, fields, bytes); the lowest ones come first."""
    shifts = np.array(range(0, 8, bits), np.uint8)[:, None]
    return (raw[:, None] >> shifts) & np.uint8((1 << bits) - 1)


def _groups(raw: np.ndarray, bits: int, run: int) -> np.ndarray:
    """Fields of runs of bytes, each run's before those of the next one: (blocks, fields, bytes of a run)."""
    return _fields(raw.reshape(-1, run), bits).reshape(len(raw), -1, run)


def _values(groups: np.ndarray) -> np.ndarray:
    return groups.reshape(len(groups), -1).astype(np.int8)


def _with_minimums(
    values: np.ndarray, factors: np.ndarray, scales: np.ndarray, minimums: np.ndarray
) -> _Decoded:
    """Blocks whose minimums are subtracted; `factors` are the bytes of those of scales and minimums."""
    halves = _halves(factors)
    return values, halves[:, :1] * scales.astype(np.float32), -halves[:, 1:] * minimums.astype(np.float32)


def _q2_k(raw: np.ndarray) -> _Decoded:
    scales = raw[:, :16]
    return _with_minimums(_values(_groups(raw[:, 16:80], 2, 32)), raw[:, 80:], scales & 15, scales >> 4)


def _q3_k(raw: np.ndarray) -> _Decoded:
    """The third bit of a value, and the upper 2 of a scale's 6 bits, are in bytes of their own."""
    values = _values(_groups(raw[:, 32:96], 2, 32) | _fields(raw[:, :32], 1) << 2) - np.int8(4)
    scales = _groups(raw[:, 96:104], 4, 8) | _groups(raw[:, 104:108], 2, 4).reshape(-1, 2, 8) << 4
    return values, _halves(raw[:, 108:]) * (scales.reshape(-1, 16).astype(np.float32) - 32), None


def _scales_and_minimums(raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eight of each, of 6 bits: the upper bits of the last four are above the first four."""
    first, second, last = raw[:, :4], raw[:, 4:8], raw[:, 8:]
    scales = np.concatenate([first & 63, last & 15 | first >> 6 << 4], axis=1)
    minimums = np.concatenate([second & 63, last >> 4 | second >> 6 << 4], axis=1)
    return scales, minimums


def _q4_k(raw: np.ndarray) -> _Decoded:
    return _with_minimums(
        _values(_groups(raw[:, 16:], 4, 32)), raw[:, :4], *_scales_and_minimums(raw[:, 4:16])
    )


def _q5_k(raw: np.ndarray) -> _Decoded:
    values = _values(_groups(raw[:, 48:], 4, 32) | _fields(raw[:, 16:48], 1) << 4)
    return _with_minimums(values, raw[:, :4], *_scales_and_minimums(raw[:, 4:16]))


def _q6_k(raw: np.ndarray) -> _Decoded:
    """Two halves of 128 elements; in each, four rows of 32 have their lower 4 bits in the lower and upper halves of 64
    bytes, and their upper 2 bits in those of 32."""
    lower, upper = _groups(raw[:, :128], 4, 64), _groups(raw[:, 128:192], 2, 32)
    values = _values(lower.reshape(upper.shape) | upper << 4) - np.int8(32)
    scales = np.ascontiguousarray(raw[:, 192:208]).view(np.int8).astype(np.float32)
    return values, _halves(raw[:, 208:]) * scales, None


_BLOCKS: Mapping[str, tuple[Callable[[np.ndarray], _Decoded], int, int]] = {
    "Q8_0": (_q8_0, 34, 32),
    "Q4_0": (_q4_0, 18, 32),
    "Q4_1": (_q4_1, 20, 32),
    "Q5_0": (_q5_0, 22, 32),
    "Q5_1": (_q5_1, 24, 32),
    "Q2_K": (_q2_k, 84, 16),
    "Q3_K": (_q3_k, 110, 16),
    "Q4_K": (_q4_k, 144, 32),
    "Q5_K": (_q5_k, 176, 32),
    "Q6_K": (_q6_k, 210, 16),
}
"""How blocks are read, their bytes, and how many elements share a scale."""
_FLOATS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "F32": lambda raw: raw.view("<f4").astype(np.float32),
    "F16": lambda raw: raw.view("<f2").astype(np.float32),
    "BF16": lambda raw: (raw.view("<u2").astype(np.uint32) << 16).view(np.float32),
}
KINDS = (*_FLOATS, *_BLOCKS)
"""The types that are read."""


def decode(content: np.ndarray, kind: str, shape: tuple[int, int]) -> Matrix:
    """A tensor's bytes as a matrix.

    Parameters
    ----------
    content : numpy.ndarray of uint8
        As many as a tensor of this type and shape has.
    kind : str
        One of `KINDS`.
    shape : (int, int)
        Rows and columns.
    """
    raw = np.array(content)  # aligned, and the file's bytes are not kept
    if kind in _FLOATS:
        return _FLOATS[kind](raw).reshape(shape)
    read, size, block = _BLOCKS[kind]
    with np.errstate(invalid="ignore"):  # a factor that is infinite; `finite` finds it
        values, scales, minimums = read(raw.reshape(-1, size))
    parts = (shape[0], shape[1] // block)
    lows = None if minimums is None else minimums.reshape(parts)
    return BlockTensor(values.reshape(shape), scales.reshape(parts), lows, block)


def finite(matrix: Matrix) -> bool:
    """Whether no element is infinite or not a number."""
    if isinstance(matrix, np.ndarray):
        return bool(np.isfinite(matrix).all())
    lows = matrix.minimums
    return bool(np.isfinite(matrix.scales).all() and (lows is None or np.isfinite(lows).all()))
