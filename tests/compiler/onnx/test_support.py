"""Every constraint of the support table, broken once: the node falls back with the constraint's own sentence."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from support.qdq_models import Builder, Quantised

from weft.compiler.frontend import import_model
from weft.compiler.ir.graph import DeviceSegment
from weft.compiler.onnx import support, support_attention, support_channels, support_pool, support_softmax
from weft.compiler.onnx.operators import HANDLERS


def builder() -> Builder:
    return Builder(np.random.default_rng(0))


def image(built: Builder, shape: tuple[int, ...] = (1, 4, 6, 6)) -> Quantised:
    return built.input(shape)


def ended(built: Builder, value: str, scale: float = 0.1) -> onnx.ModelProto:
    """Quantise a float value and end the model."""
    return built.finish(built.quantise(value, built.shape_of(value), scale, 0, False))


def one(op: str, shape: tuple[int, ...] = (1, 4, 6, 6), **attributes: object) -> onnx.ModelProto:
    built = builder()
    return ended(built, built.node(op, [built.dequantise(image(built, shape))], **attributes))


def convolution(
    weight: np.ndarray | str, shape: tuple[int, ...] = (1, 4, 6, 6), **attributes: object
) -> onnx.ModelProto:
    """Conv with given float weights, or int8 ones quantised as `weight` says."""
    built = builder()
    value = built.dequantise(image(built, shape))
    if isinstance(weight, str):
        name = {
            "input": lambda: built.dequantise(image(built, (2, 4, 1, 1))),
            "other axis": lambda: built.weight((2, 4, 1, 1), 1, per_channel=True, unsigned=False)[0],
        }[weight]()
    else:
        name = built.constant(weight.astype(np.float32))
    return ended(built, built.node("Conv", [value, name], **attributes))


def dense(op: str = "Gemm", shape: tuple[int, ...] = (2, 4), **attributes: object) -> onnx.ModelProto:
    built = builder()
    weight, _ = built.weight((4, 4), 1, per_channel=False, unsigned=False)
    return ended(built, built.node(op, [built.dequantise(image(built, shape)), weight], **attributes))


def two(op: str, first: tuple[int, ...], second: tuple[int, ...], **attributes: object) -> onnx.ModelProto:
    built = builder()
    names = [built.dequantise(image(built, shape)) for shape in (first, second)]
    return ended(built, built.node(op, names, **attributes))


def with_constant(
    op: str, shape: tuple[int, ...], constant: tuple[int, ...], value: float = 1.0
) -> onnx.ModelProto:
    built = builder()
    name = built.constant(np.full(constant, value, np.float32))
    return ended(built, built.node(op, [built.dequantise(image(built, shape)), name]))


def biased(bias: str) -> onnx.ModelProto:
    built = builder()
    value = built.dequantise(image(built, (4, 4)))
    weight, _ = built.weight((4, 4), 1, per_channel=True, unsigned=False)
    name = (
        built.dequantise(image(built, (4,)))
        if bias == "input"
        else built.constant(np.ones({"matrix": (4, 4), "column": (4, 1)}[bias], np.float32))
    )
    return ended(built, built.node("Gemm", [value, weight, name]))


def reshaped_sum() -> onnx.ModelProto:
    built = builder()
    weight, _ = built.weight((4, 12), 1, per_channel=True, unsigned=False)
    value = built.node("MatMul", [built.dequantise(image(built, (2, 4))), weight])
    value = built.node("Reshape", [value, built.constant(np.array([2, 3, 2, 2], np.int64))])
    return ended(built, built.node("Add", [value, built.constant(np.ones((3, 1, 1), np.float32))]))


def normalised(
    variance: float = 1.0, shape: tuple[int, ...] = (1, 4, 6, 6), mean: str = "constant", **attributes: int
) -> onnx.ModelProto:
    built = builder()
    value = built.dequantise(image(built, shape))
    ones = np.ones(shape[1], np.float32)
    middle = built.constant(ones) if mean == "constant" else built.dequantise(image(built, (shape[1],)))
    constants = [built.constant(ones), built.constant(ones), middle, built.constant(variance * ones)]
    return ended(built, built.node("BatchNormalization", [value, *constants], **attributes))


def swapped() -> onnx.ModelProto:
    """A transpose that a view could express, but no convolution reads."""
    built = builder()
    value = built.conv(image(built), 4, (1, 1))
    moved = built.node("Transpose", [built.dequantise(value)], perm=[0, 1, 3, 2])
    return built.finish(built.conv(built.like(moved, value.shape, value), 4, (1, 1)))


def mixed_transpose() -> onnx.ModelProto:
    built = builder()
    flat = built.flatten(built.conv(image(built), 4, (1, 1)))
    value = built.node("Reshape", [built.dequantise(flat), built.constant(np.array([1, 16, 9], np.int64))])
    return ended(built, built.node("Transpose", [value], perm=[0, 2, 1]))


def divided(divisor: str) -> onnx.ModelProto:
    built = builder()
    value = built.dequantise(image(built))
    name = {
        "zero": lambda: built.constant(np.array([1, 0, 2, 3], np.float32).reshape(4, 1, 1)),
        "input": lambda: built.dequantise(image(built)),
    }[divisor]()
    return ended(built, built.node("Div", [value, name]))


def softmax(shape: tuple[int, ...], axis: int) -> onnx.ModelProto:
    """Softmax of a convolution's result."""
    built = builder()
    value = built.conv(image(built), 4, (1, 1))
    name = built.node("Reshape", [built.dequantise(value), built.constant(np.array(shape, np.int64))])
    return ended(built, built.node("Softmax", [name], axis=axis))


