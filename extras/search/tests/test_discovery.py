"""The search for rules: results on a small family, without duplicates."""

from __future__ import annotations

import dataclasses
from itertools import permutations

import pytest

from weft.extras.search.substitution.discovery import (
    FAMILIES,
    Discovery,
    Enumeration,
    Family,
    _is_reducing,
    find,
)
from weft.extras.search.substitution.rule import (
    Rule,
    builtin_rules,
    canonical_names,
    generalise,
    holds,
    is_instance,
    prove,
)
from weft.extras.search.substitution.term import parse

SMALL = Family("small", ("x", "y"), ("func", "max", "cat", "first"), ("a",), ("f",), size=3)
TASO = (
    # Z. Jia et al., SOSP 2019: figure 2 and section 2, and properties of its table 2.
    "cat(conv[a,f](x, k), conv[a,f](x, l)) = conv[a,f](x, outs(k, l))",
    "add[e](conv[1,e](x, w), conv[1,e](x, v)) = conv[1,e](x, plus(v, w))",
    "add[e](conv[1,e](x, w), conv[1,e](y, v)) = conv[1,e](cat(x, y), ins(w, v))",
    "add[e](add[e](x, y), z) = add[e](x, add[e](y, z))",
    "mul[e](mul[e](x, y), z) = mul[e](x, mul[e](y, z))",
    "cat(max[a](x), max[a](y)) = max[a](cat(x, y))",
    "cat(func[f](x), func[f](y)) = func[f](cat(x, y))",
    "cat(add[e](x, y), add[e](z, u)) = add[e](cat(x, z), cat(y, u))",
    "cat(first(x), second(x)) = x",
    "first(cat(x, y)) = x",
    "second(cat(x, y)) = y",
    "turn(turn(x)) = x",
    "cat(turn(x), turn(y)) = turn(cat(x, y))",
)


@pytest.fixture(scope="module")
def discover() -> Discovery:
    return find([SMALL], progress=lambda text: None)


def test_a_small_family(discover: Discovery) -> None:
    texts = {one.text for rule in discover.rules for one in (rule, rule.reversed)}
    assert texts >= {
        "first(cat(x, y)) = x",
        "cat(max[a](x), max[a](y)) = max[a](cat(x, y))",
        "func[f](max[a](x)) = max[a](func[f](x))",
        "first(max[a](x)) = max[a](first(x))",
        "cat(cat(x, y), z) = cat(x, cat(y, z))",
    }
    enumeration = Enumeration(SMALL, 1)
    pairs = sum(1 for _ in enumeration.pairs())
    assert (discover.terms, discover.pairs) == (enumeration.terms, pairs)
    assert discover.terms > pairs > len(discover.rules) + len(discover.unproven)


def test_rules_have_no_duplicates(discover: Discovery) -> None:
    for one, other in permutations(discover.rules, 2):
        assert not is_instance(one, other), f"{one.text} is a case of {other.text}"


def test_every_rule_is_proven(discover: Discovery) -> None:
    for rule in discover.rules:
        assert holds(rule), rule.description


def test_other_integers_give_the_same_rules(discover: Discovery) -> None:
    assert {rule.text for rule in find([SMALL], seed=8, progress=lambda text: None).rules} == {
        rule.text for rule in discover.rules
    }


@pytest.mark.parametrize("text", TASO)
def test_rules_of_taso_are_found(text: str) -> None:
    left, right = map(parse, text.split(" = "))
    wanted = prove(*canonical_names(left, right))
    assert wanted is not None
    for rule in builtin_rules():
        if is_instance(wanted, rule) or is_instance(wanted, rule.reversed):
            return
    pytest.fail("no carried rule says this")


def test_as_many_rules_as_promised() -> None:
    assert sum(max(rule.left.size, rule.right.size) <= 4 for rule in builtin_rules()) >= 300


def test_terms_are_unique_and_small() -> None:
    for family in FAMILIES[:2]:
        enumeration = Enumeration(family, 1)
        for left, right in enumeration.pairs():
            assert left != right
            assert max(left.size, right.size) <= family.size


def test_common_subterms_become_variables() -> None:
    left, right = parse("first(cat(max[a](x), y))"), parse("max[a](x)")
    assert canonical_names(*next(iter(generalise(left, right)))) == (
        left,
        right,
    )  # a side cannot become a variable
    left, right = parse("cat(func[f](max[a](x)), func[f](y))"), parse("func[f](cat(max[a](x), y))")
    wanted = parse("cat(func[f](x), func[f](y))"), parse("func[f](cat(x, y))")
    assert canonical_names(*next(iter(generalise(left, right)))) == wanted


def rule(text: str) -> Rule:
    left, right = map(parse, text.split(" = "))
    return Rule(left, right)


def test_a_case_of_a_rule() -> None:
    known = rule("cat(func[f](x), func[f](y)) = func[f](cat(x, y))")
    assert is_instance(rule("cat(func[g](x), func[g](max[a](y))) = func[g](cat(x, max[a](y)))"), known)
    assert is_instance(rule("func[f](cat(x, x)) = cat(func[f](x), func[f](x))"), known)
    assert not is_instance(rule("cat(func[f](x), func[g](y)) = func[f|g](cat(x, y))"), known)
    # One name for each of several functions.
    both = rule("func[g](func[f](x)) = func[g.f](x)")
    assert is_instance(rule("func[f](func[f](x)) = func[f.f](x)"), both)
    assert is_instance(rule("func[f](func[h](max[a](x))) = func[f.h](max[a](x))"), both)
    assert not is_instance(both, rule("func[f](func[f](x)) = func[f.f](x)"))
    assert not is_instance(rule("func[g](func[f](x)) = func[f.g](x)"), both)


def test_rules_do_not_enlarge_terms() -> None:
    assert _is_reducing(rule("func[g](func[f](x)) = func[g.f](x)"))
    assert _is_reducing(rule("cat(func[f](x), func[f](y)) = func[f](cat(x, y))"))
    assert not _is_reducing(rule("func[f](cat(x, y)) = cat(func[f](x), func[f](y))"))
    assert not _is_reducing(rule("func[f](x) = func[f](y)"))
    assert not _is_reducing(rule("cat(max[a](x), max[a](y)) = max[a](cat(x, z))"))
    assert not _is_reducing(dataclasses.replace(rule("max[b](max[a](x)) = max[a*b](x)"), bound=True))
    assert not _is_reducing(dataclasses.replace(rule("max[a](x) = x"), left=parse("x"), right=parse("x")))
