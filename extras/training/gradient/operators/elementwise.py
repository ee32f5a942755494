"""Elementwise operators as expressions."""

from __future__ import annotations

import math

from weft.extras.training.gradient.expression import Expression, apply, number
from weft.extras.training.gradient.meaning import FLOATS, Context, elementwise, handles

_SAME = {
    "Relu": "relu", "Sigmoid": "sigmoid", "Tanh": "tanh", "Erf": "erf", "Exp": "exp", "Log": "log", "Sqrt": "sqrt",
    "Reciprocal": "reciprocal", "Neg": "neg", "Abs": "abs", "Sign": "sign", "Softplus": "softplus",
    "Softsign": "softsign", "Sin": "sin", "Cos": "cos",
}  # fmt: skip
_PAIRS = {"Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div"}
_MANY = {"Max": "maximum", "Min": "minimum", "Sum": "add"}


@handles(*_SAME)
def _unary(context: Context) -> Expression:
    return apply(_SAME[context.node.op], context.x)


@handles(*_PAIRS)
def _pair(context: Context) -> Expression:
    return elementwise(_PAIRS[context.node.op], context.x, context.operand(1))


@handles(*_MANY)
def _several(context: Context) -> Expression:
    return _apply_to_all(context, _MANY[context.node.op])


@handles("Mean")
def _mean_of(context: Context) -> Expression:
    return apply("mul", _apply_to_all(context, "add"), 1 / len(context.inputs))


def _apply_to_all(context: Context, function: str) -> Expression:
    result = context.x
    for index in range(1, len(context.inputs)):
        result = elementwise(function, result, context.operand(index))
    return result


@handles("Identity", "Dropout")
def _same(context: Context) -> Expression:
    return context.x


@handles("Cast")
def _cast(context: Context) -> Expression:
    kind = context.network.type_of(context.node.outputs[0])
    if kind is None or kind.dtype not in FLOATS:
        raise context.refuse("where it makes integers")
    return context.x


@handles("Clip")
def _clip(context: Context) -> Expression:
    ends = (context.constant_input(at, name) for at, name in ((1, "min"), (2, "max")))
    low, high = (None if end is None else end.reshape(()) for end in ends)
    result = context.x
    if low is not None and float(low) == 0.0:
        result = apply("relu", result)
    elif low is not None:
        result = apply("maximum", result, float(low))
    return result if high is None else apply("minimum", result, float(high))


@handles("LeakyRelu")
def _leaky(context: Context) -> Expression:
    return _two_slopes(context.x, number(context.get("alpha", 0.01)))


@handles("PRelu")
def _prelu(context: Context) -> Expression:
    below = apply("neg", apply("relu", apply("neg", context.x)))
    return elementwise("add", apply("relu", context.x), elementwise("mul", below, context.operand(1)))


def _two_slopes(x: Expression, slope: Expression) -> Expression:
    below = apply("neg", apply("relu", apply("neg", x)))
    return apply("add", apply("relu", x), apply("mul", below, slope))


@handles("Elu", "Selu", "Celu")
def _elu(context: Context) -> Expression:
    # ONNX's defaults: those of Selu keep mean and variance of the activations.
    selu = context.node.op == "Selu"
    alpha = context.get("alpha", 1.6732632423543772 if selu else 1.0)
    gamma = context.get("gamma", 1.0507009873554805) if selu else 1.0
    inner = 1 / alpha if context.node.op == "Celu" else 1.0
    below = apply("minimum", apply("mul", context.x, inner), 0.0)
    grown = apply("mul", apply("sub", apply("exp", below), 1.0), alpha)
    return apply("mul", apply("add", apply("relu", context.x), grown), gamma)


@handles("HardSigmoid", "HardSwish")
def _hard(context: Context) -> Expression:
    swish = context.node.op == "HardSwish"
    alpha = 1 / 6 if swish else context.get("alpha", 0.2)
    beta = 0.5 if swish else context.get("beta", 0.5)
    line = apply("add", apply("mul", context.x, alpha), beta)
    gate = apply("minimum", apply("relu", line), 1.0)
    return apply("mul", context.x, gate) if swish else gate


@handles("Gelu")
def _gelu(context: Context) -> Expression:
    x = context.x
    if context.get("approximate", "none") == "tanh":
        cube = apply("mul", apply("mul", x, x), x)
        inner = apply("mul", apply("add", x, apply("mul", cube, 0.044715)), math.sqrt(2 / math.pi))
        gate = apply("tanh", inner)
    else:
        gate = apply("erf", apply("mul", x, math.sqrt(0.5)))
    return apply("mul", apply("mul", x, 0.5), apply("add", gate, 1.0))


@handles("Swish")
def _swish(context: Context) -> Expression:
    gate = apply("sigmoid", apply("mul", context.x, context.get("alpha", 1.0)))
    return apply("mul", context.x, gate)


@handles("Mish")
def _mish(context: Context) -> Expression:
    return apply("mul", context.x, apply("tanh", apply("softplus", context.x)))


@handles("Pow")
def _power(context: Context) -> Expression:
    exponent = context.constant_input(1)
    if exponent is None or exponent.size != 1:
        raise context.refuse("where the exponent is not one number")
    value, x = float(exponent.reshape(())), context.x
    if value == 2.0:
        return apply("mul", x, x)
    if value == 0.5:
        return apply("sqrt", x)
    # The logarithm below needs positive numbers; products do not.
    if value == int(value) and 0 < value <= 8:
        result = x
        for _ in range(int(value) - 1):
            result = apply("mul", result, x)
        return result
    return apply("exp", apply("mul", apply("log", x), value))
