"""Symbolic integers: maxima of sets, matrix products and functions, compared with integers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from weft.extras.proof.programs import softmax as numerics
from weft.extras.proof.programs.field import residues
from weft.extras.proof.programs.registers import Register, add, maximum, minimum, row_maximum, subtract
from weft.extras.proof.programs.sums import Sums, matmul
from weft.extras.proof.programs.symbols import Symbols
from weft.extras.proof.programs.values import Values

TABLES = bytes(range(256)), bytes(range(255)) + b"\0"
"""Tables that differ in one entry."""


def variables(symbols: Symbols, count: int) -> Sums:
    return symbols.values.integers_of(symbols.values.new_inputs(count))


def maximum_of(symbols: Symbols, members: list[Sums]) -> Sums:
    result = Register(members[0])
    for item in members[1:]:
        result = maximum(symbols, result, Register(item))
    return result.number


def test_maxima_have_no_order() -> None:
    """Members may come in any order and repeatedly; of constants only the largest counts."""
    symbols = Symbols(Values(1))
    a, b, c = (variables(symbols, 1) for _ in range(3))
    members = [a, b, c, symbols.integers(7, (1,)), symbols.integers(-20, (1,))]
    expected = maximum_of(symbols, members)
    for order in itertools.permutations(members):
        assert (maximum_of(symbols, list(order)).f == expected.f).all()
    assert (maximum(symbols, Register(a), Register(a)).number.f == a.f).all()
    assert (expected.low, expected.high) == (7, 127)
    for other in ([a, b, *members[3:]], [a, b, c], [*members, symbols.integers(8, (1,))]):
        assert (maximum_of(symbols, other).f != expected.f).any()
    rows = Register(
        Sums(a.primes, np.stack([a.f, b.f, c.f], 1), *(np.full((1, 3), end) for end in (-128, 127)))
    )
    row = row_maximum(symbols, rows, 1).number[:, 0]
    assert (row.f == maximum_of(symbols, [c, a, b]).f).all()


def test_magnitudes_and_minima() -> None:
    symbols = Symbols(Values(2))
    a, b = variables(symbols, 4), variables(symbols, 4)
    zero = Register(symbols.integers(0, (4,)))
    size = maximum(symbols, Register(a), subtract(symbols, zero, Register(a))).number
    assert (size.low == 0).all()
    least = minimum(symbols, Register(a), Register(b)).number
    assert (least.f == minimum(symbols, Register(b), Register(a)).number.f).all()
    assert (least.f != maximum(symbols, Register(a), Register(b)).number.f).any(axis=-1).all()
    most = symbols.integers(-(1 << 31), (4,))
    assert (minimum(symbols, Register(most), zero).number.low == -(1 << 31)).all()


def test_subtract_and_add_again() -> None:
    symbols = Symbols(Values(3))
    a, b = variables(symbols, 4), variables(symbols, 4)
    again = add(symbols, subtract(symbols, Register(a), Register(b)), Register(b)).number
    assert (again.f == a.f).all()
    assert (again.low == a.low).all()
    other = add(symbols, subtract(symbols, Register(a), Register(b)), Register(a)).number
    assert (other.f != a.f).any(axis=-1).all()


@pytest.mark.parametrize("seed", range(4))
def test_products_of_matrices(seed: int) -> None:
    """Residues are exact, and ranges contain the results."""
    values, rng = Values(seed), np.random.default_rng(seed)
    size = int(rng.integers(1, 300))
    low = [rng.integers(-400, 400, shape) for shape in ((5, size), (size, 7))]
    high = [part + rng.integers(0, 99, part.shape) for part in low]
    numbers = [rng.integers(a, b + 1) for a, b in zip(low, high, strict=True)]
    left, right = (
        Sums(values.primes, residues(number, values.primes), a, b)
        for number, a, b in zip(numbers, low, high, strict=True)
    )
    results, exact = matmul(left, right), numbers[0] @ numbers[1]
    assert (results.f == residues(exact, values.primes)).all()
    assert (results.low <= exact).all()
    assert (exact <= results.high).all()
    known = matmul(values.integers(numbers[0]), values.integers(numbers[1]))
    assert (known.low == exact).all()
    assert results.degree == 2


def test_functions_differ_by_name_and_by_argument() -> None:
    symbols = Symbols(Values(4))
    a, b = variables(symbols, 50), variables(symbols, 50)
    results = [
        symbols.shift_right(a, 3, floor=True), symbols.shift_right(a, 3, floor=False),
        symbols.shift_right(a, 4, floor=True),
        symbols.shift_right(b, 3, floor=True), symbols.look_up(a, TABLES[0]), symbols.look_up(a, TABLES[1]),
        symbols.reciprocal(a, root=False),
        symbols.reciprocal(a, root=True), symbols.less(a, b), symbols.less(b, a), symbols.equal(a, b),
        symbols.select(symbols.less(a, b), a, b), symbols.select(symbols.less(a, b), b, a),
        symbols.multiply(a, symbols.reciprocal(b, root=False), 3, floor=False, scaled=True),
        symbols.multiply(b, symbols.reciprocal(a, root=False), 3, floor=False, scaled=True),
        symbols.to_int32(a.times_constant(1 << 26)), symbols.clamp(a, -5, 5),
    ]  # fmt: skip
    for one, other in itertools.combinations(results, 2):
        assert (one.f != other.f).any(axis=-1).all()
    assert (symbols.shift_right(a, 3, floor=True).f == results[0].f).all()


def test_softmax_depends_on_its_arguments() -> None:
    """Tables, masks, multipliers and earlier groups of a row count; masked scores do not."""
    symbols, ones = Symbols(Values(5)), np.ones(8, np.int64)
    x, valid = variables(symbols, 8).reshape(1, 8), np.arange(8)[None] < 6

    def sums(
        mantissa: int = 3,
        shift: int = 1,
        bias: int = 0,
        valid: np.ndarray = valid,
        table: bytes = TABLES[0],
        m: int = -256,
    ) -> Sums:
        y = numerics.octave_logits(symbols, x, bias * ones, mantissa * ones, shift * ones)
        e = numerics.group_exponents(symbols, y, valid)
        p = numerics.probabilities(symbols, y, valid, e, table)
        state = symbols.integers(m, (1,)), symbols.integers(0, (1,))
        return numerics.update(symbols, *state, e, p)[1]

    results = [
        sums(), sums(mantissa=5), sums(shift=2), sums(bias=1), sums(valid=np.arange(8)[None] < 5),
        sums(table=TABLES[1]), sums(m=1),
    ]  # fmt: skip
    for one, other in itertools.combinations(results, 2):
        assert (one.f != other.f).any()
    x = x.put((0, 7), symbols.integers(5, ()))
    assert (sums().f == results[0].f).all()


def test_alignments_count() -> None:
    """The alignment, known or unknown, selects the sum that is shifted."""
    symbols = Symbols(Values(6))
    before, part, alignment, another = (variables(symbols, 20) for _ in range(4))
    up = alignment.narrow(0, 31)
    plain = before.plus(part)
    known = numerics.add_aligned(symbols, before, part, symbols.integers(0, (20,)))
    assert (known.f == plain.f).all()
    results = [plain] + [
        numerics.add_aligned(symbols, before, part, each)
        for each in (
            up,
            alignment.narrow(-31, 0),
            alignment,
            another,
            symbols.integers(3, (20,)),
            symbols.integers(-3, (20,)),
        )
    ]
    for one, other in itertools.combinations(results, 2):
        assert (one.f != other.f).any(axis=-1).all()


@pytest.mark.parametrize("first", [True, False])
def test_quotients_with_and_without_alignment_differ(first: bool) -> None:
    """They differ at equal scale and exponent, in any order of use."""
    symbols = Symbols(Values(7))
    elements, sums = variables(symbols, 8).reshape(2, 1, 4), symbols.to_unsigned(variables(symbols, 2))
    alignment = variables(symbols, 2).narrow(0, 31).reshape(2, 1)
    results = [
        numerics.normalise(symbols, elements, sums, alignment if aligned else None, 77, 3, 0).f
        for aligned in (first, not first, first)
    ]
    assert (results[0] != results[1]).any(axis=-1).all()
    assert (results[0] == results[2]).all()
