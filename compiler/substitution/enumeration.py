"""All small terms of a family of operators, told apart by their values on random integers.

Terms are made size by size from the first term found of each class of equal ones, so that a rule is found where two
terms first become equal, and not again wherever both are part of something (C. Nandi et al., Ruler, OOPSLA 2021;
Z. Jia et al., TASO, SOSP 2019). Equal values are what a proof has still to confirm.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from weft.compiler.substitution.domains import Integers
from weft.compiler.substitution.families import Family
from weft.compiler.substitution.meaning import NoMeaning, Setting, applied
from weft.compiler.substitution.rule_proof import SIZES, WINDOWS, Scene, shape_of
from weft.compiler.substitution.term import ARITY, SLOTS, Term

_SCENE = Scene(SIZES[0], 2, (("a", WINDOWS[0]), ("b", WINDOWS[0])))
_ROWS = 4096
"""Pairs of operands whose values are made at a time."""


Operator = tuple[str, str, str]


@dataclass(eq=False)
class _Level:
    """The first terms of their classes of one size and shape, and their values, (terms, ...)."""

    terms: list[Term]
    values: np.ndarray


class Enumeration:
    """Pairs of terms with equal values, of one family.

    Parameters
    ----------
    family : Family
    seed : int
        Of the random integers.

    Attributes
    ----------
    terms : int
        Terms that were made.
    """

    def __init__(self, family: Family, seed: int) -> None:
        self.family, self.terms = family, 0
        rng = np.random.default_rng(seed)
        self._domain = Integers()
        self._factors = rng.integers(1, 1 << 63, 4096, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        self._windows = {**_SCENE.known}
        self._known: dict[tuple[tuple[int, ...], int], Term] = {}
        self._levels: list[dict[tuple[tuple[int, ...], bool], _Level]] = []
        self._rng = rng

    def pairs(self) -> Iterator[tuple[Term, Term]]:
        """A new term, and the first one that was equal, in the order of their sizes."""
        for name in self.family.variables:
            high, shape = (30, 4)[shape_is_weight(name)], shape_of(name, _SCENE)
            self._add(
                0, [Term(name)], self._rng.integers(-high, high + 1, (1, *shape)), shape_is_weight(name)
            )
        for size in range(1, self.family.size + 1):
            self._levels.append({}) if len(self._levels) <= size else None
            yield from self._unary(size)
            yield from self._binary(size)

    def _unary(self, size: int) -> Iterator[tuple[Term, Term]]:
        for operator in self._told(1):
            for (_, weight), level in list(self._levels[size - 1].items()):
                if weight != (operator[0] in ("grow", "dense", "spun")):
                    continue
                terms = [Term(*operator, (term,)) for term in level.terms]
                if weight:
                    for term, value in zip(terms, level.values, strict=True):
                        yield from self._made(size, term, [value], weight=True)
                else:
                    yield from self._batch(size, terms, [level.values], weight=False)

    def _binary(self, size: int) -> Iterator[tuple[Term, Term]]:
        for operator, before in product(self._told(2), range(size)):
            ones, others = self._levels[before], self._levels[size - 1 - before]
            for (key, one), (other_key, other) in product(list(ones.items()), list(others.items())):
                if (key[1], other_key[1]) != _SORTS[operator[0]]:
                    continue
                yield from self._crossed(size, operator, one, other)

    def _crossed(
        self, size: int, operator: Operator, one: _Level, other: _Level
    ) -> Iterator[tuple[Term, Term]]:
        """All pairs of terms of two levels; weights are one for all images."""
        weights = _SORTS[operator[0]]
        if weights[1]:
            for second, value in zip(other.terms, other.values, strict=True):
                if weights[0]:
                    for first, values in zip(one.terms, one.values, strict=True):
                        yield from self._made(
                            size, Term(*operator, (first, second)), [values, value], weight=True
                        )
                else:
                    terms = [Term(*operator, (first, second)) for first in one.terms]
                    yield from self._batch(size, terms, [one.values, value], weight=False)
            return
        for first, values in zip(one.terms, one.values, strict=True):
            terms = [Term(*operator, (first, second)) for second in other.terms]
            yield from self._batch(size, terms, [values[None], other.values], weight=False)

    def _told(self, arity: int) -> Iterator[Operator]:
        for name in self.family.operators:
            if ARITY[name] != arity:
                continue
            windows = self.family.windows if "a" in SLOTS[name] else ("",)
            for window, function in product(windows, self.family.functions if "f" in SLOTS[name] else ("",)):
                single = len(function.lstrip("~")) == 1 or name not in ("add", "mul")
                if single and ("~" not in function or name == "add"):
                    yield name, window, function

    def _made(
        self, size: int, term: Term, operands: list[np.ndarray], *, weight: bool
    ) -> Iterator[tuple[Term, Term]]:
        try:
            value = applied(term, operands, Setting({}, self._windows), self._domain)
        except NoMeaning:
            return
        yield from self._add(size, [term], value[None], weight)

    def _batch(
        self, size: int, terms: list[Term], operands: list[np.ndarray], *, weight: bool
    ) -> Iterator[tuple[Term, Term]]:
        try:
            values = applied(terms[0], operands, Setting({}, self._windows), self._domain)
        except NoMeaning:
            return
        yield from self._add(size, terms, values, weight)

    def _add(self, size: int, terms: list[Term], values: np.ndarray, weight: bool) -> list[tuple[Term, Term]]:
        """Sort terms into their classes; those that are the first of one stay for larger terms."""
        self.terms += len(terms)
        shape = (*values.shape[1:], int(weight))
        flat = np.ascontiguousarray(values).reshape(len(terms), -1)
        hashes = (
            (flat.astype(np.uint64) * self._factors[: flat.shape[1]]).sum(axis=1, dtype=np.uint64).tolist()
        )
        found, fresh = [], []
        for index, value in enumerate(hashes):
            first = self._known.setdefault((shape, value), terms[index])
            if first is not terms[index]:
                found.append((terms[index], first))
            else:
                fresh.append(index)
        if fresh and size < self.family.size:
            self._keep(size, [terms[index] for index in fresh], values[fresh], (values.shape[1:], weight))
        return found

    def _keep(
        self, size: int, terms: list[Term], values: np.ndarray, key: tuple[tuple[int, ...], bool]
    ) -> None:
        while len(self._levels) <= size:
            self._levels.append({})
        level = self._levels[size].get(key)
        if level is None:
            self._levels[size][key] = _Level(terms, values)
        else:
            level.terms += terms
            level.values = np.concatenate([level.values, values])


def shape_is_weight(name: str) -> bool:
    """Whether a variable is of weights."""
    return name not in ("x", "y", "z", "u")


_SORTS = {
    **dict.fromkeys(("add", "mul", "cat", "rows"), (False, False)),
    **dict.fromkeys(("conv", "depth"), (False, True)),
    **dict.fromkeys(("outs", "ins", "plus", "diag"), (True, True)),
}
"""By operator of two operands whether each is weights."""
