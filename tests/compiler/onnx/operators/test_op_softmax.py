"""Softmax: every constraint violated once, with the reason."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support import one_step
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

from weft.compiler.onnx.operators.softmax import (
    SOFTMAX_OPERATORS,
    softmax_axis,
    softmax_input,
    softmax_length,
    softmax_range,
)


def along(built: Builder, shape: tuple[int, ...], axis: int, *, behind: str) -> onnx.ModelProto:
    """Softmax behind a convolution, whose channels are the innermost axis, or of an input."""
    given = built.input(shape)
    if behind == "conv":
        given = built.conv(given, shape[1], (1, 1), per_channel=False, bias=False)
    given = built.quantise(built.dequantise(given), shape, 0.05, 3, False)
    value = built.node("Softmax", [built.dequantise(given)], axis=axis)
    return built.finish(built.quantise(value, shape, 1 / 256, 0, True))


@pytest.mark.parametrize("opset", [11, 12, 13, 21])
@pytest.mark.parametrize("axis", range(-2, 4))
@pytest.mark.parametrize("behind", ["conv", "input"])
def test_any_axis(opset: int, axis: int, behind: str) -> None:
    """Before version 13 it is over all axes from one on."""
    rng = np.random.default_rng([opset, axis + 2])
    built = Builder(rng, opset)
    model = along(built, (2, 5, 3, 4), axis, behind=behind)
    tally = one_step.Tally()
    one_step.check(model, rng, tally, None)


@pytest.mark.parametrize("shape", [(5, 6, 1), (4, 3, 5), (2, 3, 2, 4)])
def test_rows_of_several_axes(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(len(shape))
    built = Builder(rng)
    scale = built.constant(np.ones(shape[1:], np.float32))
    value = built.node("LayerNormalization", [built.dequantise(built.input(shape)), scale], axis=1)
    given = built.quantise(value, shape, 0.03, 3, False)
    value = built.node("Softmax", [built.dequantise(given)], axis=-1)
    one_step.check(built.finish(built.quantise(value, shape, 1 / 256, 0, True)), rng, one_step.Tally(), None)


def long_softmax() -> onnx.ModelProto:
    built = builder()
    return finish_model(built, built.node("Softmax", [built.dequantise(built.input((1, 65536)))]))


def wide_softmax() -> onnx.ModelProto:
    built = builder()
    value = built.dequantise(built.quantise(built.dequantise(source(built)), (1, 4, 6, 6), 2.0, 0, False))
    return finish_model(built, built.node("Softmax", [value], axis=1))


def float_softmax() -> onnx.ModelProto:
    built = builder()
    value = built.node("Erf", [built.dequantise(source(built))])
    return finish_model(built, built.node("Softmax", [value], axis=1))


CASES: dict[str, Case] = {
    "softmax over rows": (
        lambda: mixed_axes(lambda built, value: built.node("Softmax", [value], axis=3)),
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
    assert untested_constraints(SOFTMAX_OPERATORS, CASES.values()) == {"softmax_unit"}
