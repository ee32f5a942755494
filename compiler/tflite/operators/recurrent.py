"""LSTM, unrolled into the operators of its steps.

Values between products are rounded as in TFLite's integer kernel. Sums of gates have 16 bits in steps of 2^-12, gates
16 bits from -1 to 1, cells and hidden states the file's scales (Integer quantization of LSTM, Li and Alvarez, 2021,
arXiv:2108.12378).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.compiler.onnx.limits import NODES
from weft.compiler.tflite.context import Context, StateValue
from weft.compiler.tflite.file import Quantisation, Tensor
from weft.compiler.tflite.record import Record

_SUMS, _UNIT = 2.0**-12, 2.0**-15
_TANH = 4
_INPUTS = {
    "an input gate": 1, "peepholes": 9, "a projection": 16, "normalisation of its gates": 20,
}  # fmt: skip
"""First input of each optional part of an LSTM."""
_HIDDEN, _CELL = 18, 19
"""Inputs that are states between runs."""
_STEPS = NODES // 40
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
        pages.append(context.reshape(states[0].real, (1, batch, cell.size)))
    for index, value in zip((_HIDDEN, _CELL), states, strict=True):
        context.write_state(index, value.raw)
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

    def step(self, part: str, hidden: StateValue, cell: StateValue) -> tuple[StateValue, StateValue]:
        """Return hidden state and cell after a step."""
        emit = self.context.emit
        product = self.product(hidden.real, 5, biased=False)
        sums = self.quantise(emit("Add", part, product, suffix="add"), _SUMS).real
        gates = self.quantise(
            emit("Sigmoid", self.part(sums, 1, 0, 3 * self.size), suffix="sigmoid"), _UNIT
        ).real
        i, o, f = (self.part(gates, 1, at * self.size, self.size) for at in range(3))
        new = self.quantise(
            emit("Tanh", self.part(sums, 1, 3 * self.size, self.size), suffix="tanh"), _UNIT
        ).real
        scale = float(self.cell.scales[0])
        parts = (emit("Mul", *pair, suffix="multiply") for pair in ((f, cell.real), (i, new)))
        next_cell = emit("Add", *(self.quantise(item, scale).real for item in parts), suffix="add")
        if self.clip > 0:
            ends = (self.context.array(end, "float32") for end in (-self.clip, self.clip))
            next_cell = emit("Clip", next_cell, *ends, suffix="clip")
        next_state = self.quantise(next_cell, scale)
        seen = self.quantise(emit("Tanh", next_state.real, suffix="tanh"), _UNIT).real
        result = emit("Mul", o, seen, suffix="multiply")
        return self.quantise(
            result, float(self.hidden.scales[0]), int(self.hidden.zeros[0]), "int8"
        ), next_state

    def product(self, value: str, index: int, *, biased: bool) -> str:
        """Return rows times the weights of all gates, plus biases, rounded."""
        context = self.context
        tensors = [context.tensor(index + at) for at in _ORDER]
        stored = np.concatenate([_contents(tensor) for tensor in tensors]).T
        scales = np.repeat([_scale(tensor) for tensor in tensors], self.size).astype(np.float32)
        parameters = (stored, scales, np.zeros(len(scales), np.int8))
        names = (context.builder.constant(item, f"{context.name}:weights") for item in parameters)
        product = context.emit(
            "MatMul",
            value,
            context.emit("DequantizeLinear", *names, suffix="weights", axis=1),
            suffix="product",
        )
        biases = [context.tensor(12 + at) for at in _ORDER if context.has(12 + at)] if biased else []
        if len(biases) == len(_ORDER):
            inputs = _scale(context.tensor(0))
            values = [_contents(item) * inputs * _scale(of) for item, of in zip(biases, tensors, strict=True)]
            product = context.emit(
                "Add", product, context.array(np.concatenate(values), "float32"), suffix="bias"
            )
        return self.quantise(product, _SUMS).real

    def part(self, value: str, axis: int, first: int, count: int) -> str:
        ends = (self.context.array([end]) for end in (first, first + count, axis))
        return self.context.emit("Slice", value, *ends, suffix="part")

    def quantise(self, value: str, scale: float, zero: int = 0, dtype: str = "int16") -> StateValue:
        parameters = (self.context.array(scale, "float32"), self.context.array(zero, dtype))
        stored = self.context.emit("QuantizeLinear", value, *parameters, suffix="quantise")
        return StateValue(
            stored, self.context.emit("DequantizeLinear", stored, *parameters, suffix="dequantise")
        )


def _contents(tensor: Tensor) -> np.ndarray:
    assert tensor.data is not None
    return tensor.data


def _scale(tensor: Tensor) -> float:
    assert tensor.quantisation is not None
    return float(tensor.quantisation.scales[0])


OPERATORS = (
    Record(
        ("UNIDIRECTIONAL_SEQUENCE_LSTM",), (20, 24), "MatMul, Sigmoid, Tanh, Mul and Add of each step", lstm,
        states=(_HIDDEN, _CELL),
    ),
)  # fmt: skip
