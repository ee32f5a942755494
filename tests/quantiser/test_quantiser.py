"""Float models quantised for the device: supported operators run there, and results are near float."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from support import float_nets
from support.graph_runs import on_host

import weft
from weft.compiler.frontend import import_model
from weft.errors import InputError
from weft.hdl.isa.config import PRESETS
from weft.quantiser import float_model

KERNEL = PRESETS["small"].replace(kernel=64)
LEAST = {
    "transformer of opset 13": 30.0,
    "transformer": 30.0,
    "masked transformer": 30.0,
    "transformer with a bias of scores": 30.0,
    "separable": 30.0,
}


def reference(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (output,) = session.run(None, inputs)
    return output


def snr(expected: np.ndarray, got: np.ndarray) -> float:
    expected = expected.astype(np.float64)
    return float(10 * np.log10((expected**2).sum() / ((expected - got) ** 2).sum()))


@pytest.mark.parametrize("name", float_nets.NETS)
def test_networks_run_on_the_device_and_are_near_float(name: str) -> None:
    model = float_nets.NETS[name]()
    before = model.SerializeToString()
    samples = float_nets.samples(model, 8)
    quantised = weft.quantise(model, samples)
    assert model.SerializeToString() == before
    onnx.checker.check_model(quantised.model, full_check=True)
    assert on_host(import_model(quantised.model, config=KERNEL)) == {}
    program = weft.compile(quantised.model, KERNEL)
    runs = [{key: value[at : at + 1] for key, value in samples.items()} for at in range(8)]
    expected = np.stack([reference(model, run) for run in runs])
    got = np.stack([program.run(run).outputs["y"] for run in runs])
    (output,) = quantised.accuracy.outputs
    assert output.snr > LEAST.get(name, 36)
    # ONNX Runtime, the reference for accuracy, and the device differ by few roundings.
    assert abs(snr(expected, got) - output.snr) < 1.5
    if expected.ndim == 3:
        assert output.same is not None
        assert abs(np.mean(expected.argmax(2) == got.argmax(2)) - output.same) <= 1 / 8
    assert [layer.snr for layer in quantised.accuracy.layers] == sorted(
        layer.snr for layer in quantised.accuracy.layers
    )
    assert quantised.accuracy.samples == 8


def test_types_that_suit_the_device() -> None:
    """Weights are symmetric int8 with a scale per output channel, activations int8, biases int32."""
    model = float_nets.residual()
    quantised = weft.quantise(model, float_nets.samples(model)).model
    constants = {item.name: numpy_helper.to_array(item) for item in quantised.graph.initializer}
    makers = {node.output[0]: node for node in quantised.graph.node}
    assert {node.op_type for node in quantised.graph.node} & {"BatchNormalization", "Relu"} == set()
    for node in quantised.graph.node:
        if node.op_type == "QuantizeLinear":
            assert constants[node.input[2]].dtype == np.int8
            assert constants[node.input[2]].size == 1
        elif node.op_type in ("Conv", "Gemm"):
            weight, bias = makers[node.input[1]], makers[node.input[2]]
            values, scale, zero = (constants[name] for name in weight.input)
            assert values.dtype == np.int8
            assert scale.shape == (len(values),)
            assert not zero.any()
            assert constants[bias.input[0]].dtype == np.int32
    # An average has its own scale, because its range is smaller than its input's.
    (average,) = (node for node in quantised.graph.node if node.op_type == "GlobalAveragePool")
    (after,) = (node for node in quantised.graph.node if node.input[0] == average.output[0])
    assert constants[after.input[1]] < constants[makers[average.input[0]].input[1]]


def scales_around(model: onnx.ModelProto, name: str) -> tuple[float, float]:
    """Scales of a node's input and output."""
    constants = {item.name: numpy_helper.to_array(item) for item in model.graph.initializer}
    makers = {output: node for node in model.graph.node for output in node.output}
    (node,) = (node for node in model.graph.node if node.name == name)
    (after,) = (other for other in model.graph.node if node.output[0] in other.input)
    return float(constants[makers[node.input[0]].input[1]]), float(constants[after.input[1]])


def test_averages_of_windows_have_a_scale_of_their_own() -> None:
    model = float_nets.separable()
    before, after = scales_around(weft.quantise(model, float_nets.samples(model)).model, "average")
    assert after < before


