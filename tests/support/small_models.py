"""Models of a few nodes, and the sentence that refuses one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from support import qdq_models
from weft.compiler.errors import CompileError
from weft.compiler.frontend import import_model


def fails(source: str | Path | onnx.ModelProto) -> str:
    with pytest.raises(CompileError) as caught:
        import_model(source)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def small(seed: int = 0, channels: int = 3) -> onnx.ModelProto:
    """Build input -> Q -> DQ -> Conv -> Q -> DQ -> output."""
    builder = qdq_models.Builder(np.random.default_rng(seed))
    return builder.finish(builder.conv(builder.input((1, channels, 6, 6)), 4))


def float_model(op: str = "Relu", shape: tuple[int | str, ...] = (1, 4), **options: str) -> onnx.ModelProto:
    graph = helper.make_graph(
        [helper.make_node(op, ["x"], ["y"], name="only", **options)],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
