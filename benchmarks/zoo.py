"""Whole networks as users have them: float ONNX models with random weights, quantised by ONNX Runtime.

Nine architectures come from the files without weights that the onnx package carries for its own tests (`LIGHT`).
ResNet-18, MobileNetV2, ShuffleNetV2, an encoder layer of ViT-Base, SqueezeNet 1.1, YOLOv4-tiny and DeepLabv3 are
written here after their papers: K. He et al., arXiv:1512.03385; M. Sandler et al., arXiv:1801.04381; N. Ma et al.,
arXiv:1807.11164; A. Dosovitskiy et al., arXiv:2010.11929; F. Iandola et al., arXiv:1602.07360; C.-Y. Wang et al.,
arXiv:2011.08036; L.-C. Chen et al., arXiv:1706.05587.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, version_converter

from weft.hdl.cache import entry

LIGHT = (
    "bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50", "shufflenet", "squeezenet", "vgg19",
    "zfnet512",
)  # fmt: skip
_OPSET, _IR_VERSION = 17, 8


class _Net:
    """Float operators one after the other; values are NCHW, or rows of features."""

    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        self.rng = np.random.default_rng(zlib.crc32(name.encode()))
        self.name = name
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.input = helper.make_tensor_value_info("input", TensorProto.FLOAT, shape)

    def node(self, operator: str, *inputs: str, **attributes: Any) -> str:
        name = f"{operator.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], name=f"node_{name}", **attributes))
        return name

    def constant(self, values: np.ndarray) -> str:
        name = f"weight{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def random(self, shape: tuple[int, ...], deviation: float) -> str:
        return self.constant(self.rng.normal(0, deviation, shape).astype(np.float32))

    def conv(
        self,
        value: str,
        cin: int,
        cout: int,
        kernel: int = 1,
        stride: int = 1,
        groups: int = 1,
        gain: float = 2,
        dilation: int = 1,
    ) -> str:
        fan = cin // groups * kernel**2
        weight = self.random((cout, cin // groups, kernel, kernel), np.sqrt(gain / fan))
        return self.node(
            "Conv", value, weight, self.random((cout,), 0.1),
            kernel_shape=[kernel] * 2, strides=[stride] * 2, pads=[dilation * (kernel - 1) // 2] * 4, group=groups,
            dilations=[dilation] * 2,
        )  # fmt: skip

    def halves(self, value: str) -> tuple[str, str]:
        """Return the first and the second half of the channels."""
        index = len(self.nodes)
        names = f"left{index}", f"right{index}"
        self.nodes.append(helper.make_node("Split", [value], names, name=f"node_split{index}", axis=1))
        return names

    def linear(self, value: str, cin: int, cout: int) -> str:
        product = self.node("MatMul", value, self.random((cin, cout), 1 / np.sqrt(cin)))
        return self.node("Add", product, self.random((cout,), 0.1))

    def model(self, value: str, shape: tuple[int, ...]) -> onnx.ModelProto:
        self.nodes[-1].output[0] = "output"
        assert value == self.nodes[-1].name.removeprefix("node_")
        output = helper.make_tensor_value_info("output", TensorProto.FLOAT, shape)
        graph = helper.make_graph(self.nodes, self.name, [self.input], [output], self.weights)
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION
        )


def _residual_stages(net: _Net, strides: tuple[int, int, int, int]) -> str:
    """ResNet-18 without its end; instead of a second half of the size, the last stage may have a dilation of 2."""
    value = net.node("Relu", net.conv("input", 3, 64, 7, 2))
    value, have = net.node("MaxPool", value, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4), 64
    for stage, (channels, first) in enumerate(zip((64, 128, 256, 512), strides, strict=True)):
        dilation = 2 if stage and first == 1 else 1
        for block in range(2):
            stride = 1 if block else first
            inner = net.node("Relu", net.conv(value, have, channels, 3, stride, dilation=dilation))
            inner = net.conv(inner, channels, channels, 3, dilation=dilation)
            around = net.conv(value, have, channels, 1, stride) if have != channels else value
            value, have = net.node("Relu", net.node("Add", inner, around)), channels
    return value


def resnet18() -> onnx.ModelProto:
    net = _Net("resnet18", (1, 3, 224, 224))
    value = net.node("Flatten", net.node("GlobalAveragePool", _residual_stages(net, (1, 2, 2, 2))))
    return net.model(net.linear(value, 512, 1000), (1, 1000))


def deeplab_v3(side: int = 257, classes: int = 21) -> onnx.ModelProto:
    """Build ResNet-18 to a sixteenth of the image's size, atrous convolutions with the paper's rates, and classes of
    pixels of that size."""
    net = _Net("deeplab_v3", (1, 3, side, side))
    features, have, wide, small = _residual_stages(net, (1, 2, 2, 1)), 512, 256, (side + 15) // 16
    branches = [net.node("Relu", net.conv(features, have, wide))]
    branches += [net.node("Relu", net.conv(features, have, wide, 3, dilation=rate)) for rate in (6, 12, 18)]
    pooled = net.node("Relu", net.conv(net.node("GlobalAveragePool", features), have, wide))
    sizes = net.constant(np.array([1, wide, small, small], np.int64))
    branches.append(
        net.node("Resize", pooled, "", "", sizes, mode="nearest", coordinate_transformation_mode="asymmetric")
    )
    joined = net.node("Relu", net.conv(net.node("Concat", *branches, axis=1), 5 * wide, wide))
    return net.model(net.conv(net.node("Relu", net.conv(joined, wide, wide, 3)), wide, classes),
                     (1, classes, small, small))  # fmt: skip


def mobilenet_v2() -> onnx.ModelProto:
    net = _Net("mobilenet_v2", (1, 3, 224, 224))
    low, high = (net.constant(np.array(bound, np.float32)) for bound in (0, 6))

    def relu6(value: str) -> str:
        return net.node("Clip", value, low, high)

    value, have = relu6(net.conv("input", 3, 32, 3, 2)), 32
    stages = [
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ]
    for expansion, channels, count, first in stages:
        for block in range(count):
            stride, wide = first if not block else 1, have * expansion
            inner = relu6(net.conv(value, have, wide)) if expansion > 1 else value
            inner = relu6(net.conv(inner, wide, wide, 3, stride, groups=wide))
            inner = net.conv(inner, wide, channels, gain=1)
            value = net.node("Add", value, inner) if stride == 1 and have == channels else inner
            have = channels
    value = relu6(net.conv(value, have, 1280))
    value = net.node("Flatten", net.node("GlobalAveragePool", value))
    return net.model(net.linear(value, 1280, 1000), (1, 1000))


def shufflenet_v2() -> onnx.ModelProto:
    net = _Net("shufflenet_v2", (1, 3, 224, 224))

    def branch(value: str, have: int, half: int, stride: int) -> str:
        value = net.node("Relu", net.conv(value, have, half))
        value = net.conv(value, half, half, 3, stride, groups=half, gain=1)
        return net.node("Relu", net.conv(value, half, half))

    def join(left: str, right: str, channels: int, side: int) -> str:
        apart = net.constant(np.array([1, 2, channels // 2, side, side], np.int64))
        together = net.constant(np.array([1, channels, side, side], np.int64))
        value = net.node("Reshape", net.node("Concat", left, right, axis=1), apart)
        return net.node("Reshape", net.node("Transpose", value, perm=[0, 2, 1, 3, 4]), together)

    value = net.node("Relu", net.conv("input", 3, 24, 3, 2))
    value, have, side = net.node("MaxPool", value, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4), 24, 28
    for channels, count in ((116, 4), (232, 8), (464, 4)):
        half = channels // 2
        left = net.conv(value, have, have, 3, 2, groups=have, gain=1)
        left = net.node("Relu", net.conv(left, have, half))
        value = join(left, branch(value, have, half, 2), channels, side)
        for _ in range(count - 1):
            left, right = net.halves(value)
            value = join(left, branch(right, half, half, 1), channels, side)
        have, side = channels, side // 2
    value = net.node("Relu", net.conv(value, have, 1024))
    value = net.node("Flatten", net.node("GlobalAveragePool", value))
    return net.model(net.linear(value, 1024, 1000), (1, 1000))


def vit_layer(tokens: int = 197, width: int = 768, heads: int = 12) -> onnx.ModelProto:
    """Build an encoder layer: attention and two linear layers, with normalisations before and residual additions."""
    net = _Net("vit_layer", (1, tokens, width))
    size = width // heads

    def normalise(value: str) -> str:
        scale, shift = (net.constant(np.full(width, fill, np.float32)) for fill in (1, 0))
        return net.node("LayerNormalization", value, scale, shift, axis=-1)

    def split(value: str) -> str:
        shape = net.constant(np.array([1, tokens, heads, size], np.int64))
        return net.node(
            "Transpose", net.node("Reshape", net.linear(value, width, width), shape), perm=[0, 2, 1, 3]
        )

    inner = normalise("input")
    query, key, content = (split(inner) for _ in range(3))
    scores = net.node("MatMul", query, net.node("Transpose", key, perm=[0, 1, 3, 2]))
    scaled = net.node("Mul", scores, net.constant(np.array(1 / np.sqrt(size), np.float32)))
    mixed = net.node("MatMul", net.node("Softmax", scaled, axis=-1), content)
    joined = net.node("Transpose", mixed, perm=[0, 2, 1, 3])
    joined = net.node("Reshape", joined, net.constant(np.array([1, tokens, width], np.int64)))
    value = net.node("Add", "input", net.linear(joined, width, width))
    inner = net.linear(normalise(value), width, 4 * width)
    error = net.node("Erf", net.node("Mul", inner, net.constant(np.array(np.sqrt(0.5), np.float32))))
    gate = net.node("Add", error, net.constant(np.array(1, np.float32)))
    gelu = net.node("Mul", net.node("Mul", inner, gate), net.constant(np.array(0.5, np.float32)))
    return net.model(net.node("Add", value, net.linear(gelu, 4 * width, width)), (1, tokens, width))


def squeezenet_1_1() -> onnx.ModelProto:
    net = _Net("squeezenet_1_1", (1, 3, 224, 224))

    def relu(value: str, cin: int, cout: int, kernel: int = 1, stride: int = 1) -> str:
        return net.node("Relu", net.conv(value, cin, cout, kernel, stride))

    value, have = relu("input", 3, 64, 3, 2), 64
    for stage in (((16, 64),) * 2, ((32, 128),) * 2, (*((48, 192),) * 2, *((64, 256),) * 2)):
        value = net.node("MaxPool", value, kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)
        for narrow, wide in stage:
            squeezed = relu(value, have, narrow)
            both = relu(squeezed, narrow, wide), relu(squeezed, narrow, wide, 3)
            value, have = net.node("Concat", *both, axis=1), 2 * wide
    value = net.node("GlobalAveragePool", relu(value, have, 1000))
    return net.model(net.node("Flatten", value), (1, 1000))


def yolov4_tiny(side: int = 416, classes: int = 80) -> onnx.ModelProto:
    """Concatenate both heads in one output, as their convolutions give them."""
    net = _Net("yolov4_tiny", (1, 3, side, side))
    outputs = 3 * (5 + classes)

    def leaky(value: str, cin: int, cout: int, kernel: int = 1, stride: int = 1) -> str:
        return net.node("LeakyRelu", net.conv(value, cin, cout, kernel, stride), alpha=0.1)

    value = leaky(leaky("input", 3, 32, 3, 2), 32, 64, 3, 2)
    around = value
    for have, channels in ((64, 64), (128, 128), (256, 256)):
        first = leaky(value, have, channels, 3)
        _, half = net.halves(first)
        inner = leaky(half, channels // 2, channels // 2, 3)
        outer = leaky(inner, channels // 2, channels // 2, 3)
        around = leaky(net.node("Concat", outer, inner, axis=1), channels, channels)
        joined = net.node("Concat", first, around, axis=1)
        value = net.node("MaxPool", joined, kernel_shape=[2, 2], strides=[2, 2])
    narrow = leaky(leaky(value, 512, 512, 3), 512, 256)
    low = net.conv(leaky(narrow, 256, 512, 3), 512, outputs)
    scales = net.constant(np.array([1, 1, 2, 2], np.float32))
    larger = net.node(
        "Resize", leaky(narrow, 256, 128), "", scales, mode="nearest", nearest_mode="floor",
        coordinate_transformation_mode="asymmetric",
    )  # fmt: skip
    high = net.conv(leaky(net.node("Concat", larger, around, axis=1), 384, 256, 3), 256, outputs)
    flat = [net.node("Flatten", head) for head in (low, high)]
    return net.model(
        net.node("Concat", *flat, axis=1), (1, outputs * ((side // 32) ** 2 + (side // 16) ** 2))
    )


def light(name: str) -> onnx.ModelProto:
    """Build one of `LIGHT`, with random weights in place of its constant ones."""
    model = onnx.load(Path(onnx.__file__).parent / f"backend/test/data/light/light_{name}.onnx")
    graph = model.graph
    initial = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    users = {value: (node, index) for node in graph.node for index, value in enumerate(node.input)}
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    nodes, weights = [], []
    for node in graph.node:
        if node.op_type != "ConstantOfShape":
            # ONNX Runtime quantises no Sum.
            node.op_type = "Add" if node.op_type == "Sum" and len(node.input) == 2 else node.op_type
            nodes.append(node)
            continue
        (output,) = node.output
        if output not in users:
            continue
        user, index = users[output]
        user, index = users[user.output[0]] if user.op_type == "Unsqueeze" else (user, index)
        values = _draw_weights(rng, tuple(initial[node.input[0]].tolist()), user.op_type, index)
        weights.append(numpy_helper.from_array(values.astype(np.float32), output))
    used = {value for node in nodes for value in node.input}
    weights += [tensor for tensor in graph.initializer if tensor.name in used]
    named = {tensor.name for tensor in weights}
    inputs = [value for value in graph.input if value.name in used - named]
    # The converter wants constants among the inputs.
    declared = [helper.make_tensor_value_info(item.name, item.data_type, item.dims) for item in weights]
    with_weights = helper.make_graph(nodes, name, [*inputs, *declared], list(graph.output), weights)
    old = helper.make_model(with_weights, opset_imports=model.opset_import, ir_version=model.ir_version)
    new: onnx.ModelProto = version_converter.convert_version(old, _OPSET)
    free_inputs = [value for value in new.graph.input if value.name not in named]
    del new.graph.input[:]
    new.graph.input.extend(free_inputs)
    new.ir_version = _IR_VERSION
    return new


def _draw_weights(rng: np.random.Generator, shape: tuple[int, ...], operator: str, index: int) -> np.ndarray:
    """Draw weights that keep the size of values about equal from layer to layer."""
    if operator in ("Conv", "Gemm") and index == 1:
        return rng.normal(0, np.sqrt(2 / np.prod(shape[1:])), shape)
    if operator == "Mul" or (operator == "BatchNormalization" and index in (1, 4)):
        return rng.uniform(0.5, 1.5, shape)
    return rng.normal(0, 0.1, shape)


NETWORKS: dict[str, Callable[[], onnx.ModelProto]] = {
    "resnet18": resnet18,
    "deeplab_v3": deeplab_v3,
    "mobilenet_v2": mobilenet_v2,
    "shufflenet_v2": shufflenet_v2,
    "vit_layer": vit_layer,
    "squeezenet_1_1": squeezenet_1_1,
    "yolov4_tiny": yolov4_tiny,
    **{name: (lambda name=name: light(name)) for name in LIGHT},
}


def quantise_network(name: str) -> onnx.ModelProto:
    """Return a network with int8 weights, one scale a channel, and int8 activations, calibrated on two random images.

    It is cached, because ONNX Runtime takes up to two minutes.
    """
    parts = (Path(__file__).read_text(), version("onnx"), version("onnxruntime"), version("numpy"), name)
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]

    def make(folder: Path) -> None:
        _quantise(NETWORKS[name](), folder)
        for path in folder.iterdir():
            if path.name != "quantised.onnx":
                path.unlink()

    return onnx.load(entry(f"network-{name}-{key}", make) / "quantised.onnx")


def _quantise(model: onnx.ModelProto, folder: Path) -> None:
    import onnxruntime
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    onnx.checker.check_model(model)
    onnx.save(model, folder / "float.onnx")
    options = onnxruntime.SessionOptions()
    # Folds constants and batch normalisation.
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(folder / "folded.onnx")
    options.log_severity_level = 3
    (source,) = onnxruntime.InferenceSession(str(folder / "float.onnx"), options).get_inputs()

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            rng = np.random.default_rng(1)
            self.left = [rng.normal(0, 1, source.shape).astype(np.float32) for _ in range(2)]

        def get_next(self) -> dict[str, np.ndarray] | None:
            return {source.name: self.left.pop()} if self.left else None

    quantize_static(
        str(folder / "folded.onnx"), str(folder / "quantised.onnx"), Reader(), quant_format=QuantFormat.QDQ,
        per_channel=True, activation_type=QuantType.QInt8, weight_type=QuantType.QInt8,
    )  # fmt: skip
