"""Small classifiers to train: random convolutions and products, and further operators of a training step."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import weft


class Net:
    """A float classifier under construction, one node after the other."""

    def __init__(self, rng: np.random.Generator, shape: tuple[int, ...]) -> None:
        self.rng, self.shape = rng, shape
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray] = {}

    def node(self, operator: str, inputs: list[str], **attributes: Any) -> str:
        name = f"{operator.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [f"{name}/out"], name=name, **attributes))
        return f"{name}/out"

    def constant(self, value: np.ndarray) -> str:
        name = f"constant{len(self.constants)}"
        self.constants[name] = value
        return name

    def weights(self, *shape: int) -> str:
        spread = np.sqrt(2 / np.prod(shape[1:]))
        return self.constant((self.rng.normal(size=shape) * spread).astype(np.float32))

    def bias(self, size: int) -> str:
        return self.constant((self.rng.normal(size=size) * 0.1).astype(np.float32))

    def model(self, result: str, classes: int) -> onnx.ModelProto:
        self.nodes.append(helper.make_node("Identity", [result], ["y"], name="end"))
        graph = helper.make_graph(
            self.nodes, "net",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, (self.shape[0], classes))],
            [numpy_helper.from_array(value, name) for name, value in self.constants.items()],
        )  # fmt: skip
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
        onnx.checker.check_model(made, full_check=True)
        return made


def perceptron(rng: np.random.Generator, sizes: tuple[int, ...]) -> onnx.ModelProto:
    """Build products with a ReLU between, for one sample."""
    net = Net(rng, (1, sizes[0]))
    value = "x"
    for at, (before, behind) in enumerate(itertools.pairwise(sizes)):
        value = net.node("Gemm", [value, net.weights(behind, before), net.bias(behind)], transB=1)
        if at < len(sizes) - 2:
            value = net.node("Relu", [value])
    return net.model(value, sizes[-1])


def convolutional(rng: np.random.Generator, kind: int) -> onnx.ModelProto:
    """Build two convolutions, with strides, groups, a pool or a sum by `kind`, and a product, for one sample."""
    channels, size = int(rng.integers(1, 5)), int(rng.integers(6, 10))
    inner, classes = 2 * int(rng.integers(2, 6)), int(rng.integers(2, 8))
    net = Net(rng, (1, channels, size, size))
    value = net.node("Conv", ["x", net.weights(inner, channels, 3, 3), net.bias(inner)], pads=[1, 1, 1, 1])
    value = before = net.node("Relu", [value])
    if kind == 0:
        value = net.node("Conv", [value, net.weights(inner, inner, 3, 3)], strides=[2, 2], pads=[1, 1, 1, 1])
    elif kind == 1:
        value = net.node("Conv", [value, net.weights(inner, inner // 2, 3, 3), net.bias(inner)], group=2)
    elif kind == 2:
        value = net.node("Conv", [value, net.weights(inner, inner, 1, 1), net.bias(inner)])
        value = net.node("Add", [value, before])
    else:
        value = net.node("Conv", [value, net.weights(inner, inner, 2, 2), net.bias(inner)], dilations=[2, 2])
    value = net.node("Relu", [value])
    if kind == 2 and size % 2 == 0:
        value = net.node("MaxPool", [value], kernel_shape=[2, 2], strides=[2, 2])
    value = net.node("GlobalAveragePool", [value]) if kind in (0, 3) else value
    flat = net.node("Flatten", [value])
    width = _width(net, flat)
    return net.model(
        net.node("Gemm", [flat, net.weights(classes, width), net.bias(classes)], transB=1), classes
    )


def _width(net: Net, name: str) -> int:
    """Return the elements in a row of a value of rank 2."""
    graph = helper.make_graph(
        net.nodes, "part", [helper.make_tensor_value_info("x", TensorProto.FLOAT, net.shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, item) for item, value in net.constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    found = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    return int(found.graph.output[0].type.tensor_type.shape.dim[1].dim_value)


def samples(model: onnx.ModelProto, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    r"""Draw inputs, float32 (count, \*shape of one), and labels that depend on them: int64 (count,)."""
    rng = np.random.default_rng(seed)
    sizes = [dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim]
    classes = model.graph.output[0].type.tensor_type.shape.dim[1].dim_value
    labels = rng.integers(0, classes, count)
    centres = np.random.default_rng(99).normal(size=(classes, *sizes[1:]))
    return (centres[labels] + 0.3 * rng.normal(size=(count, *sizes[1:]))).astype(np.float32), labels


def quantise_by_samples(model: onnx.ModelProto) -> onnx.ModelProto:
    """Quantise the model to int8 by samples."""
    return weft.quantise(model, {"x": samples(model, 16)[0]}).model


def depthwise(rng: np.random.Generator) -> onnx.ModelProto:
    """Build an expansion, a depthwise convolution with a stride, and a projection, as in MobileNets."""
    net = Net(rng, (1, 8, 8, 8))
    value = net.node("Relu", [net.node("Conv", ["x", net.weights(16, 8, 1, 1), net.bias(16)])])
    value = net.node(
        "Conv", [value, net.weights(16, 1, 3, 3), net.bias(16)], group=16, pads=[1, 1, 1, 1], strides=[2, 2]
    )
    value = net.node(
        "Clip", [value, net.constant(np.array(0, np.float32)), net.constant(np.array(6, np.float32))]
    )
    value = net.node("Conv", [value, net.weights(8, 16, 1, 1), net.bias(8)])
    flat = net.node("Flatten", [net.node("GlobalAveragePool", [value])])
    return net.model(net.node("Gemm", [flat, net.weights(4, 8), net.bias(4)], transB=1), 4)


def branches(rng: np.random.Generator) -> onnx.ModelProto:
    """Build batch normalisation, two parallel branches, and maxima over windows that overlap."""
    net = Net(rng, (1, 3, 8, 8))
    vectors = [net.constant(np.full(8, value, np.float32)) for value in (1, 0, 0, 1)]
    value = net.node("Conv", ["x", net.weights(8, 3, 3, 3)], pads=[1, 1, 1, 1])
    value = net.node("Relu", [net.node("BatchNormalization", [value, *vectors])])
    parts = [
        net.node("Conv", [value, net.weights(8, 8, 3, 3)], pads=[1, 1, 1, 1]),
        net.node("Conv", [value, net.weights(8, 8, 1, 1)]),
    ]
    value = net.node("Relu", [net.node("Concat", parts, axis=1)])
    value = net.node("MaxPool", [value], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    flat = net.node("Flatten", [value])
    return net.model(net.node("Gemm", [flat, net.weights(4, 256), net.bias(4)], transB=1), 4)


def gated_units(rng: np.random.Generator) -> onnx.ModelProto:
    """Build products of a tanh and a sigmoid, as recurrent cells have them."""
    net = Net(rng, (1, 12))
    parts = [
        net.node(gate, [net.node("Gemm", ["x", net.weights(16, 12), net.bias(16)], transB=1)])
        for gate in ("Tanh", "Sigmoid")
    ]
    return net.model(net.node("Gemm", [net.node("Mul", parts), net.weights(4, 16), net.bias(4)], transB=1), 4)


def transformer(rng: np.random.Generator) -> onnx.ModelProto:
    """Build a layer of two heads over six tokens, with normalisation and a perceptron."""
    net = Net(rng, (1, 6, 16))

    def product(value: str, inputs: int, outputs: int) -> str:
        weights = (rng.normal(size=(inputs, outputs)) / np.sqrt(inputs)).astype(np.float32)
        return net.node("Add", [net.node("MatMul", [value, net.constant(weights)]), net.bias(outputs)])

    def heads(value: str, order: list[int]) -> str:
        split = net.node("Reshape", [value, net.constant(np.array([1, 6, 2, 8]))])
        return net.node("Transpose", [split], perm=order)

    q, k, v = (product("x", 16, 16) for _ in range(3))
    scores = net.node("MatMul", [heads(q, [0, 2, 1, 3]), heads(k, [0, 2, 3, 1])])
    scores = net.node("Mul", [scores, net.constant(np.array(8**-0.5, np.float32))])
    mixed = net.node("MatMul", [net.node("Softmax", [scores], axis=-1), heads(v, [0, 2, 1, 3])])
    rows = net.node("Transpose", [mixed], perm=[0, 2, 1, 3])
    rows = net.node("Reshape", [rows, net.constant(np.array([1, 6, 16]))])
    value = net.node("Add", ["x", product(rows, 16, 16)])
    value = net.node("LayerNormalization", [value, net.constant(np.ones(16, np.float32)), net.bias(16)])
    inner = net.node("Relu", [product(value, 16, 32)])
    flat = net.node("Flatten", [net.node("Add", [value, product(inner, 32, 16)])])
    return net.model(net.node("Gemm", [flat, net.weights(4, 96), net.bias(4)], transB=1), 4)
