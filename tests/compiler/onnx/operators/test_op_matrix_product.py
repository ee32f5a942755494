"""Gemm and MatMul: every constraint violated once, with the reason."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support.fallbacks import (
    MANY,
    Case,
    builder,
    check_fallback,
    dense,
    finish_model,
    mixed_axes,
    source,
    untested_constraints,
)
from support.qdq_models import Builder

from weft.compiler.onnx.conditions import bias_constant
from weft.compiler.onnx.operators.multiply import (
    MATRIX_PRODUCT_OPERATORS,
    plain_product,
    product_input,
    row_order,
)


def add_bias(bias: str) -> onnx.ModelProto:
    built = builder()
    value = built.dequantise(source(built, (4, 4)))
    weight, _ = built.weight((4, 4), 1, per_channel=True, unsigned=False)
    name = (
        built.dequantise(source(built, (4,)))
        if bias == "input"
        else built.constant(np.ones({"matrix": (4, 4), "column": (4, 1)}[bias], np.float32))
    )
    return finish_model(built, built.node("Gemm", [value, weight, name]))


def product(built: Builder, value: str) -> str:
    weight, _ = built.weight((MANY, 2), 0, per_channel=False, unsigned=False)
    return built.node("MatMul", [value, weight])


CASES: dict[str, Case] = {
    "transA": (lambda: dense(shape=(4, 2), transA=1), "Gemm", plain_product),
    "alpha": (lambda: dense(alpha=0.5), "Gemm", plain_product),
    "bias from an input": (lambda: add_bias("input"), "Gemm", bias_constant),
    "bias for each row": (lambda: add_bias("matrix"), "Gemm", bias_constant),
    "bias in a column": (lambda: add_bias("column"), "Gemm", bias_constant),
    "product of a vector": (lambda: dense("MatMul", (4,)), "MatMul", product_input),
    "rows of mixed axes": (lambda: mixed_axes(product, (MANY, MANY)), "MatMul", row_order),
}


@pytest.mark.parametrize("name", CASES)
def test_fallback(name: str) -> None:
    check_fallback(CASES[name])


def test_every_constraint_has_a_case() -> None:
    # These are tried with another operator, or implied in any model that ONNX accepts.
    assert untested_constraints(MATRIX_PRODUCT_OPERATORS, CASES.values()) == {
        "input_quantised",
        "weights_constant",
        "weights_matrix",
        "weights_per_output",
    }
