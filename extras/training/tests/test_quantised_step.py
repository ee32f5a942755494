"""Training steps in integers: compiled programs against ONNX Runtime, and the RTL against the golden interpreter."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support import trained_nets
from support.mostly_long import mostly_long
from support.ort_sessions import plain_session

import weft
from weft.compiler.host.onnx_model import model_of
from weft.configurations import configuration
from weft.extras.training.gradient.training import PROBABILITIES
from weft.extras.training.settings import Settings
from weft.extras.training.trainer import Trainer
from weft.hdl.isa.config import PRESETS, Config

KERNEL = {"tiny": PRESETS["tiny"].replace(kernel=64), "default": PRESETS["default"]}


def trainer_of(model: onnx.ModelProto, config: Config, layers: int | None, batch: int) -> Trainer:
    return Trainer(model, config, Settings(epochs=2, batch=batch, rate=0.05), layers=layers)


def prepare_trainer(
    seed: int, kind: int, config: Config, *, quantised: bool, layers: int | None
) -> tuple[Trainer, list[dict]]:
    """Return a trainer with a compiled program, and some batches."""
    rng = np.random.default_rng([41, seed, kind + 1])
    model = trained_nets.perceptron(rng, (11, 9, 5)) if kind < 0 else trained_nets.convolutional(rng, kind)
    x, labels = trained_nets.samples(model, 24, seed)
    trainer = trainer_of(trained_nets.quantise_by_samples(model) if quantised else model, config, layers, 8)
    trainer.prepare(0, {"x": x}, labels, rng)
    return trainer, [trainer.batch({"x": x}, labels, np.arange(8) + 8 * index) for index in range(3)]


@pytest.mark.parametrize(
    ("kind", "quantised", "layers"),
    mostly_long(
        [(kind, quantised, layers) for kind in range(-1, 4) for quantised in (False, True) for layers in (1, 2, None)],
        0, 5, 7, 11, 15, 17, 21, 26,
    ),
)  # fmt: skip
def test_steps_match_onnx_runtime(kind: int, quantised: bool, layers: int | None) -> None:
    """All of a step runs on the device. Each operator's result, from the device's operands, is at most one step off."""
    trainer, (inputs, *_) = prepare_trainer(1, kind, KERNEL["default"], quantised=quantised, layers=layers)
    on_host = [why for _, _, place, why in trainer.program.assignment if place == "host"]
    assert all("boundary" in why or "output of the model" in why or "on the host" in why for why in on_host)
    assert len(on_host) <= 4 + 3 * len(trainer.state)
    model = model_of(trainer.integers)
    states_before = {
        name: value * np.float32(trainer.scales[name.removesuffix("/kept")])
        for name, value in trainer.program.states.items()
    }
    inputs = {**inputs, **{name.removesuffix("/kept"): value for name, value in states_before.items()}}
    actual = weft.compile(with_integers(model, trainer), trainer.config).run(inputs).outputs
    alone = one_by_one(model, trainer)
    session = plain_session(alone)
    feed = {item.name: inputs.get(item.name, actual.get(item.name)) for item in session.get_inputs()}
    compared = 0
    for item, value in zip(session.get_outputs(), session.run(None, feed), strict=True):
        name = item.name.removesuffix("/actual")
        if name in actual and value.dtype.kind == "i":
            off = np.abs(value.astype(int) - actual[name].astype(int))
            softmax = name == probabilities_of(model)
            assert off.max() <= (4 if softmax else 2 if value.dtype == np.int16 else 1), name
            compared += 1
    assert compared > 12


def integers_of(model: onnx.ModelProto, trainer: Trainer) -> list[onnx.ValueInfoProto]:
    """Return the results of all QuantizeLinear nodes."""
    kinds = {"int8": onnx.TensorProto.INT8, "int16": onnx.TensorProto.INT16, "uint8": onnx.TensorProto.UINT8}
    types = trainer.integers.types
    return [
        onnx.helper.make_tensor_value_info(name, kinds[types[name].dtype], types[name].shape)
        for node in model.graph.node
        if node.op_type == "QuantizeLinear"
        for name in node.output
    ]


def with_integers(model: onnx.ModelProto, trainer: Trainer) -> onnx.ModelProto:
    """Return the model with the results of all QuantizeLinear nodes as outputs."""
    model_copy = onnx.ModelProto()
    model_copy.CopyFrom(model)
    model_copy.graph.output.extend(integers_of(model, trainer))
    return model_copy


def one_by_one(model: onnx.ModelProto, trainer: Trainer) -> onnx.ModelProto:
    """Return the model cut at each QuantizeLinear: its result is an output, and its readers take an input."""
    model_copy = onnx.ModelProto()
    model_copy.CopyFrom(model)
    for item in integers_of(model, trainer):
        model_copy.graph.input.append(item)
        output = model_copy.graph.output.add()
        output.CopyFrom(item)
        output.name = f"{item.name}/actual"
    for node in model_copy.graph.node:
        if node.op_type == "QuantizeLinear":
            node.output[0] = f"{node.output[0]}/actual"
    return model_copy


def probabilities_of(model: onnx.ModelProto) -> str:
    """Return the name of the integers after the softmax."""
    (softmax,) = (node for node in model.graph.node if node.op_type == "Softmax")
    (link,) = (node for node in model.graph.node if softmax.output[0] in node.input)
    return link.output[0]


@pytest.mark.parametrize(
    ("name", "kind"), mostly_long([("tiny", -1), ("tiny", 0), ("tiny", 2), ("default", 1)], 0)
)
def test_rtl(name: str, kind: int) -> None:
    """Memory and states of the RTL equal the golden interpreter's, under stalls."""
    trainer, batches = prepare_trainer(2, kind, KERNEL[name], quantised=kind != 0, layers=None)
    program = trainer.program
    for index, inputs in enumerate(batches[:2]):
        before = program.states
        golden, states = program.run(inputs), program.states
        program.reset(before)
        actual = program.run(inputs, on="rtl", stall_seed=index)
        assert actual.memory == golden.memory
        assert (actual.outputs[PROBABILITIES] == golden.outputs[PROBABILITIES]).all()
        assert all((program.states[item] == value).all() for item, value in states.items())


