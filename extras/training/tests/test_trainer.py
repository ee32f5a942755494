"""Training on the golden interpreter: accuracy, written models, kept states, and refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from support import tflite_networks, trained_nets
from support.logged_device import Logged, need
from support.mostly_long import mostly_long
from support.ort_sessions import plain_session

import weft
from weft.examples import digits
from weft.extras.training.gradient.derivative import GradientError
from weft.extras.training.interface import accuracy
from weft.extras.training.settings import Settings
from weft.extras.training.trainer import Trainer
from weft.run.stream import alternate_images, stream

MODEL = Path(digits.__file__).with_name("digits.onnx")
CONFIG = weft.Config.load("default")


def inverted_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return the example's held-out digits with inverted colours, float32 (450, 1, 8, 8), and labels."""
    with np.load(MODEL.with_name("digits_test.npz")) as data:
        return 1 - data["images"].astype(np.float32) / 16, data["labels"].astype(np.int64)


def test_fine_tuning_after_a_change_of_the_data() -> None:
    """The last layer of the digits network learns from 320 inverted digits; the others measure it."""
    x, labels = inverted_digits()
    before = accuracy(MODEL, {"image": x[320:]}, labels[320:], CONFIG)
    trained = weft.train(MODEL, {"image": x[:320]}, labels[:320], layers=1, epochs=5, rate=0.03)
    after = accuracy(trained.model, {"image": x[320:]}, labels[320:], CONFIG)
    assert before is not None
    assert after is not None
    assert before < 0.35
    assert after > before + 0.1
    assert [len(trained.epochs), trained.constants[-1]] == [5, "classify.bias"]
    assert trained.epochs[-1].loss < trained.epochs[0].loss
    onnx.checker.check_model(trained.model, full_check=True)


@pytest.mark.long
def test_training_all_layers_recovers_accuracy() -> None:
    """Training recovers at least 90 % of the accuracy that the inversion costs."""
    x, labels = inverted_digits()
    upright = accuracy(MODEL, {"image": 1 - x[320:]}, labels[320:], CONFIG)
    lost = accuracy(MODEL, {"image": x[320:]}, labels[320:], CONFIG)
    trained = weft.train(MODEL, {"image": x[:320]}, labels[:320], layers=None, epochs=30, rate=0.005)
    actual = accuracy(trained.model, {"image": x[320:]}, labels[320:], CONFIG)
    assert upright is not None
    assert lost is not None
    assert actual is not None
    assert actual - lost >= 0.9 * (upright - lost)


@pytest.mark.parametrize("kind", [-1, pytest.param(1, marks=pytest.mark.long)])
def test_from_random_weights(kind: int) -> None:
    """A float network learns separable classes; trained constants are written as floats."""
    rng = np.random.default_rng([61, kind + 1])
    model = trained_nets.perceptron(rng, (9, 12, 4)) if kind < 0 else trained_nets.convolutional(rng, kind)
    x, labels = trained_nets.samples(model, 100)
    trained = weft.train(model, {"x": x}, labels, layers=None, epochs=3, batch=10, rate=0.05)
    session = plain_session(trained.model)
    right = [int(session.run(None, {"x": sample[None]})[0].argmax()) for sample in x] == labels
    assert right.mean() > 0.9
    assert trained.epochs[0].accuracy < trained.epochs[-1].accuracy


KINDS = {
    "gated": (trained_nets.gated_units, 0),
    "depthwise": (trained_nets.depthwise, 0), "branches": (trained_nets.branches, 0),
    "transformer": (trained_nets.transformer, 60),
}  # fmt: skip
"""Networks, and the largest number of nodes of a step that run on the host."""


@pytest.mark.parametrize(
    ("name", "quantised"),
    mostly_long([(name, quantised) for name in KINDS for quantised in (True, False)], 0),
)
def test_kinds_of_networks(name: str, quantised: bool) -> None:
    """Each network learns separable classes, and only training of normalisations runs on the host."""
    make, most = KINDS[name]
    model = make(np.random.default_rng(67))
    model = trained_nets.quantise_by_samples(model) if quantised else model
    x, labels = trained_nets.samples(model, 96)
    trained = weft.train(model, {"x": x}, labels, layers=None, epochs=4, batch=16, rate=0.05)
    assert trained.epochs[-1].accuracy > max(0.6, trained.epochs[0].accuracy)
    on_host = [why for _, _, place, why in trained.nodes if place == "host"]
    inside = [why for why in on_host if "boundary" not in why and "output of the model" not in why]
    assert len([why for why in inside if "read on the host by" not in why]) <= most


