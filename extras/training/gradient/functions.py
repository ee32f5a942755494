"""Functions of one element or two: what they are in numpy, which operator of ONNX they are, and their derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from weft.extras.training.gradient.expression import Expression

Partials = Callable[..., tuple["Expression | None", ...]]
_erf = np.vectorize(math.erf, otypes=[np.float64])


@dataclass(frozen=True)
class Function:
    """A function of elements.

    Attributes
    ----------
    evaluate : function
        By the operands as float64 arrays.
    operators : tuple of str
        Operators of ONNX, one behind the other, that compute it; some with a second operand, a number.
    partials : function
        The derivatives by each operand as expressions, by the result and the operands; None for 0.
    """

    evaluate: Callable[..., np.ndarray]
    operators: tuple[str, ...]
    partials: Partials


def _call(name: str, *operands: Expression | float) -> Expression:
    from weft.extras.training.gradient.expression import apply

    return apply(name, *operands)


def _none(out: Expression, *operands: Expression) -> tuple[None, ...]:
    return (None,) * len(operands)


def _one() -> Expression:
    return _call("mul", 1.0)


def _chosen(out: Expression, a: Expression, b: Expression) -> tuple[Expression, Expression]:
    """Of a maximum or minimum: what is equal to the result has the gradient."""
    return _call("is_zero", _call("sub", out, a)), _call("is_zero", _call("sub", out, b))


def _softsign(out: Expression, x: Expression) -> tuple[Expression]:
    below = _call("add", _call("abs", x), 1.0)
    return (_call("reciprocal", _call("mul", below, below)),)


FUNCTIONS: dict[str, Function] = {
    "add": Function(np.add, ("Add",), lambda out, a, b: (_one(), _one())),
    "sub": Function(np.subtract, ("Sub",), lambda out, a, b: (_one(), _call("neg", _one()))),
    "mul": Function(np.multiply, ("Mul",), lambda out, a, b: (b, a)),
    "div": Function(
        np.divide, ("Div",),
        lambda out, a, b: (_call("reciprocal", b), _call("neg", _call("div", out, b))),
    ),
    "maximum": Function(np.maximum, ("Max",), _chosen),
    "minimum": Function(np.minimum, ("Min",), _chosen),
    "is_zero": Function(lambda x: (x == 0).astype(np.float64), ("Abs", "Sign", "Neg", "Add 1"), _none),
    "neg": Function(np.negative, ("Neg",), lambda out, x: (_call("neg", _one()),)),
    "abs": Function(np.abs, ("Abs",), lambda out, x: (_call("sign", x),)),
    "sign": Function(np.sign, ("Sign",), _none),
    "step": Function(lambda x: (x > 0).astype(np.float64), ("Relu", "Sign"), _none),
    "exp": Function(np.exp, ("Exp",), lambda out, x: (out,)),
    "log": Function(np.log, ("Log",), lambda out, x: (_call("reciprocal", x),)),
    "sqrt": Function(np.sqrt, ("Sqrt",), lambda out, x: (_call("mul", _call("reciprocal", out), 0.5),)),
    "reciprocal": Function(
        np.reciprocal, ("Reciprocal",), lambda out, x: (_call("neg", _call("mul", out, out)),)
    ),
    "relu": Function(lambda x: np.maximum(x, 0.0), ("Relu",), lambda out, x: (_call("step", out),)),
    "sigmoid": Function(
        lambda x: 0.5 * (1 + np.tanh(0.5 * x)), ("Sigmoid",),
        lambda out, x: (_call("mul", out, _call("sub", 1.0, out)),),
    ),
    "tanh": Function(
        np.tanh, ("Tanh",), lambda out, x: (_call("sub", 1.0, _call("mul", out, out)),)
    ),
    "erf": Function(
        _erf, ("Erf",),
        lambda out, x: (
            _call("mul", _call("exp", _call("neg", _call("mul", x, x))), 2 / math.sqrt(math.pi)),
        ),
    ),
    "softplus": Function(
        lambda x: np.logaddexp(x, 0.0), ("Softplus",), lambda out, x: (_call("sigmoid", x),)
    ),
    "softsign": Function(lambda x: x / (1 + np.abs(x)), ("Softsign",), _softsign),
    "sin": Function(np.sin, ("Sin",), lambda out, x: (_call("cos", x),)),
    "cos": Function(np.cos, ("Cos",), lambda out, x: (_call("neg", _call("sin", x)),)),
}  # fmt: skip
"""By the names that expressions have for them."""