def test_masked_scores_are_not_quantised_after_their_mask() -> None:
    model = float_nets.transformer(masked=True)
    quantised = weft.quantise(model, float_nets.samples(model)).model
    (mask,) = (node for node in quantised.graph.node if node.name == "mask")
    makers = {output: node for node in quantised.graph.node for output in node.output}
    users = [node for node in quantised.graph.node if mask.output[0] in node.input]
    assert [node.op_type for node in users] == ["Softmax"]
    assert makers[mask.input[0]].op_type == "Mul"


def test_older_models_get_operators_of_newer_versions() -> None:
    """Decomposed layer normalisation and GELU become one operator each."""
    old, new = (
        float_model.prepare(model, {})[0]
        for model in (float_nets.transformer(opset=13), float_nets.transformer())
    )
    operators = [sorted(node.op_type for node in model.graph.node) for model in (old, new)]
    assert operators[0] == operators[1]
    assert operators[0].count("LayerNormalization") == 2
    assert operators[0].count("Gelu") == 1


def test_constants_that_are_listed_as_inputs_are_folded() -> None:
    """Models of file format versions before 4 list constants as inputs."""
    model = float_nets.residual(opset=13)
    for tensor in model.graph.initializer:
        model.graph.input.append(
            helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        )
    quantised = weft.quantise(model, {"x": float_nets.samples(float_nets.residual())["x"]})
    assert not any(node.op_type == "BatchNormalization" for node in quantised.model.graph.node)
    assert len(quantised.model.graph.input) == 1
    assert quantised.accuracy.outputs[0].snr > 36


@pytest.mark.parametrize("operator", ["Tanh", "Erf", "ReduceMean", "com.microsoft.Gelu"])
def test_device_only_operators_are_quantised(operator: str) -> None:
    """ONNX Runtime's quantiser skips these unless asked, at the end of a model."""
    net = float_nets.FloatNet()
    value = net.add("Conv", "x", net.weight(4, 3, 3, 3))
    domain, _, name = operator.rpartition(".")
    axes = (net.constant(np.array([2, 3], np.int64)),) if operator == "ReduceMean" else ()
    value = net.add(name, value, *axes, domain=domain)
    shape = (1, 4, 1, 1) if axes else (1, 4, 6, 6)
    quantised = weft.quantise(net.model({"x": (1, 3, 8, 8)}, value, shape), np.ones((2, 3, 8, 8), np.float32))
    assert on_host(import_model(quantised.model)) == {}


def test_results_of_contributed_operators_are_quantised() -> None:
    """Results of ONNX Runtime's own operators are quantised, here for the next convolution."""
    net = float_nets.FloatNet()
    value = net.add("Conv", "x", net.weight(4, 3, 3, 3))
    for _ in range(2):
        value = net.add("Gelu", value, domain="com.microsoft")
        value = net.add("Conv", net.add("MaxPool", value, kernel_shape=[2, 2]), net.weight(4, 4, 1, 1))
    quantised = weft.quantise(
        net.model({"x": (1, 3, 8, 8)}, value, (1, 4, 4, 4)), np.ones((2, 3, 8, 8), np.float32)
    )
    assert on_host(import_model(quantised.model)) == {}


def test_open_dimensions() -> None:
    model = float_nets.residual(batch="images")
    samples = float_nets.samples(float_nets.residual(), 6)
    with pytest.raises(weft.CompileError, match=r"give its size with --shape images=1"):
        weft.quantise(model, samples)
    for size in (1, 2):
        quantised = weft.quantise(model, samples, shapes={"images": size})
        assert quantised.accuracy.samples == 6 // size
        assert weft.compile(quantised.model, "tiny").inputs["x"] == ("float32", (size, 3, 12, 12))
    with pytest.raises(InputError, match=r"has 6 samples, but the model takes 4 at a time"):
        weft.quantise(model, samples, shapes={"images": 4})


def test_methods_choose_ranges() -> None:
    """An outlier widens the range of all values, but not the range of a percentile."""
    model = float_nets.residual()
    samples = float_nets.samples(model, 60)  # one value in 10,000 exceeds the share on either side
    samples["x"][3, 0, 0, 0] = 400
    scales = {}
    for method in ("minmax", "percentile", "mse"):
        quantised = weft.quantise(model, samples, method=method)
        constants = {item.name: numpy_helper.to_array(item) for item in quantised.model.graph.initializer}
        (first,) = (node for node in quantised.model.graph.node if node.input[0] == "x")
        scales[method] = float(constants[first.input[1]])
    assert scales["minmax"] > 400 / 255
    assert scales["mse"] < scales["minmax"]
    assert scales["percentile"] < scales["minmax"] / 20


