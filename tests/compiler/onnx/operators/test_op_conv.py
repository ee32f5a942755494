"""Conv: every constraint violated once, with the reason."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support import one_step
from support.fallbacks import Case, builder, check_fallback, finish_model, source, untested_constraints
from support.qdq_models import Builder

from weft.compiler.onnx.conditions import depth_alone, image, weights_constant, weights_per_output
from weft.compiler.onnx.operators.conv import CONV_OPERATORS, pads_fit


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
    return finish_model(built, built.node("Conv", [value, name], **attributes))


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
    others = {"image_order", "input_quantised", "bias_constant", "pads_fit"}
    assert untested_constraints(CONV_OPERATORS, CASES.values()) == others


def hop(seed: int) -> tuple[onnx.ModelProto, np.random.Generator]:
    """Rows, images or several images with a stride or dilation of 128 to 400 along the last axis or the one before,
    with padding or auto_pad there as well, as filters of sound have them; some read a result of the device."""
    rng = np.random.default_rng([seed, 13])
    built, rank = Builder(rng), int(rng.choice([1, 1, 2, 3]))
    at = rank - 1 - int(rank > 1 and rng.random() < 0.4)
    step = int(rng.integers(128, 400))
    kernel, strides, dilations, sizes = [1] * rank, [1] * rank, [1] * rank, [3] * rank
    if rng.random() < 0.8:
        strides[at], kernel[at] = step, int(rng.choice([1, 2, 5, step // 2, step, step + 90]))
    else:
        dilations[at], kernel[at] = step, int(rng.integers(2, 4))
    sizes[at] = (kernel[at] - 1) * dilations[at] + 1 + int(rng.integers(0, 4 * step))
    groups = int(rng.choice([1, 1, 1, 2]))
    channels = groups * int(rng.choice([1, 1, 3, 20]))
    given = built.input((1, channels, *sizes))
    if rng.random() < 0.3:
        given = built.like(built.node("Relu", [built.dequantise(given)]), given.shape, given)
    weight, scales = built.weight(
        (groups * int(rng.integers(1, 12)), channels // groups, *kernel), 0, per_channel=True, unsigned=False
    )
    # ONNX Runtime moves windows that are further apart than they are long, and refuses dilations there.
    autos = (
        ["VALID"]
        if max(strides) > kernel[at] or max(dilations) > 1
        else ["SAME_UPPER", "SAME_LOWER", "VALID"]
    )
    padding: dict[str, object] = {"auto_pad": str(rng.choice(autos)), "kernel_shape": kernel}
    if rng.random() < 0.6:
        pads = [0] * 2 * rank
        pads[at], pads[rank + at] = (int(size) for size in rng.integers(0, 200, 2))
        padding = {"pads": pads}
    inputs = [built.dequantise(given), weight, built.bias(given, scales)]
    value = built.node("Conv", inputs, strides=strides, dilations=dilations, group=groups, **padding)
    length = channels // groups * int(np.prod(kernel))
    spread = given.scale * float(scales.mean()) * 74 * 74 * length**0.5
    result = built.quantise(value, built.shape_of(value), float(np.float32(spread / 64)), 3, False)
    return built.finish(result), rng


def check_hop(seed: int, tally: one_step.Tally) -> None:
    model, rng = hop(seed)
    one_step.check(model, rng, tally, ("tiny", "small", "default")[seed % 3])


def test_steps_of_any_size() -> None:
    tally = one_step.Tally()
    for seed in range(10):
        check_hop(seed, tally)
    assert tally.wrong < 1e-3 * tally.elements


@pytest.mark.long
def test_steps_of_any_size_more() -> None:
    tally = one_step.Tally()
    for seed in range(100, 400):
        check_hop(seed, tally)
    assert tally.wrong < 1e-3 * tally.elements


def test_pads_that_are_too_long() -> None:
    weight = np.ones((2, 4, 1, 3))
    built = builder()
    name, _ = built.weight(weight.shape, 0, per_channel=True, unsigned=False)
    value = built.node(
        "Conv",
        [built.dequantise(source(built, (1, 4, 1, 600))), name],
        strides=[1, 200],
        pads=[0, 4096, 0, 0],
    )
    check_fallback((lambda: finish_model(built, value), "Conv", pads_fit))
