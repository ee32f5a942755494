"""From ONNX to integers: imported models against ONNX Runtime, and passes and assignment in detail."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from support import qdq_models
from support.graph_runs import device_ops, on_host, run_graph

from weft.compiler.frontend import import_model
from weft.compiler.host.segments import from_buffer, to_buffer
from weft.compiler.ir.graph import Add, Conv, DeviceSegment, Pool, Rescale
from weft.compiler.ir.model import Graph, HostSegment, dump
from weft.compiler.ir.network import LINKS
from weft.compiler.machine.target import Target
from weft.compiler.pipeline import PIPELINE, run_passes
from weft.compiler.planner import Planner
from weft.hdl.isa.config import PRESETS


def run_onnxruntime(model: onnx.ModelProto, values: dict[str, np.ndarray]) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, values)


def fuse(graph: Graph) -> list[Any]:
    """The operators as they are planned for a small accelerator."""
    planner = Planner(Target(PRESETS["small"]))
    segments = [item for item in graph.segments if isinstance(item, DeviceSegment)]
    return [op for segment in segments for op in run_passes(PIPELINE, segment, planner).ops]


def output_scale(model: onnx.ModelProto) -> float:
    """The scale of the DequantizeLinear that ends a model of `qdq_models`."""
    name = model.graph.node[-1].input[1]
    return float(numpy_helper.to_array(next(item for item in model.graph.initializer if item.name == name)))


def levels(model: onnx.ModelProto, values: dict[str, np.ndarray]) -> np.ndarray:
    """Differences from ONNX Runtime in steps of the output."""
    expected = run_onnxruntime(model, values)[0]
    given = run_graph(import_model(model), values)[model.graph.output[0].name]
    assert given.shape == expected.shape
    assert given.dtype == expected.dtype
    return np.rint((given - expected) / output_scale(model))


@pytest.mark.drawn(3)
@pytest.mark.parametrize("kind", qdq_models.LAYERS)
def test_layers_agree_with_onnxruntime(kind: str) -> None:
    total = wrong = fallbacks = 0
    for seed in range(25):
        rng = np.random.default_rng(seed)
        model = qdq_models.LAYERS[kind](rng)
        difference = levels(model, qdq_models.feeds(model, rng))
        assert np.abs(difference).max() <= 1, f"seed {seed}"
        total += difference.size
        wrong += int((difference != 0).sum())
        fallbacks += bool(on_host(import_model(model)))
    # Float32 arithmetic at a tie: only averages meet ties often.
    assert wrong <= max(1, total * (0.03 if kind == "pool" else 1e-3))
    assert fallbacks <= (4 if kind == "pool" else 0)


def test_networks_agree_with_onnxruntime() -> None:
    wrong = total = 0
    for seed in range(12):
        rng = np.random.default_rng(seed)
        model = qdq_models.random_cnn(rng)
        graph = import_model(model)
        assert not on_host(graph)
        assert [type(segment) for segment in graph.segments] == [HostSegment, DeviceSegment, HostSegment]
        # One step somewhere in the middle may move an output by more than a step; it hardly ever does.
        difference = levels(model, qdq_models.feeds(model, rng))
        assert np.abs(difference).max() <= 3, f"seed {seed}"
        wrong += int((difference != 0).sum())
        total += difference.size
    assert wrong <= total * 0.1


def test_pool_joins_its_convolution() -> None:
    builder = qdq_models.Builder(np.random.default_rng(0))
    value = builder.conv(builder.input((1, 3, 8, 8)), 4, pads=(1, 1, 1, 1))
    model = builder.finish(builder.pool(value, "MaxPool", kernel_shape=[2, 2], strides=[2, 2]))
    (op,) = fuse(import_model(model))
    assert isinstance(op, Conv)
    assert op.pool is not None
    assert op.pool.kernel == (2, 2)
    assert not levels(model, qdq_models.feeds(model, np.random.default_rng(1))).any()


def test_pool_stays_apart_if_the_convolution_has_other_readers() -> None:
    builder = qdq_models.Builder(np.random.default_rng(0))
    value = builder.conv(builder.input((1, 3, 8, 8)), 4, pads=(1, 1, 1, 1))
    pooled = builder.pool(value, "MaxPool", kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1])
    model = builder.finish(builder.add(value, pooled))
    assert [type(op).__name__ for op in device_ops(import_model(model))] == ["Conv", "Pool", "Add"]


def test_pool_with_other_parameters_stays_apart() -> None:
    builder = qdq_models.Builder(np.random.default_rng(0))
    value = builder.conv(builder.input((1, 3, 8, 8)), 4)
    model = builder.finish(builder.pool(value, "MaxPool", same=False, kernel_shape=[2, 2]))
    assert [type(op) for op in device_ops(import_model(model))] == [Conv, Pool]


def test_concat_inputs_are_written_in_place() -> None:
    builder = qdq_models.Builder(np.random.default_rng(0))
    source = builder.input((1, 3, 6, 6))
    remaining = builder.conv(source, 4, (1, 1))
    right = builder.like(
        builder.dequantise(builder.conv(source, 5, (1, 1))),
        (1, 5, 6, 6),
        remaining,
    )
    graph = import_model(builder.finish(builder.concat([remaining, right], 1)))
    ops = fuse(graph)
    assert [type(op) for op in ops] == [Conv, Conv]
    assert [op.lookup is not None for op in ops] == [False, True], "its requantisation is a table"
    assert [op.dst.c for op in ops if op.dst.buffer.shape[3] == 9] == [0, 4]
    assert "@0,0,4" in dump(graph)


def test_concat_copies_inputs_with_two_readers() -> None:
    builder = qdq_models.Builder(np.random.default_rng(0))
    value = builder.conv(builder.input((1, 3, 6, 6)), 4, (1, 1))
    ops = device_ops(import_model(builder.finish(builder.concat([value, value], 1))))
    assert [type(op) for op in ops] == [Conv, Rescale, Rescale]


def test_flatten_permutes_the_columns_of_the_weights() -> None:
    builder = qdq_models.Builder(np.random.default_rng(3))
    image = builder.conv(builder.input((2, 3, 4, 5)), 6, (1, 1))
    model = builder.finish(builder.dense(builder.flatten(image), 7))
    convolution, dense = device_ops(import_model(model))
    assert dense.src.buffer.name == convolution.dst.buffer.name
    assert (convolution.dst.shape, dense.src.shape) == ((2, 4, 5, 6), (1, 1, 2, 120))
    assert not levels(model, qdq_models.feeds(model, np.random.default_rng(1))).any()


def test_flatten_as_output_keeps_the_models_order() -> None:
    builder = qdq_models.Builder(np.random.default_rng(3))
    model = builder.finish(builder.flatten(builder.conv(builder.input((2, 3, 4, 5)), 6, (1, 1))))
    assert len(device_ops(import_model(model))) == 1
    assert not levels(model, qdq_models.feeds(model, np.random.default_rng(1))).any()


def sandwich(op: str, shape: tuple[int, ...] = (1, 4, 6, 6), **attributes: object) -> onnx.ModelProto:
    """A convolution, an operator between DQ and Q, and another convolution."""
    builder = qdq_models.Builder(np.random.default_rng(0))
    value = builder.conv(builder.input(shape), 4, (1, 1))
    middle = builder.node(op, [builder.dequantise(value)], **attributes)
    return builder.finish(builder.conv(builder.like(middle, value.shape, value), 4, (1, 1)))


def test_unsupported_operator_runs_on_the_host_between_device_segments() -> None:
    model = sandwich("Hardmax")
    graph = import_model(model)
    kinds = [HostSegment, DeviceSegment, HostSegment, DeviceSegment, HostSegment]
    assert [type(segment) for segment in graph.segments] == kinds
    assert "the device has no operator Hardmax" in on_host(graph).values()
    assert not levels(model, qdq_models.feeds(model, np.random.default_rng(1))).any()


def test_every_node_is_placed() -> None:
    for op in ("Sigmoid", "LogSoftmax", "Relu", "LeakyRelu", "Softmax"):
        model = sandwich(op)
        graph = import_model(model)
        operators = {node.name for node in model.graph.node if node.op_type not in LINKS}
        assert {name for name, *_ in graph.assignment} >= operators
        assert all(reason for _, _, place, reason in graph.assignment if place == "host")


def test_value_shared_by_host_and_device() -> None:
    builder = qdq_models.Builder(np.random.default_rng(0))
    value = builder.conv(builder.input((1, 3, 6, 6)), 4, (1, 1))
    squashed = builder.like(builder.node("Hardmax", [builder.dequantise(value)]), value.shape, value)
    model = builder.finish(builder.add(value, squashed))
    graph = import_model(model)
    first = next(segment for segment in graph.segments if isinstance(segment, DeviceSegment))
    assert {op.dst.buffer.kind for op in first.ops} == {"output"}
    assert np.abs(levels(model, qdq_models.feeds(model, np.random.default_rng(1)))).max() <= 1


@pytest.mark.parametrize("op", ["Add", "Mul"])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("shape", [(2, 5), (1, 5, 3, 3)])
def test_constant_operand(op: str, fused: bool, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(4)
    builder = qdq_models.Builder(rng)
    source = builder.input(shape)
    if fused:
        axis = 1 if len(shape) == 4 else 0
        weight, _ = builder.weight((5, 5, *(1,) * (len(shape) - 2)), 0, per_channel=True, unsigned=False)
        value = builder.node(
            "Conv" if axis else "Gemm",
            [builder.dequantise(source), weight],
            **({} if axis else {"transB": 1}),
        )
        scale = 0.5
    else:
        value, scale = builder.dequantise(source), source.scale * 1.3
    constant = rng.normal(0, 1, (5, *(1,) * (len(shape) - 2)) if len(shape) == 4 else (5,)).astype(np.float32)
    constant.flat[2] = 0
    value = builder.node(op, [builder.constant(constant), value])
    model = builder.finish(builder.quantise(value, shape, scale, 3, False))
    graph = import_model(model)
    assert not on_host(graph)
    assert [type(item) for item in device_ops(graph)] == [Conv]
    difference = levels(model, qdq_models.feeds(model, rng))
    assert np.abs(difference).max() <= 1
    assert (difference != 0).mean() < 0.05


FOREIGN = {
    "product of four dimensions": ((1, 3, 5, 4), "MatMul", None),
    "transposed convolution": ((1, 4, 5, 4), "Conv", (0, 2, 3, 1)),
    "reshaped product": ((2, 12), "MatMul", (2, 3, 2, 2)),
}
"""Values in an order of elements that is not the device's: input, operator, and perm or shape behind it."""


