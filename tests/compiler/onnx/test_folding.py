"""Shapes and constants that are known before a model runs; shapes by ONNX's text against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from support import one_step, qdq_models
from support.graph_runs import on_host, run_graph
from support.ort_sessions import plain_session
from support.qdq_models import Builder

from weft.compiler.errors import CompileError, EvaluationError
from weft.compiler.frontend import import_model
from weft.compiler.host import evaluate
from weft.compiler.onnx import folding, registry
from weft.compiler.onnx.folding import resolve
from weft.compiler.onnx.model import load
from weft.compiler.onnx.reader import network_of
from weft.hdl.isa.config import Config


def builder() -> Builder:
    return Builder(np.random.default_rng(0))


def finish(built: Builder, value: str, shape: tuple[int, ...], *domains: str) -> onnx.ModelProto:
    """Quantise `value`; the model's output is that, in float. Inference of `shape` is left to the importer."""
    model = built._model(built.dequantise(built.quantise(value, shape, 0.05, 0, False)), shape)
    model.opset_import.extend(helper.make_opsetid(domain, 1) for domain in domains)
    return model


def agrees(model: onnx.ModelProto, steps: int = 1) -> dict[str, str]:
    """Compare with ONNX Runtime, and return the host operators."""
    feeds = qdq_models.feeds(model, np.random.default_rng(1))
    graph = import_model(model)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds)
    outputs = run_graph(graph, feeds)[model.graph.output[0].name]
    assert outputs.shape == expected.shape
    assert np.abs(np.rint((outputs - expected) / 0.05)).max() <= steps
    return on_host(graph)


def test_failed_folding_is_left_to_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure of the evaluator at compile time is none of the model."""

    def fails(*_: object) -> list[np.ndarray]:
        raise EvaluationError("cannot reshape array of size 1 into shape (1,64)")

    built = builder()
    table = built.constant(np.linspace(-1, 1, 8, dtype=np.float32).reshape(1, 8))
    places = built.constant(np.array([[3, 0, 7, 1]], np.int64))
    gathered = built.node("GatherElements", [table, places], axis=1)
    value = built.node("Mul", [built.dequantise(built.input((1, 4))), gathered])
    model = finish(built, value, (1, 4))
    assert not agrees(model)
    monkeypatch.setattr(folding, "run_nodes", fails)
    assert "the device has no operator GatherElements" in agrees(model).values()


def test_constants_of_many_elements_are_gathered_without_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    """The onnx package's own gather stops at 32 choices."""
    monkeypatch.setattr(evaluate, "runtime", lambda: None)
    built = builder()
    table = built.constant(np.linspace(-1, 1, 512, dtype=np.float32).reshape(1, 512))
    places = built.constant(np.arange(64).reshape(1, 64) * 7)
    value = built.node("GatherElements", [table, places], axis=1)
    model = finish(built, built.node("Add", [built.dequantise(built.input((1, 64))), value]), (1, 64))
    loaded = load(model)
    assert "GatherElements" in {node.op for node in loaded.folded}
    assert np.array_equal(loaded.constants[value][0], np.linspace(-1, 1, 512, dtype=np.float32)[::7][:64])


def test_shape_that_takes_turns_of_inference_and_folding() -> None:
    """Exporters of windowed attention compute sizes by operators that shape inference does not follow."""
    built = builder()
    value = built.dequantise(built.input((2, 12, 4)))
    for rows in (3, 2):
        size = built.node("Shape", [value])
        last = built.node("Gather", [size, built.constant(np.array(-1, np.int64))], axis=0)
        wide = built.node("Cast", [last], to=TensorProto.FLOAT)
        more = built.node(
            "Cast", [built.node("Ceil", [built.node("Mul", [wide, built.constant(np.float32(rows))])])], to=7
        )
        expected = built.node("Unsqueeze", [more, built.constant(np.array([0], np.int64))])
        shape = built.node("Concat", [built.constant(np.array([-1], np.int64)), expected], axis=0)
        value = built.node("Reshape", [value, shape])
    model = finish(built, value, (4, 24))
    assert onnx.shape_inference.infer_shapes(model, data_prop=True).graph.value_info
    assert not agrees(model)
    assert load(model).shapes[value] == (4, 24)


