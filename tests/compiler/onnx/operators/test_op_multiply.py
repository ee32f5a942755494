"""Mul and Div: every constraint violated once, with the reason."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support.fallbacks import (
    Case,
    builder,
    check_fallback,
    finish_model,
    source,
    two,
    untested_constraints,
    with_constant,
)

from weft.compiler.onnx.conditions import multipliers
from weft.compiler.onnx.operators.multiply import MULTIPLY_OPERATORS, divisible, multipliable, pairs


def divide(divisor: str) -> onnx.ModelProto:
    built = builder()
    value = built.dequantise(source(built))
    name = {
        "zero": lambda: built.constant(np.array([1, 0, 2, 3], np.float32).reshape(4, 1, 1)),
        "input": lambda: built.dequantise(source(built)),
    }[divisor]()
    return finish_model(built, built.node("Div", [value, name]))


def leave_in_float() -> onnx.ModelProto:
    built = builder()
    other = built.node("Cos", [built.node("Softmax", [built.dequantise(source(built))], axis=2)])
    return finish_model(built, built.node("Mul", [built.dequantise(source(built)), other]))


CASES: dict[str, Case] = {
    "constant that is not finite": (lambda: with_constant("Mul", (1, 4), (4,), np.nan), "Mul", multipliable),
    "division by zero": (lambda: divide("zero"), "Div", divisible),
    "product of a value and an input": (leave_in_float, "Mul", multipliable),
    "channels that repeat": (lambda: two("Mul", (2, 4), (2, 1)), "Mul", pairs),
}


NEEDY = {
    "product": (lambda: two("Mul", (2, 4), (2, 4)), "Mul", multipliers),
    "difference": (lambda: two("Sub", (2, 4), (2, 4)), "Sub", multipliers),
}


@pytest.mark.parametrize("name", NEEDY)
def test_without_products_of_elements(name: str) -> None:
    check_fallback(NEEDY[name], multiply=0)


@pytest.mark.parametrize("name", CASES)
def test_fallback(name: str) -> None:
    check_fallback(CASES[name])


def test_every_constraint_has_a_case() -> None:
    # These are tried with another operator, or implied in any model that ONNX accepts.
    assert untested_constraints(MULTIPLY_OPERATORS, [*CASES.values(), *NEEDY.values()]) == {"same_order"}
