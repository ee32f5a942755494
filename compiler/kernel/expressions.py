"""Expressions on the elements of rows, from which kernels are built.

A kernel is a function of a `Rows`: it reads tensors, combines elements and whole rows, and stores a result. Calling
it builds integer expressions. Each knows the range of its value, so that no value exceeds 32 bits.
`weft.compiler.kernel.code` turns them into micro-operations; `weft.compiler.kernel.evaluate` defines their semantics.
"""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.compiler.errors import KernelError
from weft.hdl.isa.config import LOOKUP_ENTRIES
from weft.hdl.isa.kernel import MULTIPLIER_BITS

WORD = 1 << 31
FACTOR = 1 << (MULTIPLIER_BITS - 1)
IMMEDIATE = 1 << 23
"""Bound of constants."""
RECIPROCAL_PLACES = 15
"""Binary places of the mantissas of reciprocals, which have an exponent as well."""
EXPONENTS = ("reciprocal", "rsqrt", "factor")
"""Kinds of factors with an exponent of their own."""
DIGITS = 32639
"""Largest number of two digits (see `digits`)."""


@dataclass(frozen=True, eq=False)
class Expression:
    """A number for each element of a row, or one for the whole row if not `varies`; within `low` to `high`.

    `kind` is the operation on `operands`; `value` is its parameter:

    - "read": element of tensor ``value & 3`` (``& 4``: its lower byte, ``& 8``: unsigned)
    - "accumulated": sum number `value` of tensor 0
    - "number": the only element per row of tensor `value`
    - "shared": the number that all elements of a row of tensor ``value & 3`` are
    - "index": position in the row, from 0
    - "constant", "add", "subtract", "minimum", "maximum"
    - "multiply": product, shifted right by `value` (and by the second operand's exponent, if it has one), rounded
      half to even
    - "shift": left shift
    - "floor": right shift, rounded down
    - "table": entry of `table`, 256 int8 as bytes
    - "less": a condition, and "choose": selection by a condition
    - "sum", "largest": over a row
    - "reciprocal", "rsqrt"
    - "neighbour": the element beside it, 0 and 1 exchanged
    - "low byte": modulo 256, from -128 to 127
    - "known", "factor": the operand itself
    """

    kind: str
    operands: tuple[Expression, ...]
    low: int
    high: int
    varies: bool
    value: int = 0
    where: str = ""
    table: bytes = b""

    def __add__(self, other: Expression | int) -> Expression:
        return _two("add", self, other, lambda a, b: (a[0] + b[0], a[1] + b[1]))

    __radd__ = __add__

    def __sub__(self, other: Expression | int) -> Expression:
        return _two("subtract", self, other, lambda a, b: (a[0] - b[1], a[1] - b[0]))

    def __rsub__(self, other: int) -> Expression:
        return _as_expression(other) - self

    def __lshift__(self, places: int) -> Expression:
        return _result("shift", (self,), self.low << places, self.high << places, value=places)

    def __lt__(self, other: Expression | int) -> Expression:
        return _two("less", self, other, lambda a, b: (0, 1))

    def minimum(self, other: Expression | int) -> Expression:
        return _two("minimum", self, other, lambda a, b: (min(a[0], b[0]), min(a[1], b[1])))

    def maximum(self, other: Expression | int) -> Expression:
        return _two("maximum", self, other, lambda a, b: (max(a[0], b[0]), max(a[1], b[1])))

    def choose(self, yes: Expression | int, no: Expression | int) -> Expression:
        """Return `yes` where this condition holds, else `no`."""
        _check(self.kind == "less", "only a comparison can choose between two values")
        a, b = _as_expression(yes), _as_expression(no)
        return _result("choose", (self, a, b), min(a.low, b.low), max(a.high, b.high))

    def times(self, other: Expression | int, shift: int = 0) -> Expression:
        """Return ``self * other / 2**shift``, rounded half to even; `other` has 18 bits."""
        b = _as_expression(other)
        _check(b.kind not in EXPONENTS, "multiply by a reciprocal with `over`, not `times`")
        _check(
            b.low >= -FACTOR and b.high < FACTOR,
            f"a second factor has {MULTIPLIER_BITS} bits, but may be {b.low} to {b.high}",
        )
        _check(0 <= shift < 64, f"a shift is 0 to 63, not {shift}")
        ends = [x * y for x in (self.low, self.high) for y in (b.low, b.high)]
        if b is self:
            ends = [0, *ends[::3]]  # a square
        return _result(
            "multiply",
            (self, b),
            *(_rounded_shift(end, shift) for end in (min(ends), max(ends))),
            value=shift,
        )

    def scale(self, scale: float) -> Expression:
        """Return ``self * scale``, rounded half to even; the factor has 17 bits."""
        mantissa, shift = factor_of(scale)
        return self.times(mantissa, shift)

    def over(self, reciprocal: Expression, places: int, most: int) -> Expression:
        """Return ``self`` times a reciprocal, or a `factor`, with `places` binary places, rounded half to even.

        The caller guarantees that its magnitude is at most `most`.
        """
        _check(reciprocal.kind in EXPONENTS, "`over` takes a reciprocal")
        # A reciprocal's mantissa has `RECIPROCAL_PLACES`; its exponent is added by the engine.
        shift = RECIPROCAL_PLACES - places
        _check(0 <= shift < 64, f"a quotient has at most {RECIPROCAL_PLACES} places, not {places}")
        return _result("multiply", (self, reciprocal), -most, most, value=shift)

    def shift_right(self, places: int) -> Expression:
        """Return ``self / 2**places``, rounded down."""
        _check(0 <= places < 64, f"a shift is 0 to 63, not {places}")
        return _result("floor", (self,), self.low >> places, self.high >> places, value=places)

    def look_up(self, table: np.ndarray) -> Expression:
        """Return entry ``self + 128`` of a look-up table, int8 (256,); the end entries below -128 and above 127."""
        _check_table(table, "int8")
        first, last = (min(max(end, -128), 127) + 128 for end in (self.low, self.high))
        reached = table[first : last + 1]
        return _result("table", (self,), int(reached.min()), int(reached.max()), table=table.tobytes())

    def neighbour(self) -> Expression:
        """Return the other element of each pair of elements of a row: 0 and 1 exchanged, 2 and 3, and so on."""
        _check(self.varies, "`neighbour` needs elements that vary along the row")
        return _result("neighbour", (self,), self.low, self.high)

    def low_byte(self) -> Expression:
        """Return the lowest digit, from -128 to 127."""
        return _result("low byte", (self,), -128, 127)

    def bits(self) -> Expression:
        """Return the bit length of a row's number without its sign: 0 for 0, 8 for 128 to 255."""
        _check(not self.varies, "`bits` needs one number per row")
        most = max(-self.low, self.high).bit_length()
        return self.reciprocal().shift_right(MULTIPLIER_BITS).assume(0, most)

    def power(self, factor: Expression | int = 1 << RECIPROCAL_PLACES) -> Expression:
        """Return ``factor / 2**(15 + self)`` for `over`, by default a division by ``2**self``; `self` is 0 to 63."""
        _check(
            self.low >= 0 and self.high < 64, f"an exponent is 0 to 63, but may be {self.low} to {self.high}"
        )
        number = _as_expression(factor)
        _check(
            number.low >= -FACTOR and number.high < FACTOR,
            f"a factor has {MULTIPLIER_BITS} bits, but may be {number.low} to {number.high}",
        )
        return _result("factor", ((self << MULTIPLIER_BITS) + number,), 0, WORD - 1)

    def divide_by_power(self, places: Expression) -> Expression:
        """Return this reciprocal, or `factor`, divided by ``2**places``; the sum of exponents must be at most 63."""
        _check(self.kind in EXPONENTS, "`divide_by_power` needs a reciprocal or a factor")
        exponent = (places << MULTIPLIER_BITS).assume(0, WORD // 2)
        return _result("factor", (exponent + self.assume(0, WORD // 2 - 1),), 0, WORD - 1)

    def interpolate(self, table: np.ndarray, places: int) -> Expression:
        """Return a table's value, int8 or int16 (256,), at ``self / 2**places + 128``, by linear interpolation.

        It is rounded half to even; beyond the ends it is the end entry. int16 entries, at most 32639, take two
        look-up tables.
        """
        _check_table(table, "int8", "int16")
        _check(0 < places < MULTIPLIER_BITS, f"between entries there are 1 to 17 binary places, not {places}")
        place = self.shift_right(places)
        fraction = (self - (place << places)).assume(0, (1 << places) - 1)
        here, following = entry(place, table), entry(place + 1, table)
        between = here + (following - here).times(fraction, places)
        return between.assume(int(table.min()), int(table.max()))

    def assume(self, low: int, high: int) -> Expression:
        """Return this value, with the caller's guarantee that it lies from `low` to `high`."""
        return _result("known", (self,), max(low, self.low), min(high, self.high))

    def reciprocal(self) -> Expression:
        """Return 1 / self, to 15 bits."""
        return _result("reciprocal", (self,), 0, WORD - 1)

    def rsqrt(self) -> Expression:
        """Return 1 / sqrt(self), to 14 bits."""
        return _result("rsqrt", (self,), 0, WORD - 1)


def digits(values: np.ndarray, count: int) -> list[np.ndarray]:
    """Return integers as `count` int8 digits to base 256, from -128 to 127, the highest first."""
    result: list[np.ndarray] = []
    remainder = values.astype(np.int64)
    for _ in range(count):
        # Signed digits: subtract before the shift, so that the remainder carries.
        digit = ((remainder + 128) & 0xFF) - 128
        result.insert(0, digit.astype(np.int8))
        remainder = (remainder - digit) >> 8
    _check(not remainder.any(), f"{values.flat[int(np.argmax(remainder != 0))]} has more than {count} digits")
    return result


def factor_of(scale: float) -> tuple[int, int]:
    """Return (mantissa, shift) of a factor ``mantissa / 2**shift``; the mantissa has 17 bits and a sign."""
    if scale == 0:
        return 0, 0
    fraction, exponent = math.frexp(scale)
    bits = MULTIPLIER_BITS - 1
    mantissa, shift = round(math.ldexp(fraction, bits)), bits - exponent
    # Rounded up to one bit more than fits.
    if abs(mantissa) == FACTOR:
        mantissa, shift = mantissa // 2, shift - 1
    # The engine shifts by 63 places at most: smaller factors have fewer bits.
    if shift > 63:
        return round(math.ldexp(scale, 63)), 63
    _check(shift >= 0, f"a factor is below {FACTOR}, not {scale:g}")
    return mantissa, shift


@dataclass(eq=False)
class Rows:
    """Rows that a kernel works on: `columns` elements each of `tensors` tensors.

    With `lanes`, a power of two, a vector has several rows side by side, of `lanes` elements each; sums and maxima
    are over these lanes and over the vectors. With `single` the result is one element per row. 16-bit elements have
    two results: upper bytes, and lower bytes less 128. `targets` are the destinations of `put`; without it results go
    to the destinations in order.
    """

    columns: int
    tensors: int
    lanes: int = 0
    result: list[Expression] = field(default_factory=list)
    single: bool = False
    targets: list[int] = field(default_factory=list)

    def read(self, tensor: int) -> Expression:
        """Return an int8 element of a tensor."""
        return self._byte(tensor, 0, unsigned=False)

    def wide(self, tensor: int, added: Expression | None = None) -> Expression:
        """Return an int16 element of a tensor, plus `added` if given."""
        upper, lower = self._byte(tensor, 0, unsigned=False) << 8, self._byte(tensor, 1, unsigned=True)
        return upper + lower if added is None else added + upper + lower

    def lower(self, tensor: int) -> Expression:
        """Return the unsigned lower byte of an int16 element of a tensor."""
        return self._byte(tensor, 1, unsigned=True)

    def index(self) -> Expression:
        """Return the position of an element in its row, from 0."""
        _check(not self.lanes, "`index` is not available with lanes")
        return Expression("index", (), 0, self.columns - 1, True, 0, _line())

    def bytes_of(self, upper: int, lower: int) -> Expression:
        """Return an int16 element from its planes: tensor `upper`, and tensor `lower`, which is less 128."""
        first, second = (self._byte(tensor, 0, unsigned=False) for tensor in (upper, lower))
        return ((first << 8) + second + 128).assume(-1 << 15, (1 << 15) - 1)

    def digits(self, tensor: int) -> Expression:
        """Return a two-digit element of a tensor: ``256 * upper + lower``, both int8, the upper digit in vector 0."""
        return (self.read(tensor) << 8) + self.second_vector(tensor)

    def second_vector(self, tensor: int) -> Expression:
        """Return the int8 in the second vector of an element of a tensor."""
        return self._byte(tensor, 1, unsigned=False)

    def row_constant(self, tensor: int, vector: int = 0) -> Expression:
        """Return the int8 that all elements of a tensor's row are, read from the row's first column."""
        _check(0 <= tensor < self.tensors, f"there is no tensor {tensor}: there are {self.tensors}")
        return Expression("shared", (), -128, 127, False, tensor + 4 * vector, _line())

    def accumulator(self, vector: int, most: int) -> Expression:
        """Return a sum of the accumulator, one of two per element; its magnitude is at most `most`."""
        return Expression("accumulated", (), -most, most, True, vector, _line())

    def factor(self, mantissa: int, exponent: int) -> Expression:
        """Return ``m / 2**(15 + e)`` for `over`, from constant tensors.

        m is the 16 bits of tensor `mantissa`; e, from 0 to 63, is the upper byte of tensor `exponent`.
        """
        upper, lower = (self._byte(mantissa, vector, unsigned=True) for vector in (0, 1))
        bits = self._byte(exponent, 0, unsigned=False).assume(0, 63) << MULTIPLIER_BITS
        return _result("factor", (bits + ((upper << 8) + lower),), 0, WORD - 1)

    def number(self, tensor: int) -> Expression:
        """Return the int8 of a tensor that has one element per row."""
        _check(0 <= tensor < self.tensors, f"there is no tensor {tensor}: there are {self.tensors}")
        _check(not self.lanes, "rows with lanes have no number of their own")
        return Expression("number", (), -128, 127, False, tensor, _line())

    def operand(self, tensor: int, columns: int) -> Expression:
        """Return an int8 element of a tensor of `columns` columns, or its only element per row."""
        return self.number(tensor) if columns < self.columns else self.read(tensor)

    def _byte(self, tensor: int, vector: int, *, unsigned: bool) -> Expression:
        """Return a byte of an element; vector 0 has the upper byte."""
        _check(0 <= tensor < self.tensors, f"there is no tensor {tensor}: there are {self.tensors}")
        low, high = (0, 255) if unsigned else (-128, 127)
        return Expression("read", (), low, high, True, tensor + 4 * vector + 8 * unsigned, _line())

    def sum(self, element: Expression, *, high: int | None = None) -> Expression:
        """Return the sum over a row. `high` bounds it if elements are not negative."""
        _check(element.varies, "`sum` needs elements that vary along the row")
        least, most = element.low * self.columns, element.high * self.columns
        if high is not None and element.low >= 0:
            most = min(most, high)
        return _result("sum", (element,), least, most, varies=False)

    def largest(self, element: Expression) -> Expression:
        """Return the largest element of a row."""
        _check(element.varies, "`largest` needs elements that vary along the row")
        return _result("largest", (element,), element.low, element.high, varies=False)

    def store(self, element: Expression) -> None:
        """Store the result: an element for each element of the row, saturated to int8."""
        _check(not self.result, "a kernel can store only one result")
        self.result.append(element)

    def store_bytes(self, element: Expression) -> None:
        """Store the result: an int16 element for each element of the row, saturated."""
        # Saturate first: planes cannot be saturated one by one.
        limited = element.maximum(-1 << 15).minimum((1 << 15) - 1)
        upper = limited.shift_right(8)
        self.store(upper)
        self.result.append((limited - (upper << 8) - 128).assume(-128, 127))

    def put(self, value: Expression, target: int) -> None:
        """Store one of several results, saturated to int8: destination ``target & 1``, vector ``target >> 1``.

        One number per row is stored in the row's first column, in all elements of a vector.
        """
        _check(target not in self.targets, f"target {target} is stored twice")
        self.result.append(value)
        self.targets.append(target)

    def put_digits(self, value: Expression, target: int) -> None:
        """Store a two-digit result (see `digits`) in both vectors of a destination.

        Beyond the range the upper digit saturates, and the lower one wraps.
        """
        # The lower digit is signed, so the upper one is rounded to the nearest.
        self.put((value + 128).shift_right(8), target)
        self.put(value.low_byte(), target + 2)

    def store_number(self, value: Expression, *, wide: bool = False) -> None:
        """Store the result: one element per row, saturated to int8, or with `wide` to int16."""
        _check(not value.varies, "`store_number` needs one number per row")
        _check(not self.lanes, "rows with lanes have no number of their own")
        (self.store_bytes if wide else self.store)(value)
        self.single = True


def constant(value: int) -> Expression:
    """Return a 24-bit number."""
    _check(-IMMEDIATE <= value < IMMEDIATE, f"a constant has 24 bits, unlike {value}")
    return Expression("constant", (), value, value, False, value, _line())


def _as_expression(value: Expression | int) -> Expression:
    return constant(value) if isinstance(value, int) else value


def _two(kind: str, a: Expression, other: Expression | int, ends: Any) -> Expression:
    b = _as_expression(other)
    return _result(kind, (a, b), *ends((a.low, a.high), (b.low, b.high)))


def _result(
    kind: str,
    operands: tuple[Expression, ...],
    low: int,
    high: int,
    *,
    value: int = 0,
    varies: bool | None = None,
    table: bytes = b"",
) -> Expression:
    _check(
        low >= -WORD and high < WORD,
        f"the result may be {low if low < -WORD else high}, which has more than 32 bits",
    )
    differs = any(operand.varies for operand in operands) if varies is None else varies
    return Expression(kind, operands, low, high, differs, value, _line(), table)


def _check_table(table: np.ndarray, *dtypes: str) -> None:
    good = isinstance(table, np.ndarray) and table.dtype.name in dtypes and table.shape == (LOOKUP_ENTRIES,)
    description = f"{table.dtype} of shape {table.shape}" if isinstance(table, np.ndarray) else repr(table)
    _check(good, f"a look-up table is {' or '.join(dtypes)} of shape ({LOOKUP_ENTRIES},), not {description}")


def entry(place: Expression, table: np.ndarray) -> Expression:
    """Return entry ``place + 128`` of an int8 table, or of an int16 one, at most 32639, which takes two look-up
    tables."""
    if table.dtype == np.int8:
        return place.look_up(table)
    _check(table.max() <= DIGITS, f"entries of int16 are at most {DIGITS}, not {table.max()}")
    upper, lower = digits(table, 2)
    return (place.look_up(upper) << 8) + place.look_up(lower)


def _rounded_shift(value: int, shift: int) -> int:
    """Return `value` / 2**shift, rounded half to even."""
    low, remainder = value >> shift, value & ((1 << shift) - 1)
    half = 1 << shift >> 1
    return low + int(shift > 0 and (remainder > half or (remainder == half and low & 1 == 1)))


def _check(good: bool, message: str) -> None:
    if not good:
        raise KernelError(f"{_line()}: {message}")


def _line() -> str:
    """Return the line of Python, outside this file, that builds an expression."""
    # Skip frames of this file: the user's line is outside.
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}, line {frame.f_lineno}"
