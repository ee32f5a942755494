"""TFLite operators on single elements, with one input or several that broadcast, and softmax."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np

from weft.compiler.tflite.builder import Order
from weft.compiler.tflite.context import Context
from weft.compiler.tflite.record import Record

_UNARY = {
    "ABS": "Abs", "CEIL": "Ceil", "COS": "Cos", "ELU": "Elu", "EXP": "Exp", "FLOOR": "Floor", "HARD_SWISH": "HardSwish",
    "LOG": "Log", "LOGISTIC": "Sigmoid", "NEG": "Neg", "RELU": "Relu", "ROUND": "Round", "SIGN": "Sign", "SIN": "Sin",
    "SQRT": "Sqrt", "TANH": "Tanh",
}  # fmt: skip
_BINARY = {
    "ADD": "Add", "DIV": "Div", "MAXIMUM": "Max", "MINIMUM": "Min", "MUL": "Mul", "POW": "Pow", "SUB": "Sub",
}  # fmt: skip
_COMPARISONS = {
    "EQUAL": "Equal", "GREATER": "Greater", "GREATER_EQUAL": "GreaterOrEqual", "LESS": "Less",
    "LESS_EQUAL": "LessOrEqual", "LOGICAL_AND": "And", "LOGICAL_OR": "Or",
}  # fmt: skip
_CLIPS = {"RELU6": (0.0, 6.0), "RELU_N1_TO_1": (-1.0, 1.0), "RELU_0_TO_1": (0.0, 1.0)}


def unary(context: Context, operator: str, **attributes: Any) -> None:
    order = context.order(0)
    context.finish(context.emit(operator, context.real(0, order), **attributes), order)


def clip(context: Context, low: float, high: float) -> None:
    order = context.order(0)
    bounds = (context.array(value, "float32") for value in (low, high))
    context.finish(context.emit("Clip", context.real(0, order), *bounds), order)


def leaky_relu(context: Context) -> None:
    unary(context, "LeakyRelu", alpha=float(context.option("Alpha")))


def gelu(context: Context) -> None:
    unary(context, "Gelu", approximate="tanh" if context.option("Approximate") else "none")


def root_reciprocal(context: Context) -> None:
    order = context.order(0)
    root = context.emit("Sqrt", context.real(0, order), suffix="root")
    context.finish(context.emit("Reciprocal", root), order)


def square(context: Context) -> None:
    order = context.order(0)
    value = context.real(0, order)
    context.finish(context.emit("Mul", value, value), order)


def operands(context: Context, first: int = 0) -> tuple[list[str], Order]:
    """Return the inputs from `first` on, ready to broadcast, and the order of axes of the result."""
    rank = context.output().rank
    places = range(first, len(context.operator.inputs))
    order = context.order(*places) if rank == 4 else Order.FILE
    if rank == 4 and _by_channel(context):
        order = Order.CHANNELS_FIRST
    return [context.align(index, rank, order) for index in places], order


def _by_channel(context: Context) -> bool:
    """Return whether constants have one value per channel of an image that is a model input, or are PRelu slopes.

    The device needs channels on axis 1 then. Elsewhere axes may have any meaning, as in scores with a mask.
    """
    constants = [tensor for tensor in context.inputs if tensor.data is not None]
    images = all(
        tensor.data is not None or tensor.index in context.builder.file.inputs for tensor in context.inputs
    )
    vectors = all(math.prod(tensor.shape) == (tensor.shape or (1,))[-1] for tensor in constants)
    return bool(constants) and vectors and (images or context.operator.name == "PRELU")


def binary(context: Context, operator: str) -> None:
    values, order = operands(context)
    context.finish(context.activate(context.emit(operator, *values)), order)


def squared_difference(context: Context) -> None:
    values, order = operands(context)
    difference = context.emit("Sub", *values, suffix="difference")
    context.finish(context.emit("Mul", difference, difference), order)


def compare(context: Context, operator: str) -> None:
    values, order = operands(context)
    context.store(context.emit(operator, *values), order)


def differ(context: Context) -> None:
    values, order = operands(context)
    context.store(context.emit("Not", context.emit("Equal", *values, suffix="equal")), order)


def negate(context: Context) -> None:
    order = context.order(0)
    context.store(context.emit("Not", context.raw(0, order)), order)


def select(context: Context) -> None:
    """Convert to Where. A condition of rank 1 may be for the first axis."""
    first, output = context.tensor(0), context.output()
    if context.operator.name == "SELECT" and first.shape not in ((), output.shape):
        raise context.refuse("has a condition of another shape than its result, which weft does not read")
    values, order = operands(context)
    context.finish(context.emit("Where", *values), order)


def softmax(context: Context, operator: str) -> None:
    """Convert to a softmax over the file's last axis: axis 1 of images with channels first."""
    order = context.order(0)
    axis = 1 if order is Order.CHANNELS_FIRST else context.tensor().rank - 1
    if not context.tensor().rank:
        raise context.refuse("has an input without dimensions")
    beta = float(context.option("Beta", 1.0)) if operator == "Softmax" else 1.0
    if not math.isfinite(beta) or beta <= 0:
        raise context.refuse(f"has beta {beta:g}; it must be finite and above 0")
    context.finish(context.emit(operator, _scale_input(context, order, beta), axis=axis), order)