def test_frozen_constants_stay() -> None:
    model = trained_nets.quantise_by_samples(trained_nets.convolutional(np.random.default_rng(62), 2))
    x, labels = trained_nets.samples(model, 40)
    trained = weft.train(model, {"x": x}, labels, layers=1, epochs=1, batch=10).model
    before, after = (
        {item.name: onnx.numpy_helper.to_array(item) for item in proto.graph.initializer}
        for proto in (model, trained)
    )
    changed = {name for name, value in before.items() if not np.array_equal(value, after[name])}
    last = {name for name in before if name.startswith(("constant4", "constant5", "y_", "gemm"))}
    assert changed
    assert changed <= last | {name for name in before if name.startswith("constant") and "bias" in name}


def test_adapters() -> None:
    """Only the adapters are trained, and each step runs on the device."""
    model = trained_nets.quantise_by_samples(trained_nets.perceptron(np.random.default_rng(66), (9, 12, 4)))
    x, labels = trained_nets.samples(model, 160)
    before = accuracy(model, {"x": x}, labels, CONFIG)
    trained = weft.train(model, {"x": x}, labels, layers=None, epochs=6, batch=16, rate=0.1, adapter=2)
    after = accuracy(trained.model, {"x": x}, labels, CONFIG)
    assert before is not None
    assert after is not None
    assert after > before + 0.3
    assert all(name.endswith(("/adapter/first", "/adapter/second")) for name in trained.constants)
    on_host = [why for _, _, place, why in trained.nodes if place == "host"]
    assert all("boundary" in why or "output of the model" in why or "on the host" in why for why in on_host)


def test_seeds_are_reproducible() -> None:
    model = trained_nets.perceptron(np.random.default_rng(63), (6, 3))
    x, labels = trained_nets.samples(model, 40)
    trained = [
        weft.train(model, {"x": x}, labels, epochs=1, batch=8, seed=seed).model.SerializeToString()
        for seed in (5, 5, 6)
    ]
    assert trained[0] == trained[1]
    assert trained[0] != trained[2]


def test_rates_fall() -> None:
    settings = Settings(epochs=20, rate=0.9)
    assert [round(settings.rate_in(epoch), 4) for epoch in (0, 11, 12, 16, 17)] == [0.9, 0.9, 0.3, 0.3, 0.1]


def test_wrong_input() -> None:
    model = trained_nets.perceptron(np.random.default_rng(64), (6, 5, 3))
    x, labels = trained_nets.samples(model, 16)
    for wrong, options, message in (
        (labels + 1, {}, r"label 3 of sample \d+ is not a class of the model, which has 3"),
        (labels[:-1], {}, "there are 15 labels for 16 samples"),
        (labels + 0.5, {}, r"labels must be integers, one for each sample, not float64 of shape \(16,\)"),
        (labels, {"batch": 17}, "there are 16 samples, fewer than the 17 of a batch"),
        (labels, {"layers": 0}, "'layers' must be an integer from 1 to 10,000, not 0"),
        (labels, {"names": ["gemm7"]}, "the model has no layer 'gemm7' to train; it has 'gemm0', 'gemm2'"),
        (labels, {"on": "timing"}, "training takes 'golden', 'rtl' or a device, not 'timing'"),
        (labels, {"rate": float("nan")}, "'rate' must be a finite number"),
    ):
        with pytest.raises(weft.WeftError, match=message):
            weft.train(model, {"x": x}, wrong, **{"batch": 8, "epochs": 1, **options})
    with pytest.raises(weft.WeftError, match=r"\(16, 5\)"):
        weft.train(model, {"x": x[:, :-1]}, labels, batch=8, epochs=1)