def test_random_numbers_are_not_constants() -> None:
    built = builder()
    noise = built.node("Bernoulli", [built.constant(np.full((1, 4), 0.5, np.float32))])
    value = built.node("Add", [built.dequantise(built.input((1, 4))), noise])
    assert "Bernoulli" in {node.op for node in load(finish(built, value, (1, 4))).nodes}


def foreign(op: str, domain: str = "com.microsoft", **attributes: object) -> onnx.ModelProto:
    built = builder()
    value = built.dequantise(built.conv(built.input((1, 3, 4, 4)), 4, (1, 1)))
    node = helper.make_node(op, [value], ["strange"], name="strange one", domain=domain, **attributes)
    built.nodes.append(node)
    shape = built.constant(np.array([1, 64], np.int64))
    return finish(built, built.node("Reshape", ["strange", shape]), (1, 64), domain)


def test_operator_of_another_domain_runs_on_the_host() -> None:
    """Its shape is what ONNX Runtime says; the convolution before it stays on the device."""
    model = foreign("Trilu")
    reasons = agrees(model)
    assert reasons["strange one"] == "the device has no operator com.microsoft.Trilu"
    assert not any(name.startswith("conv") for name in reasons)


def test_operator_of_another_domain_with_a_name_of_the_devices() -> None:
    """It may be defined otherwise there."""
    assert not agrees(foreign("Gelu"))
    assert "com.microsoft.Gelu" in registry.NAMES
    assert "com.microsoft.Softmax" not in registry.NAMES


def test_operator_that_onnxruntime_does_not_have() -> None:
    with pytest.raises(CompileError) as caught:
        import_model(foreign("Frobnicate", "com.example"))
    assert str(caught.value).startswith(
        "node 'strange one' uses operator 'Frobnicate' of domain 'com.example', which is not part of ONNX, and ONNX "
        "Runtime rejects it: "
    )
    assert "\n" not in str(caught.value)


def test_operator_of_another_domain_without_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "runtime", lambda: None)
    with pytest.raises(CompileError) as caught:
        import_model(foreign("QuickGelu"))
    assert str(caught.value) == (
        "node 'strange one' uses operator 'QuickGelu' of domain 'com.microsoft', which is not part of ONNX: "
        "install ONNX Runtime (pip install 'weft[host]'), which may have it"
    )


@pytest.mark.parametrize(
    "kind", [TensorProto.STRING, TensorProto.BFLOAT16, TensorProto.INT4, TensorProto.FLOAT8E5M2]
)
def test_unread_input_may_have_any_type(kind: int) -> None:
    model = qdq_models.random_conv(np.random.default_rng(0))
    model.graph.input.append(helper.make_tensor_value_info("unused", kind, (3,)))
    graph = import_model(model)
    assert graph.inputs["unused"] == (str(helper.tensor_dtype_to_np_dtype(kind)), (3,))


def test_input_without_a_type() -> None:
    model = qdq_models.random_conv(np.random.default_rng(0))
    model.graph.input.append(helper.make_tensor_value_info("unused", TensorProto.UNDEFINED, (3,)))
    with pytest.raises(CompileError, match=r"^input 'unused' has no element type$"):
        import_model(model)


@pytest.mark.parametrize("op", ["Conv", "MatMul"])
def test_weights_with_scales_below_zero_and_zero(op: str) -> None:
    """The device's scales are positive: signs go into the integers, exactly, also that of -128."""
    built = builder()
    conv = op == "Conv"
    source = built.input((1, 4, 3, 3) if conv else (3, 4))
    integers = np.random.default_rng(0).integers(-128, 128, (4, 4, 1, 1) if conv else (4, 4)).astype(np.int8)
    integers.flat[::5] = -128
    scales = np.array([0.01, -0.02, 0.0, -0.005], np.float32)
    names = [built.constant(integers), built.constant(scales), built.constant(np.zeros(4, np.int8))]
    weight = built.node("DequantizeLinear", names, axis=0 if conv else 1)
    bias = [built.constant(np.array([0.3, -0.5, 0.7, 0.1], np.float32))] if conv else []
    value = built.node(op, [built.dequantise(source), weight, *bias])
    assert not agrees(finish(built, value, (1, 4, 3, 3) if conv else (3, 4)))


