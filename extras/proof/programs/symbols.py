"""Functions of numbers of 32 bits that are no polynomials: what kernels and softmax do between two bytes.

Numbers are kept as integers that are only right modulo 2**32, polynomials as long as they are added and multiplied;
where something else is done to them they become int32. Of those functions nothing is known but that the same function
of the same arguments is the same, what it makes of constants, and its range. A function of several arguments is one of
a random combination of them, which differs if one does, but for the chance of which
`weft.extras.proof.programs.field` tells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from weft.extras.proof.programs.field import PRIMES, hashed, residues
from weft.extras.proof.programs.sums import INT32, Integers, Sums
from weft.extras.proof.programs.values import Values
from weft.hdl.isa.kernel import MULTIPLIER_BITS
from weft.sim.golden.kernel import inverse_root, reciprocal
from weft.sim.golden.memories import round_half_even, rsh, wrap

LIMIT = 1 << 52
"""Numbers beyond become int32 at once, so that ranges and products with them fit 64 bits."""
_FACTOR = 1 << (MULTIPLIER_BITS - 1)
_EXPONENTS = 63

OFFSET_BYTES = 4
"""Of an offset in memory that an input has, the lowest first."""

Fold = Callable[..., np.ndarray]


@dataclass(frozen=True)
class Rows:
    """Rows of a table in memory: how many, bytes from one to the next, and the offset of the first one."""

    count: int
    pitch: int
    first: int = 0


class Symbols:
    """Functions of what is in a `Values`."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self._columns = np.zeros((0, 0), np.int8), np.zeros((0, PRIMES), np.uint64)
        self._keys: dict[str, tuple[np.ndarray, list[np.ndarray]]] = {}

    def function(self, name: str, given: Sequence[Sums], low: Integers, high: Integers, fold: Fold) -> Sums:
        """The function `name` of some numbers.

        Parameters
        ----------
        name : str
            Tells it from all others.
        given : sequence of Sums
            Of one shape.
        low, high : int64
            Its range.
        fold : callable
            What it makes of constants: int64 arrays.
        """
        values = self.values
        shape = given[0].low.shape
        values.symbols += given[0].low.size
        values.degree = max(values.degree, *(item.degree for item in given))
        constant = np.logical_and.reduce([item.constant for item in given])
        low, high = np.broadcast_to(low, shape), np.broadcast_to(high, shape)
        if constant.any():
            low, high = low.copy(), high.copy()
            low[constant] = high[constant] = fold(*(item.low[constant] for item in given))
            if constant.all():
                return values.integers(low)
        key, factors = self._key(name, len(given))
        f = given[0].f if len(given) == 1 else self._combined(given, factors)
        made_f = hashed(f[..., None, :], None, np.broadcast_to(key, f.shape)) % self._moduli
        return self.settled(Sums(values.primes, made_f, low, high))

    def integers(self, numbers: np.ndarray | int, shape: tuple[int, ...] = ()) -> Sums:
        """Known integers, of some shape."""
        return self.values.integers(
            np.broadcast_to(np.asarray(numbers, np.int64), shape or np.shape(numbers))
        )

    def where(self, condition: np.ndarray, yes: Sums, no: Sums) -> Sums:
        """Chosen by bool of the same shape."""
        f = np.where(condition[..., None], yes.f, no.f)
        low, high = (np.where(condition, a, b) for a, b in ((yes.low, no.low), (yes.high, no.high)))
        return Sums(yes.primes, f, low, high, max(yes.degree, no.degree))

    def word(self, number: Sums) -> Sums:
        """An integer modulo 2**32 as int32."""
        if not number.overflows:
            return number
        leaves = number.leaves
        wrapped = self.function("int32", [number], -INT32, INT32 - 1, wrap)
        return wrapped if leaves.all() else self.where(leaves, wrapped, number)

    def kept(self, number: Sums) -> Sums:
        """The same modulo 2**32, within `LIMIT`."""
        if bool(((number.low < -LIMIT) | (number.high > LIMIT)).any()):
            return self.word(number)
        return number

    def shifted(self, number: Sums, places: int) -> Sums:
        """Times ``2**places`` modulo 2**32."""
        if not places:
            return number
        if places >= 32:
            return self.integers(0, number.low.shape)
        most = LIMIT >> places
        if bool(((number.low < -most) | (number.high > most)).any()):
            number = self.word(number)
        return self.kept(number.scaled(1 << places))

    def difference(self, a: Sums, b: Sums) -> Sums:
        """``a - b``, a constant where both are the same."""
        found = a.minus(b)
        same = (a.f == b.f).all(axis=-1)
        return self.settled(found.ranging(np.where(same, 0, found.low), np.where(same, 0, found.high)))

    def less(self, a: Sums, b: Sums) -> Sums:
        """1 where ``a < b``, else 0."""
        return self._negative(self.difference(self.word(a), self.word(b)))

    def _negative(self, difference: Sums) -> Sums:
        low, high = (difference.high < 0).astype(np.int64), (difference.low < 0).astype(np.int64)
        return self.function("negative", [difference], low, high, lambda p: (p < 0).astype(np.int64))

    def equal(self, a: Sums, b: Sums) -> Sums:
        """1 where they are, else 0."""
        p = self.difference(self.word(a), self.word(b))
        high = ((p.low <= 0) & (p.high >= 0)).astype(np.int64)
        return self.function("zero", [p], np.zeros_like(high), high, lambda p: (p == 0).astype(np.int64))

    def chosen(self, condition: Sums, yes: Sums, no: Sums) -> Sums:
        """`yes` where the condition is 1, `no` where it is 0."""
        ends = np.minimum(yes.low, no.low), np.maximum(yes.high, no.high)
        made = self.function("choose", [condition, yes, no], *ends, np.where)
        known = condition.constant | (yes.f == no.f).all(axis=-1)
        return self.where(known, self.where(condition.low == 1, yes, no), made)

    def product(self, a: Sums, b: Sums, shift: int, *, floor: bool, scaled: bool) -> Sums:
        """MUL of `weft.hdl.isa.MicroOp`."""
        a, b = self.word(a), self.word(b)
        if scaled:
            return self._scaled(a, b, shift, floor=floor)
        factor = self._factor(b)
        p = a.times(factor)
        same = (a.f == factor.f).all(axis=-1)
        if same.any():  # a square
            p = p.ranging(np.where(same, 0, p.low), p.high)
        return self.saturated(self.rounded(p, shift, floor=floor))

    def rounded(self, p: Sums, shift: int, *, floor: bool) -> Sums:
        """``p / 2**shift``, rounded half to even or down."""
        if not shift:
            return p

        def of(number: np.ndarray) -> np.ndarray:
            return number >> shift if floor else round_half_even(number, np.asarray(shift, np.int64))

        return self.function(f"{'down' if floor else 'half'} {shift}", [p], of(p.low), of(p.high), of)

    def saturated(self, p: Sums, low: int = -INT32, high: int = INT32 - 1) -> Sums:
        """The nearest number from `low` to `high`."""
        if bool((p.low >= low).all()) and bool((p.high <= high).all()):
            return p

        def of(number: np.ndarray) -> np.ndarray:
            return np.minimum(np.maximum(number, low), high)

        made = self.function(f"within {low} {high}", [p], of(p.low), of(p.high), of)
        return self.where((p.low >= low) & (p.high <= high), p, made)

    def _factor(self, b: Sums) -> Sums:
        """The low 18 bits, signed."""

        def of(number: np.ndarray) -> np.ndarray:
            return ((number & (2 * _FACTOR - 1)) ^ _FACTOR) - _FACTOR

        inside = (b.low >= -_FACTOR) & (b.high < _FACTOR)
        if inside.all():
            return b
        low, high = np.full(b.low.shape, -_FACTOR), np.full(b.low.shape, _FACTOR - 1)
        return self.where(inside, b, self.function("factor", [b], low, high, of))

    def _scaled(self, a: Sums, b: Sums, shift: int, *, floor: bool) -> Sums:
        def of(x: np.ndarray, y: np.ndarray) -> np.ndarray:
            factor = ((y & (2 * _FACTOR - 1)) ^ _FACTOR) - _FACTOR
            places = np.minimum(shift + (y >> MULTIPLIER_BITS & _EXPONENTS), 63)
            made = x * factor >> places if floor else round_half_even(x * factor, places)
            return np.clip(made, -INT32, INT32 - 1)

        most = np.maximum(np.abs(a.low), np.abs(a.high)) * _FACTOR
        most = np.minimum((most >> shift) + 1, INT32 - 1)
        name = f"scaled {shift} {int(floor)}"
        return self.function(name, [a, b], np.where(most == INT32 - 1, -INT32, -most), most, of)

    def looked_up(self, a: Sums, table: bytes) -> Sums:
        """TABLE: `table` are 256 bytes."""
        entries = np.frombuffer(table, np.int8).astype(np.int64)
        a = self.word(a)
        low, high = int(entries.min()), int(entries.max())
        return self.function(
            f"table {table.hex()}", [a], low, high, lambda p: entries[np.clip(p, -128, 127) + 128]
        )

    def unsigned(self, byte: Sums) -> Sums:
        """A byte from -128 to 127 as one from 0 to 255."""
        made = self.function("unsigned", [byte], 0, 255, lambda p: p & 0xFF)
        return self.where(byte.low >= 0, byte, made)

    def reciprocal(self, a: Sums, *, root: bool) -> Sums:
        """RECIPROCAL or RSQRT."""
        name, fold = ("rsqrt", inverse_root) if root else ("reciprocal", reciprocal)
        most = (64 << MULTIPLIER_BITS) - 1
        return self.function(name, [self.word(a)], 0, most, fold)

    def row_of(self, offset: Sums, content: np.ndarray, pitch: int, first: int = 0) -> Sums:
        """The row that starts at an offset (...), `first` and a multiple of `pitch`, of int8 (rows, columns): (...,
        columns).

        Each column is a function of the offset, the same for the same column.
        """
        shape = (*offset.low.shape, content.shape[1])
        self.values.symbols += int(np.prod(shape))
        self.values.degree = max(self.values.degree, offset.degree)
        keys = self._column_keys(content)
        members = np.broadcast_to(offset.f[..., None, None, :], (*shape, 1, offset.f.shape[-1]))
        f = hashed(members, None, np.broadcast_to(keys, (*shape, keys.shape[1]))) % self._moduli
        ends = (np.broadcast_to(end(content, axis=0).astype(np.int64), shape) for end in (np.min, np.max))
        low, high = (end.copy() for end in ends)
        known = offset.constant
        low[known] = high[known] = content[(offset.low[known] - first) // pitch]
        return self.settled(Sums(self.values.primes, f, low, high))

    def _column_keys(self, content: np.ndarray) -> np.ndarray:
        """Keys (columns, PRIMES), kept for the next row of the same content."""
        known, keys = self._columns
        if known.shape != content.shape or not (known == content).all():
            keys = np.stack([self.values.keys(f"column {column.tobytes().hex()}") for column in content.T])
            self._columns = content.copy(), keys
        return keys

    def rsh(self, a: Sums, places: Sums) -> Sums:
        """``a / 2**places``, places from 0 to 31, halves up."""
        low, high = np.minimum(a.low, 0), np.maximum(a.high, 0)
        made = self.function("rsh", [a, places], low, high, rsh)
        return self.where(places.constant & (places.low == 0), a, made)

    def _combined(self, given: Sequence[Sums], factors: list[np.ndarray]) -> np.ndarray:
        total = given[0].f
        for item, factor in zip(given[1:], factors, strict=True):
            total = (total + item.f * factor) % self._moduli
        return total

    def _key(self, name: str, count: int) -> tuple[np.ndarray, list[np.ndarray]]:
        """The key of a function of so many arguments, and factors of these but the first."""
        called = f"{name} of {count}"
        if called not in self._keys:
            keys = self.values.keys
            factors = [keys(f"argument {at} of {called}") % self._moduli for at in range(1, count)]
            self._keys[called] = keys(f"function {called}"), factors
        return self._keys[called]

    def settled(self, sums: Sums) -> Sums:
        """The same, as constants where its range is one number."""
        fixed = sums.constant
        if not fixed.any():
            return sums
        f = np.where(fixed[..., None], residues(np.where(fixed, sums.low, 0), self.values.primes), sums.f)
        return Sums(sums.primes, f, sums.low, sums.high, sums.degree)

    @property
    def _moduli(self) -> np.ndarray:
        return np.array(self.values.primes, np.uint64)


def joined_bytes(symbols: Symbols, numbers: np.ndarray) -> Sums:
    """The numbers (...) of values (..., bytes), the lowest byte first."""
    found = symbols.unsigned(symbols.values.terms(numbers))
    weights = np.int64(1) << 8 * np.arange(numbers.shape[-1])
    return found.scaled(weights).total(-1)
