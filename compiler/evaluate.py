"""The ONNX reference implementation, with what it lacks of operator sets that quantisers still write."""

from __future__ import annotations

import onnx
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_dequantize_linear import DequantizeLinear_25

_FIRST_DEQUANTISED = 19
"""The reference implementation has DequantizeLinear from this version of the operator set on."""


def _older() -> type[OpRun]:
    """DequantizeLinear of versions 10 and 13: later ones do the same with 8-bit and 32-bit integers.

    The newest is taken, because an operator from outside is given the attributes of the newest version.
    """
    return type("DequantizeLinear", (DequantizeLinear_25,), {"op_domain": ""})


def evaluator(model: onnx.ModelProto) -> ReferenceEvaluator:
    """An evaluator of a model.

    Raises
    ------
    RuntimeError
        If an operator has no reference implementation.
    """
    opset = next((item.version for item in model.opset_import if item.domain in ("", "ai.onnx")), 1)
    return ReferenceEvaluator(model, new_ops=[_older()] if opset < _FIRST_DEQUANTISED else None)
