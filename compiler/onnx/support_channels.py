"""What the device can do with a constant for each channel: constraints, as in `weft.compiler.onnx.support`."""

from __future__ import annotations

import math

import numpy as np

from weft.compiler.ir.layout import natural, packed
from weft.compiler.onnx.case import Case
from weft.compiler.onnx.qdq import Activation, Constant, Pending, Symbol, is_conv


def addable(case: Case) -> str | None:
    """Add takes two int8 or uint8 activations (one may be constant), or a device value and a constant by channel."""
    kinds = [type(symbol) for symbol in summands(case)]
    if kinds == [Activation, Activation]:
        same = math.prod(case.shape(0)) == math.prod(case.shape(1))
        return None if same else f"shapes are {case.shape(0)} and {case.shape(1)}"
    return _with_constant(case)


def summands(case: Case) -> tuple[Symbol, ...]:
    """The operands of Add; a constant with a value of 8 bits for each element counts as an activation."""
    for index in range(2):
        one, other = case.symbol(index), case.symbol(1 - index)
        if isinstance(one, Activation) and isinstance(other, Constant) and other.activation is not None:
            same = case.shape(index) == case.output and math.prod(case.shape(1 - index)) == math.prod(
                case.output
            )
            if same and channel_constant(case, one, other) is not None:
                return (one, other.activation) if index == 0 else (other.activation, one)
    return case.symbols


def multipliable(case: Case) -> str | None:
    """Mul takes a device value and one constant for each channel."""
    return None if scaling(case) is not None else _with_constant(case)


def divisible(case: Case) -> str | None:
    """Div takes a device value and divides it by one constant for each channel, none of them zero."""
    divisor = case.symbol(1)
    if isinstance(divisor, Constant) and not divisor.floats.all():
        return f"input {case.node.inputs[1]!r} has zeros"
    if not isinstance(divisor, Constant):
        return f"input {case.node.inputs[1]!r} is not constant"
    return multipliable(case)


def scaling(case: Case) -> float | None:
    """The positive constant that a Mul or Div node multiplies a whole activation by, if that is what it does."""
    for index in {"Div": (1,), "Mul": (1, 0)}.get(case.node.op, ()):
        one, constant = case.symbol(1 - index), case.symbol(index)
        if isinstance(one, Activation) and isinstance(constant, Constant) and constant.values.size == 1:
            factor = float(constant.floats.reshape(-1)[0])
            if factor > 0 and math.isfinite(factor) and case.shape(1 - index) == case.output:
                return 1 / factor if case.node.op == "Div" else factor
    return None


def _with_constant(case: Case) -> str | None:
    for one, other in (case.symbols, case.symbols[::-1]):
        if _takes_constants(one) and isinstance(other, Constant):
            return channel_constant(case, one, other)
    return f"inputs are {' and '.join(repr(name) for name in case.node.inputs)}"


def _takes_constants(symbol: Symbol) -> bool:
    """Whether a constant for each channel can go into the convolution that made a value, or into one of its own."""
    return isinstance(symbol, Activation) or (isinstance(symbol, Pending) and is_conv(symbol))


def channel_constant(case: Case, operand: Symbol, value: Constant) -> str | None:
    shape = case.output
    if not np.isfinite(value.floats).all():
        return "the constant is not finite"
    if shape not in (case.shape(0), case.shape(1)):
        return f"the result has shape {shape}"
    axis = channel_axis(shape, operand)
    if axis is None:
        return "the result was reshaped before"
    wanted = [1] * len(shape)
    wanted[axis] = shape[axis]
    full = (1,) * (len(shape) - value.values.ndim) + value.values.shape
    fits = len(full) == len(shape) and all(size in (1, most) for size, most in zip(full, wanted, strict=True))
    return None if fits else f"the constant has shape {value.values.shape}"


def channel_axis(shape: tuple[int, ...], operand: Symbol) -> int | None:
    """The axis of a value of `shape` that is channels on the device; None if no single one is."""
    axis = 1 if len(shape) == 4 else len(shape) - 1
    if not isinstance(operand, Pending):
        return axis
    if operand.layout == packed(shape):
        axis = len(shape) - 1
    elif operand.layout != natural(shape):
        return None
    return axis if operand.ops[0].dst.shape[3] == shape[axis] else None


def batch_norm_operands(case: Case) -> str | None:
    """BatchNormalization takes a device value of two or four dimensions, not reshaped before, and constants."""
    symbol = case.symbol(0)
    if not _takes_constants(symbol):
        return f"input {case.node.inputs[0]!r} is not"
    if channel_axis(case.shape(), symbol) != 1:
        return f"input {case.node.inputs[0]!r} has shape {case.shape()}"
    other = next((index for index in range(1, 5) if not isinstance(case.symbol(index), Constant)), None)
    return None if other is None else f"input {case.node.input(other)!r} is not constant"


def batch_norm_inference(case: Case) -> str | None:
    """BatchNormalization must not be in training, and its factors and offsets must be finite."""
    if case.attribute("training_mode", 0) or len([name for name in case.node.outputs if name]) > 1:
        return "it is in training"
    return None if all(np.isfinite(values).all() for values in affine(case)) else "they are not"


def affine(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Factor and offset of each channel: ``(x - mean) / sqrt(variance + epsilon) * scale + bias``.

    S. Ioffe and C. Szegedy, "Batch Normalization" (2015), arXiv:1502.03167.
    """
    values = []
    for index in range(1, 5):
        symbol = case.symbol(index)
        assert isinstance(symbol, Constant)
        values.append(symbol.floats.reshape(-1).astype(np.float64))
    scale, bias, mean, variance = values
    epsilon = case.attribute("epsilon", 1e-5)
    assert isinstance(epsilon, float)
    with np.errstate(all="ignore"):
        factors = scale / np.sqrt(variance + epsilon)
        return factors, bias - mean * factors