@pytest.mark.parametrize("constant", [(), (1,), (1, 1, 1, 1), "last"])
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div"])
@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize("name", FOREIGN)
def test_constant_next_to_a_value_in_another_order(
    name: str, quantised: bool, op: str, constant: tuple[int, ...] | str
) -> None:
    shape, product, then = FOREIGN[name]
    builder = qdq_models.Builder(np.random.default_rng(0))
    conv = product == "Conv"
    sizes = (shape[1], shape[1], 1, 1) if conv else (shape[-1], 12)
    weight, _ = builder.weight(sizes, 0 if conv else 1, per_channel=True, unsigned=False)
    value = builder.node(product, [builder.dequantise(builder.input(shape)), weight])
    if then is not None:
        moved = {"perm": then} if conv else {}
        more = [] if conv else [builder.constant(np.array(then, np.int64))]
        value = builder.node("Transpose" if conv else "Reshape", [value, *more], **moved)
    if quantised:
        value = builder.dequantise(builder.quantise(value, builder.shape_of(value), 0.1, 0, False))
    size = builder.shape_of(value)[-1:] if constant == "last" else constant
    assert not isinstance(size, str)
    value = builder.node(op, [value, builder.constant(np.full(size, 0.7, np.float32))])
    model = builder.finish(builder.quantise(value, builder.shape_of(value), 0.1, 0, False))
    difference = levels(model, qdq_models.feeds(model, np.random.default_rng(1)))
    assert np.abs(difference).max() <= 1