def _scale_input(context: Context, order: Order, factor: float) -> str:
    """Return the first input times a factor, which changes its scale if it has one."""
    tensor = context.tensor()
    value = context.real(0, order)
    if factor == 1.0:
        return value
    if tensor.quantisation is None or not tensor.quantisation.per_tensor:
        return context.emit("Mul", value, context.array(factor, "float32"), suffix="scale")
    scales = tensor.quantisation.scales * np.float32(factor)
    scaled = dataclasses.replace(tensor.quantisation, scales=scales)
    return context.builder.reinterpret(value, scaled, context.name)


def prelu(context: Context) -> None:
    """Convert to PRelu, whose slope broadcasts."""
    values, order = operands(context)
    context.finish(context.emit("PRelu", *values), order)


OPERATORS = (
    Record(("ADD_N",), (1, None), "Sum", functools.partial(binary, operator="Sum")),
    *(
        Record((name,), (1, 1), onnx_operator, functools.partial(unary, operator=onnx_operator))
        for name, onnx_operator in _UNARY.items()
    ),
    *(
        Record((name,), (1, 1), "Clip", functools.partial(clip, low=low, high=high))
        for name, (low, high) in _CLIPS.items()
    ),
    Record(("LEAKY_RELU",), (1, 1), "LeakyRelu", leaky_relu),
    Record(("GELU",), (1, 1), "Gelu", gelu),
    Record(("RSQRT",), (1, 1), "Sqrt, Reciprocal", root_reciprocal),
    Record(("SQUARE",), (1, 1), "Mul", square),
    Record(("PRELU",), (2, 2), "PRelu", prelu),
    *(
        Record((name,), (2, 2), onnx_operator, functools.partial(binary, operator=onnx_operator))
        for name, onnx_operator in _BINARY.items()
    ),
    Record(("SQUARED_DIFFERENCE",), (2, 2), "Sub, Mul", squared_difference),
    *(
        Record((name,), (2, 2), onnx_operator, functools.partial(compare, operator=onnx_operator))
        for name, onnx_operator in _COMPARISONS.items()
    ),
    Record(("NOT_EQUAL",), (2, 2), "Equal, Not", differ),
    Record(("LOGICAL_NOT",), (1, 1), "Not", negate),
    Record(("SELECT", "SELECT_V2"), (3, 3), "Where", select),
    Record(("SOFTMAX",), (1, 1), "Softmax", functools.partial(softmax, operator="Softmax")),
    Record(("LOG_SOFTMAX",), (1, 1), "LogSoftmax", functools.partial(softmax, operator="LogSoftmax")),
)
