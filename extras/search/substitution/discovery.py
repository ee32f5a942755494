"""The search for rules: terms that are equal on integers, in their most general form, proven and told once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from weft.extras.search.substitution.enumeration import Enumeration
from weft.extras.search.substitution.families import FAMILIES, Family
from weft.extras.search.substitution.rule import Rule, general, is_instance, judged, renamed, rewritten
from weft.extras.search.substitution.rule_proof import variables
from weft.extras.search.substitution.term import Term

_STEPS, _WIDTH = 3, 60
"""Uses of smaller rules on either side, and terms that are kept after each, in finding out whether a rule follows."""


@dataclass
class Found:
    """What a search found: rules in the order of their sizes, how many terms it made, how many pairs were equal on
    integers, how many of these no proof holds, in their most general form and once, and the seconds that it took."""

    rules: list[Rule]
    terms: int
    pairs: int
    unproven: list[tuple[Term, Term]]
    seconds: float


def find(
    families: Iterable[Family] = FAMILIES, seed: int = 1, progress: Callable[[str], None] = print
) -> Found:
    """The rules of some families of operators."""
    begin, terms, pairs = time.monotonic(), 0, 0
    known: dict[tuple[Term, Term], Rule | None] = {}
    for family in families:
        enumeration, before = Enumeration(family, seed), len(known)
        for left, right in enumeration.pairs():
            pairs += 1
            _judge(left, right, known)
        terms += enumeration.terms
        rules = sum(rule is not None for rule in list(known.values())[before:])
        progress(f"{family.name}: {enumeration.terms:,} terms, {rules} rules")
    rules_found = _needed(rule for rule in known.values() if rule is not None)
    unproven = [pair for pair, rule in known.items() if rule is None]
    return Found(rules_found, terms, pairs, unproven, time.monotonic() - begin)


def _judge(left: Term, right: Term, known: dict[tuple[Term, Term], Rule | None]) -> None:
    """Prove the most general form of a pair that is equal."""
    for one, other in general(left, right):
        pair = renamed(one, other)
        if pair not in known:
            known[pair] = judged(*pair)
        if known[pair] is not None:
            return


def _needed(rules: Iterable[Rule]) -> list[Rule]:
    """The rules that are no case of another one, and do not follow from smaller ones."""
    kept: list[Rule] = []
    steps: list[Rule] = []
    for rule in sorted(rules, key=_order):
        if any(is_instance(rule, other) for other in kept) or _follows(rule, steps):
            continue
        kept.append(rule)
        steps += [one for one in (rule, rule.turned) if _shrinks(one)]
    return once(kept)


def once(rules: Sequence[Rule]) -> list[Rule]:
    """The rules that are no case of another one, whichever comes first; the first of two that say the same."""
    kept = dict(enumerate(rules))
    for number, rule in enumerate(rules):
        if any(other != number and is_instance(rule, item) for other, item in kept.items()):
            del kept[number]
    return list(kept.values())


def _shrinks(rule: Rule) -> bool:
    """Whether a rule, from left to right, makes no term larger, and needs no variables of its own."""
    named = set(variables(rule.right)) <= set(variables(rule.left))
    return named and not rule.bound and rule.left.size >= rule.right.size and bool(rule.left.operands)


def _follows(rule: Rule, steps: list[Rule]) -> bool:
    """Whether both sides become the same term in at most `_STEPS` uses each of rules that are known."""
    if rule.bound:
        return False
    one, other = ({side} for side in (rule.left, rule.right))
    fronts = [set(one), set(other)]
    for _ in range(_STEPS):
        for reached, index in ((one, 0), (other, 1)):
            found = {made for term in fronts[index] for made in rewritten(term, steps)}
            fronts[index] = set(sorted(found - reached, key=lambda term: (term.size, term.text))[:_WIDTH])
            reached |= fronts[index]
        if one & other:
            return True
    return False


def _order(rule: Rule) -> tuple[int, int, int, str]:
    """The smaller ones first, and of these the more general ones."""
    size = rule.left.size + rule.right.size
    return size, -len(variables(rule.left, rule.right)), len(rule.text), rule.text
