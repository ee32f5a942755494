"""PRelu with a slope for each channel: every constraint violated once, and random ones against ONNX Runtime."""

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
from support.graph_runs import device_ops
from support.qdq_models import Builder

from weft.compiler.frontend import import_model
from weft.compiler.onnx.convolutions import same_order
from weft.compiler.onnx.operators.pairs import PRELU_OPERATORS, slope_each, slopes_alike
from weft.hdl.isa.config import Config

SHAPES = ((2, 5, 4, 6), (1, 6, 9), (3, 7), (1, 3, 2, 4, 5))


@pytest.mark.drawn(3)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("behind", ["input", "conv"])
def test_random(shape: tuple[int, ...], behind: str) -> None:
    """Rounded once: never off but where ONNX Runtime's float32 is."""
    tally = one_step.Tally()
    for seed in range(6):
        rng = np.random.default_rng(seed)
        built = Builder(rng)
        given = built.input(shape)
        value = built.dequantise(given)
        if behind == "conv" and len(shape) > 2:
            weight, _ = built.weight(
                (shape[1], shape[1], *(1,) * (len(shape) - 2)), 0, per_channel=True, unsigned=False
            )
            value = built.node("Conv", [value, weight])
        sign = -1 if seed == 5 else 1
        slopes = sign * rng.uniform(0, 1.5, (shape[1], *(1,) * (len(shape) - 2))) * (rng.random() < 0.9)
        value = built.node("PRelu", [value, built.constant(slopes.astype(np.float32))])
        if seed % 3 == 0:
            value = built.node(
                "Clip", [value, built.constant(np.float32(-1)), built.constant(np.float32(1.5))]
            )
        _, zero, unsigned = built.parameters()
        zero = 0 if unsigned and seed == 4 else zero
        model = built.finish(
            built.quantise(value, shape, float(np.float32(rng.uniform(0.02, 0.1))), zero, unsigned)
        )
        one_step.check(model, rng, tally, "tiny" if seed % 2 else "small")
    assert tally.wrong < 2e-3 * tally.elements


def with_slopes(slopes: np.ndarray, shape: tuple[int, ...] = (1, 4, 6, 6)) -> onnx.ModelProto:
    built = builder()
    name = built.constant(slopes.astype(np.float32))
    return finish_model(built, built.node("PRelu", [built.dequantise(source(built, shape)), name]))


def test_one_slope_without_tables() -> None:
    graph = import_model(with_slopes(np.array(0.25)), config=Config(lookup_tables=0))
    assert [type(op).__name__ for op in device_ops(graph)] == ["Rescale", "Conv", "Add"]


def shuffle_channels() -> onnx.ModelProto:
    def slopes(built: Builder, value: str) -> str:
        return built.node("PRelu", [value, built.constant(np.array([[[0.5]], [[0.2]]], np.float32))])

    return mixed_axes(slopes, (1, 2, 289, 289), (1, 289, 34, 17))


CASES: dict[str, Case] = {
    "slope of each element": (lambda: with_slopes(np.ones((4, 6, 6))), "PRelu", slope_each),
    "both signs": (lambda: with_slopes(np.array([1, -1, 1, 1]).reshape(4, 1, 1)), "PRelu", slopes_alike),
    "mixed axes": (shuffle_channels, "PRelu", same_order),
}


@pytest.mark.parametrize("name", CASES)
def test_fallback(name: str) -> None:
    check_fallback(CASES[name])


def test_every_constraint_has_a_case() -> None:
    assert untested_constraints(PRELU_OPERATORS, CASES.values()) == set()
