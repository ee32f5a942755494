"""LogSoftmax against ONNX Runtime, and every constraint violated once."""

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
    one,
    source,
    untested_constraints,
)
from support.qdq_models import Builder

from weft.compiler.onnx.conditions import input_quantised, kernel_room
from weft.compiler.onnx.operators.softmax import LOG_SOFTMAX_OPERATORS, log_axis, log_length, log_tables


def along(built: Builder, shape: tuple[int, ...], axis: int, *, behind: str) -> onnx.ModelProto:
    """LogSoftmax behind a convolution, whose channels are the innermost axis, or of an input; of any scale."""
    rng = built.rng
    given = built.input(shape)
    if behind == "conv":
        given = built.conv(given, shape[1], (1, 1), per_channel=False, bias=False)
    scale = float(np.float32(10.0 ** rng.uniform(-2, 0)))
    given = built.quantise(
        built.dequantise(given), shape, scale, int(rng.integers(0, 100)), bool(rng.integers(2))
    )
    value = built.node("LogSoftmax", [built.dequantise(given)], axis=axis)
    unsigned = bool(rng.integers(2))
    step = float(np.float32((scale * rng.uniform(50, 255) + 3) / 255))
    return built.finish(built.quantise(value, shape, step, 255 if unsigned else 127, unsigned))


@pytest.mark.parametrize("opset", [11, 13, 21])
@pytest.mark.parametrize("axis", range(-2, 4))
@pytest.mark.parametrize("behind", ["conv", "input"])
def test_any_axis(opset: int, axis: int, behind: str) -> None:
    """Before version 13 it is over all axes from one on."""
    tally = one_step.Tally()
    for seed in range(3):
        rng = np.random.default_rng([seed, opset, axis + 2])
        shape = tuple(rng.integers(1, 9, 4).tolist())
        one_step.check(along(Builder(rng, opset), shape, axis, behind=behind), rng, tally, None)
    assert tally.wrong <= max(3, 0.04 * tally.elements)


def test_classes() -> None:
    """A thousand of them."""
    rng, tally = np.random.default_rng(6), one_step.Tally()
    built = Builder(rng)
    given = built.quantise(built.dequantise(built.input((4, 1000))), (4, 1000), 0.1, 0, False)
    value = built.node("LogSoftmax", [built.dequantise(given)])
    one_step.check(built.finish(built.quantise(value, (4, 1000), 0.08, 127, False)), rng, tally, None)
    assert tally.wrong < 0.01 * tally.elements


def floats() -> onnx.ModelProto:
    built = builder()
    value = built.node("Cos", [built.node("Softmax", [built.dequantise(source(built))], axis=2)])
    return finish_model(built, built.node("LogSoftmax", [value], axis=1))


CASES: dict[str, Case] = {
    "floats": (floats, "LogSoftmax", input_quantised),
    "axes that take too many copies": (
        lambda: mixed_axes(lambda built, value: built.node("LogSoftmax", [value], axis=3)),
        "LogSoftmax",
        log_axis,
    ),
    "row that is too long": (lambda: one("LogSoftmax", (1, 60000)), "LogSoftmax", log_length),
}


@pytest.mark.parametrize("name", CASES)
def test_fallback(name: str) -> None:
    check_fallback(CASES[name], kernel=64)


def test_units() -> None:
    def model() -> onnx.ModelProto:
        return one("LogSoftmax", (1, 3000))

    check_fallback((model, "LogSoftmax", kernel_room), kernel=32)
    check_fallback((model, "LogSoftmax", log_tables), kernel=64, lookup_tables=2)
    check_fallback((model, "LogSoftmax", log_length), kernel=64, n=64, lanes=32, bus_bytes=64)


def test_every_constraint_has_a_case() -> None:
    assert untested_constraints(LOG_SOFTMAX_OPERATORS, CASES.values()) == {"kernel_room", "log_tables"}
