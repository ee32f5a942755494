"""Operators with gradients: inputs, attributes, PyTorch equivalents and gradients by expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from weft.compiler.onnx.folding import resolve
from weft.compiler.onnx.reader import read
from weft.extras.training.gradient.derivative import gradients
from weft.extras.training.gradient.expression import Expression, Source, broadcast_to, evaluate
from weft.extras.training.gradient.meaning import meanings

Shapes = tuple[tuple[int, ...], ...]
Arrays = Mapping[str, np.ndarray]


class Case:
    """One operator: inputs by shape, constants, attributes and its PyTorch equivalent."""

    def __init__(
        self, op: str, shapes: Shapes, torch: Callable[..., Any], *, constants: tuple[Any, ...] = (),
        positive: bool = False, opset: int = 23, outputs: int = 1, **attributes: Any,
    ) -> None:  # fmt: skip
        self.op, self.shapes, self.torch, self.positive = op, shapes, torch, positive
        self.constants, self.attributes, self.opset, self.outputs = constants, attributes, opset, outputs

    def __repr__(self) -> str:
        values = "-".join(f"{value}" for value in self.attributes.values())
        return f"{self.op}-{'-'.join('x'.join(map(str, shape)) for shape in self.shapes)}-{values}".replace(
            " ", ""
        )

    def model(self) -> onnx.ModelProto:
        names = [f"in{index}" for index in range(len(self.shapes))]
        outputs = [f"out{index}" for index in range(self.outputs)]
        constants = [
            "" if value is None else f"constant{index}" for index, value in enumerate(self.constants)
        ]
        node = helper.make_node(self.op, [*names, *constants], outputs, name="op", **self.attributes)
        graph = helper.make_graph(
            [node], "case",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
             for name, shape in zip(names, self.shapes, strict=True)],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
            [numpy_helper.from_array(np.asarray(value), f"constant{index}")
             for index, value in enumerate(self.constants) if value is not None],
        )  # fmt: skip
        opsets = [helper.make_opsetid("", self.opset)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        return onnx.shape_inference.infer_shapes(model)

    def inputs(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return distinct numbers away from 0, so that maxima are unique."""
        arrays = {}
        for index, shape in enumerate(self.shapes):
            size = int(np.prod(shape))
            steps = (rng.permutation(size) + 0.5) / size * 2.0
            signs = 1 if self.positive else rng.choice([-1, 1], size)
            arrays[f"in{index}"] = ((steps + 0.05 + 0.017 * index) * signs).reshape(shape)
        return arrays


def _f(name: str) -> Callable[..., Any]:
    """Return a PyTorch function by name, looked up when called."""

    def call(*operands: Any, **keywords: Any) -> Any:
        torch = pytest.importorskip("torch")
        for place in (torch.nn.functional, torch):
            if hasattr(place, name):
                return getattr(place, name)(*operands, **keywords)
        raise AssertionError(name)

    return call


def _batch_norm(x: Any, *vectors: Any) -> Any:
    weight, bias, mean, variance = (vector[:, None, None] for vector in vectors)
    return (x - mean) / (variance + 1e-5).sqrt() * weight + bias


