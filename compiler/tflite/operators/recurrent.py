"""LSTM, unrolled into the operators of its steps, and SVDF with its state between runs.

Values between LSTM's products are rounded as in TFLite's integer kernel. Sums of gates have 16 bits in steps of 2^-12,
gates 16 bits from -1 to 1, cells and hidden states the file's scales (Integer quantization of LSTM, Li and Alvarez,
2021, arXiv:2108.12378).

SVDF's state, which is a memory per filter in the file, is an image here: rows are points in time, channels are filters.
A run moves all rows up by one, and the product is a convolution. Its weights are the sum of two 8-bit parts, each with
16-bit results.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from weft.compiler.ir.network import MAX_NODES
from weft.compiler.ir.quantisation import Quantisation
from weft.compiler.tflite.context import Context
from weft.compiler.tflite.file import Tensor
from weft.compiler.tflite.record import Record

_SUMS, _UNIT = 2.0**-12, 2.0**-15
_TANH = 4
_INPUTS = {
    "an input gate": 1, "peepholes": 9, "a projection": 16, "normalisation of its gates": 20,
}  # fmt: skip
"""First input of each optional part of an LSTM."""
_HIDDEN, _CELL = 18, 19
"""Inputs that are states between runs."""
_STEPS = MAX_NODES // 40
"""Most steps; each becomes about 40 nodes."""
_ORDER = (0, 3, 1, 2)
"""The gates input, output, forget and cell, in the file's order."""


def lstm(context: Context) -> None:
    """Convert an LSTM over a sequence. States are zero in the first run."""
    data = context.tensor()
    if data.rank != 3:
        raise context.refuse(f"takes sequences of rows, of three dimensions; {data.label} has {data.rank}")
    _check_form(context)
    first = int(bool(context.option("TimeMajor")))
    steps, batch = data.shape[1 - first], data.shape[first]
    if steps > _STEPS:
        raise context.refuse(f"has {steps:,} steps; weft takes up to {_STEPS:,}")
    rows = context.real()
    if not first:
        rows = context.emit("Transpose", rows, suffix="transpose", perm=(1, 0, 2))
    cell = _Cell.of(context, batch)
    sums = cell.product(context.reshape(rows, (steps * batch, data.shape[2])), 1, biased=True)
    states, pages = (context.read_state(_HIDDEN), context.read_state(_CELL)), []
    for at in range(steps):
        states = cell.step(cell.part(sums, 0, at * batch, batch), *states)
        pages.append(context.reshape(states[0], (1, batch, cell.size)))
    for index, value in zip((_HIDDEN, _CELL), states, strict=True):
        context.write_state(index, value)
    result = pages[0] if steps == 1 else context.emit("Concat", *pages, suffix="concat", axis=0)
    if not first:
        result = context.emit("Transpose", result, suffix="transpose", perm=(1, 0, 2))
    context.finish(result)


def _check_form(context: Context) -> None:
    if not context.has(_INPUTS["an input gate"]):
        raise context.refuse("has no input gate of its own, which weft does not read")
    for part, index in list(_INPUTS.items())[1:]:
        if any(
            context.has(at) for at in range(index, index + (4 if index == 20 else 3 if index == 9 else 1))
        ):
            raise context.refuse(f"has {part}, which weft does not read")
    if int(context.option("FusedActivationFunction")) != _TANH:
        raise context.refuse(
            f"has activation {int(context.option('FusedActivationFunction'))}; weft reads {_TANH}, the tangent"
        )
    for index in (0, *range(1, 9)):
        tensor = context.tensor(index)
        if tensor.dtype != "int8" or tensor.quantisation is None or not tensor.quantisation.per_tensor:
            raise context.refuse(f"reads {tensor.label}, which must be int8 with one scale")
        if index and (tensor.data is None or tensor.rank != 2):
            raise context.refuse(f"reads {tensor.label}, which must be a constant matrix")


def _quantisation(context: Context, index: int, dtype: str) -> Quantisation:
    tensor = context.tensor(index)
    if tensor.dtype != dtype or tensor.quantisation is None or not tensor.quantisation.per_tensor:
        raise context.refuse(f"keeps {tensor.label}, which must be {dtype} with one scale")
    return tensor.quantisation