def test_gradients_of_a_model() -> None:
    """`weft.grad` differentiates a quantised model in real numbers."""
    model = trained_nets.quantise_by_samples(trained_nets.perceptron(np.random.default_rng(65), (6, 5, 3)))
    trained = weft.grad(model)
    session = plain_session(trained)
    assert [item.name for item in session.get_inputs()] == ["x", "y/gradient"]
    assert [item.name for item in session.get_outputs()] == ["x/gradient"]
    x, _ = trained_nets.samples(model, 1)
    seed = np.array([[1, -2, 0.5]], np.float32)
    (actual,) = session.run(None, {"x": x, "y/gradient": seed})
    # Central differences of the real network.
    from weft.compiler.host.onnx_model import model_of
    from weft.compiler.onnx.reader import read
    from weft.extras.training.gradient.real_network import to_real_network

    real = plain_session(model_of(to_real_network(read(model)).network))
    for at in range(6):
        ends = []
        for side in (1e-2, -1e-2):
            moved = x.copy()
            moved[0, at] += side
            ends.append(float((real.run(None, {"x": moved})[0] * seed).sum()))
        assert actual[0, at] == pytest.approx((ends[0] - ends[1]) / 2e-2, abs=2e-2)
    with pytest.raises(GradientError, match="'z' is neither a constant nor an input"):
        weft.grad(model, ["z"])
    with pytest.raises(weft.InputError, match="'wanted' must be names, not the string 'x'"):
        weft.grad(model, "x")


def test_tflite() -> None:
    """A TFLite classifier with integer input and output: the result is ONNX with the trained accuracy."""
    model = tflite_networks.convolutions()
    rng = np.random.default_rng(68)
    labels = rng.integers(0, 4, 96)
    centres = rng.integers(-90, 90, (4, 9, 8, 3))
    x = np.clip(centres[labels] + rng.integers(-30, 30, (96, 9, 8, 3)), -128, 127).astype(np.int8)
    before = accuracy(model, {"input0": x}, labels, CONFIG)
    trained = weft.train(model, {"input0": x}, labels, layers=None, epochs=8, batch=16, rate=0.03)
    after = accuracy(trained.model, {"input0": x}, labels, CONFIG)
    assert before is not None
    assert after is not None
    assert before < 0.5
    assert after > 0.8
    program = weft.compile(trained.model, CONFIG)
    assert program.inputs["input0"][0] == program.outputs["output0"][0] == "int8"


@pytest.mark.parametrize("early", [False, True])
def test_states_stay_on_the_device(early: bool) -> None:
    """Weights and momenta are written once and read once."""
    net = trained_nets.perceptron(np.random.default_rng(3), (8, 12, 4))
    x, labels = trained_nets.samples(net, 40)
    trainer = Trainer(net, weft.Config.load("default"), Settings(batch=8), layers=None)
    trainer.prepare(0, {"x": x}, labels, np.random.default_rng(0))
    program = trainer.program
    assert program is not None
    runs = [trainer.batch({"x": x}, labels, np.arange(8) + 8 * index) for index in range(5)]
    before = program.states
    wanted = [program.run(inputs) for inputs in runs]
    after = program.states
    program.reset(before)
    device = Logged(4 * need(program), early=early, config=program.config)
    results = list(stream(program, runs, device))
    assert len(alternate_images(program, device.memory_bytes) or ()) == 2
    for result, expected in zip(results, wanted, strict=True):
        for output, array in expected.outputs.items():
            assert np.array_equal(result.outputs[output], array)
    assert all(np.array_equal(program.states[name], value) for name, value in after.items())
    assert not np.array_equal(before[f"{trainer.names[0]}/kept"], after[f"{trainer.names[0]}/kept"])
    (part,) = program.device_programs
    states, inputs_left = (
        sum(item.kind == kind for item in part.buffers.values()) for kind in ("state", "input")
    )
    assert states == len(before)
    assert device.log.count("write") == inputs_left * len(runs) + states
    assert device.log.count("read") == len(runs) + states
    # A second stream continues from that state.
    again = list(stream(program, runs[:2], device))
    assert again[0].outputs["probabilities"].shape == (8, 4)
    assert not np.array_equal(again[0].outputs["probabilities"], results[0].outputs["probabilities"])