IMAGE = (2, 3, 6, 5)
UNARY = {
    "Relu": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh", "Erf": "erf", "Exp": "exp", "Neg": "neg", "Abs": "abs",
    "Softplus": "softplus", "Softsign": "softsign", "Sin": "sin", "Cos": "cos", "Elu": "elu", "Selu": "selu",
    "Celu": "celu", "HardSwish": "hardswish", "Mish": "mish", "Identity": "clone", "Gelu": "gelu",
}  # fmt: skip
CASES = [
    *(Case(op, ((3, 4),), _f(name)) for op, name in UNARY.items()),
    *(Case(op, ((3, 4),), _f(name), positive=True)
      for op, name in {"Log": "log", "Sqrt": "sqrt", "Reciprocal": "reciprocal"}.items()),
    Case("Gelu", ((3, 4),), lambda x: _f("gelu")(x, approximate="tanh"), approximate="tanh"),
    Case("LeakyRelu", ((3, 4),), lambda x: _f("leaky_relu")(x, 0.125), alpha=0.125),
    Case("Clip", ((3, 4),), lambda x: x.clamp(-0.5, 1.1), constants=(np.float32(-0.5), np.float32(1.1))),
    Case("HardSigmoid", ((3, 4),), lambda x: (x * 0.25 + 0.5).clamp(0, 1), alpha=0.25),
    Case("Pow", ((3, 4),), lambda x: x**3, constants=(np.float32(3),)),
    Case("Pow", ((3, 4),), lambda x: x**2.5, constants=(np.float32(2.5),), positive=True),
    Case("PRelu", (IMAGE, (3, 1, 1)), lambda x, s: x.clamp(min=0) + s * x.clamp(max=0)),
    Case("Add", ((2, 3, 4), (3, 1)), lambda a, b: a + b),
    Case("Sub", ((3, 1), (2, 3, 4)), lambda a, b: a - b),
    Case("Mul", ((2, 1, 4), (3, 4)), lambda a, b: a * b),
    Case("Div", ((2, 3, 4), (4,)), lambda a, b: a / b),
    Case("Max", ((3, 4), (3, 4)), _f("maximum")),
    Case("Min", ((3, 4), (4,)), _f("minimum")),
    Case("Sum", ((3, 4), (4,), (3, 1)), lambda a, b, c: a + b + c),
    Case("Mean", ((3, 4), (4,), (3, 1)), lambda a, b, c: (a + b + c) / 3),
    Case("MatMul", ((3, 4), (4, 5)), _f("matmul")),
    Case("MatMul", ((2, 3, 4), (4, 5)), _f("matmul")),
    Case("MatMul", ((2, 1, 3, 4), (6, 4, 5)), _f("matmul")),
    Case("MatMul", ((4,), (4, 5)), _f("matmul")),
    Case("MatMul", ((3, 4), (4,)), _f("matmul")),
    Case("Gemm", ((3, 4), (5, 4), (5,)), lambda a, b, c: a @ b.T * 0.5 + c * 2, transB=1, alpha=0.5, beta=2.0),
    Case("Gemm", ((4, 3), (4, 5)), lambda a, b: a.T @ b, transA=1),
    Case("Conv", (IMAGE, (4, 3, 3, 3), (4,)), lambda x, w, b: _f("conv2d")(x, w, b, padding=1), pads=[1, 1, 1, 1]),
    Case("Conv", (IMAGE, (4, 3, 3, 2)), lambda x, w: _f("conv2d")(x, w, stride=2), strides=[2, 2]),
    Case("Conv", (IMAGE, (4, 3, 2, 2)), lambda x, w: _f("conv2d")(x, w, dilation=(2, 1), stride=(1, 3)),
         dilations=[2, 1], strides=[1, 3]),
    Case("Conv", ((2, 6, 5, 5), (4, 3, 3, 3), (4,)), lambda x, w, b: _f("conv2d")(x, w, b, groups=2), group=2),
    Case("Conv", ((2, 6, 5, 5), (6, 1, 3, 3)), lambda x, w: _f("conv2d")(x, w, groups=6, stride=2, padding=1), group=6,
         strides=[2, 2], pads=[1, 1, 1, 1]),
    Case("Conv", ((2, 3, 9), (4, 3, 3)), lambda x, w: _f("conv1d")(x, w, padding=2, stride=2), pads=[2, 2],
         strides=[2]),
    Case("Conv", (IMAGE, (4, 3, 3, 3)), lambda x, w: _f("conv2d")(x, w, padding="same"), auto_pad="SAME_UPPER"),
    Case("ConvTranspose", (IMAGE, (3, 4, 3, 2), (4,)),
         lambda x, w, b: _f("conv_transpose2d")(x, w, b, stride=2, padding=1), strides=[2, 2], pads=[1, 1, 1, 1]),
    Case("ConvTranspose", ((2, 6, 5, 5), (6, 2, 3, 3)), lambda x, w: _f("conv_transpose2d")(x, w, groups=3, dilation=2),
         group=3, dilations=[2, 2]),
    Case("MaxPool", (IMAGE,), lambda x: _f("max_pool2d")(x, 2), kernel_shape=[2, 2], strides=[2, 2]),
    Case("MaxPool", ((2, 3, 6, 4),), lambda x: _f("max_pool2d")(x, 2), kernel_shape=[2, 2], strides=[2, 2]),
    Case("MaxPool", (IMAGE,), lambda x: _f("max_pool2d")(x, 3, 2, 1), kernel_shape=[3, 3], strides=[2, 2],
         pads=[1, 1, 1, 1]),
    Case("MaxPool", (IMAGE,), lambda x: _f("max_pool2d")(x, 2, 2, ceil_mode=True), kernel_shape=[2, 2],
         strides=[2, 2], ceil_mode=1),
    Case("MaxPool", (IMAGE,), lambda x: _f("max_pool2d")(x, (3, 2), 1), kernel_shape=[3, 2]),
    Case("AveragePool", ((2, 3, 6, 4),), lambda x: _f("avg_pool2d")(x, 2), kernel_shape=[2, 2], strides=[2, 2]),
    Case("AveragePool", (IMAGE,), lambda x: _f("avg_pool2d")(x, 3, 2, 1), kernel_shape=[3, 3], strides=[2, 2],
         pads=[1, 1, 1, 1], count_include_pad=1),
    Case("AveragePool", (IMAGE,), lambda x: _f("avg_pool2d")(x, 3, 2, 1, count_include_pad=False),
         kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    Case("GlobalAveragePool", (IMAGE,), lambda x: x.mean((2, 3), keepdim=True)),
    Case("GlobalMaxPool", (IMAGE,), lambda x: x.amax((2, 3), keepdim=True)),
    Case("ReduceSum", (IMAGE,), lambda x: x.sum((1, 3)), constants=(np.array([1, -1]),), keepdims=0),
    Case("ReduceMean", (IMAGE,), lambda x: x.mean(2, keepdim=True), constants=(np.array([2]),)),
    Case("ReduceMax", ((3, 4),), lambda x: x.amax(1), constants=(np.array([1]),), keepdims=0),
    Case("ReduceMin", ((3, 4),), lambda x: x.amin(0), constants=(np.array([0]),), keepdims=0),
    Case("ReduceSumSquare", ((3, 4),), lambda x: (x * x).sum(1), constants=(np.array([1]),), keepdims=0),
    Case("ReduceL2", ((3, 4),), lambda x: x.norm(dim=1), constants=(np.array([1]),), keepdims=0),
    Case("Softmax", ((3, 4),), lambda x: x.softmax(-1)),
    Case("Softmax", (IMAGE,), lambda x: x.softmax(1), axis=1),
    Case("LogSoftmax", ((3, 4),), lambda x: x.log_softmax(-1)),
    Case("LayerNormalization", ((3, 8), (8,), (8,)), lambda x, w, b: _f("layer_norm")(x, (8,), w, b)),
    Case("LayerNormalization", (IMAGE, (6, 5)), lambda x, w: _f("layer_norm")(x, (6, 5), w), axis=2),
    Case("RMSNormalization", ((3, 8), (8,)), lambda x, w: x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * w),
    Case("InstanceNormalization", (IMAGE, (3,), (3,)), lambda x, w, b: _f("instance_norm")(x, weight=w, bias=b)),
    Case("BatchNormalization", (IMAGE, (3,), (3,), (3,), (3,)),
         lambda x, w, b, m, v: _batch_norm(x, w, b, m, v), positive=True),
    Case("Transpose", (IMAGE,), lambda x: x.permute(0, 2, 3, 1), perm=[0, 2, 3, 1]),
    Case("Reshape", (IMAGE,), lambda x: x.reshape(6, -1), constants=(np.array([6, -1]),)),
    Case("Flatten", (IMAGE,), lambda x: x.flatten(1)),
    Case("Squeeze", ((2, 1, 3),), lambda x: x.squeeze(1), constants=(np.array([1]),)),
    Case("Unsqueeze", ((2, 3),), lambda x: x[:, None], constants=(np.array([1]),)),
    Case("Slice", (IMAGE,), lambda x: x[:, :, 1:6:2, 0:3],
         constants=(np.array([1, 0]), np.array([6, 3]), np.array([2, 3]), np.array([2, 1]))),
    Case("Split", ((2, 6),), lambda x: tuple(x.split((2, 4), 1)), constants=(np.array([2, 4]),), outputs=2, axis=1),
    Case("Concat", ((2, 3), (2, 1), (2, 4)), lambda *x: _f("cat")(x, 1), axis=1),
    Case("Pad", ((2, 3),), lambda x: _f("pad")(x, (1, 2, 0, 1)), constants=(np.array([0, 1, 1, 2]),)),
    Case("Expand", ((3, 1),), lambda x: x.expand(2, 3, 4), constants=(np.array([2, 3, 4]),)),
    Case("Tile", ((3, 1),), lambda x: x.repeat(1, 4), constants=(np.array([1, 4]),)),
    Case("Resize", ((1, 2, 3, 4),), lambda x: _f("interpolate")(x, scale_factor=(2, 3)),
         constants=(None, np.array([1, 1, 2, 3], np.float32)), coordinate_transformation_mode="asymmetric",
         nearest_mode="floor"),
    Case("Attention", ((2, 3, 4, 5), (2, 3, 6, 5), (2, 3, 6, 7)), _f("scaled_dot_product_attention")),
]  # fmt: skip


def expressions_of(case: Case) -> tuple[dict[str, Source], list[Expression]]:
    """Return inputs and outputs of a case as expressions."""
    network = resolve(read(case.model())).network
    result = meanings(network, network.inputs)
    return result.sources, [result.values[name] for name in network.outputs]


def gradients_of(
    case: Case, rng: np.random.Generator
) -> tuple[dict[str, np.ndarray], list[np.ndarray], list[Any]]:
    """Return inputs, seeds of outputs and gradients by inputs."""
    sources, outputs = expressions_of(case)
    inputs_of_case = case.inputs(rng)
    seeds = [rng.normal(size=item.shape) for item in outputs]
    symbols = [Source(f"seed{index}", item.axes) for index, item in enumerate(outputs)]
    wanted = gradients(zip(outputs, symbols, strict=True), sources.values())
    full = {**inputs_of_case, **{f"seed{index}": seed for index, seed in enumerate(seeds)}}
    result = [
        None if item is None else evaluate([broadcast_to(item, source.axes)], full)[0]
        for item, source in zip(wanted, sources.values(), strict=True)
    ]
    return inputs_of_case, seeds, result
