"""The meaning of expressions on rows, in numpy."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from weft.compiler.kernel.expressions import EXPONENTS, WORD, Expression, Rows
from weft.hdl.isa.kernel import MULTIPLIER_BITS

_QUOTIENT = 65535


def evaluate(rows: Rows, tensors: Sequence[np.ndarray]) -> np.ndarray:
    """The stored result, int8, for int8 or int16 tensors (rows, columns); (1, columns) where all rows have the same.

    Tensors of which `Rows.number` is read, and results of `Rows.store_number`, are (rows, 1). Of results of 16 bits the
    upper bytes come first, then the lower ones: (rows, 2 * columns). Where `Rows.accumulated` is read, the first tensor
    has sums, int64 (rows, columns, one or two).
    """
    value = _evaluator(rows, tensors)
    shape = max(map(len, tensors)), 1 if rows.single else rows.columns
    results = [np.broadcast_to(value(result), shape) for result in rows.result]
    return np.clip(np.concatenate(results, axis=1), -128, 127).astype(np.int8)


def evaluate_targets(rows: Rows, tensors: Sequence[np.ndarray]) -> dict[int, np.ndarray]:
    """What `Rows.put` stores, by target: int8 (rows, columns), or (rows, 1) of what is one number for a row.

    Tensors are as in `evaluate`; those of two vectors for each column are int8 (rows, columns, 2), of which rows and
    columns may be 1.
    """
    value, count = _evaluator(rows, tensors), max(map(len, tensors))
    return {
        target: np.broadcast_to(
            np.clip(value(result), -128, 127).astype(np.int8), (count, rows.columns if result.varies else 1)
        )
        for target, result in zip(rows.targets, rows.result, strict=True)
    }


def _evaluator(rows: Rows, tensors: Sequence[np.ndarray]) -> Callable[[Expression], np.ndarray]:
    """What expressions are for these tensors, each computed once."""
    known: dict[int, np.ndarray] = {}

    def value(item: Expression) -> np.ndarray:
        if item.kind == "index":
            return np.arange(rows.columns, dtype=np.int64)[None]
        if id(item) not in known:
            known[id(item)] = _value(item, [value(operand) for operand in item.operands], tensors)
        return known[id(item)]

    return value


def _value(item: Expression, given: list[np.ndarray], tensors: Sequence[np.ndarray]) -> np.ndarray:
    if item.kind == "read":
        read = tensors[item.value & 3].astype(np.int64)
        if read.ndim == 3:
            read = read[:, :, item.value >> 2 & 1]
            return read & 0xFF if item.value & 8 else read
        if tensors[item.value & 3].dtype == np.int16 and not item.value & 4:
            read >>= 8
        return read & 0xFF if item.value & 8 else read
    if item.kind == "shared":
        shared = tensors[item.value & 3].astype(np.int64)
        return shared[:, :1, item.value >> 2] if shared.ndim == 3 else shared[:, :1]
    if item.kind == "accumulated":
        return tensors[0][:, :, item.value]
    if item.kind == "number":
        return tensors[item.value][:, :1].astype(np.int64)
    if item.kind == "constant":
        return np.full((1, 1), item.value, np.int64)
    if item.kind == "multiply":
        return _product(item, *given)
    if item.kind in ("reciprocal", "rsqrt"):
        return np.vectorize(_reciprocal if item.kind == "reciprocal" else _inverse_root, otypes=[np.int64])(
            given[0]
        )
    functions: dict[str, Callable[..., np.ndarray]] = {
        "known": lambda a: a,
        "factor": lambda a: a,
        "add": lambda a, b: a + b,
        "subtract": lambda a, b: a - b,
        "shift": lambda a: a << item.value,
        "floor": lambda a: a >> item.value,
        "neighbour": _neighbours,
        "low byte": lambda a: ((a + 128) & 0xFF) - 128,
        "table": lambda a: np.frombuffer(item.table, np.int8)[np.clip(a, -128, 127) + 128].astype(np.int64),
        "minimum": np.minimum,
        "maximum": np.maximum,
        "less": lambda a, b: (a < b).astype(np.int64),
        "choose": lambda c, a, b: np.asarray(np.where(c, a, b)),
        "sum": lambda a: a.sum(axis=1, keepdims=True),
        "largest": lambda a: a.max(axis=1, keepdims=True),
    }
    return functions[item.kind](*given)


def _neighbours(a: np.ndarray) -> np.ndarray:
    """Elements 0 and 1, 2 and 3 and so on exchanged; an odd one at the end has none, and counts as one with 0."""
    return np.pad(a, ((0, 0), (0, a.shape[1] % 2)))[:, np.arange(a.shape[1]) ^ 1]


def _product(item: Expression, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    shift: np.ndarray | int = item.value
    if item.operands[1].kind in EXPONENTS:
        half = 1 << (MULTIPLIER_BITS - 1)
        shift = np.minimum(item.value + (b >> MULTIPLIER_BITS), 63)
        b = ((b & (2 * half - 1)) ^ half) - half
    product, shift = np.broadcast_arrays(a * b, shift)
    floor = product >> shift
    rest = product - (floor << shift)
    half_step = np.where(shift > 0, np.int64(1) << np.maximum(shift - 1, 0), 1)
    rounded = floor + ((rest > half_step) | ((rest == half_step) & (floor & 1 == 1)))
    return np.clip(rounded, -WORD, WORD - 1)


def _packed(factor: int, exponent: int) -> int:
    return factor & ((1 << MULTIPLIER_BITS) - 1) | exponent << MULTIPLIER_BITS


def _reciprocal(value: int) -> int:
    size = abs(int(value))
    if not size:
        return _packed(_QUOTIENT, 0)
    bits = size.bit_length()
    factor = min((1 << 32) // (size << (32 - bits) >> 15), _QUOTIENT)
    return _packed(-factor if value < 0 else factor, bits)


def _inverse_root(value: int) -> int:
    value = int(value)
    if value <= 0:
        return _packed(_QUOTIENT, 0)
    bits = value.bit_length() + (value.bit_length() & 1)
    return _packed(min((1 << 31) // math.isqrt(value << (32 - bits)), _QUOTIENT), bits // 2)
