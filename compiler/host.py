"""Running the host's parts of a model, and moving values in and out of device buffers."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from weft.compiler.evaluate import evaluator
from weft.compiler.ir import CompileError, HostSegment, Transfer


@lru_cache(maxsize=64)
def _evaluator(model: bytes) -> ReferenceEvaluator:
    return evaluator(onnx.load_from_string(model))


def run_host(segment: HostSegment, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Evaluate a host segment with the ONNX reference implementation.

    `values` must hold at least the segment's inputs; the result holds its outputs.

    Raises
    ------
    CompileError
        If the reference implementation fails; the message names the segment's operators.
    """
    feeds = {name: values[name] for name in segment.inputs}
    try:
        results = _evaluator(segment.model).run(None, feeds)
    except Exception as error:  # the reference evaluator raises anything
        operators = ", ".join(sorted({operator for _, operator, _ in segment.nodes}))
        raise CompileError(f"the host cannot evaluate {segment.name} ({operators}): {error}") from error
    return {name: np.asarray(value) for name, value in zip(segment.outputs, results, strict=True)}


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
