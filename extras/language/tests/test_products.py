"""Weights of products, in all forms of integers with scales, against ONNX's reference evaluator."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from weft.compiler.onnx.reader import read_open
from weft.extras.language.compiler.model import BlockTensor, dense
from weft.extras.language.onnx.graph import Graph
from weft.extras.language.onnx.products import products

INPUTS, OUTPUTS, BLOCK = 32, 16, 8


def build_product(axis: int, block: int, *, transposed: bool, many: bool, zeros: bool) -> Any:
    """Build ``x @ w`` or ``Gemm(x, w)`` with `w` transposed, in int8 with scales along an axis, in blocks or not."""
    rng = np.random.default_rng([axis, block, transposed, many, zeros])
    shape = [OUTPUTS, INPUTS] if transposed else [INPUTS, OUTPUTS]
    sizes = (
        [size // block if at == axis else size for at, size in enumerate(shape)] if block else [shape[axis]]
    )
    sizes = sizes if many else []
    constants = {
        "values": rng.integers(-100, 101, shape).astype(np.int8),
        "scales": rng.uniform(0.1, 1, sizes).astype(np.float32),
    }
    if zeros:
        constants["zeros"] = rng.integers(-9, 10, sizes).astype(np.int8)
    more = {"block_size": block} if block else {}
    product = helper.make_node("Gemm", ["x", "w"], ["y"], transB=1) if transposed else helper.make_node(
        "MatMul", ["x", "w"], ["y"]
    )  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node("DequantizeLinear", list(constants), ["w"], axis=axis, **more), product],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, INPUTS])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, OUTPUTS])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


FORMS = [
    (axis, block, transposed, many)
    for axis, block, transposed, many in itertools.product((0, 1), (0, BLOCK), (False, True), (True, False))
    if many or not block
]


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(("axis", "block", "transposed", "many"), FORMS)
def test_weights_match_onnx(axis: int, block: int, transposed: bool, many: bool, zeros: bool) -> None:
    """They stay integers if each output has its own scale, or one for each block of inputs."""
    model = build_product(axis, block, transposed=transposed, many=many, zeros=zeros)
    (actual,) = products(Graph(read_open(model)))
    expected = ReferenceEvaluator(model).run(None, {"x": np.eye(3, INPUTS, dtype=np.float32)})[0]
    np.testing.assert_allclose(dense(actual.weight).T[:3], expected, rtol=1e-6)
    assert actual.weight.shape == (OUTPUTS, INPUTS)
    along_inputs = (axis == 1) == transposed
    stays_integer = not many or along_inputs == bool(block)
    assert isinstance(actual.weight, BlockTensor) == stays_integer
    if isinstance(actual.weight, BlockTensor):
        assert actual.weight.block == (block or INPUTS)