@pytest.mark.parametrize("scale", [-0.05, 0.0])
def test_activations_with_scales_below_zero_run_on_the_host(scale: float) -> None:
    built = builder()
    source = built.input((1, 4))
    names = [source.name, built.constant(np.float32(scale))]
    value = built.node("Relu", [built.node("DequantizeLinear", names)])
    model = finish(built, value, (1, 4))
    reasons = on_host(import_model(model, config=Config(lookup_tables=0)))
    assert any(reason.endswith(f" and scale {scale:g})") for reason in reasons.values())
    assert not agrees(model), "to a table any scale is as good as another"


def test_weights_of_four_bits_in_blocks_with_scales_below_zero() -> None:
    """ONNX Runtime's weight-only quantiser writes this form."""
    built = builder()
    packed = np.random.default_rng(0).integers(-8, 8, (8, 4))
    tensor = helper.make_tensor("four", TensorProto.INT4, (8, 4), packed.reshape(-1).tolist())
    built.constants.append(tensor)
    scales = np.array([[0.1, -0.2, 0.1, -0.1], [-0.1, 0.2, 0.3, -0.1]], np.float32)
    weight = built.node("DequantizeLinear", ["four", built.constant(scales)], axis=0, block_size=4)
    value = built.node("MatMul", [built.dequantise(built.input((3, 8))), weight])
    assert "MatMul" in {
        row[1] for row in import_model(finish(built, value, (3, 4))).assignment if row[2] == "host"
    }
    agrees(finish(built, value, (3, 4)))


def test_dead_nodes_may_have_any_shape() -> None:
    model = qdq_models.random_conv(np.random.default_rng(0))
    model.graph.node.append(helper.make_node("NonZero", [model.graph.output[0].name], ["unread"]))
    assert import_model(model).assignment


def test_sparse_initialiser() -> None:
    model = qdq_models.random_conv(np.random.default_rng(0))
    values = numpy_helper.from_array(np.ones(1, np.float32), "few")
    places = numpy_helper.from_array(np.zeros(1, np.int64), "places")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [4]))
    with pytest.raises(
        CompileError, match=r"^initialiser 'few' is sparse; export the model with dense initialisers$"
    ):
        import_model(model)


def test_attribute_of_a_function_outside_of_functions() -> None:
    model = qdq_models.random_conv(np.random.default_rng(0))
    node = next(node for node in model.graph.node if node.attribute)
    node.attribute[0].ref_attr_name = "elsewhere"
    name = node.attribute[0].name
    with pytest.raises(
        CompileError, match=f"takes attribute '{name}' from 'elsewhere' of a function, but is in no function"
    ):
        import_model(model)


Rng = np.random.Generator
Shape = tuple[int, ...]


def some(rng: Rng, low: int, high: int, count: int) -> list[int]:
    return [int(item) for item in rng.integers(low, high + 1, count)]


def pool(rng: Rng, rank: int) -> tuple[str, dict[str, object], list[int]]:
    """With ceil_mode, all padding and all steps, of an input that windows may not fill."""
    kernel = some(rng, 1, 4, rank)
    arguments = {
        "kernel_shape": kernel,
        "strides": some(rng, 1, 6, rank),
        "ceil_mode": int(rng.random() < 0.8),
    }
    if rng.random() < 0.6:
        arguments["pads"] = [int(rng.integers(0, kernel[at % rank])) for at in range(2 * rank)]
    elif rng.random() < 0.3:
        arguments["auto_pad"] = str(rng.choice(["SAME_UPPER", "SAME_LOWER", "VALID"]))
    return str(rng.choice(["MaxPool", "AveragePool"])), arguments, some(rng, 4, 12, rank)


def spread(rng: Rng, rank: int) -> tuple[str, dict[str, object], list[int]]:
    """ConvTranspose whose size auto_pad defines, with output padding."""
    strides = some(rng, 1, 5, rank)
    inputs: dict[str, object] = {
        "strides": strides, "dilations": some(rng, 1, 2, rank),
        "auto_pad": str(rng.choice(["SAME_UPPER", "SAME_LOWER"])),
        "output_padding": [int(rng.integers(0, most)) for most in strides],
    }  # fmt: skip
    return "ConvTranspose", inputs, some(rng, 1, 6, rank)