def test_clip_becomes_a_clamp() -> None:
    builder = qdq_models.Builder(np.random.default_rng(0))
    source = builder.input((1, 8), unsigned=False)
    value = builder.node(
        "Clip",
        [
            builder.dequantise(source),
            builder.constant(np.float32(-0.513)),
            builder.constant(np.float32(1.015)),
        ],
    )
    model = builder.finish(builder.quantise(value, (1, 8), 0.02, 5, False))
    (op,) = device_ops(import_model(model))
    assert (op.low, op.high) == (-21, 56)
    assert not levels(model, {model.graph.input[0].name: np.linspace(-3, 3, 8, dtype=np.float32)[None]}).any()


def test_buffers_round_trip() -> None:
    graph = import_model(qdq_models.random_conv(np.random.default_rng(5)))
    for transfer in (*graph.to_device, *graph.from_device):
        value = (
            np.arange(np.prod(transfer.model_shape), dtype=np.int64)
            .astype(np.uint8)
            .reshape(transfer.model_shape)
        )
        value = value if transfer.unsigned else value.view(np.int8)
        assert np.array_equal(from_buffer(transfer, to_buffer(transfer, value)), value)


def test_transpose_to_channels_last_is_free_before_a_matrix_product() -> None:
    builder = qdq_models.Builder(np.random.default_rng(0))
    value = builder.conv(builder.input((1, 3, 4, 4)), 6, (1, 1))
    moved = builder.node("Transpose", [builder.dequantise(value)], perm=[0, 2, 3, 1])
    shape = builder.constant(np.array([1, 16, 6], np.int64))
    tokens = builder.like(builder.node("Reshape", [moved, shape]), (1, 16, 6), value)
    model = builder.finish(builder.dense(tokens, 5, op="MatMul"))
    graph = import_model(model)
    assert [type(op) for op in device_ops(graph)] == [Conv, Conv] or on_host(graph)
    assert not levels(model, qdq_models.feeds(model, np.random.default_rng(1))).any()


