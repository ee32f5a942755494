"""Golden against ONNX Runtime without its optimisations: never off by more than one step, and almost never at all.

ONNX Runtime computes in float32, weft in exact integers with 24-bit scales, so values within about 1e-5 of a half may
round to different sides. Layers are compared one by one, each on ONNX Runtime's own inputs: end to end, one early
difference would be counted again wherever it spreads.
"""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from oracle import compare_layers, layers, session, steps
from support.qdq_models import feeds, random_cnn, softmax

import weft
from weft.compiler.backend import DeviceProgram
from weft.examples import digits

RATE = 1e-5


class Tally:
    """Outputs compared, and how many differ; by more than one step, it fails at once."""

    def __init__(self) -> None:
        self.outputs = self.wrong = 0

    def add(self, expected: np.ndarray, got: np.ndarray) -> None:
        off = steps(expected, got)
        assert off.max(initial=0) <= 1
        self.outputs += off.size
        self.wrong += int(np.count_nonzero(off))


def compare(model: onnx.ModelProto, inputs: list[dict[str, np.ndarray]], tally: Tally) -> None:
    """Run every layer of a model on ONNX Runtime's values of its inputs."""
    for layer in compare_layers(model, layers(model), inputs, "small"):
        (given,) = layer.result.outputs.values()
        tally.add(layer.wanted, given)


def test_digits() -> None:
    model = onnx.load_from_string(digits.model())
    tally = Tally()
    compare(model, [{"image": image[None]} for image in digits.held_out()[0][:120]], tally)
    print(f"{tally.wrong} of {tally.outputs} outputs differ")
    assert tally.outputs > 900_000
    assert tally.wrong < RATE * tally.outputs


def test_random_networks() -> None:
    tally = Tally()
    for seed in range(10):
        rng = np.random.default_rng([seed, 2])
        model = random_cnn(rng)
        compare(model, [feeds(model, rng) for _ in range(40)], tally)
    print(f"{tally.wrong} of {tally.outputs} outputs differ")
    assert tally.wrong < max(1, RATE * tally.outputs)


@pytest.mark.parametrize("count", [100])
def test_digits_end_to_end(count: int) -> None:
    """The logits of whole runs: a difference inside the network may reach them, by one step of their scale."""
    model = onnx.load_from_string(digits.model())
    step = next(
        onnx.numpy_helper.to_array(tensor)
        for tensor in model.graph.initializer
        if tensor.name == "logits_scale"
    )
    reference, program = session(model), weft.compile(model, "small")
    wrong = total = 0
    for image in digits.held_out()[0][:count]:
        expected = reference.run(None, {"image": image[None]})[0]
        steps = np.rint(np.abs(expected - program.run({"image": image[None]}).outputs["logits"]) / step)
        assert steps.max() <= 1
        wrong += int(np.count_nonzero(steps))
        total += steps.size
    print(f"{wrong} of {total} logits differ")
    assert wrong < total / 100


@pytest.mark.parametrize(("scale", "zero", "unsigned"), [
    (0.69, 127, False), (0.69, 0, True), (1.38, 0, False), (1.38, -128, False), (1.38, 255, True), (1.38, 100, True),
])  # fmt: skip
def test_softmax_of_wide_logits(scale: float, zero: int, unsigned: bool) -> None:
    """Whatever the zero point, no logit is clamped, which would make it equal to others."""
    model = softmax((300, 9), scale, zero, unsigned)
    low = (0 if unsigned else -128) - zero
    logits = scale * np.random.default_rng(1).integers(low, low + 256, (300, 9)).astype(np.float32)
    program = weft.compile(model, "small")
    assert any(isinstance(segment, DeviceProgram) for segment in program.segments)
    (given,), (wanted,) = (
        program.run({"logits": logits}).outputs.values(),
        session(model).run(None, {"logits": logits}),
    )
    assert len(np.unique(wanted)) > 10
    assert np.abs(given - wanted).max() <= 1.01 / 256
