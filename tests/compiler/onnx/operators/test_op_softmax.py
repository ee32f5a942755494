"""Softmax: every constraint broken once, and the reason that is given for it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support.fallbacks import Case, builder, check_fallback, ended, mixed, source, untried

from weft.compiler.onnx.operators.softmax import (
    OPERATORS,
    softmax_axis,
    softmax_input,
    softmax_length,
    softmax_range,
)


def convolution(
    weight: np.ndarray | str, shape: tuple[int, ...] = (1, 4, 6, 6), **attributes: object
) -> onnx.ModelProto:
    """Conv with given float weights, or int8 ones quantised as `weight` says."""
    built = builder()
    value = built.dequantise(source(built, shape))
    if isinstance(weight, str):
        name = {
            "input": lambda: built.dequantise(source(built, (2, 4, 1, 1))),
            "other axis": lambda: built.weight((2, 4, 1, 1), 1, per_channel=True, unsigned=False)[0],
        }[weight]()
    else:
        name = built.constant(weight.astype(np.float32))
    return ended(built, built.node("Conv", [value, name], **attributes))


def long_softmax() -> onnx.ModelProto:
    built = builder()
    return ended(built, built.node("Softmax", [built.dequantise(built.input((1, 65536)))]))


def wide_softmax() -> onnx.ModelProto:
    built = builder()
    value = built.dequantise(built.quantise(built.dequantise(source(built)), (1, 4, 6, 6), 2.0, 0, False))
    return ended(built, built.node("Softmax", [value], axis=1))


def float_softmax() -> onnx.ModelProto:
    built = builder()
    value = built.node("Erf", [built.dequantise(source(built))])
    return ended(built, built.node("Softmax", [value], axis=1))


CASES: dict[str, Case] = {
    "softmax over rows": (
        lambda: mixed(lambda built, value: built.node("Softmax", [value], axis=3)),
        "Softmax",
        softmax_axis,
    ),
    "softmax of wide logits": (wide_softmax, "Softmax", softmax_range),
    "softmax of floats": (float_softmax, "Softmax", softmax_input),
    "softmax of many": (long_softmax, "Softmax", softmax_length),
}


@pytest.mark.parametrize("name", CASES)
def test_fallback(name: str) -> None:
    check_fallback(CASES[name])


def test_every_constraint_has_a_case() -> None:
    # These are tried with another operator, or implied in any model that ONNX accepts.
    assert untried(OPERATORS, CASES.values()) == {"softmax_unit"}
