"""Patterns of TOSA operations with the device's rounding: the writer prints them, and the reader recognises them.

The device's requantisation rounds half to even. TOSA's rescale rounds half up, which differs only where a product is
half way between two integers. `REQUANTISED` detects these ties by the lowest bits of the sum, and subtracts 1 from
odd results. A sum of two scaled numbers needs 34 bits: `ADDED` computes it as two parts of 32 bits, and rounds half
to even. Any tool that implements TOSA's integer arithmetic as specified gets the device's bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from weft.compiler.errors import CompileError
from weft.compiler.ir.scales import quantise_pair
from weft.extras.mlir.builder import Builder, compact_equal
from weft.extras.mlir.context import Context
from weft.extras.mlir.program import Value
from weft.extras.mlir.rescaling import byte_quantisation, quantise_integral

PART = 12
"""Bits of the lower part of mantissas."""
SHIFTS = (PART + 1, PART + 31)
"""Least and largest shift that `ADDED` supports."""


@dataclass(frozen=True, eq=False)
class Term:
    """Pattern of a TOSA operation: its operands and the type of its elements."""

    op: str
    args: tuple[Node, ...]
    dtype: str = "int32"
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Hole:
    """Pattern that matches any value."""

    name: str


@dataclass(frozen=True)
class Number:
    """Pattern of a constant of type `dtype`; `listed` if it is a list, as scales are, else it broadcasts."""

    name: str
    dtype: str = "int32"
    listed: bool = False


Node = Term | Hole | Number


def rescale(value: Node, multiplier: Node, shift: Node, zero: Node) -> Term:
    """Return the pattern of an integer times a scale, as 32 bits."""
    none = Number("none", "int32", True)
    flags = {
        "scale32": True,
        "input_unsigned": False,
        "output_unsigned": False,
        "rounding_mode": "SINGLE_ROUND",
    }
    return Term("tosa.rescale", (value, multiplier, shift, zero, none), "int32", flags)


def _and(one: Node, other: Node) -> Term:
    return Term("tosa.logical_and", (one, other), "bool")


def _or(one: Node, other: Node) -> Term:
    return Term("tosa.logical_or", (one, other), "bool")


def _equal(one: Node, other: Node) -> Term:
    return Term("tosa.equal", (one, other), "bool")


def _shift_right(value: Node, by: Node) -> Term:
    return Term("tosa.arithmetic_right_shift", (value, by), "int32", {"round": False})


def _add_zero_and_clamp(value: Node) -> Term:
    moved = Term("tosa.add", (value, Number("zero")))
    least = Term("tosa.maximum", (moved, Number("low")))
    return Term("tosa.cast", (Term("tosa.minimum", (least, Number("high"))),), "int8")


def _requantisation_form() -> Term:
    total, one, none = Hole("sum"), Number("one"), Number("nought")
    up = rescale(
        total,
        Number("multiplier", "int32", True),
        Number("shift", "int8", True),
        Number("none", "int32", True),
    )
    # On a tie, `up` is rounded up: subtracting its lowest bit leaves the even neighbour.
    tie = _equal(Term("tosa.bitwise_and", (total, Number("mask"))), Number("half"))
    odd = Term("tosa.bitwise_and", (up, one))
    return _add_zero_and_clamp(Term("tosa.sub", (up, Term("tosa.select", (tie, odd, none)))))


def subtract_zero(name: str) -> Term:
    """Return the pattern of an 8-bit operand less its zero point, as 32 bits."""
    unit, thirty = Number("unit", "int32", True), Number("thirty", "int8", True)
    return rescale(Hole(name), unit, thirty, Number(f"{name}_zero", "int8", True))


def _addition_form() -> Term:
    a, b, nought, one = subtract_zero("a"), subtract_zero("b"), Number("nought"), Number("one")

    def part(which: str) -> Term:
        products = (
            Term("tosa.mul", (value, Number(f"{name}_{which}"), Number("no_shift", "int8", True)))
            for name, value in (("a", a), ("b", b))
        )
        return Term("tosa.add", tuple(products))

    # a * upper + b * upper plus the carry of the lower parts: 34 bits in two words.
    low = part("lower")
    high = Term("tosa.add", (part("upper"), _shift_right(low, Number("twelve"))))
    below = Term("tosa.bitwise_and", (low, Number("part")))
    floor = _shift_right(high, Number("shift"))
    remainder = Term("tosa.bitwise_and", (high, Number("mask")))
    middle = _equal(remainder, Number("half"))
    more = Term("tosa.greater", (remainder, Number("half")), "bool")
    lower_bits = Term("tosa.greater", (below, nought), "bool")
    odd = _equal(Term("tosa.bitwise_and", (floor, one)), one)
    # Round up above half, and at half if lower bits are set or the floor is odd.
    up = _or(more, _and(middle, _or(lower_bits, odd)))
    return _add_zero_and_clamp(Term("tosa.add", (floor, Term("tosa.select", (up, one, nought)))))


REQUANTISED = _requantisation_form()
"""Hole ``sum``; numbers ``multiplier``, ``shift``, ``mask``, ``half``, ``zero``, ``low``, ``high``, and constants."""
ADDED = _addition_form()
"""Holes ``a`` and ``b``; numbers ``a_zero``, ``a_upper``, ``a_lower``, the same three for ``b``, ``shift``, ``mask``,
``half``, ``zero``, ``low``, ``high``, and constants."""
CONSTANTS = {"one": 1, "nought": 0, "none": 0, "no_shift": 0, "unit": 1 << 30, "thirty": 30, "twelve": PART,
             "part": (1 << PART) - 1}  # fmt: skip
"""Values of the numbers that are fixed."""


def trailing_zeros(number: int) -> int:
    """Return the number of zero bits below the lowest 1."""
    return (number & -number).bit_length() - 1 if number else 0


def tie_bits(multiplier: int, shift: int) -> tuple[int, int]:
    """Return the mask of a sum's lowest bits and their value if the product is a tie.

    Mask 0 with value 1 means that there are no ties.
    """
    # A product is a tie if its lowest 1 is bit `shift - 1`; the sum has the zeros below it that the multiplier lacks.
    odd = shift - trailing_zeros(multiplier)
    if not multiplier or odd < 1 or odd > 31:
        return 0, 1
    mask = (1 << odd) - 1
    return mask, 1 << (odd - 1)


Bindings = dict[str, Any]
"""Values of holes, and arrays of numbers, by name."""


def match_form(builder: Builder, term: Term, value: Value) -> Bindings | None:
    """Return the holes and numbers with which a pattern matches `value`, or None."""
    bindings: Bindings = {}
    if not _unify(builder, term, value, bindings, {}):
        return None
    for name, number in CONSTANTS.items():
        if name in bindings and (bindings[name].size != 1 or bindings[name].item() != number):
            return None
    return bindings


def _unify(builder: Builder, term: Node, value: Value, bindings: Bindings, seen: dict[int, Value]) -> bool:
    if isinstance(term, Hole):
        return bindings.setdefault(term.name, value) is value
    if isinstance(term, Number):
        array = builder.arrays.get(value)
        if array is None or array.dtype.name != term.dtype:
            return False
        numbers = array.reshape(-1) if term.listed else compact_equal(array).reshape(-1)
        return np.array_equal(bindings.setdefault(term.name, numbers), numbers)
    # Terms are shared, such as a floor and its lowest bit: match each once, or the walk grows exponentially.
    if seen.get(id(term)) is value:
        return True
    op = builder.producers.get(value)
    if (
        op is None
        or op.name != term.op
        or value.type.dtype != term.dtype
        or len(op.operands) != len(term.args)
    ):
        return False
    if any(op.attributes.get(key) != wanted for key, wanted in term.attributes.items()):
        return False
    seen[id(term)] = value
    return all(
        _unify(builder, part, operand, bindings, seen)
        for part, operand in zip(term.args, op.operands, strict=True)
    )


def _output_range(bindings: Bindings) -> tuple[int, tuple[int, int]] | None:
    """Return zero point and clamp bounds of a pattern's result, or None if they are not single 8-bit numbers."""
    numbers = [bindings[name] for name in ("zero", "low", "high")]
    if any(number.size != 1 for number in numbers):
        return None
    zero, low, high = (int(number.item()) for number in numbers)
    good = -128 <= zero <= 127 and -128 <= low < high <= 127
    return (zero, (low, high)) if good else None


