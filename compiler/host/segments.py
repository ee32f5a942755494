"""Execution of host segments, and conversion of values to and from device buffers."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from weft.compiler.errors import CompileError, EvaluationError
from weft.compiler.host.evaluate import Evaluator
from weft.compiler.ir.layout import join_planes, split_planes, to_signed, to_unsigned
from weft.compiler.ir.model import HostSegment, Transfer
from weft.compiler.ir.network import dtype_of

_evaluator = lru_cache(maxsize=64)(Evaluator)
"""Cached evaluators of networks, for later runs."""


def prepare(segment: HostSegment) -> Evaluator:
    """Return the evaluator of a host segment.

    Raises
    ------
    CompileError
        If the host cannot evaluate an operator.
    """
    try:
        return _evaluator(segment.network)
    except EvaluationError as error:
        raise CompileError(f"{_describe(segment)} cannot be evaluated on the host: {error}") from None


def _describe(segment: HostSegment) -> str:
    operators = sorted({operator for _, operator, _ in segment.nodes})
    return f"{segment.name} ({', '.join(operators)})"


def run_host(segment: HostSegment, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Evaluate a host segment (`weft.compiler.host.evaluate`).

    Parameters
    ----------
    values : dict of str to ndarray
        At least the segment's inputs.
    ~
    Returns
    -------
    dict of str to ndarray
        The segment's outputs.
    ~
    Raises
    ------
    CompileError
        If an operator fails, or its result has another type or shape than in the model; the message names the
        segment's operators.
    """
    evaluator = prepare(segment)
    try:
        results = evaluator.run({name: values[name] for name in segment.inputs})
    except EvaluationError as error:
        raise CompileError(f"{_describe(segment)} cannot be evaluated on the host: {error}") from None
    outputs = {name: np.asarray(value) for name, value in zip(segment.outputs, results, strict=True)}
    for name, value in outputs.items():
        known = segment.network.type_of(name)
        assert known is not None
        dtype, shape = dtype_of(known.dtype), known.shape
        # Strings have several numpy types.
        textual = value.dtype.kind in "OSU" and dtype.kind in "OSU"
        if value.shape != shape or not (value.dtype == dtype or textual):
            raise CompileError(
                f"{_describe(segment)} returns {name!r} on the host as {value.dtype.name} of shape {value.shape}; "
                f"the model says {dtype.name} of shape {shape}"
            )
    return outputs


def to_buffer(transfer: Transfer, value: np.ndarray) -> np.ndarray:
    """Return the contents (int8, NHWC) of a transfer's buffer for a value of the model.

    Raises
    ------
    CompileError
        For an index of a row that does not exist.
    """
    if value.dtype != np.dtype(transfer.dtype):
        raise ValueError(f"value {transfer.value!r} has type {value.dtype}")
    if transfer.rows is not None:
        return transfer.rows.offsets(transfer.value, value)
    value = value.astype(transfer.stored_dtype)
    stored = to_signed(value) if transfer.unsigned else value
    planes = split_planes(stored) if transfer.wide else (stored,)
    return np.concatenate([_to_layout(transfer, plane) for plane in planes])


def _to_layout(transfer: Transfer, plane: np.ndarray) -> np.ndarray:
    plane = plane.reshape(transfer.shape)
    if transfer.perm is not None:
        plane = plane.transpose(transfer.perm)
    return np.ascontiguousarray(plane).reshape(transfer.nhwc)


def from_buffer(transfer: Transfer, contents: np.ndarray) -> np.ndarray:
    """Return the value of the model in a transfer's buffer (int8). This is the inverse of `to_buffer`."""
    if transfer.wide:
        upper, lower = (_from_layout(transfer, plane) for plane in np.split(contents.reshape(-1), 2))
        stored = join_planes(upper, lower).astype(np.int16)
    else:
        stored = _from_layout(transfer, contents)
    value = to_unsigned(stored) if transfer.unsigned else stored
    return value.astype(transfer.dtype, copy=False)


def _from_layout(transfer: Transfer, contents: np.ndarray) -> np.ndarray:
    perm = transfer.perm or tuple(range(len(transfer.shape)))
    moved = contents.reshape([transfer.shape[axis] for axis in perm]).transpose(np.argsort(perm))
    shape = transfer.shape if transfer.model_shape is None else transfer.model_shape
    return np.ascontiguousarray(moved).reshape(shape)
