"""Add and Sub: every constraint violated once, with the reason."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support.fallbacks import (
    MANY,
    Case,
    builder,
    check_fallback,
    finish_model,
    mixed_axes,
    source,
    two,
    untested_constraints,
    with_constant,
)
from support.qdq_models import Builder

from weft.compiler.onnx.operators.pairs import ADD_OPERATORS, addable, in_order, subtractable


def reshaped_sum() -> onnx.ModelProto:
    built = builder()
    weight, _ = built.weight((4, 12), 1, per_channel=True, unsigned=False)
    value = built.node("MatMul", [built.dequantise(source(built, (2, 4))), weight])
    value = built.node("Reshape", [value, built.constant(np.array([2, 3, 2, 2], np.int64))])
    return finish_model(built, built.node("Add", [value, built.constant(np.ones((3, 1, 1), np.float32))]))


def add(built: Builder, value: str) -> str:
    other = built.conv(built.input((1, 1, MANY, MANY)), 1, (1, 1))
    return built.node("Add", [value, built.dequantise(other)])


def add_zero_point(built: Builder, value: str) -> str:
    return built.node("Add", [value, built.constant(np.array([[[1.5]], [[2]]], np.float32))])


CASES: dict[str, Case] = {
    "constant after a reshape": (reshaped_sum, "Add", addable),
    "channels that repeat": (lambda: two("Add", (2, 4, 6, 6), (2, 1, 6, 1)), "Add", addable),
    "both repeat": (lambda: two("Sub", (1, 4), (3, 1)), "Sub", subtractable),
    "constant for each element": (lambda: with_constant("Add", (2, 4), (2, 4)), "Add", addable),
    "constant that broadcasts the value": (lambda: with_constant("Add", (1, 4), (3, 1)), "Add", addable),
    "sum of mixed axes": (lambda: mixed_axes(add), "Add", addable),
    "constant and mixed axes": (
        lambda: mixed_axes(add_zero_point, (1, 2, MANY, MANY), (1, MANY, 34, 17)),
        "Add",
        in_order,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_fallback(name: str) -> None:
    check_fallback(CASES[name])


def test_every_constraint_has_a_case() -> None:
    # Mul tests the constraint on multiplication by the device.
    assert untested_constraints(ADD_OPERATORS, CASES.values()) == {"multipliers"}
