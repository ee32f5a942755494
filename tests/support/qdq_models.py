"""Random QDQ models for tests: single operators with every parameter varied, and small networks.

Functions take a `numpy.random.Generator` and return a checked `onnx.ModelProto` with static shapes. They share
`Builder`: every method adds nodes and returns the name of an int8 or uint8 value.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Rng = np.random.Generator


@dataclasses.dataclass(frozen=True)
class Quantised:
    """An int8 or uint8 value of the model with its parameters.

    With 16 `bits` the range is that of 8 bits with these parameters; `exact` gives the true ones.
    """

    name: str
    shape: tuple[int, ...]
    scale: float
    zero: int
    unsigned: bool
    bits: int = 8

    @property
    def exact(self) -> tuple[np.float32, np.ndarray]:
        """Return scale and zero point as they are in the model."""
        dtype = np.dtype(f"{'u' if self.unsigned else ''}int{self.bits}")
        if self.bits == 8:
            return np.float32(self.scale), np.array(self.zero, dtype)
        zero = self.zero * 257 if self.unsigned else (self.zero + 128) * 257 - 32768
        return np.float32(self.scale / 256), np.array(zero, dtype)


class Builder:
    """Builder of a QDQ model whose input and output are float.

    Values have `bits` bits by default, and quantising nodes are of `domain`.
    """

    def __init__(self, rng: Rng, opset: int = 21, bits: int = 8, domain: str = "") -> None:
        self.rng = rng
        self.opset = opset
        self.bits, self.domain = bits, domain
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.count = 0

    def name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}_{self.count}"

    def node(self, op: str, inputs: list[str], **attributes: Any) -> str:
        name = self.name(op.lower())
        self.nodes.append(helper.make_node(op, inputs, [f"{name}_out"], name=name, **attributes))
        return f"{name}_out"

    def constant(self, values: npt.ArrayLike, stem: str = "constant") -> str:
        name = self.name(stem)
        self.constants.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def parameters(self, unsigned: bool | None = None, symmetric: bool = False) -> tuple[float, int, bool]:
        """Draw a scale, zero point and signedness."""
        if unsigned is None:
            unsigned = bool(self.rng.integers(2))
        low, high = (0, 256) if unsigned else (-128, 128)
        zero = (128 if unsigned else 0) if symmetric else int(self.rng.integers(low + 64, high - 64))
        return float(np.float32(self.rng.uniform(0.01, 0.1))), zero, unsigned

    def quantise(
        self,
        value: str,
        shape: tuple[int, ...],
        scale: float,
        zero: int,
        unsigned: bool,
        bits: int | None = None,
    ) -> Quantised:
        made = Quantised("", shape, scale, zero, unsigned, bits or self.bits)
        return dataclasses.replace(made, name=self._exact("QuantizeLinear", value, made))

    def dequantise(self, value: Quantised) -> str:
        return self._exact("DequantizeLinear", value.name, value)

    def _exact(self, op: str, name: str, value: Quantised) -> str:
        inputs = [name, *(self.constant(item) for item in value.exact)]
        return self.node(op, inputs, **({"domain": self.domain} if self.domain else {}))

    def input(self, shape: tuple[int, ...], unsigned: bool | None = None) -> Quantised:
        name = self.name("input")
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        return self.quantise(name, shape, *self.parameters(unsigned))

    def like(self, value: str, shape: tuple[int, ...], source: Quantised) -> Quantised:
        """Quantise with the parameters of another value, as quantisers do for MaxPool and Concat."""
        return self.quantise(value, shape, source.scale, source.zero, source.unsigned, source.bits)

    def weight(
        self, shape: tuple[int, ...], axis: int, *, per_channel: bool, unsigned: bool
    ) -> tuple[str, np.ndarray]:
        """Add constant weights after DequantizeLinear, extremes included; return them with their float scales."""
        dtype = np.uint8 if unsigned else np.int8
        low, high = (0, 256) if unsigned else (-128, 128)
        values = self.rng.integers(low, high, shape).astype(dtype)
        values.flat[0] = low
        channels = shape[axis] if per_channel else 1
        gain = (shape[axis] / np.prod(shape)) ** 0.5  # keeps the magnitude of activations from layer to layer
        scale = (gain * self.rng.uniform(0.005, 0.02, channels)).astype(np.float32)
        zero = np.full(channels, 128 if unsigned else 0, dtype)
        if not per_channel:
            scale, zero = scale[0], np.array(int(self.rng.integers(100, 156)) if unsigned else 0, dtype)
        inputs = [self.constant(values, "weight"), self.constant(scale), self.constant(zero)]
        attributes = {"axis": axis} if per_channel else {}
        return self.node("DequantizeLinear", inputs, **attributes), np.broadcast_to(scale, (shape[axis],))

    def bias(self, source: Quantised, scales: np.ndarray) -> str:
        """Add an int32 bias at scale sx * sw."""
        scale = (source.exact[0] * scales).astype(np.float32)
        values = self.rng.integers(-2000, 2000, len(scales)).astype(np.int32) * (
            256 if source.bits > 8 else 1
        )
        zero = np.zeros(len(scales), np.int32)
        return self.node(
            "DequantizeLinear",
            [self.constant(values, "bias"), self.constant(scale), self.constant(zero)],
            axis=0,
        )

    def conv(
        self,
        source: Quantised,
        outputs: int,
        kernel: tuple[int, int] = (3, 3),
        *,
        stride: tuple[int, int] = (1, 1),
        dilation: tuple[int, int] = (1, 1),
        pads: tuple[int, int, int, int] = (0, 0, 0, 0),
        groups: int = 1,
        per_channel: bool = True,
        unsigned_weight: bool = False,
        bias: bool = True,
        relu: bool = False,
        gain: float = 1.0,
    ) -> Quantised:
        """Add Conv with an output scale that keeps most results in range (`gain` moves it)."""
        n, c, h, w = source.shape
        shape = (outputs, c // groups, *kernel)
        weight, scales = self.weight(shape, 0, per_channel=per_channel, unsigned=unsigned_weight)
        inputs = [self.dequantise(source), weight]
        if bias:
            inputs.append(self.bias(source, scales))
        result = self.node(
            "Conv", inputs, kernel_shape=kernel, strides=stride, dilations=dilation, pads=pads, group=groups
        )
        if relu:
            result = self.node("Relu", [result])
        size = [
            (value + pads[axis] + pads[axis + 2] - (kernel[axis] - 1) * dilation[axis] - 1) // stride[axis]
            + 1
            for axis, value in enumerate((h, w))
        ]
        length = shape[1] * kernel[0] * kernel[1]
        spread = source.scale * float(scales.mean()) * 74 * 74 * length**0.5
        _, zero, unsigned = self.parameters()
        scale = float(np.float32(gain * spread / 64))
        return self.quantise(result, (n, outputs, size[0], size[1]), scale, zero, unsigned)

    def dense(
        self,
        source: Quantised,
        outputs: int,
        *,
        op: str = "Gemm",
        per_channel: bool = True,
        bias: bool = True,
    ) -> Quantised:
        """Add Gemm with transposed weights, or MatMul (`bias` then becomes an Add)."""
        features = source.shape[-1]
        gemm = op == "Gemm"
        shape = (outputs, features) if gemm else (features, outputs)
        weight, scales = self.weight(shape, 0 if gemm else 1, per_channel=per_channel, unsigned=False)
        inputs = [self.dequantise(source), weight]
        if gemm and bias:
            inputs.append(self.bias(source, scales))
        result = self.node(op, inputs, **({"transB": 1} if gemm else {}))
        if not gemm and bias:
            values = self.rng.normal(0, 1, outputs).astype(np.float32)
            result = self.node("Add", [result, self.constant(values)])
        scale = float(np.float32(source.scale * float(scales.mean()) * 74 * 74 * features**0.5 / 64))
        _, zero, unsigned = self.parameters()
        return self.quantise(result, (*source.shape[:-1], outputs), scale, zero, unsigned)

    def pool(self, source: Quantised, op: str, *, same: bool = True, **attributes: Any) -> Quantised:
        """Add MaxPool, AveragePool or a global pool; `same` keeps the input's parameters."""
        result = self.node(op, [self.dequantise(source)], **attributes)
        shape = self.shape_of(result)
        if same:
            return self.like(result, shape, source)
        _, zero, unsigned = self.parameters()
        scale = float(np.float32(source.scale * self.rng.uniform(0.5, 1)))
        return self.quantise(result, shape, scale, zero, unsigned)

    def mean(self, source: Quantised, *, keep: bool = True) -> Quantised:
        """Add ReduceMean over height and width."""
        axes = self.constant(np.array([2, 3], np.int64))
        result = self.node("ReduceMean", [self.dequantise(source), axes], keepdims=int(keep))
        _, zero, unsigned = self.parameters()
        scale = float(np.float32(source.scale * self.rng.uniform(0.4, 0.6)))  # no exact halves
        return self.quantise(result, self.shape_of(result), scale, zero, unsigned)

    def add(self, a: Quantised, b: Quantised, *, relu: bool = False) -> Quantised:
        result = self.node("Add", [self.dequantise(a), self.dequantise(b)])
        if relu:
            result = self.node("Relu", [result])
        _, zero, unsigned = self.parameters()
        return self.quantise(result, a.shape, float(np.float32(a.scale + b.scale)), zero, unsigned)

    def concat(self, parts: list[Quantised], axis: int) -> Quantised:
        result = self.node("Concat", [self.dequantise(part) for part in parts], axis=axis)
        shape = list(parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        return self.like(result, tuple(shape), max(parts, key=lambda part: part.scale))

    def flatten(self, source: Quantised) -> Quantised:
        result = self.node("Flatten", [self.dequantise(source)])
        return self.like(result, (source.shape[0], int(np.prod(source.shape[1:]))), source)

    def shape_of(self, value: str) -> tuple[int, ...]:
        """Return the static shape of a value, by shape inference of the nodes so far."""
        inferred = onnx.shape_inference.infer_shapes(self._model(value, None), strict_mode=True)
        dims = inferred.graph.output[0].type.tensor_type.shape.dim
        return tuple(dim.dim_value for dim in dims)

    def _model(
        self, output: str, shape: tuple[int, ...] | None, kind: int = TensorProto.FLOAT
    ) -> onnx.ModelProto:
        outputs = [helper.make_tensor_value_info(output, kind, shape)]
        graph = helper.make_graph(self.nodes, "random", self.inputs, outputs, self.constants)
        opsets = [helper.make_opsetid("", self.opset)]
        opsets += [helper.make_opsetid(self.domain, 1)] if self.domain else []
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def finish_as(self, value: str, kind: int) -> onnx.ModelProto:
        """Return the model that outputs a value unchanged, with a type's number."""
        return onnx.shape_inference.infer_shapes(self._model(value, None, kind), strict_mode=True)

    def finish(self, value: Quantised) -> onnx.ModelProto:
        """Return the model that outputs `value` as float."""
        model = self._model(self.dequantise(value), value.shape)
        onnx.checker.check_model(model, full_check=True)
        return model


def finish_all(builder: Builder, *outputs: Quantised) -> onnx.ModelProto:
    """Return the model that outputs several values as float, named "y0", "y1" and so on."""
    model = builder.finish(outputs[0])
    del model.graph.output[:], model.graph.node[-1:]
    for index, value in enumerate(outputs):
        scale, zero = (builder.constant(item) for item in value.exact)
        model.graph.node.append(
            helper.make_node("DequantizeLinear", [value.name, scale, zero], [f"y{index}"])
        )
        model.graph.output.append(helper.make_tensor_value_info(f"y{index}", TensorProto.FLOAT, value.shape))
    del model.graph.initializer[:]
    model.graph.initializer.extend(builder.constants)
    onnx.checker.check_model(model, full_check=True)
    return model


def conv_case(rng: Rng) -> dict[str, Any]:
    """Draw parameters of `Builder.conv` with `channels` and `size` of a fitting input."""
    kernel = tuple(int(value) for value in rng.integers(1, 4, 2))
    groups = int(rng.choice([1, 1, 2, 3]))
    channels = groups * int(rng.integers(1, 7))
    outputs = groups * int(rng.integers(1, 7))
    if rng.random() < 0.25:  # depthwise
        groups = channels
        outputs = channels * int(rng.integers(1, 3))
    dilation = tuple(int(value) for value in rng.integers(1, 4, 2))
    pads = tuple(int(rng.integers(0, kernel[axis % 2] * dilation[axis % 2])) for axis in range(4))
    size = tuple(int(rng.integers((kernel[axis] - 1) * dilation[axis] + 1, 15)) for axis in range(2))
    return {
        "channels": channels,
        "size": size,
        "outputs": outputs,
        "kernel": kernel,
        "stride": tuple(int(value) for value in rng.integers(1, 4, 2)),
        "dilation": dilation,
        "pads": pads,
        "groups": groups,
        "per_channel": bool(rng.integers(2)),
        "unsigned_weight": bool(rng.random() < 0.25),
        "bias": bool(rng.integers(2)),
        "relu": bool(rng.integers(2)),
        "gain": float(rng.uniform(0.5, 2)),
    }


def random_conv(rng: Rng, batch: int | None = None) -> onnx.ModelProto:
    """Draw one convolution: strides and dilations 1 to 3, unequal pads, groups and depthwise, weights of -128."""
    case = conv_case(rng)
    builder = Builder(rng)
    n = int(rng.integers(1, 3)) if batch is None else batch
    source = builder.input((n, case.pop("channels"), *case.pop("size")))
    return builder.finish(builder.conv(source, case.pop("outputs"), case.pop("kernel"), **case))


def random_dense(rng: Rng) -> onnx.ModelProto:
    """Draw one Gemm or MatMul, some after a Flatten of an image, some with three dimensions."""
    builder = Builder(rng)
    op = str(rng.choice(["Gemm", "MatMul"]))
    kind = int(rng.integers(3))
    if kind == 0:
        source = builder.flatten(builder.input(tuple(int(value) for value in rng.integers(1, 6, 4))))
    elif kind == 1 and op == "MatMul":
        source = builder.input((int(rng.integers(1, 3)), int(rng.integers(1, 6)), int(rng.integers(1, 40))))
    else:
        source = builder.input((int(rng.integers(1, 9)), int(rng.integers(1, 40))))
    outputs = int(rng.integers(1, 20))
    dense = builder.dense(
        source, outputs, op=op, per_channel=bool(rng.integers(2)), bias=bool(rng.integers(2))
    )
    return builder.finish(dense)


def random_pool(rng: Rng) -> onnx.ModelProto:
    builder = Builder(rng)
    op = str(rng.choice(["MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "ReduceMean"]))
    source = builder.input((int(rng.integers(1, 3)), *(int(value) for value in rng.integers(4, 12, 3))))
    if op == "ReduceMean":
        return builder.finish(builder.mean(source, keep=bool(rng.integers(2))))
    attributes: dict[str, Any] = {}
    if not op.startswith("Global"):
        kernel = [int(value) for value in rng.integers(1, 4, 2)]
        strides = [int(value) for value in rng.integers(1, 4, 2)]
        pads = [int(rng.integers(0, kernel[axis % 2])) for axis in range(4)]
        ceil = int(rng.integers(2))
        if ceil:  # no window may start behind the input: shape inference and runtimes disagree about those
            strides = [min(stride, size) for stride, size in zip(strides, kernel, strict=True)]
            pads[2:] = [min(pads[2 + axis], kernel[axis] - strides[axis]) for axis in range(2)]
        attributes = {"kernel_shape": kernel, "strides": strides, "pads": pads, "ceil_mode": ceil}
        if op == "AveragePool":
            attributes["count_include_pad"] = int(rng.integers(2))
    return builder.finish(builder.pool(source, op, same=bool(rng.integers(2)), **attributes))


def random_add(rng: Rng) -> onnx.ModelProto:
    """Draw the sum of two inputs of any rank."""
    builder = Builder(rng)
    shape = tuple(int(value) for value in rng.integers(1, 8, int(rng.integers(1, 5))))
    return builder.finish(builder.add(builder.input(shape), builder.input(shape), relu=bool(rng.integers(2))))


def random_concat(rng: Rng) -> onnx.ModelProto:
    """Draw a concatenation of two or three inputs of different scales along any axis of an image."""
    builder = Builder(rng)
    axis = int(rng.integers(4))
    shape = [int(value) for value in rng.integers(1, 6, 4)]
    unsigned = bool(rng.integers(2))
    parts = []
    for _ in range(int(rng.integers(2, 4))):
        shape[axis] = int(rng.integers(1, 6))
        parts.append(builder.input(tuple(shape), unsigned))
    return builder.finish(builder.concat(parts, axis))


def random_rescale(rng: Rng) -> onnx.ModelProto:
    """Draw a requantisation, with or without Relu."""
    builder = Builder(rng)
    source = builder.input(tuple(int(value) for value in rng.integers(1, 8, int(rng.integers(1, 5)))))
    value = builder.dequantise(source)
    if rng.integers(2):
        value = builder.node("Relu", [value])
    _, zero, unsigned = builder.parameters()
    scale = float(np.float32(source.scale * rng.uniform(0.5, 2)))
    return builder.finish(builder.quantise(value, source.shape, scale, zero, unsigned))


LAYERS = {
    "conv": random_conv,
    "dense": random_dense,
    "pool": random_pool,
    "add": random_add,
    "concat": random_concat,
    "rescale": random_rescale,
}
"""Generators of models with one operator."""


def random_cnn(
    rng: Rng, *, channels: int = 8, size: int = 12, blocks: int = 3, classes: int = 10
) -> onnx.ModelProto:
    """Draw a small network: a stem, blocks of residuals, pools, concatenations, depthwise convolutions, and a head."""
    builder = Builder(rng)
    value = builder.input((1, 3, size, size))
    value = builder.conv(value, channels, pads=(1, 1, 1, 1), relu=True)
    for _ in range(blocks):
        value = BLOCKS[int(rng.integers(len(BLOCKS)))](builder, value)
    if rng.integers(2):
        value = builder.flatten(builder.pool(value, "GlobalAveragePool", same=False))
    else:
        value = builder.mean(value, keep=False)
    return builder.finish(builder.dense(value, classes))


def _residual(builder: Builder, value: Quantised) -> Quantised:
    inner = builder.conv(value, value.shape[1], pads=(1, 1, 1, 1), relu=True)
    inner = builder.conv(inner, value.shape[1], (1, 1))
    return builder.add(inner, value, relu=True)


def _pooled(builder: Builder, value: Quantised) -> Quantised:
    value = builder.conv(value, value.shape[1] + 2, (3, 3), pads=(1, 1, 1, 1), relu=True)
    op = str(builder.rng.choice(["MaxPool", "AveragePool"]))
    kernel = 2 if min(value.shape[2:]) > 2 else 1
    # An average on its input's scale falls on exact halves, which float32 rounds either way.
    same = op == "MaxPool"
    return builder.pool(value, op, same=same, kernel_shape=[kernel, kernel], strides=[kernel, kernel])


def _branches(builder: Builder, value: Quantised) -> Quantised:
    left = builder.conv(value, 5, (1, 1), relu=True)
    right = builder.conv(value, 6, (3, 3), pads=(1, 1, 1, 1))
    middle = builder.pool(value, "MaxPool", kernel_shape=[3, 3], strides=[1, 1], pads=[1, 1, 1, 1])
    right = builder.like(builder.dequantise(right), right.shape, left)
    middle = builder.like(builder.dequantise(middle), middle.shape, left)
    return builder.concat([left, middle, right], 1)


def _depthwise(builder: Builder, value: Quantised) -> Quantised:
    channels = value.shape[1]
    stride = 2 if min(value.shape[2:]) > 3 else 1
    value = builder.conv(
        value, channels, pads=(1, 1, 1, 1), stride=(stride, stride), groups=channels, relu=True
    )
    return builder.conv(value, channels + 4, (1, 1))


BLOCKS = (_residual, _pooled, _branches, _depthwise)


def softmax(shape: tuple[int, ...], scale: float, zero: int, unsigned: bool) -> onnx.ModelProto:
    """Build softmax over the last axis of logits with given quantisation."""
    builder = Builder(np.random.default_rng(0))
    builder.inputs.append(helper.make_tensor_value_info("logits", TensorProto.FLOAT, shape))
    source = builder.quantise("logits", shape, scale, zero, unsigned)
    value = builder.node("Softmax", [builder.dequantise(source)])
    return builder.finish(builder.quantise(value, shape, 1 / 256, 0, True))


def feeds(model: onnx.ModelProto, rng: Rng) -> dict[str, np.ndarray]:
    """Draw float inputs that cover most of the int8 range."""
    values = {}
    for value in model.graph.input:
        shape = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        values[value.name] = rng.normal(0, 2, shape).astype(np.float32)
    return values