def long_softmax() -> onnx.ModelProto:
    built = builder()
    return ended(built, built.node("Softmax", [built.dequantise(built.input((1, 65536)))]))


def wide_softmax() -> onnx.ModelProto:
    built = builder()
    value = built.dequantise(built.quantise(built.dequantise(image(built)), (1, 4, 6, 6), 2.0, 0, False))
    return ended(built, built.node("Softmax", [value], axis=1))


def float_softmax() -> onnx.ModelProto:
    built = builder()
    value = built.node("Erf", [built.dequantise(image(built))])
    return ended(built, built.node("Softmax", [value], axis=1))


def clipped() -> onnx.ModelProto:
    built = builder()
    bound = built.node("ReduceMin", [built.dequantise(image(built, (3,)))], keepdims=0)
    return ended(built, built.node("Clip", [built.dequantise(image(built)), bound]))


def indices() -> onnx.ModelProto:
    built = builder()
    value = built.dequantise(image(built))
    node = onnx.helper.make_node("MaxPool", [value], ["kept", "where"], name="pool", kernel_shape=[2, 2])
    built.nodes.append(node)
    model = ended(built, "kept")
    model.graph.output.append(onnx.helper.make_tensor_value_info("where", TensorProto.INT64, (1, 4, 5, 5)))
    return model


def mixed(then: Callable[[Builder, str], str], shape: tuple[int, ...]) -> onnx.ModelProto:
    """A flattened convolution, reshaped so that axes mix, and an operator."""
    built = builder()
    flat = built.flatten(built.conv(image(built), 4, (1, 1)))
    value = built.node("Reshape", [built.dequantise(flat), built.constant(np.array(shape, np.int64))])
    return ended(built, then(built, value))


def pool3(built: Builder, value: str) -> str:
    return built.node("MaxPool", [value], kernel_shape=[2, 2])


def summed(built: Builder, value: str) -> str:
    other = built.conv(built.input((2, 2, 6, 6)), 2, (1, 1))
    return built.node("Add", [value, built.dequantise(other)])


def joined(built: Builder, value: str) -> str:
    return built.node("Concat", [value, value], axis=1)


def product(built: Builder, value: str) -> str:
    weight, _ = built.weight((3, 2), 0, per_channel=False, unsigned=False)
    return built.node("MatMul", [value, weight])


def mean(axes: list[int], shape: tuple[int, ...] = (1, 4, 6, 6)) -> onnx.ModelProto:
    built = builder()
    axis = built.constant(np.array(axes, np.int64))
    return ended(built, built.node("ReduceMean", [built.dequantise(image(built, shape)), axis]))


def sixteen() -> onnx.ModelProto:
    built = builder()
    name = "input"
    built.inputs.append(onnx.helper.make_tensor_value_info(name, TensorProto.FLOAT, (1, 4)))
    pair = [built.constant(np.float32(0.1)), built.constant(np.array(0, np.int16))]
    value = built.node(
        "Relu", [built.node("DequantizeLinear", [built.node("QuantizeLinear", [name, *pair]), *pair])]
    )
    return ended(built, value)


