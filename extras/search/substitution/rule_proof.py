"""Proofs of rules by equal forms of both sides, on images and windows of several sizes.

Terms are evaluated in two domains: integers, which distinguish terms, and symbolic forms, which prove equality. A form
is a polynomial with integer coefficients. Its indeterminates are elements of variables, functions of forms, and maxima
of sets of forms. Equal forms prove equality for all integers and all functions. The proof uses arithmetic, that a
maximum is one of its set, and that a monotone function commutes with maxima. Different forms prove nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

import numpy as np

from weft.compiler.ir.windows import ONE, Window
from weft.extras.search.substitution.term import (
    HALF,
    IMAGES,
    KERNEL_CHANNELS,
    KERNELS,
    POINT_CHANNELS,
    POINTS,
    Domain,
    InvalidOperands,
    Setting,
    Term,
    evaluate_term,
)

# Smaller than any sum, so that padding is never the maximum.
_PADDING = -(1 << 40)
# Of each function: factor, offset, divisor, and bounds.
_STEPS = {"f": (5, 3, 7, -4000, 3500), "g": (3, -4, 4, -2900, 3700), "h": (7, 2, 5, -3900, 2800)}
# Of each function of an addition: the factors of both operands.
_FACTORS = {"f": (3, 7), "g": (5, 2), "h": (11, 3), "e": (1, 1)}


class Integers:
    """Domain of integers, in which functions round and saturate like requantisation.

    Parameters
    ----------
    non_monotone : set of str
        Functions that need not be monotone.
    """

    def __init__(self, non_monotone: Iterable[str] = ()) -> None:
        self._non_monotone = frozenset(non_monotone)

    def function(self, name: str, values: np.ndarray) -> np.ndarray:
        factor, offset, divisor, low, high = _STEPS[name]
        result = np.clip((values * factor + offset) // divisor, low, high)
        # Multiplication modulo a prime destroys the order.
        return (result * 37) % 1009 if name in self._non_monotone else result

    def maximum(self, values: Sequence[np.ndarray]) -> np.ndarray:
        return np.maximum.reduce(list(values))

    def factors(self, name: str) -> tuple[object, object]:
        return _FACTORS[name]

    def outside(self, values: np.ndarray) -> np.ndarray:
        return np.full_like(values, _PADDING)


Monomial = tuple[int, ...]


class Form:
    """Polynomial: coefficients by monomials, which are sorted tuples of indeterminates' numbers.

    Coefficients are positive because no operator subtracts, so sums and products never lose a monomial.
    """

    __slots__ = ("_hash", "atoms", "terms")

    def __init__(self, terms: dict[Monomial, int], atoms: Atoms) -> None:
        self.terms, self.atoms, self._hash = terms, atoms, 0

    def __hash__(self) -> int:
        if not self._hash:
            self._hash = hash(frozenset(self.terms.items()))
        return self._hash

    def __eq__(self, other: object) -> bool:
        # Different forms mostly differ in their hashes, which are stored.
        return isinstance(other, Form) and hash(self) == hash(other) and self.terms == other.terms

    def __add__(self, other: object) -> Form:
        if not isinstance(other, Form):
            return self if other == 0 else self + self.atoms.constant(other)
        terms = self.terms.copy()
        for monomial, factor in other.terms.items():
            terms[monomial] = terms.get(monomial, 0) + factor
        return Form(terms, self.atoms)

    __radd__ = __add__

    def __mul__(self, other: object) -> Form | int:
        if not isinstance(other, Form):
            return 0 if other == 0 else self * self.atoms.constant(other)
        if len(self.terms) == len(other.terms) == 1:
            ((left, factor),), ((right, other_factor),) = self.terms.items(), other.terms.items()
            return Form({tuple(sorted(left + right)): factor * other_factor}, self.atoms)
        terms: dict[Monomial, int] = {}
        for left, factor in self.terms.items():
            for right, other_factor in other.terms.items():
                monomial = tuple(sorted(left + right))
                terms[monomial] = terms.get(monomial, 0) + factor * other_factor
        return Form(terms, self.atoms)

    __rmul__ = __mul__


class _Application(NamedTuple):
    name: str
    form: Form


class _Maximum(NamedTuple):
    forms: frozenset[Form]


class Atoms:
    """Interned indeterminates, by number."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}
        self._atoms: list[object] = []

    def form(self, atom: object) -> Form:
        """Return the form that consists of one indeterminate."""
        if atom not in self._numbers:
            self._numbers[atom] = len(self._atoms)
            self._atoms.append(atom)
        return Form({(self._numbers[atom],): 1}, self)

    def constant(self, value: object) -> Form:
        """Return a constant form."""
        return Form({(): int(value)} if value else {}, self)  # type: ignore[call-overload]

    def maximum_of(self, form: Form) -> frozenset[Form]:
        """Return the forms whose maximum a form is."""
        if len(form.terms) == 1:
            ((monomial, factor),) = form.terms.items()
            if factor == 1 and len(monomial) == 1:
                atom = self._atoms[monomial[0]]
                if isinstance(atom, _Maximum):
                    return atom.forms
        return frozenset((form,))

    def maximum(self, forms: frozenset[Form]) -> Form:
        """Return the maximum of a set of forms."""
        if len(forms) == 1:
            (form,) = forms
            return form
        return self.form(_Maximum(forms))