def test_every_sample_counts() -> None:
    """Ranges cover all samples, the last included, for any number of samples."""
    model = float_nets.residual()
    for count in (1, 15, 16, 17):
        samples = float_nets.samples(model, count)
        samples["x"][-1, 0, 0, 0] = 50
        for method in ("minmax", "mse"):
            assert weft.quantise(model, samples, method=method).accuracy.samples == count
        quantised = weft.quantise(model, samples).model
        constants = {item.name: numpy_helper.to_array(item) for item in quantised.graph.initializer}
        (first,) = (node for node in quantised.graph.node if node.input[0] == "x")
        lowest = float(samples["x"].min())
        assert constants[first.input[1]] == pytest.approx((50 - lowest) / 255, rel=1e-6)


@pytest.mark.parametrize("name", ["residual", "transformer"])
def test_results_of_16_bits(name: str) -> None:
    model = float_nets.NETS[name]()
    samples = float_nets.samples(model, 8)
    sums = [node.name for node in model.graph.node if node.op_type == "Add" and "add" in node.name]
    narrow = weft.quantise(model, samples)
    chosen = [layer.name for layer in narrow.accuracy.layers if layer.name in sums]
    quantised = weft.quantise(model, samples, wide=chosen)
    assert chosen
    config = KERNEL.replace(kernel=128)
    assert on_host(import_model(quantised.model, config=config)) == {}
    assert on_host(import_model(quantised.model, config=KERNEL.replace(kernel=0))) != {}
    errors, before = (
        {layer.name: layer.snr for layer in each.accuracy.layers} for each in (quantised, narrow)
    )
    assert all(errors[layer] > before[layer] for layer in chosen)
    program = weft.compile(quantised.model, config)
    runs = [{key: value[at : at + 1] for key, value in samples.items()} for at in range(8)]
    expected = np.stack([reference(model, run) for run in runs])
    got = np.stack([program.run(run).outputs["y"] for run in runs])
    assert abs(snr(expected, got) - quantised.accuracy.outputs[0].snr) < 1.5


def test_nodes_that_are_kept_in_float() -> None:
    model = float_nets.residual()
    samples = float_nets.samples(model)
    whole, part = (weft.quantise(model, samples, keep_float=names) for names in ((), ("classify",)))
    host = on_host(import_model(part.model))
    assert "classify" in host
    assert not any("conv" in name for name in host)
    assert part.accuracy.outputs[0].snr > whole.accuracy.outputs[0].snr
    with pytest.raises(
        InputError, match=r"^no node has the name 'clasify'; there are 'classify'.* and others$"
    ):
        weft.quantise(model, samples, keep_float=["clasify"])


def test_held_out_samples_measure_and_do_not_calibrate() -> None:
    model = float_nets.residual()
    samples, others = float_nets.samples(model, 6), float_nets.samples(model, 3, seed=1)
    alone, measured = weft.quantise(model, samples), weft.quantise(model, samples, held_out=others)
    assert alone.model.SerializeToString(deterministic=True) == measured.model.SerializeToString(
        deterministic=True
    )
    assert measured.accuracy.samples == 3
    assert measured.accuracy.outputs[0].snr != alone.accuracy.outputs[0].snr


def test_nothing_is_printed_and_nothing_stays_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    model = float_nets.residual()
    logging.disable(logging.DEBUG)
    filters = list(warnings.filters)
    for method in ("minmax", "percentile", "mse"):
        weft.quantise(model, float_nets.samples(model), method=method)
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []
    assert logging.root.manager.disable == logging.DEBUG
    logging.disable(logging.NOTSET)
    assert list(warnings.filters) == filters


