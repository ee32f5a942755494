"""Discovery of rules: terms that are equal on integers, generalised, proven and reduced to an independent set."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from weft.extras.search.substitution.enumeration import Enumeration
from weft.extras.search.substitution.families import FAMILIES, Family
from weft.extras.search.substitution.rule import (
    Rule,
    canonical_names,
    generalise,
    is_instance,
    prove,
    rewrite_once,
)
from weft.extras.search.substitution.rule_proof import variables
from weft.extras.search.substitution.term import Term

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
            reached_next = {term_made for term in fronts[index] for term_made in rewrite_once(term, steps)}
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