@pytest.mark.parametrize("name", mostly_long(["small", "ulx3s-85f", "tang-primer-20k", "large", "xlarge"], 1))
def test_other_configurations(name: str) -> None:
    """Without a kernel engine, the host updates the 16-bit states: an equal step up to rounding."""
    config = configuration(name)
    trainer, batches = prepare_trainer(3, 0, config, quantised=True, layers=None)
    other, _ = prepare_trainer(3, 0, KERNEL["default"], quantised=True, layers=None)
    for inputs in batches:
        actual, expected = trainer.program.run(inputs), other.program.run(inputs)
        off = np.abs(actual.outputs[PROBABILITIES] - expected.outputs[PROBABILITIES])
        assert off.max() < 0.1


def test_zero_gradients_stay_on_the_device() -> None:
    """No ReLU of this network is ever above 0, so only the last bias has a gradient."""
    rng = np.random.default_rng(6)
    net = trained_nets.Net(rng, (1, 6))
    hidden = net.node("Gemm", ["x", net.weights(8, 6), net.constant(np.full(8, -50, np.float32))], transB=1)
    model = net.model(
        net.node("Gemm", [net.node("Relu", [hidden]), net.weights(3, 8), net.bias(3)], transB=1), 3
    )
    x, labels = trained_nets.samples(model, 16)
    trainer = trainer_of(model, KERNEL["default"], None, 8)
    trainer.prepare(0, {"x": x}, labels, rng)
    on_host = [why for _, _, place, why in trainer.program.assignment if place == "host"]
    assert all("boundary" in why or "output of the model" in why or "on the host" in why for why in on_host)
    assert len(trainer.program.device_programs) == 1
    before = trainer.program.states
    trainer.program.run(trainer.batch({"x": x}, labels, np.arange(8)))
    after = trainer.program.states
    changed = {name for name, value in before.items() if not np.array_equal(value, after[name])}
    assert changed == {"constant3/kept", "constant3/momentum/kept"}


def test_large_logits_are_on_the_device() -> None:
    """The scale of logits is limited to the softmax's; larger logits saturate."""
    rng = np.random.default_rng(7)
    net = trained_nets.Net(rng, (1, 6))
    weights = net.constant((rng.normal(size=(3, 6)) * 400).astype(np.float32))
    model = net.model(net.node("Gemm", ["x", weights], transB=1), 3)
    x, labels = trained_nets.samples(model, 16)
    trainer = trainer_of(model, KERNEL["default"], None, 8)
    trainer.prepare(0, {"x": x}, labels, rng)
    assert not [node for node in trainer.program.assignment if node[1] == "Softmax" and node[2] == "host"]


def test_frozen_layers_keep_their_bytes() -> None:
    """Frozen layers compute the bytes of the quantised model."""
    trainer, batches = prepare_trainer(4, 2, KERNEL["default"], quantised=True, layers=1)
    quantised = trainer.source
    logits = weft.compile(quantised, "default")
    inputs = batches[0]
    rows = np.concatenate([logits.run({"x": row[None]}).outputs["y"] for row in inputs["x"]])
    expected = np.exp(rows - rows.max(1, keepdims=True))
    expected /= expected.sum(1, keepdims=True)
    actual = trainer.program.run(inputs).outputs[PROBABILITIES]
    assert np.abs(actual - expected).max() < 0.1


def test_a_step_is_certified() -> None:
    """The program certificate also holds for training steps: for all inputs, weights and momenta."""
    certificate = pytest.importorskip("weft.extras.proof.certificate")
    trainer, _ = prepare_trainer(5, -1, KERNEL["tiny"], quantised=False, layers=None)
    parts = list(zip(trainer.program.graphs, trainer.program.device_programs, strict=True))
    assert len(parts) == 1
    for segment, program in parts:
        graph, place = certificate.graph_of(segment), certificate.placement_of(program)
        result = certificate.prove(graph, trainer.config, place, 1)
        assert result.instructions > 20
