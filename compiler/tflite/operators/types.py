"""Operators that change types, and scales."""

from __future__ import annotations

import numpy as np

from weft.compiler.tflite.builder import QUANTISED
from weft.compiler.tflite.context import Context
from weft.compiler.tflite.record import Record


def quantise(context: Context) -> None:
    """Real numbers to bytes, or bytes of one scale to those of another."""
    order = context.order(0)
    context.finish(context.real(0, order), order)


def dequantise(context: Context) -> None:
    """Bytes to real numbers; float16 weights to float32."""
    order, tensor = context.order(0), context.tensor()
    if tensor.dtype == "float16":
        return context.store(context.cast(context.stored(0, order)), order)
    if tensor.dtype not in QUANTISED or tensor.quantisation is None or not tensor.quantisation.whole:
        return context.store(context.real(0, order), order)
    parameters = context.builder.parameters(tensor.quantisation, tensor, context.name)
    return context.put("DequantizeLinear", context.stored(0, order), *parameters, order=order)


def cast(context: Context) -> None:
    """What is stored, in another type: scales have no say."""
    order = context.order(0)
    context.store(context.cast(context.stored(0, order)), order)


def shape(context: Context) -> None:
    """The shape of the input, which is known."""
    output = context.output()
    if output.dtype not in ("int32", "int64"):
        raise context.refuse(f"makes {output.label} of type {output.dtype}; shapes are int32 or int64")
    context.store(context.array(np.array(context.tensor().shape), output.dtype))


OPERATORS = (
    Record(("QUANTIZE",), (1, 1), "QuantizeLinear", quantise),
    Record(("DEQUANTIZE",), (1, 1), "DequantizeLinear", dequantise),
    Record(("CAST",), (1, 1), "Cast", cast),
    Record(("SHAPE",), (1, 1), "a constant", shape),
)
