"""Models with integer weights and float activations, as ONNX Runtime's tools write them."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import quantization

from support.ort_sessions import plain_session


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, Sequence[int]],
    constants: dict[str, Any],
    opset: int = 21,
) -> onnx.ModelProto:
    """Build a model with float inputs and the matrix `y`; a constant may be a TensorProto."""
    tensors = []
    for name, value in constants.items():
        tensor = value
        if not isinstance(value, onnx.TensorProto):
            tensor = numpy_helper.from_array(np.asarray(value))
        tensor.name = name
        tensors.append(tensor)
    graph = helper.make_graph(
        list(nodes),
        "net",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", "columns"])],
        tensors,
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def dynamic(given: onnx.ModelProto, **options: Any) -> onnx.ModelProto:
    """Return the output of `quantize_dynamic` for a float model."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "float.onnx"), Path(folder, "dynamic.onnx")
        onnx.save(given, source)
        quantization.quantize_dynamic(source, target, **options)
        return onnx.load(target)


def pack(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Pack numbers of `bits` into bytes along the last axis, the first in the lowest bits; the rest of a byte is 0."""
    each = 8 // bits
    padded = np.pad(numbers, [(0, 0)] * (numbers.ndim - 1) + [(0, -numbers.shape[-1] % each)])
    parts = padded.astype(np.uint8).reshape(*padded.shape[:-1], -1, each)
    packed = np.zeros(parts.shape[:-1], np.uint8)
    for place in range(each):
        packed |= parts[..., place] << np.uint8(place * bits)
    return packed


def packed_product(
    rng: np.random.Generator,
    inner: int,
    outputs: int,
    block: int,
    bits: int = 4,
    zeros: str = "none",
    bias: bool = False,
    **attributes: Any,
) -> onnx.ModelProto:
    """Build MatMulNBits of an input of 3 rows; `zeros` are "none", "packed" or "float"."""
    blocks = -(-inner // block)
    numbers = rng.integers(0, 1 << bits, (outputs, blocks * block))
    constants: dict[str, Any] = {
        "w": pack(numbers, bits).reshape(outputs, blocks, -1),
        "scales": rng.normal(0, 0.1, outputs * blocks).astype(np.float32),
    }
    names = ["x", "w", "scales"]
    if zeros != "none":
        offsets = rng.integers(0, 1 << bits, (outputs, blocks))
        constants["zeros"] = pack(offsets, bits) if zeros == "packed" else offsets.astype(np.float32)
        names.append("zeros")
    if bias:
        constants["b"] = rng.normal(0, 1, outputs).astype(np.float32)
        names += [""] * (5 - len(names)) + ["b"]
    settings = {"K": inner, "N": outputs, "bits": bits, "block_size": block, **attributes}
    node = helper.make_node("MatMulNBits", names, ["y"], "product", domain="com.microsoft", **settings)
    return model([node], {"x": (3, inner)}, constants)


def blocked_product(
    rng: np.random.Generator, shape: tuple[int, int], axis: int, block: int, kind: str, zeros: bool
) -> onnx.ModelProto:
    """Build DequantizeLinear of a matrix (outputs, inner), or (inner, outputs) if `axis` is 0, and MatMul.

    `axis` is the axis of the blocks, along which products are added up.
    """
    low, high = {"int4": (-8, 8), "uint4": (0, 16), "int8": (-128, 128), "uint8": (0, 256)}[kind]
    code = getattr(TensorProto, kind.upper())
    sizes = list(shape)
    sizes[axis] = -(-shape[axis] // block)
    constants: dict[str, Any] = {
        "w": helper.make_tensor("w", code, shape, rng.integers(low, high, shape).ravel().tolist()),
        "s": rng.uniform(0.01, 0.2, sizes).astype(np.float32),
    }
    if zeros:
        offsets = rng.integers(low, high, sizes).ravel().tolist()
        constants["z"] = helper.make_tensor("z", code, sizes, offsets)
    nodes = [
        helper.make_node(
            "DequantizeLinear",
            ["w", "s", *(["z"] if zeros else [])],
            ["w_dq"],
            "weights",
            axis=axis,
            block_size=block,
        )
    ]
    name = "w_dq"
    if axis == 1:
        nodes.append(helper.make_node("Transpose", ["w_dq"], ["w_t"], perm=[1, 0]))
        name = "w_t"
    nodes.append(helper.make_node("MatMul", ["x", name], ["y"], "product"))
    return model(nodes, {"x": (3, shape[axis])}, constants)


def run(given: onnx.ModelProto, **inputs: np.ndarray) -> np.ndarray:
    """Run ONNX Runtime without its optimiser, which quantises activations of 4-bit products."""
    return np.asarray(plain_session(given).run(None, inputs)[0])
