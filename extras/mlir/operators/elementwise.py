"""Elementwise operations, constants, conversions and quantisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from weft.extras.mlir.builder import compact_equal
from weft.extras.mlir.chains import STORED, find_dequantisation, find_quantisation
from weft.extras.mlir.context import ELEMENTS, Context, Record
from weft.extras.mlir.operators.reductions import recognise_mean, recognise_softmax
from weft.extras.mlir.program import Quantisation


def uniform(context: Context) -> None:
    """Read uniform_quantize and uniform_dequantize."""
    one, result = context.operand().type, context.result().type
    if (context.short == "uniform_quantize") != (result.quantisation is not None):
        raise context.refuse(
            f"makes {result}, which is {'not ' if result.quantisation is None else ''}quantised"
        )
    if context.short == "uniform_dequantize" and one.quantisation is None:
        raise context.refuse(f"is of {one}, which is not quantised")
    if result.quantisation is not None and result.dtype == "int32":
        raise context.refuse("quantises to 32 bits; weft reads 8 and 16")
    name = context.builder.real_value(context.operand())
    context.finish(
        context.emit("Identity", name) if result.quantisation is None and one.quantisation is None else name
    )


def convert(context: Context) -> None:
    """Read convert: integers if a chain of operations quantises, real numbers of stored integers, else Cast."""
    builder, one, result = context.builder, context.operand().type, context.result().type
    if result.quantisation is not None or one.quantisation is not None:
        return uniform(context)
    match = find_quantisation(builder, context.op)
    if match is not None and match.source.type.dtype in ("float32", "int32"):
        name = builder.real_value(match.source)
        if match.source.type.dtype != "int32" or builder.has_real(match.source):
            return context.put(builder.quantise(name, match.quantisation, result.dtype))
    if one.dtype in STORED and one.dtype != "int4" and result.dtype == "float32":
        return context.put(builder.dequantise(context.stored_operand(), unit_quantisation(one.dtype), one))
    if one.dtype == "int32" and result.dtype == "float32" and builder.has_real(context.operand()):
        return context.put(context.emit("Identity", builder.real_value(context.operand()), suffix="float"))
    return context.put(context.emit("Cast", context.stored_operand(), to=ELEMENTS[result.dtype]))


def unit_quantisation(dtype: str) -> Quantisation:
    """Return the quantisation of stored numbers with scale 1 and zero point 0."""
    limits = np.iinfo(dtype)
    return Quantisation(np.ones(1, np.float32), np.zeros(1, np.int64), None, int(limits.min), int(limits.max))


def _convert_fold(context: Context, array: np.ndarray) -> np.ndarray | None:
    """Convert one number. Arrays of stored numbers keep their type, because they may be weights."""
    if array.size > 1 and context.operand().type.dtype in (*STORED, "int32"):
        return None
    return array.astype(context.result().type.dtype)


_BINARY: dict[str, tuple[str, Callable[..., Any]]] = {
    "add": ("Add", np.add), "subtract": ("Sub", np.subtract), "sub": ("Sub", np.subtract),
    "maximum": ("Max", np.maximum), "minimum": ("Min", np.minimum),
    "power": ("Pow", np.power), "pow": ("Pow", np.power),
}  # fmt: skip
_LOGICAL = {"and": "And", "or": "Or", "xor": "Xor"}
_UNARY = {
    "abs": "Abs", "negate": "Neg", "exponential": "Exp", "exp": "Exp", "log": "Log", "tanh": "Tanh",
    "logistic": "Sigmoid", "sigmoid": "Sigmoid", "sqrt": "Sqrt", "floor": "Floor", "ceil": "Ceil", "sine": "Sin",
    "sin": "Sin", "cosine": "Cos", "cos": "Cos", "sign": "Sign", "round_nearest_even": "Round", "erf": "Erf",
    "reciprocal": "Reciprocal", "not": "Not", "logical_not": "Not", "tan": "Tan",
}  # fmt: skip
_DIRECTIONS = {
    "EQ": "Equal",
    "GT": "Greater",
    "GE": "GreaterOrEqual",
    "LT": "Less",
    "LE": "LessOrEqual",
    "NE": "Equal",
}


def constant(context: Context) -> None:
    """Read a constant; for quantised types it has stored numbers."""
    array, type_ = context.attribute("value", "values"), context.result().type
    if not isinstance(array, np.ndarray):
        raise context.refuse("has no elements as dense<...>; print the module with all constants in it")
    if array.dtype.name != type_.dtype or array.shape != type_.shape:
        raise context.refuse(f"has {array.dtype} of shape {array.shape} for {type_}")
    context.builder.arrays[context.result()] = array


def iota(context: Context) -> None:
    """Read iota as a constant: 0, 1, 2, ... along an axis."""
    type_ = context.result().type
    (axis,) = context.axes([context.attribute("dim", "iota_dimension", default=-1)], len(type_.shape), "axis")
    shape = [size if at == axis else 1 for at, size in enumerate(type_.shape)]
    numbers = np.arange(type_.shape[axis]).astype(getattr(ml_dtypes, type_.dtype, type_.dtype)).reshape(shape)
    context.builder.arrays[context.result()] = np.broadcast_to(numbers, type_.shape)


def binary(context: Context) -> None:
    """Read add, subtract, maximum, minimum and power; sums of integer products stay integers if they are read as
    such."""
    operator = _BINARY[context.short][0]
    if context.short in ("add", "subtract", "sub") and _accumulate(context, operator):
        return
    if operator in ("Max", "Min") and _clip(context, operator):
        return
    context.finish(context.emit(operator, *context.broadcast_pair()))


def _accumulate(context: Context, operator: str) -> bool:
    """Read a sum of integer products and a constant, to be emitted as integers or as integral floats."""
    builder, (first, second) = context.builder, context.op.operands
    array = builder.arrays.get(second)
    if not builder.has_real(first) or array is None or array.dtype != np.int32:
        return False
    op = context.op

    def emit_stored() -> str:
        builder.op = op
        return builder.emit(operator, (builder.stored_value(first), builder.constant(compact_equal(array))))

    def emit_real() -> str:
        builder.op = op
        whole = Quantisation(np.ones(1, np.float32), np.zeros(1, np.int64), None, 0, 0)
        other = builder.dequantise(builder.constant(compact_equal(array)), whole, second.type)
        return builder.emit(operator, (builder.real_value(first), other))

    # Only the reader knows the form: a quantisation needs the floats, a host operator the integers.
    builder.set_lazy(context.result(), emit_stored, emit_real)
    return True


def _clip(context: Context, operator: str) -> bool:
    """Read a maximum or minimum with one number as Clip or Relu."""
    for at in (1, 0):
        array = context.array(at)
        if array is None or array.dtype != np.float32 or compact_equal(array).size > 1:
            continue
        value, number = context.builder.real_value(context.operand(1 - at)), compact_equal(array).item()
        if np.isnan(number):
            return False
        bound = context.emit_constant(number, "float32")
        if operator == "Max":
            name = context.emit("Relu", value) if number == 0 else context.emit("Clip", value, bound)
        else:
            name = context.emit("Clip", value, "", bound)
        context.finish(name)
        return True
    return False


def multiply(context: Context) -> None:
    """Read a product; stored integers times their scale are real numbers."""
    match = (
        find_dequantisation(context.builder, context.op) if context.result().type.dtype == "float32" else None
    )
    if match is not None and context.result().type.quantisation is None:
        name = context.builder.stored_value(match.source)
        return context.put(context.builder.dequantise(name, match.quantisation, match.source.type))
    if recognise_mean(context):
        return None
    return context.finish(context.emit("Mul", *context.broadcast_pair()))


def divide(context: Context) -> None:
    """Read a quotient; a sum divided by its count is a mean, exponentials divided by their sum a softmax."""
    if recognise_softmax(context) or recognise_mean(context):
        return
    context.finish(context.emit("Div", *context.broadcast_pair()))


def unary(context: Context) -> None:
    """Read a function of each element."""
    operator = _UNARY[context.short]
    if operator == "Not" and context.result().type.dtype != "bool":
        raise context.refuse("is of integers; weft reads it of i1")
    context.finish(context.emit(operator, context.numeric_operand(0)))


def composite(context: Context) -> None:
    """Read functions that ONNX writes as two operators."""
    x = context.real_operand()
    if context.short == "rsqrt":
        result = context.emit("Reciprocal", context.emit("Sqrt", x, suffix="root"))
    else:
        one = context.emit_constant(1, context.result().type.dtype)
        if context.short == "erfc":
            result = context.emit("Sub", one, context.emit("Erf", x, suffix="erf"))
        elif context.short == "log_plus_one":
            result = context.emit("Log", context.emit("Add", x, one, suffix="add"))
        else:
            result = context.emit("Sub", context.emit("Exp", x, suffix="exp"), one)
    context.finish(result)


def logical(context: Context) -> None:
    """Read and, or, xor: of truth values, or bitwise."""
    operator = _LOGICAL[context.short]
    if context.result().type.dtype != "bool":
        operator = f"Bitwise{operator}"
    context.put(context.emit(operator, context.numeric_operand(0), context.numeric_operand(1)))


def compare(context: Context) -> None:
    text = context.attribute("comparison_direction", default=(context.attribute("words") or [""])[0])
    direction = str(text).split()[-1].strip("<>") if str(text).split() else ""
    if direction not in _DIRECTIONS:
        raise context.refuse(f"has direction {direction[:20]!r}; expected one of {', '.join(_DIRECTIONS)}")
    result = context.emit(_DIRECTIONS[direction], context.numeric_operand(0), context.numeric_operand(1))
    context.put(context.emit("Not", result, suffix="not") if direction == "NE" else result)


def select(context: Context) -> None:
    if context.operand(0).type.dtype != "bool":
        raise context.refuse(f"has a condition of {context.operand(0).type.dtype}; it must be i1")
    context.finish(
        context.emit(
            "Where", context.stored_operand(0), context.numeric_operand(1), context.numeric_operand(2)
        )
    )


def clamp(context: Context) -> None:
    arrays = [context.array(at) for at in (0, 2)]
    ends = [None if end is None else compact_equal(end) for end in arrays]
    x = context.numeric_operand(1)
    if all(end is not None and end.size == 1 for end in ends):
        low, high = (context.builder.constant(end.reshape(())) for end in ends if end is not None)
        return context.finish(context.emit("Clip", x, low, high))
    lower = context.emit("Max", x, context.numeric_operand(0), suffix="max")
    return context.finish(context.emit("Min", lower, context.numeric_operand(2)))


def identity(context: Context) -> None:
    context.put(context.emit("Identity", context.stored_operand()))


def _fold(function: Callable[..., Any]) -> Callable[..., np.ndarray]:
    """Return a numpy function as a fold that keeps small integer types."""

    def fold(context: Context, *operands: np.ndarray) -> np.ndarray:
        result: np.ndarray = function(*operands)
        return result.astype(operands[0].dtype, copy=False)

    return fold


def _divide_fold(context: Context, one: np.ndarray, other: np.ndarray) -> np.ndarray:
    if np.issubdtype(one.dtype, np.integer):
        if not other.all():
            raise context.refuse("divides integers by zero")
        # StableHLO divides integers towards 0; numpy's // rounds down.
        return (np.sign(one) * np.sign(other) * (np.abs(one) // np.abs(other))).astype(one.dtype)
    return (one / other).astype(one.dtype, copy=False)


def _clamp_fold(context: Context, least: np.ndarray, value: np.ndarray, most: np.ndarray) -> np.ndarray:
    rank = value.ndim
    # Bounds may be scalars while the value has axes.
    low, high = (end.reshape((1,) * rank) if not end.ndim else end for end in (least, most))
    return np.minimum(np.maximum(value, low), high)


_FOLDS: dict[str, Callable[..., Any]] = {
    "abs": np.abs, "negate": np.negative, "sqrt": np.sqrt, "exponential": np.exp, "floor": np.floor, "ceil": np.ceil,
    "round_nearest_even": np.rint, "sign": np.sign,
}  # fmt: skip
_HLO, _CHLO, _TOSA = "stablehlo.", "chlo.", "tosa."

OPERATORS = (
    Record((_HLO + "constant", _TOSA + "const", _TOSA + "const_shape"), (0, 0), "a constant", constant),
    Record((_HLO + "iota",), (0, 0), "a constant", iota),
    *(
        Record((_HLO + name,), (2, 2), _BINARY[name][0], binary, _fold(_BINARY[name][1]))
        for name in ("add", "subtract", "maximum", "minimum", "power")
    ),
    Record((_HLO + "multiply",), (2, 2), "Mul, real numbers, ReduceMean", multiply, _fold(np.multiply)),
    Record((_HLO + "divide",), (2, 2), "Div, ReduceMean, AveragePool, Softmax", divide, _divide_fold),
    *(
        Record((_HLO + name,), (1, 1), _UNARY[name], unary, _fold(_FOLDS[name]) if name in _FOLDS else None)
        for name in (
            "abs",
            "negate",
            "exponential",
            "log",
            "tanh",
            "logistic",
            "sqrt",
            "floor",
            "ceil",
            "sine",
            "cosine",
            "sign",
            "round_nearest_even",
            "not",
            "tan",
        )
    ),
    Record((_CHLO + "erf",), (1, 1), "Erf", unary),
    *(
        Record((_TOSA + name,), (1, 1), _UNARY[name], unary)
        for name in (
            "abs",
            "exp",
            "log",
            "tanh",
            "sigmoid",
            "floor",
            "ceil",
            "sin",
            "cos",
            "erf",
            "reciprocal",
            "logical_not",
        )
    ),
    Record((_TOSA + "pow",), (2, 2), "Pow", binary),
    Record((_HLO + "rsqrt", _TOSA + "rsqrt"), (1, 1), "Sqrt, Reciprocal", composite),
    Record((_CHLO + "erfc",), (1, 1), "Erf, Sub", composite),
    Record((_HLO + "log_plus_one", _HLO + "exponential_minus_one"), (1, 1), "Log, Exp", composite),
    Record((_HLO + "and", _HLO + "or", _HLO + "xor"), (2, 2), "And, Or, Xor", logical),
    Record((_HLO + "compare",), (2, 2), "Equal, Greater, Less and their kin", compare),
    Record((_HLO + "select",), (3, 3), "Where", select),
    Record((_HLO + "clamp",), (3, 3), "Clip", clamp, _clamp_fold),
    Record((_HLO + "optimization_barrier", _TOSA + "identity"), (1, 1), "Identity", identity),
    Record(("stablehlo.uniform_quantize",), (1, 1), "integers", uniform),
    Record(("stablehlo.uniform_dequantize",), (1, 1), "real numbers", uniform),
    Record(("stablehlo.convert",), (1, 1), "Cast, integers, or real numbers", convert, _convert_fold),
)
