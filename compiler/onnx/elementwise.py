"""Search for elementwise functions of one quantised value among a node's inputs, and so for its result."""

from __future__ import annotations

import numpy as np

from weft.compiler.onnx.functions import Function, key_of
from weft.compiler.onnx.operator import NodeContext
from weft.compiler.onnx.operators.move import permutation, transpose
from weft.compiler.onnx.qdq import Activation, Constant, Symbol, Tensor

PLAIN = (
    "Abs", "Acos", "Acosh", "And", "Asin", "Asinh", "Atan", "Atanh", "Cast", "Ceil", "Celu", "Cos", "Cosh", "Elu",
    "Equal", "Erf", "Exp", "Floor", "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "IsInf", "IsNaN",
    "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Mean", "Min", "Mish", "Mod", "Neg", "Not", "Or", "PRelu", "Pow",
    "Reciprocal", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Sub",
    "Sum", "Swish", "Tan", "Tanh", "ThresholdedRelu", "Where", "Xor",
    "ai.onnx.ml.LabelEncoder", "com.microsoft.FastGelu", "com.microsoft.Gelu", "com.microsoft.QuickGelu",
)  # fmt: skip
"""Elementwise operators that the device computes only with look-up tables."""
ARITHMETIC = ("Add", "Clip", "Div", "Mul", "Relu")
"""Elementwise operators for which the device has other operators too."""
MOVES = ("Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
"""Operators that move elements without a change."""
_FLOATS = ("float16", "float32", "float64", "bool")
"""Result types of functions."""
ROOTS = 16
"""Most roots per value: branches that meet may have a Q/DQ pair after every operator."""
LENGTH = 128
"""Most nodes between a root and a value."""

Functions = tuple[Function, ...]
"""One value as functions of several roots, the nearest root first."""


def value_functions(name: str, symbol: Symbol, known: Functions) -> Functions:
    """Return all functions that value `name` equals: of itself if a device buffer holds it, and `known`."""
    if isinstance(symbol, Activation) and not known:
        return (Function(symbol.tensor, frozenset((name,)), quant=symbol.quant),)
    if not isinstance(symbol, Tensor) or symbol.index:  # the model computes with int64 indices
        return known
    own = Function(symbol, frozenset((name,)))
    return (own, *(function for function in known if function.key != own.key))[:ROOTS]


def result_functions(context: NodeContext) -> Functions:
    """Return the functions that a node's result equals."""
    node = context.node
    if node.op in MOVES:
        moved = (_move(context, function) for function in context.arguments[0])
        return tuple(function for function in moved if function is not None)
    if node.op not in (*PLAIN, *ARITHMETIC) or any(node.outputs[1:]) or context.result_dtype() not in _FLOATS:
        return ()
    functions = []
    for key in dict.fromkeys(function.key for inputs in context.arguments for function in inputs):
        arguments = [_argument(context, index, key) for index in range(len(node.inputs))]
        if any(name and item is None for name, item in zip(node.inputs, arguments, strict=True)):
            continue
        function = _apply(context, tuple(arguments))
        if len(function.nodes) <= LENGTH:
            functions.append(function)
    return tuple(sorted(functions, key=lambda function: len(function.nodes))[:ROOTS])


def _move(context: NodeContext, function: Function) -> Function | None:
    root = _transpose_root(context, function) if context.node.op == "Transpose" else function.root
    return None if root is None or len(function.nodes) >= LENGTH else function.after_move(root, context.node)


def _transpose_root(context: NodeContext, function: Function) -> Tensor | None:
    """Return a function's root after a Transpose; None if no layout describes its elements then."""
    root, symbol, shape = function.root, context.symbol(0), context.shape()
    if isinstance(symbol, Activation) and key_of(symbol.tensor) == function.key:
        moved = transpose(context)
        return moved if isinstance(moved, Tensor) else None
    layout = root.layout.transpose(shape, permutation(context))
    return None if layout is None else root.transpose(shape, permutation(context), layout)


def _argument(context: NodeContext, index: int, key: tuple[object, ...]) -> Function | np.ndarray | None:
    """Return an input as a function of root `key`, or as one number; None if it is neither."""
    name = context.node.inputs[index]
    for function in context.arguments[index]:
        if function.key == key and context.shape(index) == context.output:
            return function
    constant, symbol = context.model.constants.get(name), context.symbol(index)
    quantisation = context.model.quantisation(context.node, name)
    if constant is None and isinstance(symbol, Constant) and quantisation is not None:
        constant = symbol.floats.astype(quantisation.scales.dtype)
    return constant.reshape(()) if constant is not None and constant.size == 1 else None


def _apply(context: NodeContext, arguments: tuple[Function | np.ndarray | None, ...]) -> Function:
    functions = [item for item in arguments if isinstance(item, Function)]
    nodes = {index for item in functions for index in item.nodes}
    sources = frozenset().union(*(item.sources for item in functions))
    path = (*sorted(nodes), context.node.index)
    return Function(functions[0].root, sources, path, context.node, arguments, context.model.network.opsets)
