"""Concat: every constraint violated once, with the reason."""

from __future__ import annotations

import onnx
import pytest
from support.fallbacks import (
    Case,
    builder,
    check_fallback,
    finish_model,
    mixed_axes,
    source,
    untested_constraints,
)
from support.qdq_models import Builder

from weft.compiler.onnx.operators.move import CONCAT_OPERATORS, concat_order, inputs_quantised


def concat(built: Builder, value: str) -> str:
    return built.node("Concat", [value, value], axis=1)


def integers_and_floats() -> onnx.ModelProto:
    """Concat integers and floats; the integers pass a host operator."""
    built = builder()
    values = [built.dequantise(source(built)) for _ in range(2)]
    return finish_model(built, built.node("Concat", [values[0], built.node("Erf", [values[1]])], axis=1))


CASES: dict[str, Case] = {
    "concatenated integers and floats": (integers_and_floats, "Concat", inputs_quantised),
    "concatenated mixed axes": (lambda: mixed_axes(concat), "Concat", concat_order),
}


@pytest.mark.parametrize("name", CASES)
def test_fallback(name: str) -> None:
    check_fallback(CASES[name])


def test_every_constraint_has_a_case() -> None:
    assert untested_constraints(CONCAT_OPERATORS, CASES.values()) == set()
