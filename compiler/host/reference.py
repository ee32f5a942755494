"""Replacements for operators that ONNX's reference implementation computes wrongly for some versions or shapes.

Each class replaces one of the reference implementation. `tests/compiler/host/test_evaluate.py` compares all with ONNX
Runtime on random models.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_batch_normalization import BatchNormalization_14
from onnx.reference.ops.op_dequantize_linear import DequantizeLinear_25
from onnx.reference.ops.op_quantize_linear import QuantizeLinear_25

from weft.compiler.ir.layout import slice_indices
from weft.compiler.ir.network import Node
from weft.compiler.ir.windows import Axis, axes

_IMPLICIT_INFERENCE = (7, 14)
"""Versions (second excluded) in which BatchNormalization is for inference unless it has more outputs."""
_LAST_AXIS = 13
"""First opset whose Softmax normalises over one axis."""
_SLICE_INPUTS = 10
"""First opset whose Slice has its ranges as inputs."""
_SATURATED = 1 << 18
"""Steps from zero at which every type of QuantizeLinear saturates."""
_FIRST_DEQUANTIZE = 19
"""First opset of DequantizeLinear in the reference implementation."""


def _taps(along: Sequence[Axis]) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...]]]:
    """Yield for each kernel element the outputs whose windows have it inside the input, and the inputs there."""
    for offsets in itertools.product(*(range(axis.kernel) for axis in along)):
        spans = [axis.tap(offset) for axis, offset in zip(along, offsets, strict=True)]
        if all(first < stop for first, stop, _ in spans):
            yield (
                tuple(slice(first, stop) for first, stop, _ in spans),
                tuple(
                    slice(start, start + (stop - first - 1) * axis.stride + 1, axis.stride)
                    for axis, (first, stop, start) in zip(along, spans, strict=True)
                ),
            )


def _reduce_windows(x: np.ndarray, along: Sequence[Axis], combine: np.ufunc, start: float) -> np.ndarray:
    """Return the elements of each window inside the input, combined one axis after the other."""
    for at, axis in enumerate(along, 2):
        shape = (*x.shape[:at], axis.count, *x.shape[at + 1 :])
        result = np.full(shape, start, x.dtype)
        before = (slice(None),) * at
        for outputs, inputs in _taps([axis]):
            here = result[(*before, *outputs)]
            combine(here, x[(*before, *inputs)], out=here)
        x = result
    return x


class MaxPool(OpRun):
    """Maximum of the window's elements inside the input, and its index."""

    op_domain = ""

    def _run(
        self, x: np.ndarray, storage_order: int | None = None, **attributes: Any
    ) -> tuple[np.ndarray, ...]:
        along = axes(x.shape[2:], attributes)
        lowest = -np.inf if x.dtype.kind == "f" else np.iinfo(x.dtype).min
        result = _reduce_windows(x, along, np.maximum, lowest)
        if len(self.onnx_node.output) < 2:
            return (result,)
        order: Literal["C", "F"] = "F" if storage_order else "C"
        inner = np.arange(np.prod(x.shape[2:], dtype=np.int64)).reshape(x.shape[2:], order=order)
        images = np.arange(x.shape[0] * x.shape[1]).reshape(*x.shape[:2], *(1,) * len(along)) * inner.size
        indices, is_set = np.zeros(result.shape, np.int64), np.zeros(result.shape, bool)
        for outputs, inputs in _taps(along):
            here = (slice(None), slice(None), *outputs)
            first = (x[(slice(None), slice(None), *inputs)] == result[here]) & ~is_set[here]
            indices[here] = np.where(first, images + inner[inputs], indices[here])
            is_set[here] |= first
        return result, indices


class AveragePool(OpRun):
    """Sum of the window's elements inside the input, divided by their number, with or without padding."""

    op_domain = ""

    def _run(
        self, x: np.ndarray, count_include_pad: int | None = None, **attributes: Any
    ) -> tuple[np.ndarray]:
        along = axes(x.shape[2:], attributes)
        total, count = _reduce_windows(x, along, np.add, 0), np.ones((), np.int64)
        for axis in along:
            count = count[..., None] * (axis.count_padded() if count_include_pad else axis.count_inside())
        with np.errstate(all="ignore"):
            return ((total / count).astype(x.dtype),)


class LpPool(OpRun):
    """p-norm of the window's elements inside the input."""

    op_domain = ""

    def _run(self, x: np.ndarray, p: int | None = None, **attributes: Any) -> tuple[np.ndarray]:
        along, power = axes(x.shape[2:], attributes), 2 if p is None else p
        total = _reduce_windows(np.abs(x) ** power, along, np.add, 0)
        return ((total ** (1 / power)).astype(x.dtype),)


class GlobalMaxPool(OpRun):
    """Maximum over all spatial axes, of any number."""

    op_domain = ""

    def _run(self, x: np.ndarray) -> tuple[np.ndarray]:
        return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


class LRN(OpRun):
    """Elements divided by a power of the squares around them along the channels."""

    op_domain = ""

    def _run(
        self,
        x: np.ndarray,
        alpha: float | None = None,
        beta: float | None = None,
        bias: float | None = None,
        size: int | None = None,
    ) -> tuple[np.ndarray]:
        alpha, beta, bias = (
            default if value is None else value
            for value, default in ((alpha, 1e-4), (beta, 0.75), (bias, 1.0))
        )
        assert size is not None
        # Of an even size, the odd element comes after.
        before, channels = (size - 1) // 2, x.shape[1]
        squares = np.zeros_like(x)
        for channel in range(channels):
            first, last = max(0, channel - before), channel + size - 1 - before
            squares[:, channel] = (x[:, first : last + 1] ** 2).sum(1)
        return ((x / (bias + alpha / size * squares) ** beta).astype(x.dtype),)


