"""Conv: every constraint broken once, and the reason that is given for it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support.fallbacks import Case, builder, check_fallback, ended, source, untried

from weft.compiler.onnx.conditions import depth_alone, image, weights_constant, weights_per_output
from weft.compiler.onnx.operators.conv import OPERATORS


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


ones = np.ones((2, 4, 1, 1))

CASES: dict[str, Case] = {
    "no image": (lambda: convolution(np.ones((2, 4, 1, 1, 1, 1)), (1, 4, 2, 2, 2, 2)), "Conv", image),
    "depth": (lambda: convolution(np.ones((2, 4, 2, 1, 1)), (1, 4, 3, 4, 5)), "Conv", depth_alone),
    "float weights": (lambda: convolution(ones), "Conv", weights_constant),
    "weights from an input": (lambda: convolution("input"), "Conv", weights_constant),
    "scales per input channel": (lambda: convolution("other axis"), "Conv", weights_per_output),
}


@pytest.mark.parametrize("name", CASES)
def test_fallback(name: str) -> None:
    check_fallback(CASES[name])


def test_every_constraint_has_a_case() -> None:
    # These are tried with another operator, or implied in any model that ONNX accepts.
    assert untried(OPERATORS, CASES.values()) == {
        "image_order",
        "input_quantised",
        "bias_constant",
        "window_steps",
    }
