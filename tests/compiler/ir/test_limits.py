"""Sizes that are refused before all other work, in little time and memory."""

from __future__ import annotations

import time

import numpy as np
import onnx
import pytest
from onnx import TensorProto
from support import qdq_models

import weft
from weft.compiler import backend
from weft.compiler.backend import DeviceProgram
from weft.compiler.errors import CompileError
from weft.compiler.frontend import import_model
from weft.compiler.ir import network


def refusal(model: onnx.ModelProto) -> str:
    began = time.monotonic()
    with pytest.raises(CompileError) as caught:
        import_model(model)
    assert time.monotonic() - began < 2
    return str(caught.value)


def image(shape: tuple[int, ...], op: str = "Relu", **attributes: object) -> onnx.ModelProto:
    builder = qdq_models.Builder(np.random.default_rng(0))
    value = builder.node(op, [builder.dequantise(builder.input(shape))], **attributes)
    model = builder._model(builder.dequantise(builder.quantise(value, shape, 0.1, 0, False)), None)
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


@pytest.mark.parametrize("shape", [(1, 1 << 31), (1, 3, 1 << 20, 1 << 20), (1 << 16, 1 << 15)])
def test_values(shape: tuple[int, ...]) -> None:
    count = int(np.prod(shape, dtype=object))
    size = "x".join(map(str, shape))
    assert refusal(image(shape)) == (
        f"value 'input_1' has shape {size}, {count:,} elements; weft takes values of up to {network.MAX_ELEMENTS:,}"
    )


@pytest.mark.parametrize("name", ["kernel_shape", "strides", "dilations", "pads"])
@pytest.mark.parametrize("size", [network.MAX_WINDOW + 1, 1 << 31, 1 << 40])
def test_windows(name: str, size: int) -> None:
    attributes: dict[str, object] = {"kernel_shape": [1, 1]}
    attributes[name] = [1, 1, 1, size] if name == "pads" else [1, size]
    assert refusal(image((1, 1, 4, 4), "MaxPool", **attributes)).endswith(
        f" (MaxPool) has {name} {attributes[name]}; each must be at most 65,535"
    )


def test_constants_that_grow() -> None:
    builder = qdq_models.Builder(np.random.default_rng(0))
    size = builder.constant(np.array([1 << 20, 1 << 10], np.int64))
    doubled = builder.node("Add", [size, size])  # a shape that only folding knows
    large = builder.node("ReduceMax", [builder.node("ConstantOfShape", [doubled])], keepdims=0)
    value = builder.node("Add", [builder.dequantise(builder.input((1, 4))), large])
    model = builder._model(builder.dequantise(builder.quantise(value, (1, 4), 0.1, 0, False)), (1, 4))
    assert "has shape 2097152x2048, 4,294,967,296 elements" in refusal(model)


def test_constants_that_grow_by_a_size_that_only_folding_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "MAX_ELEMENTS", 1 << 20)
    builder = qdq_models.Builder(np.random.default_rng(0))
    size = builder.node(
        "Cast", [builder.constant(np.array([2000.0, 1000.0], np.float32))], to=TensorProto.INT64
    )
    large = builder.node("ReduceMax", [builder.node("ConstantOfShape", [size])], keepdims=0)
    value = builder.node("Add", [builder.dequantise(builder.input((1, 4))), large])
    model = builder._model(builder.dequantise(builder.quantise(value, (1, 4), 0.1, 0, False)), (1, 4))
    assert "has shape 2000x1000, 2,000,000 elements" in refusal(model)


def test_pool_of_a_large_image_is_for_the_host() -> None:
    """Its window has more elements than are worth so many weights."""
    rows = import_model(image((1, 1, 600, 600), "GlobalAveragePool")).assignment
    assert [row[2] for row in rows if row[1] == "GlobalAveragePool"] == ["host"]


def test_memory_of_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    model = qdq_models.random_conv(np.random.default_rng(0))
    program = next(item for item in weft.compile(model, "tiny").segments if isinstance(item, DeviceProgram))
    monkeypatch.setattr(backend, "_MAX_MEMORY", program.areas.memory_bytes)
    assert weft.compile(model, "tiny")
    monkeypatch.setattr(backend, "_MAX_MEMORY", program.areas.memory_bytes - 1)
    with pytest.raises(
        CompileError, match=r"^device1 needs [0-9,]+ bytes of the device's memory for constants"
    ):
        weft.compile(model, "tiny")