def long_sum() -> onnx.ModelProto:
    built = builder()
    weight = built.constant(np.full((70000, 1), -128, np.int8))
    pair = [built.constant(np.float32(0.1)), built.constant(np.array(0, np.int8))]
    name = built.node("DequantizeLinear", [weight, *pair])
    source = dataclasses.replace(built.input((1, 70000), unsigned=False), zero=127)
    value = built.dequantise(source)
    return ended(built, built.node("MatMul", [value, name]))


def requantised_input() -> onnx.ModelProto:
    built = builder()
    value = built.node("Relu", [built.dequantise(image(built, (1, 4)))])
    return ended(built, value, scale=1e-9)


def negative() -> onnx.ModelProto:
    built = builder()
    names = [image(built, (1, 4)).name, built.constant(np.float32(-0.1))]
    return ended(built, built.node("Relu", [built.node("DequantizeLinear", names)]))


def float_input() -> onnx.ModelProto:
    built = builder()
    source = built.input((1, 4))
    value = built.node("Erf", [built.dequantise(source)])
    return ended(built, built.node("Relu", [value]))


ones = np.ones((2, 4, 1, 1))
CASES: dict[str, tuple[Callable[[], onnx.ModelProto], str, support.Constraint]] = {
    "3-d convolution": (lambda: convolution(np.ones((2, 4, 1)), (1, 4, 6)), "Conv", support.image),
    "float weights": (lambda: convolution(ones), "Conv", support.weights_constant),
    "weights from an input": (lambda: convolution("input"), "Conv", support.weights_constant),
    "scales per input channel": (lambda: convolution("other axis"), "Conv", support.weights_per_output),
    "stride of 128": (
        lambda: one("MaxPool", kernel_shape=[1, 1], strides=[128, 1]),
        "MaxPool",
        support.window_steps,
    ),
    "1-d pool": (lambda: one("MaxPool", (1, 4, 6), kernel_shape=[2]), "MaxPool", support.image),
    "pool of mixed axes": (lambda: mixed(pool3, (1, 6, 6, 4)), "MaxPool", support.image_order),
    "indices": (lambda: indices(), "MaxPool", support.pool_values),
    "pool of a tall image": (
        lambda: one("MaxPool", (1, 1, 4096, 2), kernel_shape=[1, 1]),
        "MaxPool",
        support_pool.window_size,
    ),
    "mean of a large image": (
        lambda: one("GlobalAveragePool", (1, 1, 300, 300)),
        "GlobalAveragePool",
        support_pool.window_size,
    ),
    "mean of many rows": (lambda: mean([1], (1, 4096, 2)), "ReduceMean", support_pool.window_size),
    "scale below zero": (lambda: negative(), "DequantizeLinear", support.per_tensor),
    "average past the padding": (
        lambda: one(
            "AveragePool",
            kernel_shape=[2, 2],
            strides=[3, 3],
            ceil_mode=1,
            count_include_pad=1,
            pads=[1, 1, 0, 0],
        ),
        "AveragePool",
        support.ceil_average,
    ),
    "mean over channels": (lambda: mean([1]), "ReduceMean", support.mean_axes),
    "mean of a matrix": (lambda: mean([1], (2, 3)), "ReduceMean", support.mean_axes),
    "mean over features": (lambda: mean([2], (2, 3, 4)), "ReduceMean", support.mean_axes),
    "transA": (lambda: dense(shape=(4, 2), transA=1), "Gemm", support.plain_product),
    "alpha": (lambda: dense(alpha=0.5), "Gemm", support.plain_product),
    "bias from an input": (lambda: biased("input"), "Gemm", support.bias_constant),
    "bias for each row": (lambda: biased("matrix"), "Gemm", support.bias_constant),
    "bias in a column": (lambda: biased("column"), "Gemm", support.bias_constant),
    "constant after a reshape": (reshaped_sum, "Add", support.addable),
    "constant that is not finite": (
        lambda: with_constant("Mul", (1, 4), (4,), np.nan),
        "Mul",
        support.multipliable,
    ),
    "normalisation of rows": (
        lambda: normalised(shape=(1, 4, 6)),
        "BatchNormalization",
        support_channels.batch_norm_operands,
    ),
    "normalisation by an input": (
        lambda: normalised(mean="input"),
        "BatchNormalization",
        support_channels.batch_norm_operands,
    ),
    "normalisation by a negative variance": (
        lambda: normalised(-1.0),
        "BatchNormalization",
        support_channels.batch_norm_inference,
    ),
    "division by zero": (lambda: divided("zero"), "Div", support.divisible),
    "division by an input": (lambda: divided("input"), "Div", support.divisible),
    "softmax over rows": (lambda: softmax((1, 4, 36), 2), "Softmax", support_softmax.softmax_axis),
    "softmax of wide logits": (wide_softmax, "Softmax", support_softmax.softmax_range),
    "softmax of floats": (float_softmax, "Softmax", support_softmax.softmax_input),
    "softmax of many": (long_softmax, "Softmax", support_softmax.softmax_length),
    "product of a vector": (lambda: dense("MatMul", (4,)), "MatMul", support.product_input),
    "rows of mixed axes": (lambda: mixed(product, (48, 3)), "MatMul", support.row_order),
    "broadcast": (lambda: two("Add", (1, 4, 6, 6), (1, 4, 1, 1)), "Add", support.addable),
    "constant for each element": (lambda: with_constant("Add", (2, 4), (2, 4)), "Add", support.addable),
    "constant that broadcasts the value": (
        lambda: with_constant("Add", (1, 4), (3, 1)),
        "Add",
        support.addable,
    ),
    "sum of mixed axes": (lambda: mixed(summed, (2, 2, 6, 6)), "Add", support.same_order),
    "product of two activations": (lambda: two("Mul", (2, 4), (2, 4)), "Mul", support.multipliable),
    "concatenated rows": (lambda: two("Concat", (2, 3, 4), (2, 3, 4), axis=1), "Concat", support.concat_axis),
    "concatenated mixed axes": (lambda: mixed(joined, (1, 6, 6, 4)), "Concat", support.concat_order),
    "bound from an input": (lambda: clipped(), "Clip", support.bounds_constant),
    "transpose": (swapped, "Transpose", support.transposable),
    "transpose of mixed axes": (mixed_transpose, "Transpose", support.transposable),
    "int16": (lambda: sixteen(), "DequantizeLinear", support.per_tensor),
    "large scale": (lambda: requantised_input(), "QuantizeLinear", support.scales_fit),
    "long sum": (lambda: long_sum(), "QuantizeLinear", support.sums_fit),
    "value from the host": (lambda: float_input(), "Relu", support.input_quantisable),
}