def recognise_requantisation(context: Context) -> bool:
    """Replace a requantisation that rounds half to even; return whether the current operation ends one."""
    builder = context.builder
    bindings = match_form(builder, REQUANTISED, _with_maker(context))
    if bindings is None:
        return False
    known, ends = builder.sums.get(bindings["sum"]), _output_range(bindings)
    count = max(bindings[name].size for name in ("multiplier", "shift", "mask", "half"))
    if known is None or ends is None:
        return False
    columns = [
        np.broadcast_to(bindings[name].reshape(-1), (count,)).tolist()
        for name in ("multiplier", "shift", "mask", "half")
    ]
    for multiplier, shift, mask, half in zip(*columns, strict=True):
        # The ties must be those of this scale, and the scale must fit the device's mantissa of 24 bits.
        if (
            tie_bits(multiplier, shift) != (mask, half)
            or (multiplier >> trailing_zeros(multiplier)).bit_length() > 24
        ):
            return False
    scale = np.array(
        [math.ldexp(int(m), -int(s)) for m, s in zip(columns[0], columns[1], strict=True)], np.float32
    )
    scale = scale[:1] if (scale == scale[0]).all() else scale
    if not scale.all() or (scale.size > 1 and scale.size != context.shape()[-1]):
        return False
    zero, bounds = ends
    context.put(quantise_integral(builder, known.emit_scaled(scale), zero, bounds, "int8"))
    return True


