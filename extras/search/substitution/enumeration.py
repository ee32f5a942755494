"""Enumeration of all small terms of a family of operators, classified by their values on random integers.

Larger terms are built only from the first term of each class of equal terms. A rule therefore appears where two terms
first become equal, and not again inside larger terms (C. Nandi et al., Ruler, OOPSLA 2021; Z. Jia et al., TASO, SOSP
2019). Equal values still need a proof.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from weft.extras.search.substitution.domains import Integers
from weft.extras.search.substitution.families import Family
from weft.extras.search.substitution.meaning import InvalidOperands, Setting, apply_operator
from weft.extras.search.substitution.rule_proof import SIZES, WINDOWS, Scene, shape_of
from weft.extras.search.substitution.term import ARITY, IMAGES_FIRST, ON_WEIGHTS, SLOTS, Term, is_weights

_SCENE = Scene(SIZES[0], (("a", WINDOWS[0]), ("b", WINDOWS[0])))

Operator = tuple[str, str, str]
"""Operator, window and function."""
_Kind = tuple[tuple[int, ...], bool]
"""Shape of a term's values, and whether they are weights."""


@dataclass(eq=False)
class _Level:
    """Representatives of one size and shape, and their values, (terms, ...)."""

    terms: list[Term]
    values: np.ndarray


class Enumeration:
    """Enumeration of pairs of terms with equal values in a family.

    Parameters
    ----------
    family : Family
    seed : int
        Seed of the random integers.

    Attributes
    ----------
    terms : int
        Number of enumerated terms.
    """

    def __init__(self, family: Family, seed: int) -> None:
        self.family, self.terms = family, 0
        self._rng = np.random.default_rng(seed)
        self._domain, self._setting = Integers(), Setting({}, _SCENE.windows_by_name)
        self._factors = self._rng.integers(1, 1 << 63, 4096, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        self._representatives: dict[tuple[_Kind, int], Term] = {}
        self._levels: list[dict[_Kind, _Level]] = [{} for _ in range(family.size + 1)]

    def pairs(self) -> Iterator[tuple[Term, Term]]:
        """Yield pairs of a new term and the first equal one, in the order of their sizes."""
        for name in self.family.variables:
            term, shape = Term(name), shape_of(name, _SCENE)
            high = 4 if is_weights(term) else 30
            self._add(0, [term], self._rng.integers(-high, high + 1, (1, *shape)))
        for size in range(1, self.family.size + 1):
            yield from self._unary(size)
            yield from self._binary(size)

    def _unary(self, size: int) -> Iterator[tuple[Term, Term]]:
        for operator in self._operators(1):
            for (_, weight), level in list(self._levels[size - 1].items()):
                if weight == (operator[0] in ON_WEIGHTS):
                    yield from self._combine(size, operator, level)

    def _binary(self, size: int) -> Iterator[tuple[Term, Term]]:
        for operator, left_size in product(self._operators(2), range(size)):
            are_weights = operator[0] in ON_WEIGHTS, operator[0] in ON_WEIGHTS or operator[0] in IMAGES_FIRST
            left_levels, right_levels = (self._levels[at] for at in (left_size, size - 1 - left_size))
            for (key, left_level), (other_key, right_level) in product(
                list(left_levels.items()), list(right_levels.items())
            ):
                if (key[1], other_key[1]) != are_weights:
                    continue
                if are_weights[1]:  # one second operand for all first operands
                    for second, value in zip(right_level.terms, right_level.values, strict=True):
                        yield from self._combine(size, operator, left_level, (second,), (value,))
                else:
                    for first, values in zip(left_level.terms, left_level.values, strict=True):
                        yield from self._combine(
                            size, operator, right_level, (first,), (values[None],), before_level=True
                        )

    def _combine(
        self,
        size: int,
        operator: Operator,
        level: _Level,
        terms: tuple[Term, ...] = (),
        values: tuple[np.ndarray, ...] = (),
        *,
        before_level: bool = False,
    ) -> Iterator[tuple[Term, Term]]:
        """Apply an operator to each term of a level and to other operands, which come after it or, if
        `before_level`, first.
        """
        combined = [
            Term(*operator, (*terms, term) if before_level else (term, *terms)) for term in level.terms
        ]
        if operator[0] in ON_WEIGHTS:  # weights have no batch axis
            for term, value in zip(combined, level.values, strict=True):
                yield from self._evaluate(size, [term], [value, *values], single=True)
        else:
            operands = [*values, level.values] if before_level else [level.values, *values]
            yield from self._evaluate(size, combined, operands)

    def _operators(self, arity: int) -> Iterator[Operator]:
        for name in self.family.operators:
            if ARITY[name] != arity:
                continue
            windows = self.family.windows if "a" in SLOTS[name] else ("",)
            for window, function in product(windows, self.family.functions if "f" in SLOTS[name] else ("",)):
                single = len(function.lstrip("~")) == 1 or name not in ("add", "mul")
                if single and ("~" not in function or name == "add"):
                    yield name, window, function

    def _evaluate(
        self, size: int, terms: list[Term], operands: list[np.ndarray], *, single: bool = False
    ) -> list[tuple[Term, Term]]:
        """Evaluate terms of one operator, given their operands (terms, ...), or those of a single term."""
        try:
            values = apply_operator(terms[0], operands, self._setting, self._domain)
        except InvalidOperands:
            return []
        return self._add(size, terms, values[None] if single else values)

    def _add(self, size: int, terms: list[Term], values: np.ndarray) -> list[tuple[Term, Term]]:
        """Classify terms; representatives of new classes are stored for larger terms."""
        self.terms += len(terms)
        kind = values.shape[1:], is_weights(terms[0])
        flat = np.ascontiguousarray(values).reshape(len(terms), -1)
        # A random linear hash stands for the values; equal hashes still need a proof.
        hashes = (
            (flat.astype(np.uint64) * self._factors[: flat.shape[1]]).sum(axis=1, dtype=np.uint64).tolist()
        )
        equal_pairs, new_indices = [], []
        for index, value in enumerate(hashes):
            first = self._representatives.setdefault((kind, value), terms[index])
            if first is not terms[index]:
                equal_pairs.append((terms[index], first))
            else:
                new_indices.append(index)
        if new_indices and size < self.family.size:
            self._store(size, [terms[index] for index in new_indices], values[new_indices], kind)
        return equal_pairs

    def _store(self, size: int, terms: list[Term], values: np.ndarray, kind: _Kind) -> None:
        level = self._levels[size].get(kind)
        if level is None:
            self._levels[size][kind] = _Level(terms, values)
        else:
            level.terms += terms
            level.values = np.concatenate([level.values, values])