def model(
    op: str, given: dict[str, object], sizes: list[int], rng: Rng, declared: Shape | None
) -> onnx.ModelProto:
    """The operator between two others, with a shape that the file declares for its result."""
    weights = []
    if op == "ConvTranspose":
        kernel = some(rng, 1, 4, len(sizes))
        weights = [numpy_helper.from_array(np.ones((2, 3, *kernel), np.float32), "w")]
    nodes = [
        helper.make_node("Relu", ["x"], ["before"], name="before"),
        helper.make_node(op, ["before", *(item.name for item in weights)], ["made"], name="made", **given),
        helper.make_node("Relu", ["made"], ["y"], name="behind"),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 2, *sizes))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, declared)], weights,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def inferred_shape(made: onnx.ModelProto) -> Shape:
    actual = onnx.shape_inference.infer_shapes(made, strict_mode=True)
    return tuple(dim.dim_value for dim in actual.graph.output[0].type.tensor_type.shape.dim)


def compare_shapes(seeds: range) -> int:
    """Count errors of ONNX's shape inference; weft's shapes must equal those of results."""
    wrong = 0
    for seed in seeds:
        rng = np.random.default_rng(seed)
        op, arguments, sizes = (pool, spread)[seed % 2](rng, 1 + seed // 2 % 2)
        state = rng.bit_generator.state
        produced = model(op, arguments, sizes, rng, None)
        x = rng.normal(size=(1, 2, *sizes)).astype(np.float32)
        try:
            known = resolve(network_of(produced))
        except CompileError:
            continue
        try:
            (result,) = plain_session(produced).run(None, {"x": x})
        except onnxruntime.capi.onnxruntime_pybind11_state.RuntimeException as error:
            # ONNX Runtime refuses SAME_* where the windows do not reach the end; weft pads by 0 there.
            if "padding values must be non-negative" in str(error):
                continue
            raise
        assert known.shapes["made"] == known.shapes["y"] == result.shape, (seed, op, arguments, sizes)
        other = inferred_shape(produced)
        wrong += other != result.shape
        for declared in (other, result.shape):
            rng.bit_generator.state = state
            again = resolve(network_of(model(op, arguments, sizes, rng, declared)))
            assert again.shapes["y"] == result.shape
    return wrong


def test_shapes_equal_those_of_results() -> None:
    assert compare_shapes(range(60)) > 8


@pytest.mark.long
def test_shapes_equal_those_of_results_for_long() -> None:
    assert compare_shapes(range(1000, 4000)) > 400


def test_declared_shape_that_contradicts_inference() -> None:
    rng = np.random.default_rng(0)
    arguments = {"kernel_shape": [2], "strides": [2], "ceil_mode": 1}
    with pytest.raises(CompileError, match="the model is not valid ONNX: "):
        resolve(network_of(model("MaxPool", arguments, [8], rng, (1, 2, 5))))


@pytest.mark.parametrize("rank", [1, 2])
def test_windows_beyond_the_input_are_dropped(rank: int) -> None:
    tally = one_step.Tally()
    for seed in range(10):
        rng = np.random.default_rng([seed, rank])
        op, given, sizes = pool(rng, rank)
        if "auto_pad" in given:
            continue
        built = Builder(rng)
        value = built.input((1, 3, *sizes))
        name = built.node(op, [built.dequantise(value)], **given)
        result = built.quantise(name, built.shape_of(name), value.scale * 0.7183, 3, False)
        one_step.check(built.finish(result), rng, tally)
    assert tally.wrong < 1e-2 * tally.elements


def test_negative_sizes_are_refused() -> None:
    node = helper.make_node("Split", ["x"], ["a", "b", "c"], name="split", axis=1, num_outputs=3)
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 1))],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "abc"],
    )  # fmt: skip
    result = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    with pytest.raises(CompileError, match=r"value 'c' would have shape 2x-1: its operator asks for more"):
        resolve(network_of(result))
