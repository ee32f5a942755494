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

from weft.extras.search.substitution.domains import Integers
from weft.extras.search.substitution.families import Family
from weft.extras.search.substitution.meaning import NoMeaning, Setting, applied
from weft.extras.search.substitution.rule_proof import SIZES, WINDOWS, Scene, shape_of
from weft.extras.search.substitution.term import ARITY, IMAGES_FIRST, ON_WEIGHTS, SLOTS, Term, is_weights

_SCENE = Scene(SIZES[0], (("a", WINDOWS[0]), ("b", WINDOWS[0])))

Operator = tuple[str, str, str]
"""With its window and its function."""
_Kind = tuple[tuple[int, ...], bool]
"""The shape of a term's values, and whether it is weights."""


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
        self._rng = np.random.default_rng(seed)
        self._domain, self._setting = Integers(), Setting({}, _SCENE.known)
        self._factors = self._rng.integers(1, 1 << 63, 4096, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        self._known: dict[tuple[_Kind, int], Term] = {}
        self._levels: list[dict[_Kind, _Level]] = [{} for _ in range(family.size + 1)]

    def pairs(self) -> Iterator[tuple[Term, Term]]:
        """A new term, and the first one that was equal, in the order of their sizes."""
        for name in self.family.variables:
            term, shape = Term(name), shape_of(name, _SCENE)
            high = 4 if is_weights(term) else 30
            self._add(0, [term], self._rng.integers(-high, high + 1, (1, *shape)))
        for size in range(1, self.family.size + 1):
            yield from self._unary(size)
            yield from self._binary(size)

    def _unary(self, size: int) -> Iterator[tuple[Term, Term]]:
        for operator in self._told(1):
            for (_, weight), level in list(self._levels[size - 1].items()):
                if weight == (operator[0] in ON_WEIGHTS):
                    yield from self._crossed(size, operator, level)

    def _binary(self, size: int) -> Iterator[tuple[Term, Term]]:
        for operator, before in product(self._told(2), range(size)):
            sorts = operator[0] in ON_WEIGHTS, operator[0] in ON_WEIGHTS or operator[0] in IMAGES_FIRST
            ones, others = (self._levels[at] for at in (before, size - 1 - before))
            for (key, one), (other_key, other) in product(list(ones.items()), list(others.items())):
                if (key[1], other_key[1]) != sorts:
                    continue
                if sorts[1]:  # each of them is one for all that are in the first place
                    for second, value in zip(other.terms, other.values, strict=True):
                        yield from self._crossed(size, operator, one, (second,), (value,))
                else:
                    for first, values in zip(one.terms, one.values, strict=True):
                        yield from self._crossed(size, operator, other, (first,), (values[None],), ahead=True)

    def _crossed(
        self,
        size: int,
        operator: Operator,
        level: _Level,
        terms: tuple[Term, ...] = (),
        values: tuple[np.ndarray, ...] = (),
        *,
        ahead: bool = False,
    ) -> Iterator[tuple[Term, Term]]:
        """An operator on each term of a level, and on other operands, which come behind that, or ahead of it."""
        made = [Term(*operator, (*terms, term) if ahead else (term, *terms)) for term in level.terms]
        if operator[0] in ON_WEIGHTS:  # which have no axis for many of them
            for term, value in zip(made, level.values, strict=True):
                yield from self._made(size, [term], [value, *values], alone=True)
        else:
            operands = [*values, level.values] if ahead else [level.values, *values]
            yield from self._made(size, made, operands)

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
        self, size: int, terms: list[Term], operands: list[np.ndarray], *, alone: bool = False
    ) -> list[tuple[Term, Term]]:
        """Terms with the same operator, whose operands are given, (terms, ...), or those of one that is alone."""
        try:
            values = applied(terms[0], operands, self._setting, self._domain)
        except NoMeaning:
            return []
        return self._add(size, terms, values[None] if alone else values)

    def _add(self, size: int, terms: list[Term], values: np.ndarray) -> list[tuple[Term, Term]]:
        """Sort terms into their classes; those that are the first of one stay for larger terms."""
        self.terms += len(terms)
        kind = values.shape[1:], is_weights(terms[0])
        flat = np.ascontiguousarray(values).reshape(len(terms), -1)
        hashes = (
            (flat.astype(np.uint64) * self._factors[: flat.shape[1]]).sum(axis=1, dtype=np.uint64).tolist()
        )
        found, fresh = [], []
        for index, value in enumerate(hashes):
            first = self._known.setdefault((kind, value), terms[index])
            if first is not terms[index]:
                found.append((terms[index], first))
            else:
                fresh.append(index)
        if fresh and size < self.family.size:
            self._keep(size, [terms[index] for index in fresh], values[fresh], kind)
        return found

    def _keep(self, size: int, terms: list[Term], values: np.ndarray, kind: _Kind) -> None:
        level = self._levels[size].get(kind)
        if level is None:
            self._levels[size][kind] = _Level(terms, values)
        else:
            level.terms += terms
            level.values = np.concatenate([level.values, values])