def test_integer_model_without_host_nodes() -> None:
    builder = qdq_models.Builder(np.random.default_rng(0))
    builder.inputs.append(helper.make_tensor_value_info("x", TensorProto.UINT8, (1, 3, 5, 5)))
    source = qdq_models.Quantised("x", (1, 3, 5, 5), 0.05, 120, True)
    value = builder.conv(source, 4)
    model = builder._model(value.name, value.shape, TensorProto.UINT8 if value.unsigned else TensorProto.INT8)
    graph = import_model(model)
    assert [type(segment) for segment in graph.segments] == [DeviceSegment]
    x = np.random.default_rng(1).integers(0, 256, (1, 3, 5, 5)).astype(np.uint8)
    difference = run_graph(graph, {"x": x})[value.name].astype(int) - run_onnxruntime(model, {"x": x})[0]
    assert not difference.any()


def test_constant_output() -> None:
    builder = qdq_models.Builder(np.random.default_rng(0))
    model = builder.finish(builder.conv(builder.input((1, 3, 5, 5)), 4))
    model.graph.node.append(helper.make_node("Shape", [model.graph.input[0].name], ["size"]))
    model.graph.output.append(helper.make_tensor_value_info("size", TensorProto.INT64, (4,)))
    outputs = run_graph(import_model(model), qdq_models.feeds(model, np.random.default_rng(1)))
    assert outputs["size"].tolist() == [1, 3, 5, 5]


def test_model_without_device_operators_runs_on_the_host() -> None:
    builder = qdq_models.Builder(np.random.default_rng(0))
    source = builder.input((2, 6))
    value = builder.like(builder.node("Hardmax", [builder.dequantise(source)]), (2, 6), source)
    model = builder.finish(value)
    graph = import_model(model)
    assert [type(segment) for segment in graph.segments] == [HostSegment]
    assert not levels(model, qdq_models.feeds(model, np.random.default_rng(1))).any()


