"""Expressions on the elements of rows, of which kernels are made.

A kernel is a function of a `Rows`: it reads tensors, combines elements and whole rows, and stores a result. Calling it
builds expressions on integers, of which each knows the range that its value can have, so that nothing leaves 32 bits.
`weft.compiler.kernel.code` makes micro-operations of them, and `weft.compiler.kernel.evaluate` says what they mean.
"""

from __future__ import annotations

import math
import os
import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.compiler.ir.graph import CompileError
from weft.hdl.isa.config import LOOKUP_ENTRIES
from weft.hdl.isa.kernel import MULTIPLIER_BITS

WORD = 1 << 31
FACTOR = 1 << (MULTIPLIER_BITS - 1)
IMMEDIATE = 1 << 23
"""Constants lie below."""
RECIPROCAL_PLACES = 15
"""Places behind the point of the reciprocals' factors, beside their exponent."""
EXPONENTS = ("reciprocal", "rsqrt", "factor")
"""Kinds of factors that have an exponent of their own."""
DIGITS = 32639
"""The largest number of two digits as `digits` has them."""


class KernelError(CompileError):
    """A kernel that the engine cannot run: one sentence with the line of Python at fault."""


@dataclass(frozen=True, eq=False)
class Expression:
    """A number for each element of a row, or one for all of a row if not `varies`.

    `kind` is what makes it of `operands`, with `value` beside them: "read" (of tensor `value` & 3; & 4: its lower
    byte, & 8: unsigned), "accumulated" (number `value` of the sums of tensor 0), "number" (the only element that tensor
    `value` has for a row), "index" (the element's own, from 0), "constant", "add", "subtract", "multiply" (then shifted
    right by `value` and rounded half to even; by the exponent of the second operand, too, if that has one), "shift" (to
    the left), "floor" (to the right, rounded down), "table" (the entry of `table`, 256 int8 as bytes), "minimum",
    "maximum", "less" (a condition), "choose" (by a condition), "sum" and "largest" (over a row), "reciprocal" and
    "rsqrt", "shared" (what all elements of a row of tensor `value` & 3 are), "neighbour" (the element beside it, 0 and
    1 exchanged), "low byte" (modulo 256, from -128 to 127), or "known" and "factor", which are their operand. `low` and
    `high` bound it.
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
        return _made("shift", (self,), self.low << places, self.high << places, value=places)

    def __lt__(self, other: Expression | int) -> Expression:
        return _two("less", self, other, lambda a, b: (0, 1))

    def minimum(self, other: Expression | int) -> Expression:
        return _two("minimum", self, other, lambda a, b: (min(a[0], b[0]), min(a[1], b[1])))

    def maximum(self, other: Expression | int) -> Expression:
        return _two("maximum", self, other, lambda a, b: (max(a[0], b[0]), max(a[1], b[1])))

    def choose(self, yes: Expression | int, no: Expression | int) -> Expression:
        """`yes` where this condition holds, else `no`."""
        _check(self.kind == "less", "only a comparison chooses")
        a, b = _as_expression(yes), _as_expression(no)
        return _made("choose", (self, a, b), min(a.low, b.low), max(a.high, b.high))

    def times(self, other: Expression | int, shift: int = 0) -> Expression:
        """``self * other / 2**shift``, rounded half to even; `other` has 18 bits."""
        b = _as_expression(other)
        _check(b.kind not in EXPONENTS, "a reciprocal divides with `over`")
        _check(
            b.low >= -FACTOR and b.high < FACTOR,
            f"a second factor has {MULTIPLIER_BITS} bits, but may be {b.low} to {b.high}",
        )
        _check(0 <= shift < 64, f"a shift is 0 to 63, not {shift}")
        ends = [x * y for x in (self.low, self.high) for y in (b.low, b.high)]
        if b is self:
            ends = [0, *ends[::3]]  # a square
        return _made(
            "multiply", (self, b), *(_shifted(end, shift) for end in (min(ends), max(ends))), value=shift
        )

    def scaled(self, scale: float) -> Expression:
        """``self * scale``, rounded half to even, by a factor of 17 bits."""
        mantissa, shift = factor_of(scale)
        return self.times(mantissa, shift)

    def over(self, reciprocal: Expression, places: int, most: int) -> Expression:
        """``self`` times a reciprocal, or a `factor`, with `places` binary places behind the point, rounded half to
        even; it must be known that it is at most `most`."""
        _check(reciprocal.kind in EXPONENTS, "`over` takes a reciprocal")
        shift = RECIPROCAL_PLACES - places
        _check(0 <= shift < 64, f"a quotient has at most {RECIPROCAL_PLACES} places, not {places}")
        return _made("multiply", (self, reciprocal), -most, most, value=shift)

    def floored(self, places: int) -> Expression:
        """``self / 2**places``, rounded down."""
        _check(0 <= places < 64, f"a shift is 0 to 63, not {places}")
        return _made("floor", (self,), self.low >> places, self.high >> places, value=places)

    def looked_up(self, table: np.ndarray) -> Expression:
        """Entry ``self + 128`` of a look-up table, int8 (256,); below -128 and above 127 the entry at that end."""
        _check_table(table, "int8")
        first, last = (min(max(end, -128), 127) + 128 for end in (self.low, self.high))
        reached = table[first : last + 1]
        return _made("table", (self,), int(reached.min()), int(reached.max()), table=table.tobytes())

    def neighbour(self) -> Expression:
        """The element beside it: of each two elements of a row, the first one is exchanged with the second."""
        _check(self.varies, "only elements, which differ, have neighbours")
        return _made("neighbour", (self,), self.low, self.high)

    def low_byte(self) -> Expression:
        """The lowest digit, from -128 to 127."""
        return _made("low byte", (self,), -128, 127)

    def bits(self) -> Expression:
        """The number of bits of a number of a row without its sign: 0 for 0, 8 for 128 to 255."""
        _check(not self.varies, "bits are counted of what is one number for a row")
        most = max(-self.low, self.high).bit_length()
        return self.reciprocal().floored(MULTIPLIER_BITS).known(0, most)

    def power(self, factor: Expression | int = 1 << RECIPROCAL_PLACES) -> Expression:
        """``factor / 2**(15 + self)`` for `over`: by default what divides by a power of two; `self` is 0 to 63."""
        _check(
            self.low >= 0 and self.high < 64, f"an exponent is 0 to 63, but may be {self.low} to {self.high}"
        )
        number = _as_expression(factor)
        _check(
            number.low >= -FACTOR and number.high < FACTOR,
            f"a factor has {MULTIPLIER_BITS} bits, but may be {number.low} to {number.high}",
        )
        return _made("factor", ((self << MULTIPLIER_BITS) + number,), 0, WORD - 1)

    def further(self, places: Expression) -> Expression:
        """A reciprocal, or a `factor`, divided by ``2**places``; both exponents together are 63 at most."""
        _check(self.kind in EXPONENTS, "only reciprocals and factors have an exponent")
        exponent = (places << MULTIPLIER_BITS).known(0, WORD // 2)
        return _made("factor", (exponent + self.known(0, WORD // 2 - 1),), 0, WORD - 1)

    def interpolated(self, table: np.ndarray, places: int) -> Expression:
        """What a table, int8 or int16 (256,), has at ``self / 2**places + 128``: linear between its entries and rounded
        half to even, and beyond its ends the entry there. int16, of at most 32639, takes two look-up tables."""
        _check_table(table, "int8", "int16")
        _check(0 < places < MULTIPLIER_BITS, f"between entries there are 1 to 17 binary places, not {places}")
        place = self.floored(places)
        rest = (self - (place << places)).known(0, (1 << places) - 1)
        here, behind = entry(place, table), entry(place + 1, table)
        found = here + (behind - here).times(rest, places)
        return found.known(int(table.min()), int(table.max()))

    def known(self, low: int, high: int) -> Expression:
        """The same, of which it is known that it lies from `low` to `high`."""
        return _made("known", (self,), max(low, self.low), min(high, self.high))

    def reciprocal(self) -> Expression:
        """1 / self, to 15 bits."""
        return _made("reciprocal", (self,), 0, WORD - 1)

    def rsqrt(self) -> Expression:
        """1 / sqrt(self), to 14 bits."""
        return _made("rsqrt", (self,), 0, WORD - 1)


def digits(values: np.ndarray, count: int) -> list[np.ndarray]:
    """Whole numbers as `count` digits from -128 to 127 of 256 each, int8, the highest one first."""
    found: list[np.ndarray] = []
    rest = values.astype(np.int64)
    for _ in range(count):
        digit = ((rest + 128) & 0xFF) - 128
        found.insert(0, digit.astype(np.int8))
        rest = (rest - digit) >> 8
    _check(not rest.any(), f"{values.flat[int(np.argmax(rest != 0))]} has more than {count} digits")
    return found


def factor_of(scale: float) -> tuple[int, int]:
    """(mantissa, shift) of a factor of about ``mantissa / 2**shift``, with a mantissa of 17 bits and a sign."""
    if scale == 0:
        return 0, 0
    fraction, exponent = math.frexp(scale)
    bits = MULTIPLIER_BITS - 1
    mantissa, shift = round(math.ldexp(fraction, bits)), bits - exponent
    if abs(mantissa) == FACTOR:
        mantissa, shift = mantissa // 2, shift - 1
    if shift > 63:
        return round(math.ldexp(scale, 63)), 63
    _check(shift >= 0, f"a factor is below {FACTOR}, not {scale:g}")
    return mantissa, shift


@dataclass(eq=False)
class Rows:
    """What a kernel works on: rows of `columns` elements of `tensors` tensors.

    With `lanes`, a power of two, a vector has several rows beside each other, of so many of its elements each: sums and
    maxima are over these and over the vectors. With `single` the result is one element for each row. There are two
    results if elements have 16 bits: their upper bytes, and their lower ones less 128. `targets` says where `put` has
    put results; without it they go to the destinations in turn.
    """

    columns: int
    tensors: int
    lanes: int = 0
    result: list[Expression] = field(default_factory=list)
    single: bool = False
    targets: list[int] = field(default_factory=list)

    def read(self, tensor: int) -> Expression:
        """An int8 element of a tensor."""
        return self._byte(tensor, 0, unsigned=False)

    def wide(self, tensor: int, added: Expression | None = None) -> Expression:
        """An int16 element of a tensor, or what comes of adding it."""
        upper, lower = self._byte(tensor, 0, unsigned=False) << 8, self._byte(tensor, 1, unsigned=True)
        return upper + lower if added is None else added + upper + lower

    def lower(self, tensor: int) -> Expression:
        """The lower byte of an int16 element of a tensor, unsigned."""
        return self._byte(tensor, 1, unsigned=True)

    def index(self) -> Expression:
        """The number of an element in its row, from 0."""
        _check(not self.lanes, "rows beside each other have no order of elements")
        return Expression("index", (), 0, self.columns - 1, True, 0, _line())

    def bytes_of(self, upper: int, lower: int) -> Expression:
        """An int16 element whose upper byte is an element of one tensor, and the lower one, less 128, of another."""
        first, second = (self._byte(tensor, 0, unsigned=False) for tensor in (upper, lower))
        return ((first << 8) + second + 128).known(-1 << 15, (1 << 15) - 1)

    def digits(self, tensor: int) -> Expression:
        """An element of two digits of a tensor, the upper one in vector 0: ``256 * upper + lower``, both int8."""
        return (self.read(tensor) << 8) + self.behind(tensor)

    def behind(self, tensor: int) -> Expression:
        """The int8 in the second vector of an element of a tensor."""
        return self._byte(tensor, 1, unsigned=False)

    def shared(self, tensor: int, vector: int = 0) -> Expression:
        """The int8 that all elements of a row of a tensor are: its vector is read in the row's first column."""
        _check(0 <= tensor < self.tensors, f"there is no tensor {tensor}: there are {self.tensors}")
        return Expression("shared", (), -128, 127, False, tensor + 4 * vector, _line())

    def accumulated(self, vector: int, most: int) -> Expression:
        """A sum of the accumulator, one of two for each element, of which is known that it is at most `most`."""
        return Expression("accumulated", (), -most, most, True, vector, _line())

    def factor(self, mantissa: int, exponent: int) -> Expression:
        """``m / 2**(15 + e)`` for `over`, of the 16 bits m of constant `mantissa` and the upper byte e, from 0 to 63,
        of constant `exponent`."""
        upper, lower = (self._byte(mantissa, vector, unsigned=True) for vector in (0, 1))
        bits = self._byte(exponent, 0, unsigned=False).known(0, 63) << MULTIPLIER_BITS
        return _made("factor", (bits + ((upper << 8) + lower),), 0, WORD - 1)

    def number(self, tensor: int) -> Expression:
        """The int8 element of a tensor that has one for each row."""
        _check(0 <= tensor < self.tensors, f"there is no tensor {tensor}: there are {self.tensors}")
        _check(not self.lanes, "rows beside each other have no number of their own")
        return Expression("number", (), -128, 127, False, tensor, _line())

    def operand(self, tensor: int, columns: int) -> Expression:
        """An int8 element of a tensor of so many columns, or the only one that it has for a row of several."""
        return self.number(tensor) if columns < self.columns else self.read(tensor)

    def _byte(self, tensor: int, vector: int, *, unsigned: bool) -> Expression:
        """A byte of an element: the upper one is in vector 0."""
        _check(0 <= tensor < self.tensors, f"there is no tensor {tensor}: there are {self.tensors}")
        low, high = (0, 255) if unsigned else (-128, 127)
        return Expression("read", (), low, high, True, tensor + 4 * vector + 8 * unsigned, _line())

    def sum(self, element: Expression, *, high: int | None = None) -> Expression:
        """The sum over a row, for all of it; at most `high`, if that is known, of elements that are not negative."""
        _check(element.varies, "a sum is over elements, which differ")
        least, most = element.low * self.columns, element.high * self.columns
        if high is not None and element.low >= 0:
            most = min(most, high)
        return _made("sum", (element,), least, most, varies=False)

    def largest(self, element: Expression) -> Expression:
        """The largest element of a row, for all of the row."""
        _check(element.varies, "a maximum is over elements, which differ")
        return _made("largest", (element,), element.low, element.high, varies=False)

    def store(self, element: Expression) -> None:
        """The result: an element for each of the row, saturated to int8."""
        _check(not self.result, "a kernel stores one result")
        self.result.append(element)

    def store_bytes(self, element: Expression) -> None:
        """The result: an int16 element for each of the row, saturated."""
        limited = element.maximum(-1 << 15).minimum((1 << 15) - 1)
        upper = limited.floored(8)
        self.store(upper)
        self.result.append((limited - (upper << 8) - 128).known(-128, 127))

    def put(self, value: Expression, target: int) -> None:
        """One of several results, saturated to int8, for destination `target` & 1, in its vector `target` >> 1. What is
        one number for a row is stored in the row's first column, in all elements of a vector."""
        _check(target not in self.targets, f"target {target} is stored twice")
        self.result.append(value)
        self.targets.append(target)

    def put_digits(self, value: Expression, target: int) -> None:
        """A result of two digits, as `digits` reads them, in both vectors of a destination. Beyond their range the
        upper digit is saturated, and the lower one wraps."""
        self.put((value + 128).floored(8), target)
        self.put(value.low_byte(), target + 2)

    def store_number(self, value: Expression, *, wide: bool = False) -> None:
        """The result: one element for each row, saturated to int8, or with `wide` to int16."""
        _check(not value.varies, "one element for a row is stored of what is one number for it")
        _check(not self.lanes, "rows beside each other have no number of their own")
        (self.store_bytes if wide else self.store)(value)
        self.single = True