@dataclass(frozen=True)
class _Cell:
    """Parameters of an LSTM, and the nodes of its steps."""

    context: Context
    size: int
    hidden: Quantisation
    cell: Quantisation
    clip: float

    @classmethod
    def of(cls, context: Context, batch: int) -> _Cell:
        size = context.tensor(5).shape[0]
        inputs = context.tensor(0).shape[2]
        for index, count in ((1, inputs), (5, size)):
            for at in range(index, index + 4):
                if context.tensor(at).shape != (size, count):
                    raise context.refuse(
                        f"has weights {context.tensor(at).label} of shape {context.tensor(at).shape}; it must be "
                        f"{(size, count)}"
                    )
        for index in range(12, 16):
            if context.has(index) and (context.tensor(index).shape, context.tensor(index).data is None) != (
                (size,),
                False,
            ):
                raise context.refuse(
                    f"has biases {context.tensor(index).label}, which must be {size} constants"
                )
        hidden, cell = _quantisation(context, _HIDDEN, "int8"), _quantisation(context, _CELL, "int16")
        for index in (_HIDDEN, _CELL):
            if context.tensor(index).shape != (batch, size):
                raise context.refuse(
                    f"keeps {context.tensor(index).label} of shape {context.tensor(index).shape}; it must be "
                    f"{(batch, size)}"
                )
        return cls(context, size, hidden, cell, float(context.option("CellClip")))

    def step(self, part: str, hidden: str, cell: str) -> tuple[str, str]:
        """Return hidden state and cell after a step."""
        emit = self.context.emit
        product = self.product(hidden, 5, biased=False)
        sums = self.quantise(emit("Add", part, product, suffix="add"), _SUMS)
        gates = self.quantise(emit("Sigmoid", self.part(sums, 1, 0, 3 * self.size), suffix="sigmoid"), _UNIT)
        i, o, f = (self.part(gates, 1, at * self.size, self.size) for at in range(3))
        new = self.quantise(emit("Tanh", self.part(sums, 1, 3 * self.size, self.size), suffix="tanh"), _UNIT)
        scale = float(self.cell.scales)
        parts = (emit("Mul", *pair, suffix="multiply") for pair in ((f, cell), (i, new)))
        next_cell = emit("Add", *(self.quantise(item, scale) for item in parts), suffix="add")
        if self.clip > 0:
            ends = (self.context.array(end, "float32") for end in (-self.clip, self.clip))
            next_cell = emit("Clip", next_cell, *ends, suffix="clip")
        next_state = self.quantise(next_cell, scale)
        seen = self.quantise(emit("Tanh", next_state, suffix="tanh"), _UNIT)
        result = emit("Mul", o, seen, suffix="multiply")
        return self.quantise(result, float(self.hidden.scales), int(self.hidden.zeros), "int8"), next_state

    def product(self, value: str, index: int, *, biased: bool) -> str:
        """Return rows times the weights of all gates, plus biases, rounded."""
        context = self.context
        tensors = [context.tensor(index + at) for at in _ORDER]
        stored = np.concatenate([_contents(tensor) for tensor in tensors]).T
        scales = np.repeat([_scale(tensor) for tensor in tensors], self.size).astype(np.float32)
        quantisation = Quantisation(scales, np.zeros(len(scales), np.int8), axis=1)
        weights = context.builder.quantised_constant(stored, quantisation, f"{context.name}:weights")
        product = context.emit("MatMul", value, weights, suffix="product")
        biases = [context.tensor(12 + at) for at in _ORDER if context.has(12 + at)] if biased else []
        if len(biases) == len(_ORDER):
            inputs = _scale(context.tensor(0))
            values = [_contents(item) * inputs * _scale(of) for item, of in zip(biases, tensors, strict=True)]
            product = context.emit(
                "Add", product, context.array(np.concatenate(values), "float32"), suffix="bias"
            )
        return self.quantise(product, _SUMS)

    def part(self, value: str, axis: int, first: int, count: int) -> str:
        ends = (self.context.array([end]) for end in (first, first + count, axis))
        return self.context.emit("Slice", value, *ends, suffix="part")

    def quantise(self, value: str, scale: float, zero: int = 0, dtype: str = "int16") -> str:
        quantisation = Quantisation(np.array(scale, np.float32), np.array(zero, dtype))
        return self.context.builder.round(value, quantisation, self.context.name)


def _contents(tensor: Tensor) -> np.ndarray:
    assert tensor.data is not None
    return tensor.data


def _scale(tensor: Tensor) -> float:
    assert tensor.quantisation is not None
    return float(tensor.quantisation.scales)


RECURRENT_OPERATORS = (
    Record(
        ("UNIDIRECTIONAL_SEQUENCE_LSTM",), (20, 24), "MatMul, Sigmoid, Tanh, Mul and Add of each step", lstm,
        states=(_HIDDEN, _CELL),
    ),
)  # fmt: skip