class Forms:
    """Domain of forms.

    Parameters
    ----------
    non_monotone : set of str
        Functions that need not be monotone, and therefore do not commute with maxima.
    """

    def __init__(self, non_monotone: Iterable[str] = ()) -> None:
        self.atoms = Atoms()
        self._non_monotone = frozenset(non_monotone)

    def image(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Return a variable, each element of which is a separate indeterminate."""
        result = np.empty(shape, object)
        for index in np.ndindex(*shape):
            result[index] = self.atoms.form((name, index))
        return result

    def function(self, name: str, values: np.ndarray) -> np.ndarray:
        result = np.empty_like(values)
        for index, value in np.ndenumerate(values):
            form = value if isinstance(value, Form) else self.atoms.constant(value)
            forms = frozenset((form,)) if name in self._non_monotone else self.atoms.maximum_of(form)
            result[index] = self.atoms.maximum(
                frozenset(self.atoms.form(_Application(name, item)) for item in forms)
            )
        return result

    def maximum(self, values: Sequence[np.ndarray]) -> np.ndarray:
        result = np.empty_like(values[0])
        for index in np.ndindex(*result.shape):
            operands: set[Form] = set()
            for item in values:
                value = item[index]
                # None is padding, which is never the maximum.
                if value is not None:
                    operands |= self.atoms.maximum_of(
                        value if isinstance(value, Form) else self.atoms.constant(value)
                    )
            result[index] = self.atoms.maximum(frozenset(operands)) if operands else None
        return result

    def factors(self, name: str) -> tuple[object, object]:
        if name == "e":
            return 1, 1
        return self.atoms.form((name, "first")), self.atoms.form((name, "second"))

    def outside(self, values: np.ndarray) -> np.ndarray:
        return np.full_like(values, None)


WINDOWS = (
    Window((3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    Window((2, 2), (2, 2)),
    Window((3, 3), (2, 2), (1, 1), (1, 1, 1, 1)),
    Window((3, 3), (1, 1)),
    Window((2, 2), (1, 1), (1, 1), (0, 0, 1, 1)),
)
"""Windows for the names of a rule in its proof."""
SIZES = ((6, 6, 2), (8, 6, 2), (6, 8, 2))
"""Rows, columns and channels of images in proofs."""


@dataclass(frozen=True)
class Scene:
    """Sizes of images and windows by name, for which a rule is proven."""

    shape: tuple[int, int, int]
    windows: tuple[tuple[str, Window], ...]

    @property
    def windows_by_name(self) -> dict[str, Window]:
        return {**dict(self.windows), "s": HALF, "1": ONE}


def make_scenes(windows: Sequence[str], *, square: bool) -> Iterator[Scene]:
    """Yield the scenes in which a rule with these windows is proven, only `square` ones if it transposes images."""
    sizes = [size for size in SIZES if not square or size[0] == size[1]]
    candidates = WINDOWS if len(windows) < 2 else WINDOWS[:3]
    for number, chosen in enumerate(product(candidates, repeat=len(windows))):
        shape = sizes[number % len(sizes)]
        yield Scene(shape, tuple(zip(windows, chosen, strict=True)))


def make_variables(names: Sequence[str], scene: Scene, domain: Forms) -> dict[str, np.ndarray]:
    """Return a variable for each name, as elements of the domain."""
    return {name: domain.image(name, shape_of(name, scene)) for name in names}


def shape_of(name: str, scene: Scene) -> tuple[int, ...]:
    """Return the shape of a variable."""
    channels, kernel = scene.shape[2], scene.windows_by_name.get("a", ONE).kernel
    if name in IMAGES:
        return scene.shape
    if name in POINTS + KERNELS:
        return (scene.shape[2], *((1, 1) if name in POINTS else kernel), channels)
    return (channels, *((1, 1) if name in POINT_CHANNELS else kernel), 1)


def variables(*terms: Term) -> list[str]:
    """Return the variables of terms, in the order of first appearance."""
    return list(dict.fromkeys(part.operator for term in terms for part in term.parts if not part.operands))


def window_names(*terms: Term) -> list[str]:
    """Return the names of arbitrary windows, in the order of first appearance."""
    parts = (name for term in terms for part in term.parts for name in part.window.split("*"))
    names = dict.fromkeys(name for name in parts if name not in ("", "s", "1"))
    if not {*KERNELS, *KERNEL_CHANNELS}.isdisjoint(variables(*terms)):
        names.setdefault("a")
    return list(names)


def equal_in(left: Term, right: Term, scene: Scene, non_monotone: frozenset[str]) -> bool | None:
    """Return whether both sides have equal forms in a scene; None if a side is invalid there."""
    forms = Forms(non_monotone)
    setting = Setting(make_variables(variables(left, right), scene, forms), scene.windows_by_name)
    domain: Domain = forms
    try:
        left_value, right_value = (evaluate_term(term, setting, domain) for term in (left, right))
    except InvalidOperands:
        return None
    return left_value.shape == right_value.shape and bool((left_value == right_value).all())


def holds_for(left: Term, right: Term, windows: Mapping[str, Window], sizes: tuple[int, int]) -> bool:
    """Return whether a rule has equal forms with these windows, on images with these numbers of rows and columns.

    Large images are replaced by smaller ones with the same remainder after the last window, and with borders that do
    not overlap.
    """
    windows_by_name = {**windows, "s": HALF, "1": ONE}
    names = [part for term in (left, right) for item in term.parts for part in item.window.split("*") if part]
    shape = []
    for axis, size in enumerate(sizes):
        stride, extent = 1, 1
        for name in names:
            window = windows_by_name[name]
            extent += stride * (window.kernel[axis] + window.pad[axis] + window.pad[axis + 2])
            stride *= window.stride[axis]
        minimum = 2 * extent
        shape.append(size if size <= minimum else minimum + (size - minimum) % stride)
    scene = Scene((shape[0], shape[1], 2), tuple(windows.items()))
    return bool(equal_in(left, right, scene, frozenset()))
