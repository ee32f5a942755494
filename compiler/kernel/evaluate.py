"""Semantics of expressions on rows, in numpy; and elementwise operators in 16 bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from weft.compiler.errors import CompileError
from weft.compiler.ir.views import View
from weft.compiler.kernel.expressions import EXPONENTS, WORD, Expression, Rows, factor_of
from weft.compiler.kernel.operators import FRACTION_PLACES, RowOp
from weft.compiler.kernel.products import steps
from weft.hdl.isa.kernel import MULTIPLIER_BITS

_QUOTIENT = 65535
"""Largest mantissa of a reciprocal, 16 bits."""


def evaluate(rows: Rows, tensors: Sequence[np.ndarray]) -> np.ndarray:
    """Return the stored result, int8, for int8 or int16 tensors (rows, columns), or (1, columns) if all rows are equal.

    Tensors read by `Rows.number`, and results of `Rows.store_number`, are (rows, 1). 16-bit results are (rows, 2 *
    columns): upper bytes, then lower bytes. If `Rows.accumulator` is read, the first tensor has sums, int64 (rows,
    columns, one or two).
    """
    value = _evaluator(rows, tensors)
    shape = max(map(len, tensors)), 1 if rows.single else rows.columns
    results = [np.broadcast_to(value(result), shape) for result in rows.result]
    return np.clip(np.concatenate(results, axis=1), -128, 127).astype(np.int8)


def evaluate_targets(rows: Rows, tensors: Sequence[np.ndarray]) -> dict[int, np.ndarray]:
    """Return the results of `Rows.put` by target: int8 (rows, columns), or (rows, 1) for one number per row.

    Tensors are as in `evaluate`; those of two vectors per column are int8 (rows, columns, 2), and may broadcast.
    """
    value, count = _evaluator(rows, tensors), max(map(len, tensors))
    return {
        target: np.broadcast_to(
            np.clip(value(result), -128, 127).astype(np.int8), (count, rows.columns if result.varies else 1)
        )
        for target, result in zip(rows.targets, rows.result, strict=True)
    }


def _evaluator(rows: Rows, tensors: Sequence[np.ndarray]) -> Callable[[Expression], np.ndarray]:
    """Return a function that evaluates expressions for these tensors, each once."""
    known: dict[int, np.ndarray] = {}

    def value(item: Expression) -> np.ndarray:
        if item.kind == "index":
            return np.arange(rows.columns, dtype=np.int64)[None]
        if id(item) not in known:
            known[id(item)] = _value(item, [value(operand) for operand in item.operands], tensors)
        return known[id(item)]

    return value


def _value(item: Expression, operands: list[np.ndarray], tensors: Sequence[np.ndarray]) -> np.ndarray:
    if item.kind == "read":
        # `value` packs tensor (2 bits), vector (1 bit) and unsigned (1 bit), see `Expression`.
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
        return _product(item, *operands)
    if item.kind in ("reciprocal", "rsqrt"):
        return np.vectorize(_reciprocal if item.kind == "reciprocal" else _inverse_root, otypes=[np.int64])(
            operands[0]
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
    return functions[item.kind](*operands)


def _neighbours(a: np.ndarray) -> np.ndarray:
    """Exchange elements 0 and 1, 2 and 3 and so on; an odd element at the end is exchanged with 0."""
    return np.pad(a, ((0, 0), (0, a.shape[1] % 2)))[:, np.arange(a.shape[1]) ^ 1]


def _product(item: Expression, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    shift: np.ndarray | int = item.value
    if item.operands[1].kind in EXPONENTS:
        half = 1 << (MULTIPLIER_BITS - 1)
        # The factor packs an 18-bit mantissa below its exponent.
        shift = np.minimum(item.value + (b >> MULTIPLIER_BITS), 63)
        b = ((b & (2 * half - 1)) ^ half) - half
    product, shift = np.broadcast_arrays(a * b, shift)
    floor = product >> shift
    remainder = product - (floor << shift)
    half_step = np.where(shift > 0, np.int64(1) << np.maximum(shift - 1, 0), 1)
    rounded = floor + ((remainder > half_step) | ((remainder == half_step) & (floor & 1 == 1)))
    return np.clip(rounded, -WORD, WORD - 1)


def _pack_factor(factor: int, exponent: int) -> int:
    return factor & ((1 << MULTIPLIER_BITS) - 1) | exponent << MULTIPLIER_BITS


def _reciprocal(value: int) -> int:
    size = abs(int(value))
    if not size:
        return _pack_factor(_QUOTIENT, 0)
    bits = size.bit_length()
    # Normalise to 17 bits, and divide: a mantissa of 16 bits, as the engine's serial divider gives it.
    factor = min((1 << 32) // (size << (32 - bits) >> 15), _QUOTIENT)
    return _pack_factor(-factor if value < 0 else factor, bits)


def _inverse_root(value: int) -> int:
    value = int(value)
    if value <= 0:
        return _pack_factor(_QUOTIENT, 0)
    # An even exponent, so that the root of the power of two is exact.
    bits = value.bit_length() + (value.bit_length() & 1)
    return _pack_factor(min((1 << 31) // math.isqrt(value << (32 - bits)), _QUOTIENT), bits // 2)


LIMITS = (-(1 << 15), (1 << 15) - 1)
"""Least and largest int16."""
SATURATED = 1 << 17
"""Steps that exceed every int16, whatever the zero point."""
_PRODUCT_SHIFT = 3
"""Bits that a product of two 16-bit elements loses."""
_LARGEST_TERM = 1 << 22
"""Most steps that a term of a sum may reach."""
_ROUNDING_LIMIT = 1 << FRACTION_PLACES - 3
"""Most fine steps that rounding a term's scale may cost; beyond that a second product corrects it."""


