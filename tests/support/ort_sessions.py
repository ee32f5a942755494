"""ONNX Runtime as an outside oracle: nothing fused, and no products that saturate where a processor has no others."""

from __future__ import annotations

import onnx
import onnxruntime

from weft.compiler.host.evaluate import exact_products

_ERRORS = 4
"""Of its messages only those that nothing goes on after."""


def plain_session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """A session that computes what the model says, operator by operator, on one thread."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = _ERRORS
    options.intra_op_num_threads = 1
    data = exact_products(model).SerializeToString()
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
