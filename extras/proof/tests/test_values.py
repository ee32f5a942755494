"""Normal form of values: residues are equal exactly for equal functions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.extras.proof.programs.field import PRIMES, draw_primes, hash_sets, is_prime
from weft.extras.proof.programs.form import Form
from weft.extras.proof.programs.requantise import requantise
from weft.extras.proof.programs.sums import concatenate
from weft.extras.proof.programs.values import CONSTANTS, Values
from weft.sim.golden.memories import round_half_even

TABLES = st.sampled_from([b"", bytes(range(128, 256)) + bytes(range(128)), bytes(range(256)), bytes(256)])
FORMS = st.builds(
    Form, st.integers(0, 12), st.integers(-128, 127), st.integers(-128, 0), st.integers(0, 127), TABLES
)


def test_primes() -> None:
    small = [n for n in range(3, 2000, 2) if is_prime(n)]
    assert small == [n for n in range(3, 2000, 2) if all(n % d for d in range(3, n, 2))]
    assert is_prime((1 << 31) - 1)
    assert not is_prime(65537 * 32749)
    primes = draw_primes(np.random.default_rng(1))
    assert len(set(primes)) == PRIMES
    assert all(1 << 30 <= prime < 1 << 31 and is_prime(prime) for prime in primes)


def test_hashes_of_sets_have_no_order() -> None:
    rng = np.random.default_rng(2)
    members = rng.integers(0, 1 << 31, (50, 4, PRIMES)).astype(np.uint64)
    keys = rng.integers(0, 1 << 63, (50, PRIMES)).astype(np.uint64)
    actual = hash_sets(members, None, keys)
    assert (hash_sets(members[:, ::-1], None, keys) == actual).all()
    assert len(np.unique(actual, axis=0)) == 50
    other = members.copy()
    other[:, 2, 1] ^= np.uint64(1)
    assert (hash_sets(other, None, keys) != actual).any(axis=1).all()


@given(form=FORMS, numbers=st.lists(st.integers(-(1 << 20), 1 << 20), min_size=1, max_size=20))
def test_forms_equal_the_device(form: Form, numbers: list[int]) -> None:
    p = np.array(numbers)
    q = np.clip(round_half_even(p, np.array(form.shift)) + form.zero, form.low, form.high)
    table = np.frombuffer(form.table, np.int8) if form.table else np.arange(-128, 128)
    assert (form.apply(p) == table[q + 128]).all()
    assert (form.canonical.apply(p) == form.apply(p)).all()


@given(form=FORMS, then=FORMS, numbers=st.lists(st.integers(-(1 << 20), 1 << 20), min_size=1, max_size=20))
def test_composition_of_forms(form: Form, then: Form, numbers: list[int]) -> None:
    then, p = then._replace(shift=0), np.array(numbers)
    assert (form.then(then).apply(p) == then.apply(form.apply(p))).all()


def column(values: Values, numbers: np.ndarray, form: Form) -> np.ndarray:
    """Return results of one column."""
    sums = values.integers_of(numbers)
    return values.apply_forms(sums.reshape(*sums.low.shape, 1), [form])


def test_equal_functions_have_equal_residues() -> None:
    """Two clamps, a table before or after a maximum, and a sum in another order."""
    values = Values(3)
    x = values.new_inputs(30).reshape(-1, 3)
    rising = bytes((np.arange(-128, 128) // 3).astype(np.int8).tobytes())
    form = Form(2, 5, -100, 90)
    each = np.stack([column(values, x[:, [i]], form)[:, 0] for i in range(3)], axis=1)
    behind = values._compose(values.maximum(each, np.ones_like(each, bool)), Form(0, 0, -128, 127, rising))
    ahead = np.stack([values._compose(item, Form(0, 0, -128, 127, rising)) for item in each.T], axis=1)
    most = values.maximum(ahead[:, ::-1], np.ones_like(each, bool))
    assert (values.residues(behind) == values.residues(most)).all()
    a, b, c = (values.integers_of(item) for item in x.T)
    left, right = a.plus(b).times_constant(3).plus(c), c.plus(b.times_constant(3)).plus(a.times_constant(3))
    assert (left.f == right.f).all()
    other = c.plus(b.times_constant(3)).plus(a.times_constant(4))
    assert (left.f != other.f).any(axis=1).all()


def test_two_scales_are_one_table() -> None:
    """A program may use one table for two scales of the network."""
    values, numbers = Values(5), np.arange(-128, 128)
    x = values.new_inputs(6).reshape(-1, 2)
    first, second = (7, 4, (3, -128, 127)), (21, 5, (-9, -128, 127))
    columns = np.ones(2, np.int64)

    def scaled(
        source: np.ndarray, mantissa: int, shift: int, clamp: tuple[int, int, int], table: bytes
    ) -> np.ndarray:
        sums = values.integers_of(source).reshape(*source.shape, 1)
        own = source, 0 * columns
        return requantise(values, sums, mantissa * columns, shift * columns, clamp, table, source=own)

    twice = scaled(scaled(x, *first, b""), *second, b"")
    clamp = second[2]
    joined = np.clip(round_half_even(numbers * second[0], np.array(second[1])) + clamp[0], clamp[1], clamp[2])
    once = scaled(x, *first, joined.astype(np.int8).tobytes())
    assert (values.residues(twice) == values.residues(once)).all()
    joined[128 + 20] += 1
    other = scaled(x, *first, joined.astype(np.int8).tobytes())
    assert (values.residues(twice) != values.residues(other)).any(axis=-1).all()


def test_members_below_others_do_not_count() -> None:
    """Members whose results are always the lower clamp do not count, nor a constant below others."""
    values = Values(6)
    x = values.new_inputs(3)
    form = Form(2, 0, -20, 127)
    low = values.integers_of(x).plus_constant(-1000)
    sums = values.integers_of(x)
    both = concatenate([sums.reshape(3, 1, 1), low.reshape(3, 1, 1)], 2)
    alone = values.apply_forms(sums.reshape(3, 1, 1), [form])
    assert (values.residues(values.apply_forms(both, [form])) == values.residues(alone)).all()
    floor = np.stack([alone[:, 0], np.full(3, -10 & 0xFF)], axis=1)
    most = values.maximum(floor, np.ones((3, 2), bool))
    raised = values.apply_forms(sums.reshape(3, 1, 1), [form._replace(low=-10)])
    assert (values.residues(most) == values.residues(raised)[:, 0]).all()


@pytest.mark.parametrize("field", ["shift", "zero", "low", "high"])
def test_other_forms_are_other_values(field: str) -> None:
    values = Values(4)
    x = values.new_inputs(5)[:, None]
    form = Form(3, 1, -50, 60)
    changed = form._replace(**{field: getattr(form, field) + 1})
    assert (
        (values.residues(column(values, x, form)) != values.residues(column(values, x, changed))).any(2).all()
    )


@settings(deadline=None)  # a loaded machine takes longer than 200 ms
@given(seed=st.integers(0, 1 << 20))
def test_ranges_contain_results(seed: int) -> None:
    """Results at random points are within the ranges of random sums."""
    rng = np.random.default_rng(seed)
    values = Values(seed)
    inputs = values.new_inputs(4)
    numbers = np.where(rng.random(12) < 0.4, rng.integers(0, CONSTANTS, 12), rng.choice(inputs, 12)).reshape(
        3, 4
    )
    weights, zero = rng.integers(-255, 256, (4, 2)), int(rng.integers(-128, 128))
    sums = values.dot(numbers, zero, weights)
    mantissa, shift = rng.integers(0, 1 << 10, 2), rng.integers(0, 20, 2)
    clamp = int(rng.integers(-128, 128)), int(rng.integers(-128, 1)), int(rng.integers(0, 128))
    made = requantise(values, sums.reshape(3, 2, 1), mantissa, shift, clamp)
    results = values.integers_of(made)
    for _ in range(5):
        point = rng.choice([-128, 127, 0, 5, -7], 4)
        known = np.where(numbers < CONSTANTS, (numbers + 128) % 256 - 128, 0)
        for index, value in enumerate(inputs):
            known = np.where(numbers == value, point[index], known)
        exact = (known - zero) @ weights
        assert (sums.low <= exact).all()
        assert (exact <= sums.high).all()
        q = np.clip(round_half_even(exact * mantissa, shift) + clamp[0], clamp[1], clamp[2])
        assert (results.low <= q).all()
        assert (q <= results.high).all()
