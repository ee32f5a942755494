"""SVDF: features over time as state between runs, and products of each with 16-bit weights.

The state, which is a memory per filter in the file, is an image here: rows are points in time, channels are filters. A
run moves all rows up by one, and the product is a convolution. Its weights are the sum of two 8-bit parts, each with
16-bit results.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from weft.compiler.tflite.context import Context
from weft.compiler.tflite.file import Quantisation, Tensor
from weft.compiler.tflite.record import Record

_STATE = 4
"""Index of the state among the inputs."""
_ACTIVATIONS = (0, 1)
"""Supported fused activations: none, and RELU."""
_LARGEST = 1 << 15
"""Magnitude limit of 16-bit numbers."""
_LEAST = 2
"""Least number of binary places of a partial result, in steps of the result."""
_STEPS = 256
"""Steps of an 8-bit result from which on it is saturated for every zero point."""


def svdf(context: Context) -> None:
    """Convert SVDF. The state is zero in the first run."""
    form = _Form.of(context)
    batch, filters, memory = form.batch, form.filters, form.memory
    weights = context.builder.transpose(context.real(1), (1, 0), context.name)
    product = context.emit("MatMul", context.real(0), weights, suffix="features")
    features = context.emit("QuantizeLinear", product, *context.parameters(_STATE), suffix="quantise")
    newest = context.reshape(features, (batch, filters, 1, 1))
    rows = newest
    if memory > 1:
        before = context.reshape(context.read_state(_STATE).raw, (batch, filters, memory, 1))
        ends = (context.array([end]) for end in (1, memory, 2))
        previous = context.emit("Slice", before, *ends, suffix="kept")
        rows = context.emit("Concat", previous, newest, suffix="concat", axis=2)
    else:
        context.read_state(_STATE)
    context.write_state(_STATE, context.reshape(rows, (batch, filters * memory)))
    image = context.emit("DequantizeLinear", rows, *context.parameters(_STATE), suffix="dequantise")
    result = context.activate(form.product(image))
    context.finish_reshaped(result)


@dataclass(frozen=True, eq=False)
class _Form:
    """Sizes of an SVDF, its time weights (units, rank, memory) and biases (units,)."""

    context: Context
    batch: int
    filters: int
    memory: int
    weights: np.ndarray
    bias: np.ndarray

    @classmethod
    def of(cls, context: Context) -> _Form:
        data, features, time = (_matrix(context, at, *types) for at, types in enumerate(_TYPES))
        rank, filters = int(context.option("Rank")), features.shape[0]
        if rank < 1 or filters % rank:
            raise context.refuse(f"has rank {rank} for {filters} filters; they must be a multiple of it")
        units, memory = filters // rank, time.shape[1]
        state = _matrix(context, _STATE, "int16")
        expected = {
            1: (filters, data.shape[1]), 2: (filters, memory), 3: (units,), _STATE: (data.shape[0], filters * memory),
        }  # fmt: skip
        for at, shape in expected.items():
            if context.has(at) and context.tensor(at).shape != shape:
                raise context.refuse(
                    f"reads {context.tensor(at).label} of shape {context.tensor(at).shape}; it must be {shape}"
                )
        _check_rest(context)
        if not memory or _quantisation(state).zeros[0]:
            raise context.refuse(f"keeps {state.label}, which must have elements, and 0 as its zero point")
        assert time.data is not None
        bias = context.numbers(3, "biases") if context.has(3) else np.zeros(units, np.int64)
        return cls(context, data.shape[0], filters, memory, time.data.reshape(units, rank, memory), bias)

    def product(self, image: str) -> str:
        """Return the sum over rank and time of products with the weights, plus biases: (batch, units, 1, 1)."""
        context = self.context
        unit = _scale(context.tensor(_STATE)) * _scale(context.tensor(2))
        bits = max(int(np.maximum(self.weights, ~self.weights).max(initial=0)).bit_length() - 7, 0)
        if not bits:
            return self._convolve(image, self.weights.astype(np.int8), 0, unit, biased=True)
        # 16-bit weights exceed the device's weights: split them into upper bits and non-negative lower bits.
        upper, lower = (
            (self.weights >> bits).astype(np.int8),
            (self.weights & (1 << bits) - 1).astype(np.uint8),
        )
        step = _scale(context.output())
        rest = _LARGEST * lower.astype(np.int64).sum(axis=(1, 2)) + np.abs(self.bias)
        places = math.floor(math.log2(_LARGEST / (_STEPS + float(rest.max()) * unit / step)))
        if places < _LEAST:
            return self._convolve(image, self.weights, 0, unit, biased=True)
        parameters = context.array(math.ldexp(step, -places), "float32"), context.array(0, "int16")
        parts = []
        for values, shift in ((upper, bits), (lower, 0)):
            part = self._convolve(image, values, shift, unit, biased=not shift)
            stored = context.emit("QuantizeLinear", part, *parameters, suffix="quantise")
            parts.append(context.emit("DequantizeLinear", stored, *parameters, suffix="dequantise"))
        return context.emit("Add", *parts, suffix="add")

    def _convolve(self, image: str, values: np.ndarray, shift: int, unit: float, *, biased: bool) -> str:
        """Return the product with some weights times ``2**shift``; `unit` is the scale of sums."""
        context, builder = self.context, self.context.builder
        scale = math.ldexp(_scale(context.tensor(2)), shift)
        parameters = [
            builder.constant(values[..., None], f"{context.name}:weights"),
            context.array(scale, "float32"),
        ]
        weights = context.emit("DequantizeLinear", *parameters, suffix="weights")
        inputs = [image, weights]
        if biased and self.bias.any():
            inputs.append(context.array(self.bias * unit, "float32"))
        return context.emit("Conv", *inputs, suffix="product", group=len(values))


def _check_rest(context: Context) -> None:
    """Raise `CompileError` for an unsupported activation, result or input, whatever the shapes."""
    activation = int(context.option("FusedActivationFunction"))
    if activation not in _ACTIVATIONS:
        raise context.refuse(f"has activation {activation}; weft reads 0, none, and 1, RELU")
    result = context.output()
    if result.dtype != "int8" or result.quantisation is None or not result.quantisation.per_tensor:
        raise context.refuse(f"makes {result.label}, which must be int8 with one scale")
    for at in (1, 2, 3):
        if context.has(at) and context.tensor(at).data is None:
            raise context.refuse(f"reads {context.tensor(at).label}, which must be constant")


_TYPES = (("int8",), ("int8",), ("int8", "int16"))
"""Types of the data, of the feature weights, and of the time weights."""


def _matrix(context: Context, index: int, *types: str) -> Tensor:
    """Return an input that must be a per-tensor quantised matrix of one of some types."""
    tensor = context.tensor(index)
    if tensor.dtype not in types or tensor.quantisation is None or not tensor.quantisation.per_tensor:
        raise context.refuse(f"reads {tensor.label}, which must be {' or '.join(types)} with one scale")
    if tensor.rank != 2:
        raise context.refuse(f"reads {tensor.label}, which must be a matrix")
    return tensor


def _quantisation(tensor: Tensor) -> Quantisation:
    assert tensor.quantisation is not None
    return tensor.quantisation


def _scale(tensor: Tensor) -> float:
    return float(_quantisation(tensor).scales[0])


OPERATORS = (
    Record(("SVDF",), (5, 5), "MatMul, Concat with the state, and Conv of each unit", svdf, states=(_STATE,)),
)
