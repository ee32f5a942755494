"""Concat: every constraint broken once, and the reason that is given for it."""

from __future__ import annotations

import pytest
from support.fallbacks import Case, check_fallback, mixed, two, untried
from support.qdq_models import Builder

from weft.compiler.onnx.operators.concat import OPERATORS, concat_axis, concat_order


def joined(built: Builder, value: str) -> str:
    return built.node("Concat", [value, value], axis=1)


CASES: dict[str, Case] = {
    "concatenated rows": (lambda: two("Concat", (2, 3, 4), (2, 3, 4), axis=1), "Concat", concat_axis),
    "concatenated mixed axes": (lambda: mixed(joined, (1, 6, 6, 4)), "Concat", concat_order),
}


@pytest.mark.parametrize("name", CASES)
def test_fallback(name: str) -> None:
    check_fallback(CASES[name])


def test_every_constraint_has_a_case() -> None:
    # These are tried with another operator, or implied in any model that ONNX accepts.
    assert untried(OPERATORS, CASES.values()) == {"inputs_quantised"}
