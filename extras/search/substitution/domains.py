"""The two kinds of elements that terms are computed with: integers, which tell terms apart, and symbols, which prove
them equal.

A form is a polynomial with integer coefficients whose indeterminates are elements of variables, functions of forms,
and maxima of sets of forms. Equal elements of all integers have equal forms wherever what makes them equal is
arithmetic, that a maximum is one of a set, or that a function that rises passes through it; nothing else is used, so
that equal forms prove equality for all integers and all functions, and different ones prove nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

_LEAST = -(1 << 40)
_STEPS = {"f": (5, 3, 7, -4000, 3500), "g": (3, -4, 4, -2900, 3700), "h": (7, 2, 5, -3900, 2800)}
_FACTORS = {"f": (3, 7), "g": (5, 2), "h": (11, 3), "e": (1, 1)}


class Integers:
    """Elements are integers; functions round and saturate as requantisation does, and some need not rise.

    Parameters
    ----------
    unsteady : set of str
        Functions that do not rise.
    """

    def __init__(self, unsteady: Iterable[str] = ()) -> None:
        self._unsteady = frozenset(unsteady)

    def function(self, name: str, values: np.ndarray) -> np.ndarray:
        factor, offset, divisor, low, high = _STEPS[name]
        made = np.clip((values * factor + offset) // divisor, low, high)
        return (made * 37) % 1009 if name in self._unsteady else made

    def maximum(self, values: Sequence[np.ndarray]) -> np.ndarray:
        return np.maximum.reduce(list(values))

    def factors(self, name: str) -> tuple[object, object]:
        return _FACTORS[name]

    def outside(self, values: np.ndarray) -> np.ndarray:
        return np.full_like(values, _LEAST)


Monomial = tuple[int, ...]


class Form:
    """A polynomial: coefficients by monomials, which are sorted tuples of numbers of indeterminates.

    Coefficients are above 0, as nothing subtracts: sums and products never lose a monomial.
    """

    __slots__ = ("_hash", "atoms", "terms")

    def __init__(self, terms: dict[Monomial, int], atoms: Atoms) -> None:
        self.terms, self.atoms, self._hash = terms, atoms, 0

    def __hash__(self) -> int:
        if not self._hash:
            self._hash = hash(frozenset(self.terms.items()))
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Form) and hash(self) == hash(other) and self.terms == other.terms

    def __add__(self, other: object) -> Form:
        if not isinstance(other, Form):
            return self if other == 0 else self + self.atoms.number(other)
        terms = self.terms.copy()
        for monomial, factor in other.terms.items():
            terms[monomial] = terms.get(monomial, 0) + factor
        return Form(terms, self.atoms)

    __radd__ = __add__

    def __mul__(self, other: object) -> Form | int:
        if not isinstance(other, Form):
            return 0 if other == 0 else self * self.atoms.number(other)
        if len(self.terms) == len(other.terms) == 1:
            ((one, factor),), ((two, times),) = self.terms.items(), other.terms.items()
            return Form({tuple(sorted(one + two)): factor * times}, self.atoms)
        terms: dict[Monomial, int] = {}
        for one, factor in self.terms.items():
            for two, times in other.terms.items():
                monomial = tuple(sorted(one + two))
                terms[monomial] = terms.get(monomial, 0) + factor * times
        return Form(terms, self.atoms)

    __rmul__ = __mul__


class _Applied(NamedTuple):
    name: str
    form: Form


class _Greatest(NamedTuple):
    forms: frozenset[Form]


class Atoms:
    """Indeterminates by number; what they are is interned."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}
        self._known: list[object] = []

    def form(self, what: object) -> Form:
        """The form that is one indeterminate."""
        if what not in self._numbers:
            self._numbers[what] = len(self._known)
            self._known.append(what)
        return Form({(self._numbers[what],): 1}, self)

    def number(self, value: object) -> Form:
        """A constant."""
        return Form({(): int(value)} if value else {}, self)  # type: ignore[call-overload]

    def greatest(self, form: Form) -> frozenset[Form]:
        """The forms whose maximum a form is."""
        if len(form.terms) == 1:
            ((monomial, factor),) = form.terms.items()
            if factor == 1 and len(monomial) == 1:
                what = self._known[monomial[0]]
                if isinstance(what, _Greatest):
                    return what.forms
        return frozenset((form,))

    def maximum(self, forms: frozenset[Form]) -> Form:
        """The maximum of a set."""
        if len(forms) == 1:
            (form,) = forms
            return form
        return self.form(_Greatest(forms))


class Forms:
    """Elements are forms.

    Parameters
    ----------
    unsteady : set of str
        Functions that need not rise, and so do not pass through maxima.
    """

    def __init__(self, unsteady: Iterable[str] = ()) -> None:
        self.atoms = Atoms()
        self._unsteady = frozenset(unsteady)

    def image(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """A variable: every element is an indeterminate of its own."""
        made = np.empty(shape, object)
        for index in np.ndindex(*shape):
            made[index] = self.atoms.form((name, index))
        return made

    def function(self, name: str, values: np.ndarray) -> np.ndarray:
        made = np.empty_like(values)
        for index, value in np.ndenumerate(values):
            form = value if isinstance(value, Form) else self.atoms.number(value)
            forms = frozenset((form,)) if name in self._unsteady else self.atoms.greatest(form)
            made[index] = self.atoms.maximum(
                frozenset(self.atoms.form(_Applied(name, item)) for item in forms)
            )
        return made

    def maximum(self, values: Sequence[np.ndarray]) -> np.ndarray:
        made = np.empty_like(values[0])
        for index in np.ndindex(*made.shape):
            found: set[Form] = set()
            for item in values:
                value = item[index]
                if value is not None:
                    found |= self.atoms.greatest(
                        value if isinstance(value, Form) else self.atoms.number(value)
                    )
            made[index] = self.atoms.maximum(frozenset(found)) if found else None
        return made

    def factors(self, name: str) -> tuple[object, object]:
        if name == "e":
            return 1, 1
        return self.atoms.form((name, "first")), self.atoms.form((name, "second"))

    def outside(self, values: np.ndarray) -> np.ndarray:
        return np.full_like(values, None)
