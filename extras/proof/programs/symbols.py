"""Operations of 32-bit integers that are not polynomials, as kernels and softmax use them.

Sums and products stay polynomials that are right modulo 2**32. Other operations convert them to int32 first. Of such an
operation, only this is known: equal arguments give equal results, constants give constants, and the result has a
range. An operation of several arguments is an operation of a random combination of them. Two combinations with
different arguments are equal with the probability that `weft.extras.proof.programs.field` gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from weft.extras.proof.programs.field import PRIMES, hash_sets, moduli, residues
from weft.extras.proof.programs.sums import INT32, Integers, Sums
from weft.extras.proof.programs.values import Values
from weft.hdl.isa.kernel import MULTIPLIER_BITS
from weft.sim.golden.kernel import inverse_root, reciprocal
from weft.sim.golden.memories import round_half_even, rsh, wrap

LIMIT = 1 << 52
"""Largest magnitude of an integer that stays a polynomial, so that its range and products with it fit 64 bits."""
_FACTOR = 1 << (MULTIPLIER_BITS - 1)
_EXPONENTS = 63

OFFSET_BYTES = 4
"""Size of an offset that a program reads as an input; little endian."""

Fold = Callable[..., np.ndarray]


@dataclass(frozen=True)
class Rows:
    """Table in memory: the number of rows, the bytes from one row to the next, and the offset of the first row."""

    count: int
    pitch: int
    first: int = 0


class Symbols:
    """Operations of the integers of a `Values`."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self._columns = np.zeros((0, 0), np.int8), np.zeros((0, PRIMES), np.uint64)
        self._keys: dict[str, tuple[np.ndarray, list[np.ndarray]]] = {}
        self._moduli = moduli(values.primes)

    def function(
        self, name: str, arguments: Sequence[Sums], low: Integers, high: Integers, fold: Fold
    ) -> Sums:
        """Apply the function `name`.

        Parameters
        ----------
        name : str
            Unique name: functions of different names are different.
        arguments : sequence of Sums
            Arguments of equal shape.
        low, high : int64
            Bounds of the result.
        fold : callable
            Computes the function of constants, int64 arrays.
        """
        values = self.values
        shape = arguments[0].low.shape
        values.function_count += arguments[0].low.size
        values.degree = max(values.degree, *(item.degree for item in arguments))
        constant = np.logical_and.reduce([item.constant for item in arguments])
        low, high = np.broadcast_to(low, shape), np.broadcast_to(high, shape)
        if constant.any():
            low, high = low.copy(), high.copy()
            low[constant] = high[constant] = fold(*(item.low[constant] for item in arguments))
            if constant.all():
                return values.integers(low)
        # Schwartz and Zippel again: different arguments have different combinations, almost certainly.
        key, factors = self._key(name, len(arguments))
        combined = arguments[0].f
        for item, factor in zip(arguments[1:], factors, strict=True):
            combined = (combined + item.f * factor) % self._moduli
        f = hash_sets(combined[..., None, :], None, np.broadcast_to(key, combined.shape)) % self._moduli
        return self.fold_constants(Sums(values.primes, f, low, high))

    def integers(self, numbers: np.ndarray | int, shape: tuple[int, ...] = ()) -> Sums:
        """Return constants, broadcast to `shape` if it is given."""
        return self.values.integers(
            np.broadcast_to(np.asarray(numbers, np.int64), shape or np.shape(numbers))
        )

    def where(self, condition: np.ndarray, yes: Sums, no: Sums) -> Sums:
        """Choose by a known condition, bool of equal shape."""
        f = np.where(condition[..., None], yes.f, no.f)
        low, high = (np.where(condition, a, b) for a, b in ((yes.low, no.low), (yes.high, no.high)))
        return Sums(yes.primes, f, low, high, max(yes.degree, no.degree))

    def to_int32(self, number: Sums) -> Sums:
        """Wrap an integer modulo 2**32 to int32."""
        if not number.may_overflow:
            return number
        overflow = number.int32_overflow
        wrapped = self.function("int32", [number], -INT32, INT32 - 1, wrap)
        return wrapped if overflow.all() else self.where(overflow, wrapped, number)

    def limit(self, number: Sums) -> Sums:
        """Return an integer that is equal modulo 2**32 and within `LIMIT`."""
        if bool(((number.low < -LIMIT) | (number.high > LIMIT)).any()):
            return self.to_int32(number)
        return number

    def shift_left(self, number: Sums, places: int) -> Sums:
        """Multiply by ``2**places``, modulo 2**32."""
        if not places:
            return number
        if places >= 32:
            return self.integers(0, number.low.shape)
        most = LIMIT >> places
        if bool(((number.low < -most) | (number.high > most)).any()):
            number = self.to_int32(number)
        return self.limit(number.times_constant(1 << places))

    def difference(self, a: Sums, b: Sums) -> Sums:
        """Return ``a - b``, the constant 0 where both are equal functions."""
        difference = a.minus(b)
        equal = (a.f == b.f).all(axis=-1)
        return self.fold_constants(
            difference.narrow(np.where(equal, 0, difference.low), np.where(equal, 0, difference.high))
        )

    def less(self, a: Sums, b: Sums) -> Sums:
        """Return 1 where ``a < b``, else 0."""
        p = self.difference(self.to_int32(a), self.to_int32(b))
        low, high = (p.high < 0).astype(np.int64), (p.low < 0).astype(np.int64)
        return self.function("negative", [p], low, high, lambda p: (p < 0).astype(np.int64))

    def equal(self, a: Sums, b: Sums) -> Sums:
        """Return 1 where ``a == b``, else 0."""
        p = self.difference(self.to_int32(a), self.to_int32(b))
        high = ((p.low <= 0) & (p.high >= 0)).astype(np.int64)
        return self.function("zero", [p], np.zeros_like(high), high, lambda p: (p == 0).astype(np.int64))

    def select(self, condition: Sums, yes: Sums, no: Sums) -> Sums:
        """Return `yes` where the condition is 1, `no` where it is 0."""
        ends = np.minimum(yes.low, no.low), np.maximum(yes.high, no.high)
        selected = self.function("choose", [condition, yes, no], *ends, np.where)
        known = condition.constant | (yes.f == no.f).all(axis=-1)
        return self.where(known, self.where(condition.low == 1, yes, no), selected)

    def multiply(self, a: Sums, b: Sums, shift: int, *, floor: bool, scaled: bool) -> Sums:
        """Compute MUL of `weft.hdl.isa.MicroOp`; `scaled`: the second operand has an exponent in its upper bits."""
        a, b = self.to_int32(a), self.to_int32(b)
        if scaled:
            return self._multiply_scaled(a, b, shift, floor=floor)
        factor = self._factor(b)
        p = a.times(factor)
        square = (a.f == factor.f).all(axis=-1)
        if square.any():  # not negative
            p = p.narrow(np.where(square, 0, p.low), p.high)
        return self.clamp(self.shift_right(p, shift, floor=floor))

    def shift_right(self, p: Sums, shift: int, *, floor: bool) -> Sums:
        """Divide by ``2**shift``, rounded half to even or down."""
        if not shift:
            return p

        def divide(number: np.ndarray) -> np.ndarray:
            return number >> shift if floor else round_half_even(number, np.asarray(shift, np.int64))

        name = f"{'down' if floor else 'half'} {shift}"
        return self.function(name, [p], divide(p.low), divide(p.high), divide)

    def clamp(self, p: Sums, low: int = -INT32, high: int = INT32 - 1) -> Sums:
        """Clamp to `low` and `high`."""
        if bool((p.low >= low).all()) and bool((p.high <= high).all()):
            return p

        def clip(number: np.ndarray) -> np.ndarray:
            return np.minimum(np.maximum(number, low), high)

        clamped = self.function(f"within {low} {high}", [p], clip(p.low), clip(p.high), clip)
        return self.where((p.low >= low) & (p.high <= high), p, clamped)

    def _factor(self, b: Sums) -> Sums:
        inside = (b.low >= -_FACTOR) & (b.high < _FACTOR)
        if inside.all():
            return b
        low, high = np.full(b.low.shape, -_FACTOR), np.full(b.low.shape, _FACTOR - 1)
        return self.where(inside, b, self.function("factor", [b], low, high, _signed_factor))

    def _multiply_scaled(self, a: Sums, b: Sums, shift: int, *, floor: bool) -> Sums:
        def multiply(x: np.ndarray, y: np.ndarray) -> np.ndarray:
            places = np.minimum(shift + (y >> MULTIPLIER_BITS & _EXPONENTS), 63)
            p = x * _signed_factor(y)
            return np.clip(p >> places if floor else round_half_even(p, places), -INT32, INT32 - 1)

        # The exponent only shifts further to the right.
        most = np.maximum(np.abs(a.low), np.abs(a.high)) * _FACTOR
        most = np.minimum((most >> shift) + 1, INT32 - 1)
        name = f"scaled {shift} {int(floor)}"
        return self.function(name, [a, b], np.where(most == INT32 - 1, -INT32, -most), most, multiply)

    def look_up(self, a: Sums, table: bytes) -> Sums:
        """Compute TABLE of `weft.hdl.isa.MicroOp` with a table of 256 bytes."""
        entries = np.frombuffer(table, np.int8).astype(np.int64)
        a = self.to_int32(a)
        low, high = int(entries.min()), int(entries.max())
        return self.function(
            f"table {table.hex()}", [a], low, high, lambda p: entries[np.clip(p, -128, 127) + 128]
        )

    def to_unsigned(self, byte: Sums) -> Sums:
        """Convert bytes from int8 to uint8."""
        unsigned = self.function("unsigned", [byte], 0, 255, lambda p: p & 0xFF)
        return self.where(byte.low >= 0, byte, unsigned)

    def reciprocal(self, a: Sums, *, root: bool) -> Sums:
        """Compute RECIPROCAL, or with `root` RSQRT, of `weft.hdl.isa.MicroOp`."""
        name, fold = ("rsqrt", inverse_root) if root else ("reciprocal", reciprocal)
        most = (64 << MULTIPLIER_BITS) - 1  # a factor, and an exponent of 6 bits
        return self.function(name, [self.to_int32(a)], 0, most, fold)

    def table_row(self, offset: Sums, content: np.ndarray, pitch: int, first: int = 0) -> Sums:
        """Read rows of a constant table. Each column is a function of the offset; equal columns are equal functions.

        Parameters
        ----------
        offset : Sums (...)
            Offsets of rows: `first` plus a multiple of `pitch`.
        content : int8 (rows, columns)

        Returns
        -------
        Sums (..., columns)
        """
        shape = (*offset.low.shape, content.shape[1])
        self.values.function_count += int(np.prod(shape))
        self.values.degree = max(self.values.degree, offset.degree)
        keys = self._column_keys(content)
        members = np.broadcast_to(offset.f[..., None, None, :], (*shape, 1, offset.f.shape[-1]))
        f = hash_sets(members, None, np.broadcast_to(keys, (*shape, keys.shape[1]))) % self._moduli
        ends = (np.broadcast_to(end(content, axis=0).astype(np.int64), shape) for end in (np.min, np.max))
        low, high = (end.copy() for end in ends)
        known = offset.constant
        low[known] = high[known] = content[(offset.low[known] - first) // pitch]
        return self.fold_constants(Sums(self.values.primes, f, low, high))

    def _column_keys(self, content: np.ndarray) -> np.ndarray:
        """Return keys (columns, PRIMES); the last content's are cached, because calls often repeat it."""
        known, keys = self._columns
        if known.shape != content.shape or not (known == content).all():
            keys = np.stack(
                [self.values.random_words(f"column {column.tobytes().hex()}") for column in content.T]
            )
            self._columns = content.copy(), keys
        return keys

    def rsh(self, a: Sums, places: Sums) -> Sums:
        """Divide by ``2**places``, from 0 to 31 places, rounded half up."""
        low, high = np.minimum(a.low, 0), np.maximum(a.high, 0)
        shifted = self.function("rsh", [a, places], low, high, rsh)
        return self.where(places.constant & (places.low == 0), a, shifted)

    def _key(self, name: str, count: int) -> tuple[np.ndarray, list[np.ndarray]]:
        """Return the key of a function, and a random factor of each of its `count` arguments after the first."""
        full_name = f"{name} of {count}"
        if full_name not in self._keys:
            words = self.values.random_words
            factors = [words(f"argument {at} of {full_name}") % self._moduli for at in range(1, count)]
            self._keys[full_name] = words(f"function {full_name}"), factors
        return self._keys[full_name]

    def fold_constants(self, sums: Sums) -> Sums:
        """Replace integers whose range is one number by that constant."""
        fixed = sums.constant
        if not fixed.any():
            return sums
        f = np.where(fixed[..., None], residues(np.where(fixed, sums.low, 0), self.values.primes), sums.f)
        return Sums(sums.primes, f, sums.low, sums.high, sums.degree)


def _signed_factor(number: np.ndarray) -> np.ndarray:
    """Sign-extend the lower `MULTIPLIER_BITS` bits."""
    return ((number & (2 * _FACTOR - 1)) ^ _FACTOR) - _FACTOR


def join_bytes(symbols: Symbols, numbers: np.ndarray) -> Sums:
    """Join values (..., bytes), little endian, to unsigned integers (...)."""
    unsigned = symbols.to_unsigned(symbols.values.integers_of(numbers))
    weights = np.int64(1) << 8 * np.arange(numbers.shape[-1])
    return unsigned.times_constant(weights).sum(-1)