def test_forms_of_models(tmp_path: Path) -> None:
    model = float_nets.perceptron()
    samples = float_nets.samples(model)
    path, data, array = tmp_path / "float.onnx", tmp_path / "samples.npz", tmp_path / "samples.npy"
    onnx.save(model, path)
    np.savez(data, **samples)
    np.save(array, samples["x"])
    arguments: list[str] = []
    first = weft.quantise(model, samples, progress=arguments.append)
    assert arguments[0] == "reading the model"
    expected = first.model.SerializeToString(deterministic=True)
    ways: list[tuple[Any, Any]] = [(path, data), (str(path), str(array)), (path.read_bytes(), samples["x"])]
    for given, taken in ways:
        assert weft.quantise(given, taken).model.SerializeToString(deterministic=True) == expected
    first.save(tmp_path / "new" / "int8.onnx")
    assert (tmp_path / "new" / "int8.onnx").read_bytes() == expected


def int8_net() -> onnx.ModelProto:
    model = float_nets.perceptron()
    return weft.quantise(model, float_nets.samples(model)).model


def mismatched_types(given: int, dtype: type[np.generic]) -> onnx.ModelProto:
    """Add a constant of another type to an input."""
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype))),
        helper.make_node("Add", ["a", "b"], ["c"]),
        helper.make_node("Cast", ["c"], ["y"], to=TensorProto.FLOAT),
    ]
    ends = [
        [helper.make_tensor_value_info(name, kind, [1, 20])]
        for name, kind in (("x", given), ("y", TensorProto.FLOAT))
    ]
    graph = helper.make_graph(nodes, "net", *ends, [numpy_helper.from_array(np.ones(20, dtype), "b")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def without_floats() -> onnx.ModelProto:
    node = helper.make_node("Not", ["x"], ["y"])
    ends = [[helper.make_tensor_value_info(name, TensorProto.BOOL, [1, 4])] for name in "xy"]
    return helper.make_model(
        helper.make_graph([node], "net", *ends), opset_imports=[helper.make_opsetid("", 20)], ir_version=10
    )


def unknown_domain() -> onnx.ModelProto:
    node = helper.make_node("Nothing", ["x"], ["y"], domain="nowhere")
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4])] for name in "xy"]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("nowhere", 1)]
    return helper.make_model(helper.make_graph([node], "net", *ends), opset_imports=opsets, ir_version=10)


X = np.ones((2, 20), np.float32)
REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "already": (int8_net, {}, r"^the model is quantised already \(it has QuantizeLinear\): give it to `weft compile`"),
    "half input": (lambda: mismatched_types(TensorProto.FLOAT16, np.float32), {"samples": {"x": X.astype(np.float16)}},
                   r"^input 'x' has 16 bits: export the model in float32$"),
    "half constant": (lambda: mismatched_types(TensorProto.FLOAT, np.float16), {},
                      r"^constant 'b' has 16 bits: export the model in float32$"),
    "nothing": (without_floats, {"samples": {"x": np.ones((2, 4), bool)}}, r"^nothing of the model can be quantised"),
    "unknown": (unknown_domain, {"samples": {"x": X[:, :4]}}, r"^ONNX Runtime does not run the model: "),
    "bytes": (lambda: b"nonsense", {}, r"^these 8 bytes are not an ONNX model$"),
    "number": (lambda: 3, {}, r"^a model is a path, bytes, an onnx.ModelProto or a torch.nn.Module, not int$"),
    "tflite": (lambda: b"\x1c\0\0\0TFL3", {}, r"^`weft quantise` takes ONNX models, and this is a TFLite model"),
    "method": (float_nets.perceptron, {"method": "best"},
               r"^'method' must be minmax, percentile, mse, not 'best'$"),
    "names": (float_nets.perceptron, {"keep_float": "x"}, r"^'keep_float' must be a list of names of nodes, not 'x'$"),
    "shapes": (float_nets.perceptron, {"shapes": ["x"]}, r"^'shapes' must be a mapping of names to sizes, not list$"),
    "size": (float_nets.perceptron, {"shapes": {"x": 0}}, r"must be an integer"),
    "no open": (float_nets.perceptron, {"shapes": {"n": 1}}, r"^the model's inputs have no open dimension 'n'"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_requests_are_refused(case: str) -> None:
    make, options, message = REFUSED[case]
    with pytest.raises(weft.WeftError, match=message) as error:
        weft.quantise(make(), **({"samples": {"x": X}} | options))
    assert isinstance(error.value, ValueError)
    assert "\n" not in str(error.value)


def test_without_onnx_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(float_model, "runtime", lambda: None)
    with pytest.raises(InputError, match=r"which is not installed: install ONNX Runtime \(pip install 'weft"):
        weft.quantise(float_nets.perceptron(), X)