def _with_maker(context: Context) -> Value:
    """Return the current result, with its operation registered as the producer for matching."""
    context.builder.producers[context.result()] = context.op
    return context.result()


def recognise_addition(context: Context) -> bool:
    """Replace a sum of two scaled numbers that rounds half to even; return whether the current operation ends one."""
    builder = context.builder
    bindings = match_form(builder, ADDED, _with_maker(context))
    ends = None if bindings is None else _output_range(bindings)
    if bindings is None or ends is None:
        return False
    names = ("a_upper", "a_lower", "b_upper", "b_lower", "shift", "mask", "half", "a_zero", "b_zero")
    if any(bindings[name].size != 1 for name in names):
        return False
    numbers = {name: int(bindings[name].item()) for name in names}
    a, b = ((numbers[f"{name}_upper"] << PART) + numbers[f"{name}_lower"] for name in "ab")
    shift = numbers["shift"] + PART
    if (numbers["mask"], numbers["half"]) != (
        (1 << (shift - PART)) - 1,
        1 << (shift - PART - 1),
    ) or a < 0:
        return False
    scales = [math.ldexp(number, -shift) for number in (a, b)]
    # The float32 scales must restore exactly these mantissas, or the device would compute other bytes.
    try:
        exact = quantise_pair(float(np.float32(scales[0])), float(np.float32(abs(scales[1])))) == (
            a,
            abs(b),
            shift,
        )
    except CompileError:
        return False
    if not exact or not a or not b:
        return False
    reals = [
        builder.dequantise(
            builder.stored_value(bindings[name]),
            byte_quantisation(np.array([abs(scale)], np.float32), numbers[f"{name}_zero"], "int8", None),
            bindings[name].type,
        )
        for name, scale in zip("ab", scales, strict=True)
    ]
    zero, bounds = ends
    total = builder.emit("Add" if b > 0 else "Sub", reals)
    context.put(quantise_integral(builder, total, zero, bounds, "int8"))
    return True
