"""Bytes that depend on a program's inputs, in a normal form: two that are the same function have the same residues.

A value is a constant, an input, or a result: of a set of integers p, each a polynomial in values, the maximum of::

    table[clamp(round_half_even(p / 2**shift) + zero, low, high)]

where the table may be missing. All but p is the value's *form*. Rounding, clamping and tables that do not fall go
with maxima (the maximum of results is the result of the maximum), so a maximum of values of one form is one value of
this form. A value's residues are a random function of its form and the set of its p; those of a value that is its p
are those of p.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np

from weft.extras.proof.programs.field import PRIMES, TERMS, draw_primes, hashed, residues
from weft.extras.proof.programs.form import Form
from weft.extras.proof.programs.sums import INT32, Sums, ranges

CONSTANTS = 256
"""Values from 0 on are constants: bytes."""


MAXIMUM = Form(-1, 0, -128, 127)
"""The form of maxima of values that have different ones: p are those values."""


@dataclass
class _Store:
    """What is known of values, by number."""

    f: np.ndarray
    """float64 (PRIMES, values), as products are made of them."""
    low: np.ndarray
    high: np.ndarray
    form: np.ndarray
    """Index of the form; -1 for those without one."""
    first: np.ndarray
    """Where the members of its set begin."""
    count: np.ndarray

    @classmethod
    def empty(cls, size: int) -> _Store:
        return cls(
            np.zeros((PRIMES, size)), np.zeros(size, np.int16), np.zeros(size, np.int16),
            np.full(size, -1, np.int32), np.zeros(size, np.int64), np.zeros(size, np.int32),
        )  # fmt: skip

    def grown(self, size: int) -> _Store:
        larger = _Store.empty(size)
        for name, array in vars(self).items():
            getattr(larger, name)[..., : array.shape[-1]] = array
        return larger


class Values:
    """All values of a proof; a value is a number, an index into arrays.

    Parameters
    ----------
    seed : int
        Of the primes, and of what residues inputs and results have.
    """

    def __init__(self, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self.primes = draw_primes(self._rng)
        self._seed = self._rng.bytes(16)
        self._store = _Store.empty(1 << 16)
        self._members = np.zeros((1 << 16, PRIMES), np.uint32)
        self._used = self._taken = 0
        self.symbols = 0
        """How many numbers there were that are functions of others, beside values."""
        self.degree = self._itself = 1
        """Of the polynomials that values are, or that they are made of, at most."""
        self._forms: dict[Form, int] = {}
        self._keys = np.zeros((0, PRIMES), np.uint64)
        constants = np.arange(CONSTANTS).astype(np.uint8).view(np.int8).astype(np.int64)
        self._add(residues(constants, self.primes), constants, constants)
        self._maximum = self._form(MAXIMUM)

    def __len__(self) -> int:
        return self._used

    @property
    def forms(self) -> int:
        """How many forms values have."""
        return len(self._forms)

    def inputs(self, count: int) -> np.ndarray:
        """Values of which nothing is known but that they are bytes."""
        f = np.stack([self._rng.integers(0, prime, count) for prime in self.primes], axis=-1)
        return self._add(f.astype(np.uint64), np.full(count, -128), np.full(count, 127))

    def unknown(self, count: int) -> Sums:
        """Integers of 32 bits of which nothing is known."""
        f = np.stack([self._rng.integers(0, prime, count) for prime in self.primes], axis=-1)
        ends = np.full(count, -1 << 31), np.full(count, (1 << 31) - 1)
        return Sums(self.primes, f.astype(np.uint64), *ends)

    def bounded(self, sums: Sums) -> Sums:
        """The same modulo 2**32 as int32 where that is known, and unknown where they might be no int32."""
        if not sums.overflows:
            return sums
        fixed = sums.leaves & sums.constant
        if fixed.any():
            numbers = np.where(fixed, (sums.low + INT32) % (2 * INT32) - INT32, 0)
            f = np.where(fixed[..., None], residues(numbers, self.primes), sums.f)
            low, high = (np.where(fixed, numbers, end) for end in (sums.low, sums.high))
            sums = Sums(self.primes, f, low, high, sums.degree)
        return self.unknown_where(sums.leaves, sums) if sums.overflows else sums

    def integers(self, numbers: np.ndarray) -> Sums:
        """Known integers."""
        return Sums(self.primes, residues(numbers, self.primes), numbers, numbers)

    def unknown_where(self, where: np.ndarray, sums: Sums) -> Sums:
        """The same, but unknown where the array of bool says so."""
        f, low, high = sums.f.copy(), sums.low.copy(), sums.high.copy()
        others = self.unknown(int(where.sum()))
        f[where], low[where], high[where] = others.f, others.low, others.high
        return Sums(self.primes, f, low, high, sums.degree)

    def residues(self, values: np.ndarray) -> np.ndarray:
        """uint64 (..., PRIMES): equal where values are, for all inputs, but for a chance that is named in a
        certificate."""
        return np.stack([row[values] for row in self._store.f], axis=-1).astype(np.uint64)

    def terms(self, values: np.ndarray) -> Sums:
        """Values as integers."""
        store = self._store
        low, high = (ends[values].astype(np.int64) for ends in (store.low, store.high))
        return Sums(self.primes, self.residues(values), low, high, self._itself)

    def dot(self, values: np.ndarray, zero: int, weights: np.ndarray) -> Sums:
        """Values (rows, terms) less `zero`, times integers (terms, columns) below 2**9."""
        store, primes = self._store, self.primes
        (rows, terms), columns = values.shape, weights.shape[1]
        f = np.zeros((rows, columns, PRIMES), np.uint64)
        less = -zero * weights.sum(axis=0)
        low, high = (np.broadcast_to(less, (rows, columns)) for _ in range(2))
        for first in range(0, terms, TERMS):
            part, right = values[:, first : first + TERMS], weights[first : first + TERMS].astype(np.float64)
            for index, prime in enumerate(primes):
                product = (store.f[index][part] @ right).astype(np.int64) % prime
                f[:, :, index] += product.astype(np.uint64)
            least, most = ranges(store.low[part], store.high[part], right)
            low, high = low + least, high + most
        return Sums(
            primes, (f + residues(less, primes)) % np.array(primes, np.uint64), low, high, self._itself
        )

    def constants(self, values: np.ndarray) -> np.ndarray | None:
        """The bytes of constants, uint8; None if not all are."""
        if values.size and int(values.max()) >= CONSTANTS:
            return None
        return values.astype(np.uint8)

    def results(self, p: Sums, forms: list[Form]) -> np.ndarray:
        """Values (rows, columns) with a form a column, of the sets p (rows, columns, set)."""
        rows, columns, size = p.low.shape
        found = np.empty((rows, columns), np.int64)
        kinds: dict[Form, list[int]] = {}
        for column, form in enumerate(forms):
            kinds.setdefault(form, []).append(column)
        for form, some in kinds.items():
            part = p[:, some].reshape(rows * len(some), size)
            found[:, some] = self._made(part, form).reshape(rows, len(some))
        return found

    def mapped(self, values: np.ndarray, tables: np.ndarray) -> np.ndarray:
        """What tables make of values (rows, columns): int64 (columns, 256), the results of -128 to 127."""
        made = np.empty(values.shape, np.int64)
        kinds, column_kinds = np.unique(tables, axis=0, return_inverse=True)
        for index, entries in enumerate(kinds):
            some = column_kinds.ravel() == index
            table = entries.astype(np.int8).tobytes()
            part = self._behind(values[:, some].ravel(), Form(0, 0, -128, 127, table).normal)
            made[:, some] = part.reshape(len(values), int(some.sum()))
        return made

    def _made(self, p: Sums, form: Form) -> np.ndarray:
        """Values of sets (count, set) of one form."""
        self.degree = max(self.degree, p.degree)
        low, high = p.low.max(axis=1), p.high.max(axis=1)
        if form.shift == 0 and not form.table and p.low.shape[1] == 1:
            inside = (low + form.zero >= form.low) & (high + form.zero <= form.high)
            if inside.all():
                moved = p[:, 0].shifted(form.zero)
                self._itself = max(self._itself, p.degree)
                return self._add(moved.f, moved.low, moved.high)
            if inside.any():
                made = np.empty(len(low), np.int64)
                for some in (inside, ~inside):
                    made[some] = self._made(p[some], form)
                return made
        if p.low.shape[1] > 1:
            rising = form if form.rises else form._replace(table=b"")
            fixed = np.asarray(rising.of(p.low) == rising.of(p.high))
            if fixed.any():
                return self._floored(p, form, fixed)
        form = form.normal
        index = self._form(form)
        members, kept = _unique(p.f)
        f = hashed(members, kept, np.broadcast_to(self._keys[index], (len(low), PRIMES)))
        least, most = form.ends(low, high)
        return self._add(f, least, most, index, members, kept)

    def _floored(self, p: Sums, form: Form, fixed: np.ndarray) -> np.ndarray:
        """The same of sets with members whose results are constants, which are a lower bound of the clamp."""
        plain = form._replace(table=b"")
        floor = np.where(fixed, plain.of(np.where(fixed, p.low, 0)), form.low).max(axis=1)
        other = (~fixed).argmax(axis=1)  # 0, a constant, if all are
        whole = np.asarray(fixed.all(axis=1))
        chosen = np.where(fixed & ~whole[:, None], other[:, None], np.arange(fixed.shape[1]))
        left = p[np.arange(len(floor))[:, None], chosen]
        floor = np.where(plain.of(left.low.max(axis=1)) >= floor, form.low, floor)  # it bounds nothing
        made = np.empty(len(floor), np.int64)
        made[whole] = form.of(p.low[whole].max(axis=1)) & 0xFF
        for bound in np.unique(floor[~whole]):
            some = ~whole & (floor == bound)
            made[some] = self._made(left[some], form._replace(low=int(bound)))
        return made

    def _behind(self, source: np.ndarray, form: Form) -> np.ndarray:
        """Values that are clamped and looked up again: `form` has no shift, and its results are bytes."""
        store = self._store
        made = source.copy()
        low, high = store.low[source].astype(np.int64), store.high[source].astype(np.int64)
        changed = (low + form.zero < form.low) | (high + form.zero > form.high)
        changed |= bool(form.table) or form.zero != 0
        before = np.where(store.form[source] == self._maximum, -1, store.form[source])
        inverse = {index: item for item, index in self._forms.items()}
        for index in np.unique(before[changed]):
            some = changed & (before == index)
            if index < 0:
                made[some] = self._made(self.terms(source[some]).reshape(-1, 1), form)
            else:
                made[some] = self._again(source[some], inverse[int(index)].before(form), form)
        return made

    def _again(self, values: np.ndarray, joined: Form, form: Form) -> np.ndarray:
        """The same sets in another form, of which `form` is the last part."""
        store, index = self._store, self._form(joined)
        members, kept = self._sets(values)
        f = hashed(members, kept, np.broadcast_to(self._keys[index], (len(values), PRIMES)))
        ends = form.ends(store.low[values].astype(np.int64), store.high[values].astype(np.int64))
        return self._add(f, *ends, index, members, kept)

    def maximum(self, values: np.ndarray, valid: np.ndarray) -> np.ndarray:
        """The largest of each set of values (..., set), of those that are `valid`, of which there is one in each."""
        shape, size = values.shape[:-1], values.shape[-1]
        fixed = valid & (values < CONSTANTS)
        if fixed.any():
            return self._above(values, valid, fixed)
        values, valid = values.reshape(-1, size), np.broadcast_to(valid, values.shape).reshape(-1, size)
        chosen = np.take_along_axis(values, valid.argmax(axis=1)[:, None], axis=1)
        values = np.where(valid, values, chosen)  # what is not valid is the same as one that is
        if size == 1:
            return values.reshape(shape)
        forms = self._store.form[values]
        rising = np.array([form.rises for form in self._forms], bool)
        alike = (forms == forms[:, :1]).all(axis=1) & (forms[:, 0] >= 0)
        alike &= rising[np.maximum(forms[:, 0], 0)]
        made = np.empty(len(values), np.int64)
        for index in np.unique(forms[alike, 0]):
            some = alike & (forms[:, 0] == index)
            made[some] = self._largest(values[some], int(index))
        made[~alike] = self._largest(values[~alike], None)
        return made.reshape(shape)

    def _above(self, values: np.ndarray, valid: np.ndarray, fixed: np.ndarray) -> np.ndarray:
        """The same of sets with constants: those are a lower bound of a clamp."""
        floor = np.where(fixed, self._store.low[values], -128).max(axis=-1).astype(np.int64)
        left = valid & ~fixed & (self._store.high[values] > floor[..., None])
        whole = ~left.any(axis=-1)
        made = np.empty(floor.shape, np.int64)
        made[whole] = floor[whole] & 0xFF
        for bound in np.unique(floor[~whole]):
            some = ~whole & (floor == bound)
            most = self.maximum(values[some], np.broadcast_to(left, values.shape)[some])
            made[some] = self._behind(most, Form(0, 0, int(bound), 127))
        return made

    def _largest(self, values: np.ndarray, form: int | None) -> np.ndarray:
        """The maxima of sets (count, set) that have this form, or different ones."""
        if not len(values):
            return np.empty(0, np.int64)
        store = self._store
        apart = None if form is not None else store.form[values] != self._maximum
        members, kept = _unique(self._all_members(values, apart))
        index = self._maximum if form is None else form
        f = hashed(members, kept, np.broadcast_to(self._keys[index], (len(values), PRIMES)))
        low, high = (ends[values].max(axis=1).astype(np.int64) for ends in (store.low, store.high))
        made = self._add(f, low, high, index, members, kept)
        same = (store.f[:, values] == store.f[:, values[:, :1]]).all(axis=(0, 2))
        return np.where(same, values[:, 0], made)

    def _all_members(self, values: np.ndarray, apart: np.ndarray | None) -> np.ndarray:
        """The members of all values of sets (count, set), filled up with what is there; of values `apart` they
        themselves."""
        count, size = values.shape
        members, kept = self._sets(values.reshape(-1))
        if kept is not None:
            members = np.where(kept[..., None], members, members[:, :1])
        if apart is not None:
            itself = self.residues(values.reshape(-1))[:, None]
            members = np.where(apart.reshape(-1, 1, 1), itself, members)
        return members.reshape(count, size * members.shape[1], PRIMES)

    def _sets(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """The members of values (count, most, PRIMES), and which of them count."""
        first, count = self._store.first[values], self._store.count[values]
        most = max(int(count.max(initial=1)), 1)
        steps = np.arange(most)
        kept = steps < np.maximum(count, 1)[:, None]
        members = self._members[np.where(kept, first[:, None] + steps, first[:, None])].astype(np.uint64)
        return members, None if kept.all() else kept

    def keys(self, what: str) -> np.ndarray:
        """Random numbers for what is described by some text, uint64 (PRIMES,)."""
        digest = hashlib.blake2b(what.encode(), key=self._seed, digest_size=8 * PRIMES).digest()
        return np.frombuffer(digest, np.uint64)

    def _form(self, form: Form) -> int:
        """The index of a form."""
        if form not in self._forms:
            self._keys = np.concatenate([self._keys, self.keys(repr(form))[None]])
            self._forms[form] = len(self._forms)
        return self._forms[form]

    def _add(
        self, f: np.ndarray, low: np.ndarray, high: np.ndarray, form: int = -1,
        members: np.ndarray | None = None, kept: np.ndarray | None = None,
    ) -> np.ndarray:  # fmt: skip
        """Values with these residues and ranges, which become constants where the range is one number."""
        first, count = self._used, len(f)
        while first + count > len(self._store.low):
            self._store = self._store.grown(2 * len(self._store.low))
        at, store = slice(first, first + count), self._store
        store.f[:, at] = (f % np.array(self.primes, np.uint64)).T
        store.low[at], store.high[at] = low, high
        self._used += count
        if form >= 0:
            assert members is not None
            store.form[at] = form
            store.first[at], store.count[at] = self._keep(members, kept)
        found = np.arange(first, first + count)
        if first >= CONSTANTS:
            found = np.where(low == high, low & 0xFF, found)
        return found

    def _keep(self, members: np.ndarray, kept: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Store the members of sets; where each begins, and how many there are."""
        shape = members.shape[:2]
        kept = np.ones(shape, bool) if kept is None else kept
        counts = kept.sum(axis=1)
        flat = members[kept]
        while self._taken + len(flat) > len(self._members):
            self._members = np.concatenate([self._members, np.zeros_like(self._members)])
        self._members[self._taken : self._taken + len(flat)] = flat
        first = self._taken + np.cumsum(counts) - counts
        self._taken += len(flat)
        return first, counts


def _unique(members: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """Sets (count, set, PRIMES), sorted, and which members are not the same as the one before; None if all."""
    if members.shape[1] == 1:
        return members, None
    keys = members[..., 0] | members[..., 1] << np.uint64(32)
    order = np.argsort(keys, axis=1, kind="stable")
    ordered = np.take_along_axis(members, order[..., None], axis=1)
    kept = np.ones(keys.shape, bool)
    kept[:, 1:] = (ordered[:, 1:] != ordered[:, :-1]).any(axis=-1)
    return ordered, None if kept.all() else kept
