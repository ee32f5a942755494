"""Mul and Div: every constraint broken once, and the reason that is given for it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support.fallbacks import Case, builder, check_fallback, ended, source, two, untried, with_constant

from weft.compiler.onnx.operators.multiply import OPERATORS, divisible, multipliable


def divided(divisor: str) -> onnx.ModelProto:
    built = builder()
    value = built.dequantise(source(built))
    name = {
        "zero": lambda: built.constant(np.array([1, 0, 2, 3], np.float32).reshape(4, 1, 1)),
        "input": lambda: built.dequantise(source(built)),
    }[divisor]()
    return ended(built, built.node("Div", [value, name]))


CASES: dict[str, Case] = {
    "constant that is not finite": (lambda: with_constant("Mul", (1, 4), (4,), np.nan), "Mul", multipliable),
    "division by zero": (lambda: divided("zero"), "Div", divisible),
    "division by an input": (lambda: divided("input"), "Div", divisible),
    "product of two activations": (lambda: two("Mul", (2, 4), (2, 4)), "Mul", multipliable),
}


@pytest.mark.parametrize("name", CASES)
def test_fallback(name: str) -> None:
    check_fallback(CASES[name])


def test_every_constraint_has_a_case() -> None:
    # These are tried with another operator, or implied in any model that ONNX accepts.
    assert untried(OPERATORS, CASES.values()) == {"same_order"}