@pytest.mark.parametrize("name", CASES)
def test_fallback_reason(name: str) -> None:
    build, op, constraint = CASES[name]
    graph = import_model(build())
    reasons = [reason for _, kind, place, reason in graph.placement if kind == op and place == "host"]
    sentence = support.sentence(constraint)
    assert any(reason.startswith(sentence) for reason in reasons), reasons
    assert any(reason[len(sentence) :].startswith(" (") for reason in reasons), "shows the value"


def test_every_constraint_has_a_case() -> None:
    tried = {constraint for _, _, constraint in CASES.values()}
    known = {constraint for constraints in support.CONSTRAINTS.values() for constraint in constraints}
    known -= set(support_attention.ATTENTION)  # see test_support_attention.py
    # Implied by the others in any model that ONNX accepts, or met only by pools that runtimes disagree about.
    rare = {
        support.input_quantised,
        support.inputs_quantised,
        support.movable,
        support.weights_matrix,
        support.windows_filled,
    }
    assert known - tried == rare


def test_table_is_made_of_sentences() -> None:
    table = dict(support.table())
    assert list(table) == sorted({*support.CONSTRAINTS, support.WRITTEN_OUT})
    for sentences in table.values():
        assert all(line.endswith(".") and line[0].isupper() and len(line) < 130 for line in sentences)


def test_every_supported_operator_has_a_handler() -> None:
    assert set(support.CONSTRAINTS) == {*HANDLERS, "QuantizeLinear"}


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_auto_pad(auto_pad: str) -> None:
    model = one("MaxPool", (1, 4, 7, 6), kernel_shape=[4, 3], strides=[2, 1], auto_pad=auto_pad)
    graph = import_model(model)
    (segment,) = (item for item in graph.segments if isinstance(item, DeviceSegment))
    wanted = {"SAME_UPPER": (1, 1, 2, 1), "SAME_LOWER": (2, 1, 1, 1), "VALID": (0, 0, 0, 0)}[auto_pad]
    assert segment.ops[0].window.pad == wanted
