"""Running the host's parts of a model, and moving values in and out of device buffers."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import helper

from weft.compiler.ir.graph import CompileError, HostSegment, Transfer
from weft.compiler.onnx.evaluate import EvaluationError, Evaluator

Signature = tuple[np.dtype[Any], tuple[int, ...]]
"""Type and shape of a value."""


@lru_cache(maxsize=64)
def _evaluator(model: bytes) -> tuple[Evaluator, dict[str, Signature]]:
    proto = onnx.load_from_string(model)
    return Evaluator(proto), {value.name: _signature(value) for value in proto.graph.output}


def _signature(value: onnx.ValueInfoProto) -> Signature:
    tensor = value.type.tensor_type
    return helper.tensor_dtype_to_np_dtype(tensor.elem_type), tuple(dim.dim_value for dim in tensor.shape.dim)


def prepare(segment: HostSegment) -> tuple[Evaluator, dict[str, Signature]]:
    """What evaluates a host segment, and the types and shapes of its outputs.

    Raises
    ------
    CompileError
        If there is an operator that the host cannot evaluate, or no model. That of a file is the segment's:
        `weft.compiler.artefact_verify` has seen to it.
    """
    try:
        evaluator, signatures = _evaluator(segment.model)
    except EvaluationError as error:
        raise CompileError(f"{_what(segment)} cannot be evaluated on the host: {error}") from None
    except (DecodeError, KeyError):
        raise CompileError(f"{_what(segment)} holds no ONNX model; compile the model again") from None
    return evaluator, signatures


def _what(segment: HostSegment) -> str:
    operators = sorted({operator for _, operator, _ in segment.nodes})
    return f"{segment.name} ({', '.join(operators)})"


def run_host(segment: HostSegment, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Evaluate a host segment (`weft.compiler.onnx.evaluate`).

    `values` must hold at least the segment's inputs; the result holds its outputs.

    Raises
    ------
    CompileError
        If an operator fails, or gives another type or shape than the model says; the message names the segment's
        operators.
    """
    evaluator, signatures = prepare(segment)
    try:
        results = evaluator.run({name: values[name] for name in segment.inputs})
    except EvaluationError as error:
        raise CompileError(f"{_what(segment)} cannot be evaluated on the host: {error}") from None
    made = {name: np.asarray(value) for name, value in zip(segment.outputs, results, strict=True)}
    for name, value in made.items():
        dtype, shape = signatures[name]
        textual = value.dtype.kind in "OSU" and dtype.kind in "OSU"
        if value.shape != shape or not (value.dtype == dtype or textual):
            raise CompileError(
                f"{_what(segment)} gives {name!r} on the host as {value.dtype.name} of shape {value.shape}; "
                f"by the model it is {dtype.name} of shape {shape}"
            )
    return made


def to_buffer(transfer: Transfer, value: np.ndarray) -> np.ndarray:
    """The contents (int8, NHWC) of a transfer's buffer for a value of the model."""
    if value.dtype != (np.uint8 if transfer.unsigned else np.int8):
        raise ValueError(f"value {transfer.value!r} has type {value.dtype}")
    stored = (value ^ np.uint8(128)).view(np.int8) if transfer.unsigned else value
    stored = stored.reshape(transfer.shape)
    if transfer.perm is not None:
        stored = stored.transpose(transfer.perm)
    return np.ascontiguousarray(stored).reshape(transfer.nhwc)


def from_buffer(transfer: Transfer, contents: np.ndarray) -> np.ndarray:
    """The value of the model in a transfer's buffer (int8), the inverse of `to_buffer`."""
    perm = transfer.perm or tuple(range(len(transfer.shape)))
    moved = contents.reshape([transfer.shape[axis] for axis in perm]).transpose(np.argsort(perm))
    shape = transfer.shape if transfer.model_shape is None else transfer.model_shape
    stored = np.ascontiguousarray(moved).reshape(shape)
    return stored.view(np.uint8) ^ np.uint8(128) if transfer.unsigned else stored
