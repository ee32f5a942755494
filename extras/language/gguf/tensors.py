"""Tensors of a GGUF file, with checks of shape and type: to float32, or to integers with scales, without rounding.

The block layouts are those of llama.cpp's ``ggml-common.h``. Blocks of 32 elements have one half-precision scale
(``Q8_0``, ``Q4_0``, ``Q5_0``), and some a minimum (``Q4_1``, ``Q5_1``). Blocks of ``Q2_K`` to ``Q6_K`` have 256
elements with 8 or 16 scales of up to 8 bits and as many minimums, or none. One half-precision factor applies to all
scales of a block, another one to all its minimums. Products of scale and factor are exact in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from weft.compiler.errors import CompileError
from weft.extras.language.compiler.model import BlockTensor, Linear, Matrix, Norm, dense
from weft.extras.language.gguf.file import StoredTensor

DecodedBlocks = tuple[np.ndarray, np.ndarray, np.ndarray | None]
"""Values int8 (blocks, elements), scales float32 (blocks, scales), and minimums of the scales' shape or None."""


def _halves(raw: np.ndarray) -> np.ndarray:
    """Return half-precision numbers as float32 (blocks, numbers)."""
    return np.ascontiguousarray(raw).view("<f2").astype(np.float32)


def _nibbles(raw: np.ndarray) -> np.ndarray:
    """Return both 4-bit numbers of each byte: all lower nibbles, then all upper ones."""
    return np.concatenate([raw & 15, raw >> 4], axis=1).astype(np.int8)


def _fifth_bits(raw: np.ndarray) -> np.ndarray:
    """Return 16 for each bit that is set, else 0."""
    return np.unpackbits(raw, axis=1, bitorder="little").astype(np.int8) << 4


def _q8_0(raw: np.ndarray) -> DecodedBlocks:
    return np.ascontiguousarray(raw[:, 2:]).view(np.int8), _halves(raw[:, :2]), None


def _q4_0(raw: np.ndarray) -> DecodedBlocks:
    return _nibbles(raw[:, 2:]) - np.int8(8), _halves(raw[:, :2]), None


def _q4_1(raw: np.ndarray) -> DecodedBlocks:
    return _nibbles(raw[:, 4:]), _halves(raw[:, :2]), _halves(raw[:, 2:4])


def _q5_0(raw: np.ndarray) -> DecodedBlocks:
    return (_nibbles(raw[:, 6:]) | _fifth_bits(raw[:, 2:6])) - np.int8(16), _halves(raw[:, :2]), None


def _q5_1(raw: np.ndarray) -> DecodedBlocks:
    return _nibbles(raw[:, 8:]) | _fifth_bits(raw[:, 4:8]), _halves(raw[:, :2]), _halves(raw[:, 2:4])


def _fields(raw: np.ndarray, bits: int) -> np.ndarray:
    """Split bytes into fields of `bits` bits, lowest first: (blocks, fields, bytes)."""
    shifts = np.array(range(0, 8, bits), np.uint8)[:, None]
    return (raw[:, None] >> shifts) & np.uint8((1 << bits) - 1)


def _groups(raw: np.ndarray, bits: int, length: int) -> np.ndarray:
    """Split each run of `length` bytes into fields, run by run: (blocks, fields, length)."""
    return _fields(raw.reshape(-1, length), bits).reshape(len(raw), -1, length)


def _values(groups: np.ndarray) -> np.ndarray:
    return groups.reshape(len(groups), -1).astype(np.int8)


def _with_minimums(
    values: np.ndarray, factors: np.ndarray, scales: np.ndarray, minimums: np.ndarray
) -> DecodedBlocks:
    """Return blocks with subtracted minimums; `factors` holds the half-precision factors of scales and minimums."""
    halves = _halves(factors)
    return values, halves[:, :1] * scales.astype(np.float32), -halves[:, 1:] * minimums.astype(np.float32)


def _q2_k(raw: np.ndarray) -> DecodedBlocks:
    scales = raw[:, :16]
    return _with_minimums(_values(_groups(raw[:, 16:80], 2, 32)), raw[:, 80:], scales & 15, scales >> 4)


def _q3_k(raw: np.ndarray) -> DecodedBlocks:
    # The third bit of a value and the upper 2 bits of a 6-bit scale are in bytes of their own.
    values = _values(_groups(raw[:, 32:96], 2, 32) | _fields(raw[:, :32], 1) << 2) - np.int8(4)
    scales = _groups(raw[:, 96:104], 4, 8) | _groups(raw[:, 104:108], 2, 4).reshape(-1, 2, 8) << 4
    return values, _halves(raw[:, 108:]) * (scales.reshape(-1, 16).astype(np.float32) - 32), None


