"""Finding functions of one quantised value: what of a node's inputs are such functions, and so its result."""

from __future__ import annotations

import numpy as np

from weft.compiler.onnx.functions import Function, key_of
from weft.compiler.onnx.operator import NodeContext
from weft.compiler.onnx.operators.move import permutation, transposed
from weft.compiler.onnx.qdq import Activation, Constant, Symbol, Tensor

PLAIN = (
    "Abs", "Acos", "Acosh", "And", "Asin", "Asinh", "Atan", "Atanh", "Cast", "Ceil", "Celu", "Cos", "Cosh", "Elu",
    "Equal", "Erf", "Exp", "Floor", "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "IsInf", "IsNaN",
    "LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Mean", "Min", "Mish", "Mod", "Neg", "Not", "Or", "PRelu", "Pow",
    "Reciprocal", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Sub",
    "Sum", "Swish", "Tan", "Tanh", "ThresholdedRelu", "Where", "Xor",
    "ai.onnx.ml.LabelEncoder", "com.microsoft.FastGelu", "com.microsoft.Gelu", "com.microsoft.QuickGelu",
)  # fmt: skip
"""Operators that compute each element of their result of the elements in the same place, and that only tables do."""
ARITHMETIC = ("Add", "Clip", "Div", "Mul", "Relu")
"""The same of operators that the device also has otherwise."""
MOVES = ("Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
"""Operators that move elements, whatever they are."""
_RESULTS = {
    "QuantizeLinear": ("int8", "uint8", "int16", "uint16"),
    "DequantizeLinear": ("float16", "float32", "float64"),
}
_FLOATS = ("float16", "float32", "float64", "bool")
"""Types of the results of other operators."""
ROOTS = 16
"""Most roots that are kept of a value: branches that join may have a Q/DQ pair behind every operator."""
LENGTH = 128
"""Most nodes between a root and a value."""

Functions = tuple[Function, ...]
"""Functions of different roots that one value is, the nearest root first."""


def of_value(name: str, symbol: Symbol, known: Functions) -> Functions:
    """All functions that value `name` is: of itself if it is in a device buffer, or stands for what is, and those
    `known`."""
    if isinstance(symbol, Activation) and not known:
        return (Function(symbol.tensor, frozenset((name,)), quant=symbol.quant),)
    if not isinstance(symbol, Tensor) or symbol.index:  # of indices the model computes in 64 bits
        return known
    own = Function(symbol, frozenset((name,)))
    return (own, *(function for function in known if function.key != own.key))[:ROOTS]


def of_result(context: NodeContext) -> Functions:
    """The functions that the result of a node is."""
    node = context.node
    if node.op in MOVES:
        moved = (_moved(context, function) for function in context.arguments[0])
        return tuple(function for function in moved if function is not None)
    results = _RESULTS.get(node.op, _FLOATS if node.op in (*PLAIN, *ARITHMETIC) else ())
    if any(node.outputs[1:]) or context.model.dtypes.get(node.outputs[0]) not in results:
        return ()
    found = []
    for key in dict.fromkeys(function.key for given in context.arguments for function in given):
        arguments = [_argument(context, index, key) for index in range(len(node.inputs))]
        if any(name and item is None for name, item in zip(node.inputs, arguments, strict=True)):
            continue
        function = _applied(context, tuple(arguments))
        if len(function.nodes) <= LENGTH:
            found.append(function)
    return tuple(sorted(found, key=lambda function: len(function.nodes))[:ROOTS])


def _moved(context: NodeContext, function: Function) -> Function | None:
    """A function behind a node that moves its elements."""
    root = _transposed(context, function) if context.node.op == "Transpose" else function.root
    return None if root is None or len(function.nodes) >= LENGTH else function.moved(root, context.node)


def _transposed(context: NodeContext, function: Function) -> Tensor | None:
    """The root of a function behind a Transpose, None if its elements are then in no layout."""
    root, symbol, shape = function.root, context.symbol(0), context.shape()
    if isinstance(symbol, Activation) and key_of(symbol.tensor) == function.key:
        moved = transposed(context)
        return moved if isinstance(moved, Tensor) else None
    layout = root.layout.transpose(shape, permutation(context))
    return None if layout is None else root.transposed(shape, permutation(context), layout)


def _argument(context: NodeContext, index: int, key: tuple[object, ...]) -> Function | np.ndarray | None:
    """An input as a function of the root `key`, or as one number; None if it is neither."""
    name = context.node.inputs[index]
    for function in context.arguments[index]:
        if function.key == key and context.shape(index) == context.output:
            return function
    constant, symbol = context.model.constants.get(name), context.symbol(index)
    if constant is None and isinstance(symbol, Constant) and name in context.model.dtypes:
        dtype = context.model.dtypes[name]
        constant = symbol.floats.astype(dtype) if dtype in _FLOATS else None
    return constant.reshape(()) if constant is not None and constant.size == 1 else None


def _applied(context: NodeContext, arguments: tuple[Function | np.ndarray | None, ...]) -> Function:
    """The function that a node makes of functions of one root."""
    given = [item for item in arguments if isinstance(item, Function)]
    nodes = {index for item in given for index in item.nodes}
    sources = frozenset().union(*(item.sources for item in given))
    path = (*sorted(nodes), context.node.index)
    return Function(given[0].root, sources, path, context.node, arguments, context.model.network.opsets)