_STATE = 4
"""Index of the state among the inputs."""
_ACTIVATIONS = (0, 1)
"""Supported fused activations: none, and RELU."""
_LARGEST = 1 << 15
"""Magnitude limit of 16-bit numbers."""
_LEAST = 2
"""Least number of binary places of a partial result, in steps of the result."""
_SVDF_STEPS = 256
"""Steps of an 8-bit result from which on it is saturated for every zero point."""


def svdf(context: Context) -> None:
    """Convert SVDF. The state is zero in the first run."""
    form = _Form.of(context)
    batch, filters, memory = form.batch, form.filters, form.memory
    weights = context.builder.transpose(context.real(1), (1, 0), context.name)
    product = context.emit("MatMul", context.real(0), weights, suffix="features")
    features = context.builder.round(product, _svdf_quantisation(context.tensor(_STATE)), context.name)
    newest = context.reshape(features, (batch, filters, 1, 1))
    rows = newest
    if memory > 1:
        before = context.reshape(context.read_state(_STATE), (batch, filters, memory, 1))
        ends = (context.array([end]) for end in (1, memory, 2))
        previous = context.emit("Slice", before, *ends, suffix="kept")
        rows = context.emit("Concat", previous, newest, suffix="concat", axis=2)
    else:
        context.read_state(_STATE)
    context.write_state(_STATE, context.reshape(rows, (batch, filters * memory)))
    result = context.activate(form.product(rows))
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
        if not memory or _svdf_quantisation(state).zeros:
            raise context.refuse(f"keeps {state.label}, which must have elements, and 0 as its zero point")
        assert time.data is not None
        bias = context.numbers(3, "biases") if context.has(3) else np.zeros(units, np.int64)
        return cls(context, data.shape[0], filters, memory, time.data.reshape(units, rank, memory), bias)

    def product(self, image: str) -> str:
        """Return the sum over rank and time of products with the weights, plus biases: (batch, units, 1, 1)."""
        context = self.context
        unit = _svdf_scale(context.tensor(_STATE)) * _svdf_scale(context.tensor(2))
        # ~w is -1 - w, so that the larger of the two has all bits of w but its sign.
        bits = max(int(np.maximum(self.weights, ~self.weights).max(initial=0)).bit_length() - 7, 0)
        if not bits:
            return self._convolve(image, self.weights.astype(np.int8), 0, unit, biased=True)
        # 16-bit weights exceed the device's weights: split them into upper bits and non-negative lower bits.
        upper, lower = (
            (self.weights >> bits).astype(np.int8),
            (self.weights & (1 << bits) - 1).astype(np.uint8),
        )
        step = _svdf_scale(context.output())
        largest_lower = _LARGEST * lower.astype(np.int64).sum(axis=(1, 2)) + np.abs(self.bias)
        places = math.floor(math.log2(_LARGEST / (_SVDF_STEPS + float(largest_lower.max()) * unit / step)))
        if places < _LEAST:
            return self._convolve(image, self.weights, 0, unit, biased=True)
        rounding = Quantisation(np.array(math.ldexp(step, -places), np.float32), np.array(0, np.int16))
        parts = []
        for values, shift in ((upper, bits), (lower, 0)):
            part = self._convolve(image, values, shift, unit, biased=not shift)
            parts.append(context.builder.round(part, rounding, context.name))
        return context.emit("Add", *parts, suffix="add")

    def _convolve(self, image: str, values: np.ndarray, shift: int, unit: float, *, biased: bool) -> str:
        """Return the product with some weights times ``2**shift``; `unit` is the scale of sums."""
        context, builder = self.context, self.context.builder
        scale = math.ldexp(_svdf_scale(context.tensor(2)), shift)
        quantisation = Quantisation(np.array(scale, np.float32), np.zeros((), values.dtype))
        weights = builder.quantised_constant(values[..., None], quantisation, f"{context.name}:weights")
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


def _svdf_quantisation(tensor: Tensor) -> Quantisation:
    assert tensor.quantisation is not None
    return tensor.quantisation


def _svdf_scale(tensor: Tensor) -> float:
    return float(_svdf_quantisation(tensor).scales)


SVDF_OPERATORS = (
    Record(("SVDF",), (5, 5), "MatMul, Concat with the state, and Conv of each unit", svdf, states=(_STATE,)),
)


OPERATORS = (*RECURRENT_OPERATORS, *SVDF_OPERATORS)