def _scales_and_minimums(raw: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return eight 6-bit scales and eight 6-bit minimums from 12 bytes."""
    # The upper 2 bits of the last four are in the top bits of the first four.
    first, second, last = raw[:, :4], raw[:, 4:8], raw[:, 8:]
    scales = np.concatenate([first & 63, last & 15 | first >> 6 << 4], axis=1)
    minimums = np.concatenate([second & 63, last >> 4 | second >> 6 << 4], axis=1)
    return scales, minimums


def _q4_k(raw: np.ndarray) -> DecodedBlocks:
    return _with_minimums(
        _values(_groups(raw[:, 16:], 4, 32)), raw[:, :4], *_scales_and_minimums(raw[:, 4:16])
    )


def _q5_k(raw: np.ndarray) -> DecodedBlocks:
    values = _values(_groups(raw[:, 48:], 4, 32) | _fields(raw[:, 16:48], 1) << 4)
    return _with_minimums(values, raw[:, :4], *_scales_and_minimums(raw[:, 4:16]))


def _q6_k(raw: np.ndarray) -> DecodedBlocks:
    # In each half of 128 elements, 64 bytes hold the lower 4 bits of four rows of 32 elements, and 32 bytes their upper
    # 2 bits.
    lower, upper = _groups(raw[:, :128], 4, 64), _groups(raw[:, 128:192], 2, 32)
    values = _values(lower.reshape(upper.shape) | upper << 4) - np.int8(32)
    scales = np.ascontiguousarray(raw[:, 192:208]).view(np.int8).astype(np.float32)
    return values, _halves(raw[:, 208:]) * scales, None


_BLOCKS: Mapping[str, tuple[Callable[[np.ndarray], DecodedBlocks], int, int]] = {
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
"""Decoder, bytes of a block, and number of elements that share a scale."""
_FLOATS: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "F32": lambda raw: raw.view("<f4").astype(np.float32),
    "F16": lambda raw: raw.view("<f2").astype(np.float32),
    "BF16": lambda raw: (raw.view("<u2").astype(np.uint32) << 16).view(np.float32),
}
READABLE_TYPES = (*_FLOATS, *_BLOCKS)
"""Tensor types that `decode` reads."""


def decode(content: np.ndarray, kind: str, shape: tuple[int, int]) -> Matrix:
    """Decode a tensor's bytes into a matrix.

    Parameters
    ----------
    content : numpy.ndarray of uint8
        All bytes of the tensor.
    kind : str
        One of `READABLE_TYPES`.
    shape : (int, int)
        Rows and columns.
    """
    # An aligned copy, so that the file's bytes can be freed.
    raw = np.array(content)
    if kind in _FLOATS:
        return _FLOATS[kind](raw).reshape(shape)
    decode_blocks, size, block = _BLOCKS[kind]
    # `is_finite` reports infinite factors later.
    with np.errstate(invalid="ignore"):
        values, scales, minimums = decode_blocks(raw.reshape(-1, size))
    parts = (shape[0], shape[1] // block)
    lows = None if minimums is None else minimums.reshape(parts)
    return BlockTensor(values.reshape(shape), scales.reshape(parts), lows, block)


def is_finite(matrix: Matrix) -> bool:
    """Return whether all elements are finite."""
    if isinstance(matrix, np.ndarray):
        return bool(np.isfinite(matrix).all())
    lows = matrix.minimums
    return bool(np.isfinite(matrix.scales).all() and (lows is None or np.isfinite(lows).all()))


@dataclass(frozen=True)
class Size:
    """Size that metadata gives, with its origin for messages."""

    value: int
    description: str

    def __mul__(self, other: Size) -> Size:
        return Size(self.value * other.value, f"{self.description} x {other.description}")

    def __add__(self, other: Size) -> Size:
        return Size(self.value + other.value, f"{self.description} + {other.description}")

    def __str__(self) -> str:
        return self.description


def size(key: str, value: int) -> Size:
    """Return the size that the metadata `key` gives."""
    return Size(value, f"{key} {value:,}")


class Tensors:
    """Typed access to tensors, which also records the tensors that were looked up.

    Every method raises `CompileError` if a tensor is missing, has another shape, is of a type that weft does not read,
    or has elements that are not finite.
    """

    def __init__(self, stored: Mapping[str, StoredTensor]) -> None:
        self._stored = stored
        self._used: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._stored

    def unused(self) -> list[str]:
        """Return the names of tensors that were never looked up."""
        return [name for name in self._stored if name not in self._used]

    def matrix(self, name: str, rows: Size, columns: Size) -> Matrix:
        stored = self._look_up(name)
        if stored.shape != (rows.value, columns.value):
            raise CompileError(
                f"{stored.label} has shape {'x'.join(map(str, stored.shape))}; it must have {rows.value:,} rows "
                f"({rows}) and {columns.value:,} columns ({columns})"
            )
        return self._decode(stored, stored.shape)

    def vector(self, name: str, length: Size) -> np.ndarray:
        """Return a float32 vector of shape (length,)."""
        stored = self._look_up(name)
        if stored.shape != (length.value,):
            raise CompileError(
                f"{stored.label} has shape {'x'.join(map(str, stored.shape))}; it must have {length.value:,} elements "
                f"({length})"
            )
        return dense(self._decode(stored, (1, length.value))).reshape(-1)

    def linear(self, name: str, outputs: Size, inputs: Size, *, bias: bool) -> Linear:
        """Return a matrix with its bias; the bias is optional unless `bias` is set."""
        weight = self.matrix(f"{name}.weight", outputs, inputs)
        has_bias = bias or f"{name}.bias" in self
        return Linear(weight, self.vector(f"{name}.bias", outputs) if has_bias else None)

    def norm(self, name: str, width: Size, *, bias: bool) -> Norm:
        weight = self.vector(f"{name}.weight", width)
        return Norm(weight, self.vector(f"{name}.bias", width) if bias else None)

    def _look_up(self, name: str) -> StoredTensor:
        if name not in self._stored:
            raise CompileError(
                f"the file has no tensor {name!r}, which a model of its architecture must have"
            )
        self._used.add(name)
        return self._stored[name]

    def _decode(self, stored: StoredTensor, shape: tuple[int, int]) -> Matrix:
        if stored.kind not in READABLE_TYPES:
            raise CompileError(
                f"{stored.label} has type {stored.kind}; weft reads {', '.join(READABLE_TYPES)}: convert the file to "
                "one of these, as 'llama-quantize --allow-requantize IN OUT Q8_0' of llama.cpp does"
            )
        matrix = decode(stored.content, stored.kind, shape)
        if not is_finite(matrix):
            raise CompileError(f"{stored.label} has elements that are infinite or not a number (NaN)")
        return matrix
