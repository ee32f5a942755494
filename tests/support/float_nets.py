"""Small float networks as exporters write them, to quantise, and samples for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class FloatNet:
    """Builder of a float network's nodes and random weights; every method returns the name of its result."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, *shape: int, low: float | None = None, scale: float | None = None) -> str:
        """Draw normal weights that keep the size of activations, or uniform ones from `low` to 2."""
        spread = scale or np.sqrt(2 / math.prod(shape[1:]))
        value = self.rng.normal(0, spread, shape) if low is None else self.rng.uniform(low, 2, shape)
        return self.constant(value.astype(np.float32))

    def constant(self, value: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def add(self, operator: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        name = name or f"{operator.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [f"{name}_out"], name, **attributes))
        return f"{name}_out"

    def normalise(self, value: str, channels: int) -> str:
        shift, mean = (self.weight(channels, scale=0.2) for _ in range(2))
        scale, variance = (self.weight(channels, low=0.5) for _ in range(2))
        return self.add("BatchNormalization", value, scale, shift, mean, variance)

    def conv(self, value: str, inputs: int, outputs: int, kernel: int = 3, **attributes: Any) -> str:
        weight = self.weight(outputs, inputs // attributes.get("group", 1), kernel, kernel)
        made = self.add("Conv", value, weight, pads=[kernel // 2] * 4, **attributes)
        return self.normalise(made, outputs)

    def dense(self, value: str, inputs: int, outputs: int) -> str:
        weight = self.constant(self.rng.normal(0, 1 / np.sqrt(inputs), (inputs, outputs)).astype(np.float32))
        return self.add("Add", self.add("MatMul", value, weight), self.weight(outputs, scale=0.1))

    def model(
        self, inputs: dict[str, Sequence[int | str]], output: str, shape: Sequence[int | str], opset: int = 20
    ) -> onnx.ModelProto:
        """Return the network with the output `y`."""
        self.nodes.append(helper.make_node("Identity", [output], ["y"], "end"))
        graph = helper.make_graph(
            self.nodes,
            "net",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, sizes) for name, sizes in inputs.items()],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
            self.weights,
        )
        domains = sorted({node.domain for node in self.nodes} - {""})
        opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
        made = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        onnx.checker.check_model(made, full_check=not domains)
        return made


def residual(batch: int | str = 1, opset: int = 20) -> onnx.ModelProto:
    """Build convolutions with batch normalisation, an addition around one of them, an average and a classifier."""
    net = FloatNet(1)
    x = net.add("Relu", net.conv("x", 3, 8))
    x = net.add("Relu", net.conv(x, 8, 16, strides=[2, 2]))
    x = net.add("Relu", net.add("Add", net.conv(x, 16, 16), x))
    x = net.add("Flatten", net.add("GlobalAveragePool", x))
    y = net.add("Gemm", x, net.weight(10, 16), net.weight(10, scale=0.1), transB=1, name="classify")
    return net.model({"x": (batch, 3, 12, 12)}, y, (batch, 10), opset)


def separable() -> onnx.ModelProto:
    """Build depthwise and pointwise convolutions, SiLU and hard swish written out, and an average of windows."""
    net = FloatNet(2)
    x = net.conv("x", 3, 8, strides=[2, 2])
    x = net.add("Mul", x, net.add("Sigmoid", x))
    six, zero = (net.constant(np.float32(value)) for value in (6, 0))
    x = net.add("Clip", net.conv(x, 8, 8, group=8), zero, six)
    x = net.conv(x, 8, 16, kernel=1)
    inside = net.add("Clip", net.add("Add", x, net.constant(np.float32(3))), zero, six)
    x = net.add("Div", net.add("Mul", x, inside), six)
    x = net.conv(x, 16, 16, kernel=1)
    x = net.add("AveragePool", x, kernel_shape=[3, 3], strides=[3, 3], name="average")
    y = net.add("Gemm", net.add("Flatten", x), net.weight(5, 64), transB=1)
    return net.model({"x": (1, 3, 12, 12)}, y, (1, 5))


def perceptron() -> onnx.ModelProto:
    """Build three layers, the last without a bias, and a softmax."""
    net = FloatNet(3)
    x = net.add("Tanh", net.dense("x", 20, 32))
    x = net.add("Relu", net.dense(x, 32, 32))
    y = net.add("Softmax", net.add("MatMul", x, net.weight(32, 10)), axis=-1)
    return net.model({"x": (1, 20)}, y, (1, 10))


def transformer(masked: bool = False, opset: int = 20, biased: bool = False) -> onnx.ModelProto:
    """Build normalisation, attention of two heads and a layer with GELU written out, each with a residual addition.

    Before opset 17, normalisation is written out, too. Scores may have a mask, and a bias each.
    """
    net, tokens, width, heads = FloatNet(4), 6, 16, 2
    x = "x"
    normal = _layer_normal(net, x, width, opset)
    shape = net.constant(np.array([1, tokens, heads, width // heads], np.int64))
    q, k, v = (
        net.add("Transpose", net.add("Reshape", net.dense(normal, width, width), shape), perm=perm)
        for perm in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3))
    )
    scores = net.add("Mul", net.add("MatMul", q, k, name="scores"), net.constant(np.float32(0.35)))
    if masked:
        mask = np.triu(np.full((tokens, tokens), -10000, np.float32), 1)
        scores = net.add("Add", scores, net.constant(mask), name="mask")
    if biased:
        scores = net.add("Add", scores, net.weight(1, heads, tokens, tokens), name="bias")
    mixed = net.add("MatMul", net.add("Softmax", scores, axis=-1), v, name="attention")
    flat = net.constant(np.array([1, tokens, width], np.int64))
    mixed = net.add("Reshape", net.add("Transpose", mixed, perm=[0, 2, 1, 3]), flat)
    x = net.add("Add", x, net.dense(mixed, width, width))
    h = net.dense(_layer_normal(net, x, width, opset), width, 2 * width)
    root, one, half = (net.constant(np.float32(value)) for value in (np.sqrt(2), 1, 0.5))
    inside = net.add("Add", net.add("Erf", net.add("Div", h, root)), one)
    h = net.add("Mul", net.add("Mul", h, inside), half)
    y = net.add("Add", x, net.dense(h, 2 * width, width))
    return net.model({"x": (1, tokens, width)}, y, (1, tokens, width), opset)


def _layer_normal(net: FloatNet, x: str, width: int, opset: int) -> str:
    scale, bias = net.weight(width, low=0.2), net.weight(width, scale=0.3)
    if opset >= 17:
        return net.add("LayerNormalization", x, scale, bias, axis=-1)
    centred = net.add("Sub", x, net.add("ReduceMean", x, axes=[-1]))
    square = net.add("Pow", centred, net.constant(np.float32(2)))
    variance = net.add("Add", net.add("ReduceMean", square, axes=[-1]), net.constant(np.float32(1e-5)))
    made = net.add("Mul", net.add("Div", centred, net.add("Sqrt", variance)), scale)
    return net.add("Add", made, bias)


def two_inputs() -> onnx.ModelProto:
    """Build an image and a vector that join before a classifier."""
    net = FloatNet(5)
    image = net.add("Flatten", net.add("GlobalAveragePool", net.add("Relu", net.conv("image", 3, 8))))
    vector = net.add("Relu", net.dense("vector", 4, 8))
    y = net.dense(net.add("Concat", image, vector, axis=1), 16, 6)
    return net.model({"image": (1, 3, 8, 8), "vector": (1, 4)}, y, (1, 6))


NETS: dict[str, Callable[[], onnx.ModelProto]] = {
    "residual": residual,
    "separable": separable,
    "perceptron": perceptron,
    "transformer": transformer,
    "masked transformer": lambda: transformer(masked=True),
    "transformer of opset 13": lambda: transformer(opset=13),
    "transformer with a bias of scores": lambda: transformer(biased=True),
    "two inputs": two_inputs,
}


def samples(model: onnx.ModelProto, count: int = 6, seed: int = 0) -> dict[str, np.ndarray]:
    """Draw normal samples with a mean other than 0; only the first dimension may be open."""
    rng = np.random.default_rng(seed)
    return {
        value.name: rng.normal(
            0.2, 1, (count, *(dim.dim_value for dim in value.type.tensor_type.shape.dim[1:]))
        ).astype(np.float32)
        for value in model.graph.input
    }
