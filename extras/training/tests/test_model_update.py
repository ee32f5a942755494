"""Updates of quantised models: a scale that several values share changes only where it must."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from weft.compiler.onnx.reader import read
from weft.extras.training.gradient.real_network import to_real_network
from weft.extras.training.model_update import update_weights


def model_with_shared_scale() -> onnx.ModelProto:
    """Return a model whose input, weights and result share one scale and one zero point, by name."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["x/q"]),
        helper.make_node("DequantizeLinear", ["x/q", "scale", "zero"], ["x/d"]),
        helper.make_node("DequantizeLinear", ["w", "scale", "zero"], ["w/d"]),
        helper.make_node("Gemm", ["x/d", "w/d"], ["sum"], transB=1, name="layer"),
        helper.make_node("QuantizeLinear", ["sum", "scale", "zero"], ["y/q"]),
        helper.make_node("DequantizeLinear", ["y/q", "scale", "zero"], ["y"]),
    ]
    constants = {"scale": np.float32(0.05), "zero": np.int8(0), "w": np.array([[3, -7], [20, 1]], np.int8)}
    graph = helper.make_graph(
        nodes, "shared",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 2))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 2))],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def test_shared_scales_change_only_where_trained() -> None:
    model = model_with_shared_scale()
    weights = np.array([[2.54, -1.0], [0.5, 1.27]], np.float32)
    updated = update_weights(model, to_real_network(read(model)), {"w/d": weights}, {"sum": (-6.35, 2.0)})
    onnx.checker.check_model(updated, full_check=True)
    values = {item.name: numpy_helper.to_array(item) for item in updated.graph.initializer}
    read_by = {node.output[0]: [values.get(name) for name in node.input] for node in updated.graph.node}
    for name, scale in (("x/q", 0.05), ("x/d", 0.05), ("w/d", 0.02), ("y/q", 0.05), ("y", 0.05)):
        np.testing.assert_allclose(read_by[name][1], scale, rtol=1e-6, err_msg=name)
        assert read_by[name][2] == 0
    np.testing.assert_array_equal(read_by["w/d"][0], [[127, -50], [25, 64]])
    # Only the result's range has changed.
    wide = update_weights(model, to_real_network(read(model)), {"w/d": weights}, {"sum": (-12.7, 2.0)})
    values = {item.name: numpy_helper.to_array(item) for item in wide.graph.initializer}
    scales = {
        node.output[0]: float(values[node.input[1]]) for node in wide.graph.node if "Linear" in node.op_type
    }
    assert {name: round(scale, 6) for name, scale in scales.items()} == {
        "x/q": 0.05, "x/d": 0.05, "w/d": 0.02, "y/q": 0.1, "y": 0.1,
    }  # fmt: skip
    assert "w/trained0" not in values  # the weights have a single reader, so they change in place