def constant(value: int) -> Expression:
    """A number of 24 bits."""
    _check(-IMMEDIATE <= value < IMMEDIATE, f"a constant has 24 bits, unlike {value}")
    return Expression("constant", (), value, value, False, value, _line())


def _as_expression(value: Expression | int) -> Expression:
    return constant(value) if isinstance(value, int) else value


def _two(kind: str, a: Expression, other: Expression | int, ends: Any) -> Expression:
    b = _as_expression(other)
    return _made(kind, (a, b), *ends((a.low, a.high), (b.low, b.high)))


def _made(
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
    given = f"{table.dtype} of shape {table.shape}" if isinstance(table, np.ndarray) else repr(table)
    _check(good, f"a look-up table is {' or '.join(dtypes)} of shape ({LOOKUP_ENTRIES},), not {given}")


def entry(place: Expression, table: np.ndarray) -> Expression:
    """Entry ``place + 128`` of a table of int8, or of int16, of at most 32639, which takes two look-up tables."""
    if table.dtype == np.int8:
        return place.looked_up(table)
    _check(table.max() <= DIGITS, f"entries of int16 are at most {DIGITS}, not {table.max()}")
    upper, lower = digits(table, 2)
    return (place.looked_up(upper) << 8) + place.looked_up(lower)


def _shifted(value: int, shift: int) -> int:
    """`value` / 2**shift, rounded half to even."""
    low, rest = value >> shift, value & ((1 << shift) - 1)
    half = 1 << shift >> 1
    return low + int(shift > 0 and (rest > half or (rest == half and low & 1 == 1)))


def _check(good: bool, message: str) -> None:
    if not good:
        raise KernelError(f"{_line()}: {message}")


def _line() -> str:
    """The line of Python, outside of this file, that asks for an expression."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}, line {frame.f_lineno}"
