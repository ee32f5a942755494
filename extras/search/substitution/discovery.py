"""Discovery of rules: terms that are equal on integers, generalised, proven and reduced to an independent set.

All small terms of a family of operators are enumerated, and classified by their values on random integers. Larger terms
are built only from the first term of each class of equal terms. A rule therefore appears where two terms first become
equal, and not again inside larger terms (C. Nandi et al., Ruler, OOPSLA 2021; Z. Jia et al., TASO, SOSP 2019). Equal
values still need a proof.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from weft.extras.search.substitution.rule import (
    Rule,
    canonical_names,
    generalise,
    is_instance,
    prove,
    rewrite_once,
)
from weft.extras.search.substitution.rule_proof import SIZES, WINDOWS, Integers, Scene, shape_of, variables
from weft.extras.search.substitution.term import (
    ARITY,
    IMAGES_FIRST,
    ON_WEIGHTS,
    SLOTS,
    InvalidOperands,
    Setting,
    Term,
    apply_operator,
    is_weights,
)


@dataclass(frozen=True)
class Family:
    """Family of terms: variables, operators, windows and functions, and the maximum number of operators of a term.

    Operators on weights count.
    """

    name: str
    variables: tuple[str, ...]
    operators: tuple[str, ...]
    windows: tuple[str, ...] = ()
    functions: tuple[str, ...] = ("f", "g")
    size: int = 4


def _family(name: str, variables: str, operators: str, windows: str, functions: str, size: int) -> Family:
    return Family(
        name,
        tuple(variables.split()),
        tuple(operators.split()),
        tuple(windows.split()),
        tuple(functions.split()),
        size,
    )


FAMILIES = (
    _family("element by element", "x y", "func add mul cat first second", "", "f g e g.f f|g ~f", 3),
    _family("elements and places", "x y z u", "func add mul cat first second", "", "f ~f", 3),
    _family("exact elements", "x y z u", "add mul cat first second", "", "e", 3),
    _family("rows and columns", "x y", "func add rows top bottom turn cat", "", "f", 3),
    _family("maxima", "x y", "max func cat turn first second", "a b s a*b b*a a*s b*s", "f g.f", 3),
    _family("maxima and sums", "x y", "max func add cat", "a s a*s", "f", 4),
    _family("means", "x y", "mean func cat max first second", "1 s", "f e f|g", 3),
    _family("convolutions", "x w v", "conv func outs cat first second", "1", "f g g.f f|g", 4),
    _family("convolutions of two images", "x y w v", "conv cat outs ins diag add", "1", "f e", 4),
    _family("exact convolutions", "x y w v", "conv add plus ins cat", "1", "e", 4),
    _family("convolutions over windows", "x y k l", "conv cat outs diag", "a", "f g f|g", 4),
    _family("convolutions and windows", "x w k", "conv max func grow outs turn spun", "1 a s a*s", "f", 3),
    _family("channels by themselves", "x y d c", "depth func cat outs first second", "1", "f g f|g", 4),
    _family(
        "channels over windows", "x d p q", "depth conv cat outs dense max turn spun", "a s a*s 1", "f", 3
    ),
    _family("channels of two images", "x y p q", "depth cat outs max", "a s a*s", "f g f|g", 3),
    _family("exact channels", "x y d c", "depth add plus cat func", "1", "e f", 3),
)
"""Families that `weft rules --find` searches."""


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
        # Odd factors are invertible modulo 2**64: no bit of an element is lost.
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
                # One second operand for all first operands.
                if are_weights[1]:
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
        # Weights have no batch axis.
        if operator[0] in ON_WEIGHTS:
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
        # No larger terms use those of the largest size.
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


_MAX_STEPS, _MAX_TERMS = 3, 60
"""Limits for deciding whether a rule follows from others: uses of smaller rules on either side, and terms kept after
each.
"""


@dataclass
class Discovery:
    """Result of a discovery.

    `rules` are sorted by size. `terms` counts enumerated terms, `pairs` those pairs that were equal on integers.
    `unproven` holds the generalised pairs without a proof. `seconds` is the elapsed time.
    """

    rules: list[Rule]
    terms: int
    pairs: int
    unproven: list[tuple[Term, Term]]
    seconds: float


def find(
    families: Iterable[Family] = FAMILIES, seed: int = 1, progress: Callable[[str], None] = print
) -> Discovery:
    """Find the rules of some families of operators."""
    begin, terms, pairs = time.monotonic(), 0, 0
    rules_by_pair: dict[tuple[Term, Term], Rule | None] = {}
    for family in families:
        enumeration, count_before = Enumeration(family, seed), len(rules_by_pair)
        for left, right in enumeration.pairs():
            pairs += 1
            _prove_pair(left, right, rules_by_pair)
        terms += enumeration.terms
        rules = sum(rule is not None for rule in list(rules_by_pair.values())[count_before:])
        progress(f"{family.name}: {enumeration.terms:,} terms, {rules} rules")
    independent = _select_independent(rule for rule in rules_by_pair.values() if rule is not None)
    unproven = [pair for pair, rule in rules_by_pair.items() if rule is None]
    return Discovery(independent, terms, pairs, unproven, time.monotonic() - begin)


def _prove_pair(left: Term, right: Term, rules_by_pair: dict[tuple[Term, Term], Rule | None]) -> None:
    """Prove the most general form of an equal pair that has a proof."""
    for one, other in generalise(left, right):
        pair = canonical_names(one, other)
        if pair not in rules_by_pair:
            rules_by_pair[pair] = prove(*pair)
        if rules_by_pair[pair] is not None:
            return


def _select_independent(rules: Iterable[Rule]) -> list[Rule]:
    """Return the rules that are neither instances of another rule nor derivable from smaller rules."""
    selected: list[Rule] = []
    steps: list[Rule] = []
    # Smaller rules first, because larger ones often follow from them.
    for rule in sorted(rules, key=_sort_key):
        if any(is_instance(rule, other) for other in selected) or _is_derivable(rule, steps):
            continue
        selected.append(rule)
        steps += [one for one in (rule, rule.reversed) if _is_reducing(one)]
    return distinct_rules(selected)


def distinct_rules(rules: Sequence[Rule]) -> list[Rule]:
    """Return the rules that are not instances of another rule, in any order; of equivalent rules the first."""
    remaining = dict(enumerate(rules))
    for number, rule in enumerate(rules):
        if any(other != number and is_instance(rule, item) for other, item in remaining.items()):
            del remaining[number]
    return list(remaining.values())


def _is_reducing(rule: Rule) -> bool:
    """Return whether a rule, from left to right, neither enlarges a term nor introduces variables."""
    closed = set(variables(rule.right)) <= set(variables(rule.left))
    return closed and not rule.bound and rule.left.size >= rule.right.size and bool(rule.left.operands)


def _is_derivable(rule: Rule, steps: list[Rule]) -> bool:
    """Return whether at most `_MAX_STEPS` uses of known rules on each side lead to a common term."""
    if rule.bound:
        return False
    one, other = ({side} for side in (rule.left, rule.right))
    fronts = [set(one), set(other)]
    for _ in range(_MAX_STEPS):
        for reached, index in ((one, 0), (other, 1)):
            reached_next = {item for term in fronts[index] for item in rewrite_once(term, steps)}
            fronts[index] = set(
                sorted(reached_next - reached, key=lambda term: (term.size, term.text))[:_MAX_TERMS]
            )
            reached |= fronts[index]
        if one & other:
            return True
    return False


def _sort_key(rule: Rule) -> tuple[int, int, int, str]:
    """Sort key: smaller rules first, then more general ones."""
    size = rule.left.size + rule.right.size
    return size, -len(variables(rule.left, rule.right)), len(rule.text), rule.text
