"""Bytes that depend on a program's inputs, in a normal form: equal functions have equal residues.

A value is a constant, an input, or a result: the maximum, over a set of integers p, each a polynomial in values, of::

    table[clamp(round_half_even(p / 2**shift) + zero, low, high)]

The table is optional. Shift, zero, bounds and table are the value's *form*; the integers p are its *members*. Rounding,
clamping and monotonic tables commute with maxima, so a maximum of values of equal forms is one value of this form. A
value's residues are a hash of its form and its set of members, except where the form changes nothing: there they are
the residues of p.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from weft.extras.proof.programs.field import EXACT_TERMS, PRIMES, draw_primes, hash_sets, moduli, residues
from weft.extras.proof.programs.form import Form
from weft.extras.proof.programs.sums import INT32, Sums, matmul_ranges

CONSTANTS = 256
"""Values below this number are constants: the bytes themselves."""


MAXIMUM = Form(-1, 0, -128, 127)
"""Form of a maximum of values of different forms; its members are these values."""


@dataclass
class _Store:
    """Table of all values, one column per value."""

    f: np.ndarray
    """Residues, float64 (PRIMES, values): `Values.dot` multiplies them in float64."""
    low: np.ndarray
    high: np.ndarray
    form: np.ndarray
    """Index of the form; -1 for none."""
    first: np.ndarray
    """Index of the first member."""
    count: np.ndarray
    """Number of members."""

    @classmethod
    def empty(cls, size: int) -> _Store:
        return cls(
            np.zeros((PRIMES, size)),
            np.zeros(size, np.int16),
            np.zeros(size, np.int16),
            np.full(size, -1, np.int32),
            np.zeros(size, np.int64),
            np.zeros(size, np.int32),
        )

    def resize(self, size: int) -> _Store:
        larger = _Store.empty(size)
        for name, array in vars(self).items():
            getattr(larger, name)[..., : array.shape[-1]] = array
        return larger


class Values:
    """All values of a proof. A value is a number, its index in the arrays of this class.

    Parameters
    ----------
    seed : int
        Seed of the primes and of all residues.
    """

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self.primes = draw_primes(self._rng)
        self._seed = self._rng.bytes(16)
        self._store = _Store.empty(1 << 16)
        self._members = np.zeros((1 << 16, PRIMES), np.uint32)
        self._count = self._member_count = 0
        self.function_count = 0
        """Number of integers that are functions of other integers, in addition to values."""
        self.degree = self._value_degree = 1
        """Upper bound of the degree of members; `_value_degree` of values that are polynomials themselves."""
        self._forms: dict[Form, int] = {}
        self._keys = np.zeros((0, PRIMES), np.uint64)
        constants = np.arange(CONSTANTS).astype(np.uint8).view(np.int8).astype(np.int64)
        self._add(residues(constants, self.primes), constants, constants)
        self._maximum = self._form_index(MAXIMUM)

    def __len__(self) -> int:
        return self._count

    @property
    def form_count(self) -> int:
        """Number of different forms."""
        return len(self._forms)

    def new_inputs(self, count: int) -> np.ndarray:
        """Add `count` independent values of any byte: int64 (count,)."""
        return self._add(self._random_residues(count), np.full(count, -128), np.full(count, 127))

    def new_unknown(self, count: int) -> Sums:
        """Return `count` independent integers of any int32."""
        ends = np.full(count, -INT32), np.full(count, INT32 - 1)
        return Sums(self.primes, self._random_residues(count), *ends)

    def _random_residues(self, count: int) -> np.ndarray:
        f = np.stack([self._rng.integers(0, prime, count) for prime in self.primes], axis=-1)
        return f.astype(np.uint64)

    def limit_to_int32(self, sums: Sums) -> Sums:
        """Wrap constants to int32, and replace other integers that may be outside int32 by unknown ones."""
        if not sums.may_overflow:
            return sums
        fixed = sums.int32_overflow & sums.constant
        if fixed.any():
            numbers = np.where(fixed, (sums.low + INT32) % (2 * INT32) - INT32, 0)
            f = np.where(fixed[..., None], residues(numbers, self.primes), sums.f)
            low, high = (np.where(fixed, numbers, end) for end in (sums.low, sums.high))
            sums = Sums(self.primes, f, low, high, sums.degree)
        return self.replace_by_unknown(sums.int32_overflow, sums) if sums.may_overflow else sums

    def integers(self, numbers: np.ndarray) -> Sums:
        """Return constants, int64 (...), as `Sums`."""
        return Sums(self.primes, residues(numbers, self.primes), numbers, numbers)

    def replace_by_unknown(self, where: np.ndarray, sums: Sums) -> Sums:
        """Replace integers by unknown ones where a mask is True."""
        f, low, high = sums.f.copy(), sums.low.copy(), sums.high.copy()
        others = self.new_unknown(int(where.sum()))
        f[where], low[where], high[where] = others.f, others.low, others.high
        return Sums(self.primes, f, low, high, sums.degree)

    def residues(self, values: np.ndarray) -> np.ndarray:
        """Return residues, uint64 (..., PRIMES).

        Two values with equal residues are equal for all inputs, except with the probability that a proof reports.
        """
        return np.stack([row[values] for row in self._store.f], axis=-1).astype(np.uint64)

    def integers_of(self, values: np.ndarray) -> Sums:
        """Return values as integers from -128 to 127."""
        store = self._store
        low, high = (ends[values].astype(np.int64) for ends in (store.low, store.high))
        return Sums(self.primes, self.residues(values), low, high, self._value_degree)

    def dot(self, values: np.ndarray, zero: int, weights: np.ndarray) -> Sums:
        """Multiply values (rows, terms), less `zero`, by integers (terms, columns) below 2**9."""
        store, primes = self._store, self.primes
        (rows, terms), columns = values.shape, weights.shape[1]
        f = np.zeros((rows, columns, PRIMES), np.uint64)
        offset = -zero * weights.sum(axis=0)
        low, high = (np.broadcast_to(offset, (rows, columns)) for _ in range(2))
        for first in range(0, terms, EXACT_TERMS):
            some = slice(first, first + EXACT_TERMS)
            part, right = values[:, some], weights[some].astype(np.float64)
            for index, prime in enumerate(primes):
                product = (store.f[index][part] @ right).astype(np.int64) % prime
                f[:, :, index] += product.astype(np.uint64)
            least, most = matmul_ranges(store.low[part], store.high[part], right)
            low, high = low + least, high + most
        f = (f + residues(offset, primes)) % moduli(primes)
        return Sums(primes, f, low, high, self._value_degree)

    def constant_bytes(self, values: np.ndarray) -> np.ndarray | None:
        """Return the bytes, uint8, of values that are all constants, or else None."""
        if values.size and int(values.max()) >= CONSTANTS:
            return None
        return values.astype(np.uint8)

    def apply_forms(self, p: Sums, forms: list[Form]) -> np.ndarray:
        """Return the results (rows, columns) of sets of members (rows, columns, set), with one form per column."""
        rows, columns, size = p.low.shape
        results = np.empty((rows, columns), np.int64)
        columns_of: dict[Form, list[int]] = {}
        for column, form in enumerate(forms):
            columns_of.setdefault(form, []).append(column)
        for form, some in columns_of.items():
            part = p[:, some].reshape(rows * len(some), size)
            results[:, some] = self._apply_form(part, form).reshape(rows, len(some))
        return results

    def apply_tables(self, values: np.ndarray, tables: np.ndarray) -> np.ndarray:
        """Look up values (rows, columns) in tables, int64 (columns, 256), of the results of -128 to 127."""
        results = np.empty(values.shape, np.int64)
        different, table_of_column = np.unique(tables, axis=0, return_inverse=True)
        for index, entries in enumerate(different):
            some = table_of_column.ravel() == index
            table = entries.astype(np.int8).tobytes()
            part = self._compose(values[:, some].ravel(), Form(0, 0, -128, 127, table).canonical)
            results[:, some] = part.reshape(len(values), int(some.sum()))
        return results

    def _apply_form(self, p: Sums, form: Form) -> np.ndarray:
        """Return the results (count,) of sets of members (count, set)."""
        self.degree = max(self.degree, p.degree)
        low, high = p.low.max(axis=1), p.high.max(axis=1)
        # Where a form only adds a constant, the result stays a polynomial.
        if form.shift == 0 and not form.table and p.low.shape[1] == 1:
            inside = (low + form.zero >= form.low) & (high + form.zero <= form.high)
            if inside.all():
                moved = p[:, 0].plus_constant(form.zero)
                self._value_degree = max(self._value_degree, p.degree)
                return self._add(moved.f, moved.low, moved.high)
            if inside.any():
                results = np.empty(len(low), np.int64)
                for some in (inside, ~inside):
                    results[some] = self._apply_form(p[some], form)
                return results
        if p.low.shape[1] > 1:
            monotonic = form if form.monotonic else form._replace(table=b"")
            fixed = np.asarray(monotonic.apply(p.low) == monotonic.apply(p.high))
            if fixed.any():
                return self._apply_form_with_constants(p, form, fixed)
        form = form.canonical
        return self._add_sets(self._form_index(form), *_unique(p.f), *form.apply_range(low, high))

    def _apply_form_with_constants(self, p: Sums, form: Form, fixed: np.ndarray) -> np.ndarray:
        """Apply a form to sets with `fixed` members, whose results are constants and raise the clamp's lower bound."""
        plain = form._replace(table=b"")
        floor = np.where(fixed, plain.apply(np.where(fixed, p.low, 0)), form.low).max(axis=1)
        other = (~fixed).argmax(axis=1)  # 0, the index of a fixed member, if all are fixed
        all_fixed = np.asarray(fixed.all(axis=1))
        chosen = np.where(fixed & ~all_fixed[:, None], other[:, None], np.arange(fixed.shape[1]))
        rest = p[np.arange(len(floor))[:, None], chosen]
        # A bound that no result is below does not count.
        floor = np.where(plain.apply(rest.low.max(axis=1)) >= floor, form.low, floor)
        results = np.empty(len(floor), np.int64)
        results[all_fixed] = form.apply(p.low[all_fixed].max(axis=1)) & 0xFF
        for bound in np.unique(floor[~all_fixed]):
            some = ~all_fixed & (floor == bound)
            results[some] = self._apply_form(rest[some], form._replace(low=int(bound)))
        return results

    def _compose(self, values: np.ndarray, form: Form) -> np.ndarray:
        """Apply a form without shift to values (count,)."""
        store = self._store
        results = values.copy()
        low, high = store.low[values].astype(np.int64), store.high[values].astype(np.int64)
        changed = (low + form.zero < form.low) | (high + form.zero > form.high)
        changed |= bool(form.table) or form.zero != 0
        # A value with a form gets the composed form of its members; others become members themselves.
        first_form = np.where(store.form[values] == self._maximum, -1, store.form[values])
        form_of = {index: item for item, index in self._forms.items()}
        for index in np.unique(first_form[changed]):
            some = changed & (first_form == index)
            source = values[some]
            if index < 0:
                results[some] = self._apply_form(self.integers_of(source).reshape(-1, 1), form)
                continue
            joined = self._form_index(form_of[int(index)].then(form))
            ends = form.apply_range(low[some], high[some])
            results[some] = self._add_sets(joined, *self._members_of(source), *ends)
        return results

    def maximum(self, values: np.ndarray, valid: np.ndarray) -> np.ndarray:
        """Return the largest valid value of each set (..., set). Each set has a valid value."""
        shape, size = values.shape[:-1], values.shape[-1]
        fixed = valid & (values < CONSTANTS)
        if fixed.any():
            return self._maximum_with_constants(values, valid, fixed)
        values, valid = values.reshape(-1, size), np.broadcast_to(valid, values.shape).reshape(-1, size)
        first_valid = np.take_along_axis(values, valid.argmax(axis=1)[:, None], axis=1)
        values = np.where(valid, values, first_valid)  # a repeated member does not change a maximum
        if size == 1:
            return values.reshape(shape)
        forms = self._store.form[values]
        monotonic = np.array([form.monotonic for form in self._forms], bool)
        uniform = (forms == forms[:, :1]).all(axis=1) & (forms[:, 0] >= 0)
        uniform &= monotonic[np.maximum(forms[:, 0], 0)]
        largest = np.empty(len(values), np.int64)
        for index in np.unique(forms[uniform, 0]):
            some = uniform & (forms[:, 0] == index)
            largest[some] = self._maximum_of_form(values[some], int(index))
        largest[~uniform] = self._maximum_of_form(values[~uniform], None)
        return largest.reshape(shape)

    def _maximum_with_constants(self, values: np.ndarray, valid: np.ndarray, fixed: np.ndarray) -> np.ndarray:
        """Return the largest value of sets with constants, which become the lower bound of a clamp."""
        floor = np.where(fixed, self._store.low[values], -128).max(axis=-1).astype(np.int64)
        rest = valid & ~fixed & (self._store.high[values] > floor[..., None])
        only_floor = ~rest.any(axis=-1)
        largest = np.empty(floor.shape, np.int64)
        largest[only_floor] = floor[only_floor] & 0xFF
        for bound in np.unique(floor[~only_floor]):
            some = ~only_floor & (floor == bound)
            most = self.maximum(values[some], np.broadcast_to(rest, values.shape)[some])
            largest[some] = self._compose(most, Form(0, 0, int(bound), 127))
        return largest

    def _maximum_of_form(self, values: np.ndarray, form: int | None) -> np.ndarray:
        """Return the largest values of sets (count, set) of one form, or, for None, of different forms."""
        if not len(values):
            return np.empty(0, np.int64)
        store = self._store
        single = None if form is not None else store.form[values] != self._maximum
        members, mask = _unique(self._members_of_sets(values, single))
        index = self._maximum if form is None else form
        low, high = (ends[values].max(axis=1).astype(np.int64) for ends in (store.low, store.high))
        largest = self._add_sets(index, members, mask, low, high)
        # The maximum of equal values is that value.
        equal = (store.f[:, values] == store.f[:, values[:, :1]]).all(axis=(0, 2))
        return np.where(equal, values[:, 0], largest)

    def _members_of_sets(self, values: np.ndarray, single: np.ndarray | None) -> np.ndarray:
        """Return the members of all values of sets (count, set); a `single` value is its own member.

        Values with fewer members than others repeat their first one.
        """
        count, size = values.shape
        members, mask = self._members_of(values.reshape(-1))
        if mask is not None:
            members = np.where(mask[..., None], members, members[:, :1])
        if single is not None:
            own = self.residues(values.reshape(-1))[:, None]
            members = np.where(single.reshape(-1, 1, 1), own, members)
        return members.reshape(count, size * members.shape[1], PRIMES)

    def _members_of(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the members of values, (count, most members, PRIMES), and a mask of those that count."""
        first, count = self._store.first[values], self._store.count[values]
        most = max(int(count.max(initial=1)), 1)
        steps = np.arange(most)
        mask = steps < np.maximum(count, 1)[:, None]
        members = self._members[np.where(mask, first[:, None] + steps, first[:, None])].astype(np.uint64)
        return members, None if mask.all() else mask

    def random_words(self, name: str) -> np.ndarray:
        """Return random words, uint64 (PRIMES,), that depend on a name and the seed."""
        digest = hashlib.blake2b(name.encode(), key=self._seed, digest_size=8 * PRIMES).digest()
        return np.frombuffer(digest, np.uint64)

    def _form_index(self, form: Form) -> int:
        if form not in self._forms:
            self._keys = np.concatenate([self._keys, self.random_words(repr(form))[None]])
            self._forms[form] = len(self._forms)
        return self._forms[form]

    def _add_sets(
        self, form: int, members: np.ndarray, mask: np.ndarray | None, low: np.ndarray, high: np.ndarray
    ) -> np.ndarray:
        """Add values of a form, with sets of members (count, set, PRIMES); return them, int64 (count,)."""
        f = hash_sets(members, mask, np.broadcast_to(self._keys[form], (len(members), PRIMES)))
        added = slice(self._count, self._count + len(f))
        values = self._add(f, low, high)
        store = self._store
        store.form[added] = form
        store.first[added], store.count[added] = self._add_members(members, mask)
        return values

    def _add(self, f: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Add values; return them, int64 (count,): a constant where the range is one number."""
        first, count = self._count, len(f)
        while first + count > len(self._store.low):
            self._store = self._store.resize(2 * len(self._store.low))
        at, store = slice(first, first + count), self._store
        store.f[:, at] = (f % moduli(self.primes)).T
        store.low[at], store.high[at] = low, high
        self._count += count
        values = np.arange(first, first + count)
        if first >= CONSTANTS:  # the constants themselves are added first
            values = np.where(low == high, low & 0xFF, values)
        return values

    def _add_members(self, members: np.ndarray, mask: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Store sets of members; return the index of each set's first member, and the sizes of the sets."""
        mask = np.ones(members.shape[:2], bool) if mask is None else mask
        counts = mask.sum(axis=1)
        flat = members[mask]
        while self._member_count + len(flat) > len(self._members):
            self._members = np.concatenate([self._members, np.zeros_like(self._members)])
        self._members[self._member_count : self._member_count + len(flat)] = flat
        first = self._member_count + np.cumsum(counts) - counts
        self._member_count += len(flat)
        return first, counts


def _unique(members: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Sort sets (count, set, PRIMES); return them and a mask without repeated members, or None if there are none."""
    if members.shape[1] == 1:
        return members, None
    # Two of the residues are enough to bring equal members together; the comparison below uses all.
    keys = members[..., 0] | members[..., 1] << np.uint64(32)
    order = np.argsort(keys, axis=1, kind="stable")
    ordered = np.take_along_axis(members, order[..., None], axis=1)
    mask = np.ones(keys.shape, bool)
    mask[:, 1:] = (ordered[:, 1:] != ordered[:, :-1]).any(axis=-1)
    return ordered, None if mask.all() else mask