def test_bias_of_a_product_of_four_dimensions_belongs_to_the_last() -> None:
    rng = np.random.default_rng(0)
    builder = qdq_models.Builder(rng)
    source = builder.input((1, 3, 3, 4))
    model = builder.finish(builder.dense(source, 3, op="MatMul"))
    assert on_host(import_model(model)) or not levels(model, qdq_models.feeds(model, rng)).any()
    weight, _ = builder.weight((4, 3), 1, per_channel=True, unsigned=False)
    value = builder.node("MatMul", [builder.dequantise(source), weight])
    for shape in ((3,), (3, 1, 1)):
        value = builder.node("Add", [value, builder.constant(rng.normal(0, 1, shape).astype(np.float32))])
    model = builder.finish(builder.quantise(value, (1, 3, 3, 3), 0.2, 0, False))
    assert np.abs(levels(model, qdq_models.feeds(model, rng))).max() <= 1


def test_sum_of_tensors_in_one_foreign_order() -> None:
    """Matrix products of four dimensions are in row-major order; so is their sum."""
    rng = np.random.default_rng(0)
    builder = qdq_models.Builder(rng)
    source = builder.input((1, 3, 5, 4))
    parts = [builder.dense(source, 6, op="MatMul") for _ in range(2)]
    model = builder.finish(builder.dense(builder.add(*parts), 2, op="MatMul"))
    graph = import_model(model)
    assert not on_host(graph)
    ops = [(type(op), type(op.epilogue)) for op in fuse(graph)]
    assert ops == [(Conv, type(None)), (Conv, Add), (Conv, type(None))]
    assert np.abs(levels(model, qdq_models.feeds(model, rng))).max() <= 1


def test_channels_last_input_enters_as_it_is() -> None:
    """Models from channels-last frameworks start with a Transpose: it costs nothing."""
    rng = np.random.default_rng(0)
    builder = qdq_models.Builder(rng)
    source = builder.input((2, 6, 5, 3))
    moved = builder.node("Transpose", [builder.dequantise(source)], perm=[0, 3, 1, 2])
    model = builder.finish(builder.conv(builder.like(moved, (2, 3, 6, 5), source), 4))
    graph = import_model(model)
    assert not on_host(graph)
    assert [type(op) for op in device_ops(graph)] == [Conv]
    assert not levels(model, qdq_models.feeds(model, rng)).any()


def test_one_input_in_three_orders_has_three_transfers() -> None:
    """The sum takes it channels first, the product in row-major order, a third reader transposed."""
    rng = np.random.default_rng(0)
    builder = qdq_models.Builder(rng)
    source = builder.input((1, 4, 4, 4))
    first = builder.conv(source, 4, (1, 1))
    moved = builder.node("Transpose", [builder.dequantise(source)], perm=[0, 3, 1, 2])
    second = builder.conv(builder.like(moved, source.shape, source), 4, (1, 1))
    third = builder.dense(source, 4, op="MatMul", bias=False)
    flat = builder.node("Reshape", [moved, builder.constant(np.array([1, 64], np.int64))])
    fourth = builder.like(flat, (1, 64), source)
    model = builder.finish(builder.add(first, second))
    for value in (third, builder.dense(fourth, 3), builder.add(fourth, builder.input((1, 64)))):
        name = builder.dequantise(value)
        model.graph.node.extend(node for node in builder.nodes if node not in model.graph.node)
        model.graph.output.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, value.shape))
    del model.graph.initializer[:], model.graph.input[:]
    model.graph.initializer.extend(builder.constants)
    model.graph.input.extend(builder.inputs)
    values = qdq_models.feeds(model, rng)
    graph = import_model(model)
    assert len({item.buffer.name for item in graph.to_device if item.value == source.name}) == 3
    given = run_graph(graph, values)
    for name, expected in zip(
        (item.name for item in model.graph.output), run_onnxruntime(model, values), strict=True
    ):
        assert np.allclose(given[name], expected, atol=0.02 * np.abs(expected).max()), name


def test_value_that_only_another_device_segment_reads() -> None:
    builder = qdq_models.Builder(np.random.default_rng(0))
    value = builder.conv(builder.input((1, 3, 6, 6)), 4, (1, 1))
    other = builder.conv(value, 4, (1, 1))
    squashed = builder.like(builder.node("Hardmax", [builder.dequantise(other)]), value.shape, value)
    model = builder.finish(builder.add(value, squashed))
    graph = import_model(model)
    segments = [segment for segment in graph.segments if isinstance(segment, DeviceSegment)]
    assert [len(segment.ops) for segment in segments] == [2, 1]
    assert value.name in {item.value for item in graph.to_device} & {item.value for item in graph.from_device}
    assert np.abs(levels(model, qdq_models.feeds(model, np.random.default_rng(1)))).max() <= 1


