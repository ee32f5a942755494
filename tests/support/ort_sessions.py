"""ONNX Runtime as an outside oracle, without fusions and without products that saturate on some processors."""

from __future__ import annotations

import onnx
import onnxruntime

from weft.compiler.host.evaluate import exact_products

_ERRORS = 4
"""Log level of fatal errors only."""


def plain_session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Return a session that computes the model operator by operator, on one thread."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = _ERRORS
    options.intra_op_num_threads = 1
    data = exact_products(model).SerializeToString()
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
