"""QuantizeLinear and DequantizeLinear: every constraint violated once, with the reason."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import cast

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from support.fallbacks import Case, builder, check_fallback, finish_model, source, untested_constraints
from support.op_cases import convolution, whole

from weft.compiler.ir.layout import row_major_layout
from weft.compiler.onnx.operator import NodeContext
from weft.compiler.onnx.operators.lookup import (
    QUANTISE_OPERATORS,
    per_tensor,
    scales_fit,
    sums_fit,
    wide_engine,
)
from weft.compiler.onnx.qdq import Pending


def sixteen() -> onnx.ModelProto:
    built = builder()
    name = "input"
    built.inputs.append(onnx.helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 4)))
    pair = [built.constant(np.float32(0.1)), built.constant(np.array(0, np.int16))]
    value = built.node(
        "Relu", [built.node("DequantizeLinear", [built.node("QuantizeLinear", [name, *pair]), *pair])]
    )
    return finish_model(built, value)


def long_sum() -> onnx.ModelProto:
    built = builder()
    weight = built.constant(np.full((70000, 1), -128, np.int8))
    pair = [built.constant(np.float32(0.1)), built.constant(np.array(0, np.int8))]
    name = built.node("DequantizeLinear", [weight, *pair])
    source = dataclasses.replace(built.input((1, 70000), unsigned=False), zero=127)
    value = built.dequantise(source)
    return finish_model(built, built.node("MatMul", [value, name]))


def requantised_input() -> onnx.ModelProto:
    built = builder()
    value = built.node("Relu", [built.dequantise(source(built, (1, 4)))])
    return finish_model(built, value, scale=1e-9)


def negative() -> onnx.ModelProto:
    built = builder()
    names = [source(built, (1, 4)).name, built.constant(np.float32(-0.1))]
    return finish_model(built, built.node("Relu", [built.node("DequantizeLinear", names)]))


CASES: dict[str, Case] = {
    "scale below zero": (lambda: negative(), "Relu", per_tensor),
    "int16": (lambda: sixteen(), "Relu", wide_engine),
    "large scale": (lambda: requantised_input(), "Relu", scales_fit),
    "long sum": (lambda: long_sum(), "MatMul", sums_fit),
}


@pytest.mark.parametrize("name", CASES)
def test_fallback(name: str) -> None:
    check_fallback(CASES[name], lookup_tables=0)


@pytest.mark.parametrize(
    ("zero", "most"), [(-128, 255), (-127, 254), (-1, 128), (0, 128), (1, 129), (126, 254), (127, 255)]
)
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_sum_is_that_of_the_farthest_input(zero: int, most: int, sign: int) -> None:
    """Inputs are at most so far from their zero point. With a bias that leaves exactly that room sums fit, with one
    more they do not."""
    op = convolution(whole("x", (1, 1, 1, 3), "input"), 2).replace(x_zero=zero)
    weight = np.array([[1, 0, 0], [100, -100, 5]], np.int16).reshape(op.weight.shape)
    for more, told in ((0, None), (1, "conv could reach 2147483648")):
        bias = np.array([0, sign * ((1 << 31) - 1 - 205 * most + more)], np.int32)
        pending = Pending((op.replace(weight=weight, bias=bias),), row_major_layout((1, 2)), (), ())
        context = cast(NodeContext, SimpleNamespace(symbol=lambda _, found=pending: found))
        assert sums_fit(context) == told


def test_every_constraint_has_a_case() -> None:
    # Tried with another operator, or implied in any model that ONNX accepts; forms of 16 bits are in test_wide.py.
    assert untested_constraints(QUANTISE_OPERATORS, CASES.values()) == {
        "input_quantisable",
        "stored_on_device",
        "wide_forms",
    }
