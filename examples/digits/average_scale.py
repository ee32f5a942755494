"""Give the global average its own scale in a quantised model.

The quantiser lets an average keep its input's scale. Averages of 16 values then fall on exact halves all the time,
which float arithmetic rounds either way, and much of the range goes unused. With a scale of its own the average uses
all of it, and integer and float arithmetic agree.
"""

from __future__ import annotations

import os

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # before ONNX Runtime is imported

import numpy as np
import onnx
import onnxruntime as ort
from onnx import numpy_helper


def give_average_its_scale(model: onnx.ModelProto, images: np.ndarray) -> None:
    """Change `model` in place; `images` (count, 1, 8, 8) float32 from 0 to 1 show the range of the average."""
    average = next(node for node in model.graph.node if node.op_type == "AveragePool")
    low, high = _range(model, average.output[0], images)
    scale = np.float32((high - low) / 255)
    zero = np.int8(np.clip(np.rint(-128 - low / scale), -128, 127))
    model.graph.initializer.extend(
        [
            numpy_helper.from_array(np.asarray(scale), "average_scale"),
            numpy_helper.from_array(np.asarray(zero), "average_zero_point"),
        ]
    )
    values = {average.output[0]}
    for node in model.graph.node:  # quantised and back, then reshaped, and quantised and back once more
        if node.input[0] in values and node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            node.input[1], node.input[2] = "average_scale", "average_zero_point"
            values.add(node.output[0])
        elif node.input[0] in values and node.op_type == "Reshape":
            values.add(node.output[0])
        elif node.input[0] in values and node.op_type == "Gemm":
            _requantise_bias(model, node, scale)


def _range(model: onnx.ModelProto, name: str, images: np.ndarray) -> tuple[float, float]:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    copy.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(copy.SerializeToString(), options)
    seen = [session.run([name], {"image": image[None]})[0] for image in images]
    return min(0.0, float(np.min(seen))), float(np.max(seen))


def _requantise_bias(model: onnx.ModelProto, gemm: onnx.NodeProto, scale: np.float32) -> None:
    """The bias is stored at the product of input and weight scale."""
    makers = {node.output[0]: node for node in model.graph.node}
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    bias, weight = makers[gemm.input[2]], makers[gemm.input[1]]
    stored, old = (numpy_helper.to_array(tensors[name]) for name in bias.input[:2])
    new = (scale * numpy_helper.to_array(tensors[weight.input[1]])).astype(np.float32).reshape(old.shape)
    value = np.rint(stored.astype(np.float64) * old / new).astype(np.int32)
    tensors[bias.input[0]].CopyFrom(numpy_helper.from_array(value, bias.input[0]))
    tensors[bias.input[1]].CopyFrom(numpy_helper.from_array(new, bias.input[1]))