class GatherElements(OpRun):
    """Elements by indices, which may be fewer than the data along every axis."""

    op_domain = ""

    def _run(self, data: np.ndarray, indices: np.ndarray, axis: int | None = None) -> tuple[np.ndarray]:
        along = (axis or 0) % data.ndim
        size = data.shape[along]
        if indices.size and not -size <= int(indices.min()) <= int(indices.max()) < size:
            raise ValueError(f"GatherElements has indices outside of -{size} .. {size - 1}")
        boxed = data[tuple(slice(None if at == along else most) for at, most in enumerate(indices.shape))]
        return (np.take_along_axis(boxed, np.where(indices < 0, indices + size, indices), along),)


class Slice(OpRun):
    """Slice whose starts outside the input move to the nearest element, also with negative steps."""

    op_domain = ""

    def _run(
        self,
        data: np.ndarray,
        starts: np.ndarray,
        ends: np.ndarray,
        axes: np.ndarray | None = None,
        steps: np.ndarray | None = None,
    ) -> tuple[np.ndarray]:
        along = np.arange(len(starts)) if axes is None else axes
        strides = np.ones(len(starts), np.int64) if steps is None else steps
        index: list[Any] = [slice(None)] * data.ndim
        for start, end, axis, step in zip(starts, ends, along, strides, strict=True):
            index[axis] = slice_indices(data.shape[axis], start, end, step)
        for axis, places in enumerate(index):
            if not isinstance(places, slice):
                data = data.take(places, axis)
        return (data,)


class QuantizeLinear(QuantizeLinear_25):
    """QuantizeLinear that also saturates numbers beyond int32."""

    op_domain = ""

    def _run(self, *inputs: Any, **attributes: Any) -> tuple[np.ndarray]:
        x, scale, *zero = inputs
        axis, block = attributes.get("axis", 1), attributes.get("block_size") or 0
        steps = np.abs(np.asarray(scale, np.float64))
        if block:
            steps = np.repeat(steps, block, axis).take(np.arange(x.shape[axis]), axis)
        elif steps.size > 1:
            steps = steps.reshape([-1 if at == axis % x.ndim else 1 for at in range(x.ndim)])
        # The package converts quotients to int32, which would wrap: clip them while they are floats.
        most = np.minimum(steps * _SATURATED, np.finfo(x.dtype).max) if x.dtype.kind == "f" else np.inf
        return super()._run(np.clip(x, -most, most).astype(x.dtype), scale, *zero, **attributes)


def _flat(name: str) -> type[OpRun]:
    """Return Softmax, LogSoftmax or Hardmax before opset 13: over all axes from `axis` on, by default 1."""

    def run(self: OpRun, x: np.ndarray, axis: int | None = None) -> tuple[np.ndarray]:
        # `axis` has the default of the newest version, so read the node's own attribute.
        first = next((item.i for item in self.onnx_node.attribute if item.name == "axis"), 1) % x.ndim
        rows = x.reshape(int(np.prod(x.shape[:first])), -1)
        if name == "Hardmax":
            result = (np.arange(rows.shape[1]) == rows.argmax(1)[:, None]).astype(x.dtype)
        else:
            logs = rows - rows.max(1, keepdims=True)
            sums = np.exp(logs).sum(1, keepdims=True)
            result = logs - np.log(sums) if name == "LogSoftmax" else np.exp(logs) / sums
        return (result.reshape(x.shape),)

    return type(name, (OpRun,), {"op_domain": "", "_run": run})


def replacements(opset: int) -> list[type[OpRun]]:
    """Return the operators to replace in a `ReferenceEvaluator` for models of a version of ONNX's operators.

    A replacement gets the attributes of its operator's newest version.
    """
    operators: list[type[OpRun]] = [
        MaxPool,
        AveragePool,
        LpPool,
        GlobalMaxPool,
        LRN,
        GatherElements,
        QuantizeLinear,
    ]
    if opset < _LAST_AXIS:
        operators += [_flat("Softmax"), _flat("LogSoftmax"), _flat("Hardmax")]
    if opset >= _SLICE_INPUTS:
        operators.append(Slice)
    if opset < _FIRST_DEQUANTIZE:  # the newest version is equal for 8-bit and 32-bit integers
        operators.append(type("DequantizeLinear", (DequantizeLinear_25,), {"op_domain": ""}))
    if _IMPLICIT_INFERENCE[0] <= opset < _IMPLICIT_INFERENCE[1]:
        operators.append(type("BatchNormalization", (BatchNormalization_14,), {"op_domain": ""}))
    return operators


def is_wrong(node: Node, opset: int) -> bool:
    """Return whether the reference implementation is known to compute nodes like this one wrongly."""
    if node.operator in ("LSTM", "GRU", "RNN"):
        return bool(node.input(4))  # sequence_lens
    if node.operator == "Resize":
        mode = node.attributes.get("coordinate_transformation_mode", "half_pixel")
        # It uses the product of scale and size as the resized length, even if that is no integer.
        return mode not in ("half_pixel", "asymmetric") and (mode != "align_corners" or bool(node.input(2)))
    if node.operator == "BatchNormalization":
        return opset < _IMPLICIT_INFERENCE[0] or node.attributes.get("spatial", 1) != 1
    if node.operator == "LpNormalization":
        return node.attributes.get("p", 2) == 1  # of absolute values
    return node.operator in ("ConvTranspose", "RoiAlign")