def test_product_and_sum_of_constants_with_a_zero() -> None:
    rng = np.random.default_rng(0)
    builder = qdq_models.Builder(rng)
    value = builder.dequantise(builder.input((1, 3, 4, 4)))
    for op, values in (("Mul", [0.0, -1.5, 2.0]), ("Add", [1.0, -0.5, 0.0])):
        value = builder.node(op, [value, builder.constant(np.array(values, np.float32).reshape(3, 1, 1))])
    model = builder.finish(builder.quantise(value, (1, 3, 4, 4), 0.05, 0, False))
    assert len(device_ops(import_model(model))) == 1
    assert np.abs(levels(model, qdq_models.feeds(model, rng))).max() <= 1


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("shape", [(3, 5), (2, 5, 4, 3)])
def test_batch_normalisation(fused: bool, shape: tuple[int, ...]) -> None:
    """Alone it is a depthwise convolution, else part of the previous one; channels may be zeroed or negated."""
    rng = np.random.default_rng(len(shape))
    builder = qdq_models.Builder(rng)
    value = builder.dequantise(builder.input(shape))
    if fused:
        weight, _ = builder.weight((5, 5, *(1,) * (len(shape) - 2)), 0, per_channel=True, unsigned=False)
        more = {"transB": 1} if len(shape) == 2 else {}
        value = builder.node("Conv" if len(shape) == 4 else "Gemm", [value, weight], **more)
    scale, offset, mean = (rng.normal(0, 1, 5).astype(np.float32) for _ in range(3))
    scale[1], scale[3], variance = 0, -1.5, rng.uniform(0.2, 3, 5).astype(np.float32)
    constants = [builder.constant(values) for values in (scale, offset, mean, variance)]
    value = builder.node("BatchNormalization", [value, *constants], epsilon=0.01)
    model = builder.finish(builder.quantise(value, shape, 0.07, 3, False))
    graph = import_model(model)
    assert not on_host(graph)
    assert [type(item) for item in device_ops(graph)] == [Conv]
    difference = levels(model, qdq_models.feeds(model, rng))
    assert np.abs(difference).max() <= 1
    assert np.abs(difference).mean() < 0.05


def test_control_flow_runs_on_the_host_with_captured_values() -> None:
    builder = qdq_models.Builder(np.random.default_rng(0))
    value = builder.conv(builder.input((1, 3, 4, 4)), 4, (1, 1))
    floats = builder.dequantise(value)
    builder.inputs.append(helper.make_tensor_value_info("choose", TensorProto.BOOL, ()))
    branches = {}
    for key, op in (("then_branch", "Neg"), ("else_branch", "Identity")):
        output = helper.make_tensor_value_info(f"{key}_out", TensorProto.FLOAT, value.shape)
        branches[key] = helper.make_graph([helper.make_node(op, [floats], [output.name])], key, [], [output])
    name = builder.node("If", ["choose"], **branches)
    model = builder.finish(builder.like(name, value.shape, value))
    values = qdq_models.feeds(model, np.random.default_rng(1)) | {"choose": np.array(True)}
    assert [type(op) for op in device_ops(import_model(model))] == [Conv]
    assert not levels(model, values).any()


@pytest.mark.parametrize("perm", [(0, 2, 3, 1), (0, 1, 3, 2), (3, 1, 0, 2)])
def test_transpose_before_an_output_is_left_to_the_transfer(perm: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    builder = qdq_models.Builder(rng)
    weight, _ = builder.weight((4, 3, 1, 1), 0, per_channel=True, unsigned=False)
    value = builder.node("Conv", [builder.dequantise(builder.input((2, 3, 5, 6))), weight])
    value = builder.node("Transpose", [value], perm=perm)
    model = builder.finish(builder.quantise(value, builder.shape_of(value), 0.1, 0, False))
    assert not on_host(import_model(model))
    assert not levels(model, qdq_models.feeds(model, rng)).any()