class Clamped(Protocol):
    """Fields of an operator that describe stored results: 16 bits if `wide`, clamped to `clamp`."""

    @property
    def wide(self) -> bool: ...
    @property
    def clamp(self) -> tuple[int, int]: ...


def store_clamped(rows: Rows, value: Expression, op: Clamped, places: int = FRACTION_PLACES) -> Rows:
    """Round steps of `places` binary places, clamp them, and store them in the results' width."""
    result, ends = value.times(1, places), LIMITS if op.wide else (-128, 127)
    if op.clamp[0] > ends[0]:
        result = result.maximum(op.clamp[0])
    if op.clamp[1] < ends[1]:
        result = result.minimum(op.clamp[1])
    if op.wide:
        rows.store_bytes(result)
    else:
        rows.store(result)
    return rows


@dataclass(frozen=True, eq=False, kw_only=True)
class ClampedRows(RowOp):
    """Base of operators whose results are stored by `store_clamped`."""

    name: str
    dst: View
    y_zero: int = 0
    low: int = -128
    high: int = 127
    clamp: tuple[int, int] = LIMITS
    wide: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class WideElements(ClampedRows):
    """Elementwise operator on one or two tensors of 8 or 16 bits: q = sat(round(f(a, b)) + y_zero), clamped to `clamp`.

    `kind` selects f: "requantise" (a), "sum" (a + b), "product" (a * b), "minimum" or "maximum". a is (x - a_zero) *
    a_scale, and b likewise; in products `a_scale` is both scales' product, and `b_scale` is ignored. `b` may
    broadcast as in `Add`, or have one channel. Results are at most one step off. `a_wide`, `b_wide` and `wide` say
    whether a, b and the results have 16 bits.
    """

    a: View
    b: View | None = None
    kind: str
    a_scale: float = 1.0
    b_scale: float = 1.0
    a_zero: int = 0
    b_zero: int = 0
    a_wide: bool = False
    b_wide: bool = False

    @cached_property
    def sources(self) -> tuple[View, ...]:
        a = self.a.planes if self.a_wide else (self.a,)
        if self.b is None:
            return a
        return (*a, *(self.b.planes if self.b_wide else (self.b,)))

    def _second(self, rows: Rows, at: int) -> Expression:
        """Return an element of `b`, or the row's only number."""
        assert self.b is not None
        if self.b.shape[3] == rows.columns:
            return rows.bytes_of(at, at + 1) if self.b_wide else rows.read(at)
        upper = rows.number(at)
        return (upper << 8) + rows.number(at + 1) + 128 if self.b_wide else upper

    def rows(self) -> Rows:
        rows = Rows(self.sources[0].shape[3], len(self.sources))
        a = (rows.bytes_of(0, 1) if self.a_wide else rows.read(0)) - self.a_zero
        if self.kind == "requantise":
            return store_clamped(rows, steps(a, self.a_scale, self.y_zero, SATURATED), self)
        b = self._second(rows, 1 + self.a_wide) - self.b_zero
        if self.kind == "product":
            # The product of two 17-bit differences needs 34 bits: drop some before it is scaled.
            shift = _PRODUCT_SHIFT if self.a_wide and self.b_wide else 0
            if shift and abs(self.a_scale) > 2.0**-shift:
                raise CompileError(
                    f"{self.name}: scales of products of two values of 16 bits are at most {2.0**-shift:g}, but one is "
                    f"{abs(self.a_scale):g}"
                )
            product = steps(a.times(b, shift), self.a_scale * 2.0**shift, self.y_zero, SATURATED)
            return store_clamped(rows, product, self)
        if self.kind == "sum":
            total = self._term(a, self.a_scale, self.y_zero) + self._term(b, self.b_scale, 0)
            return store_clamped(rows, total, self)
        x, y = (steps(e, by, self.y_zero, SATURATED) for e, by in ((a, self.a_scale), (b, self.b_scale)))
        return store_clamped(rows, x.minimum(y) if self.kind == "minimum" else x.maximum(y), self)

    def _term(self, value: Expression, scale: float, offset: int) -> Expression:
        """Return a term of a sum in steps; the other term may bring it back into the range of results."""
        largest = max(-value.low, value.high)
        if largest * abs(scale) > _LARGEST_TERM:
            raise CompileError(
                f"{self.name}: terms of sums of 16 bits are at most {_LARGEST_TERM:,} steps of the result, "
                f"but one may be {largest * abs(scale):,.0f}"
            )
        term, fine = steps(value, scale, offset, _LARGEST_TERM), math.ldexp(scale, FRACTION_PLACES)
        places = max(0, math.frexp(fine)[1] - MULTIPLIER_BITS + 2)
        mantissa, shift = factor_of(math.ldexp(fine, -places))
        # What the rounded scale leaves out; a second product adds it where it could matter.
        scale_error = fine - math.ldexp(mantissa, places - shift)
        return term + value.scale(scale_error) if largest * abs(scale_error) > _ROUNDING_LIMIT else term
