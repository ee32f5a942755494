"""Clip and Relu: every constraint violated once, with the reason."""

from __future__ import annotations

import onnx
import pytest
from support.fallbacks import Case, builder, check_fallback, finish_model, source, untested_constraints

from weft.compiler.onnx.conditions import input_quantisable
from weft.compiler.onnx.operators.lookup import CLAMP_OPERATORS, bounds_constant


def clip() -> onnx.ModelProto:
    built = builder()
    bound = built.node("ReduceMin", [built.dequantise(source(built, (3,)))], keepdims=0)
    return finish_model(built, built.node("Clip", [built.dequantise(source(built)), bound]))


def float_input() -> onnx.ModelProto:
    built = builder()
    source = built.input((1, 4))
    value = built.node("LogSoftmax", [built.dequantise(source)])
    return finish_model(built, built.node("Relu", [value]))


CASES: dict[str, Case] = {
    "bound from an input": (lambda: clip(), "Clip", bounds_constant),
    "value from the host": (lambda: float_input(), "Relu", input_quantisable),
}


@pytest.mark.parametrize("name", CASES)
def test_fallback(name: str) -> None:
    check_fallback(CASES[name])


def test_every_constraint_has_a_case() -> None:
    assert untested_constraints(CLAMP_OPERATORS, CASES.values()) == set()
