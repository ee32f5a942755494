"""Between real numbers and stored ones, of StableHLO."""

from __future__ import annotations

import numpy as np

from weft.extras.mlir.chains import STORED, quantisation
from weft.extras.mlir.context import ELEMENTS, Context
from weft.extras.mlir.program import Quantisation
from weft.extras.mlir.record import Record


def uniform(context: Context) -> None:
    """uniform_quantize and uniform_dequantize: real numbers as the result's type has them."""
    one, result = context.operand().type, context.result().type
    if (context.short == "uniform_quantize") != (result.quantisation is not None):
        raise context.refuse(
            f"makes {result}, which is {'not ' if result.quantisation is None else ''}quantised"
        )
    if context.short == "uniform_dequantize" and one.quantisation is None:
        raise context.refuse(f"is of {one}, which is not quantised")
    if result.quantisation is not None and result.dtype == "int32":
        raise context.refuse("quantises to 32 bits; weft reads 8 and 16")
    made = context.builder.real(context.operand())
    context.finish(
        context.emit("Identity", made) if result.quantisation is None and one.quantisation is None else made
    )


def convert(context: Context) -> None:
    """Another type; where that is quantisation written out, a QuantizeLinear, and stored numbers as floats are a
    DequantizeLinear."""
    builder, one, result = context.builder, context.operand().type, context.result().type
    if result.quantisation is not None or one.quantisation is not None:
        return uniform(context)
    found = quantisation(builder, context.op)
    if found is not None and found.source.type.dtype in ("float32", "int32"):
        name = builder.real(found.source)
        if found.source.type.dtype != "int32" or builder.has_reals(found.source):
            return context.put(builder.quantised(name, found.quantisation, result.dtype))
    if one.dtype in STORED and one.dtype != "int4" and result.dtype == "float32":
        return context.put(builder.dequantised(context.stored(), whole(one.dtype), one))
    if one.dtype == "int32" and result.dtype == "float32" and builder.has_reals(context.operand()):
        return context.put(context.emit("Identity", builder.real(context.operand()), suffix="float"))
    return context.put(context.emit("Cast", context.stored(), to=ELEMENTS[result.dtype]))


def whole(dtype: str) -> Quantisation:
    """Stored numbers that stand for themselves."""
    limits = np.iinfo(dtype)
    return Quantisation(np.ones(1, np.float32), np.zeros(1, np.int64), None, int(limits.min), int(limits.max))


def _fold(context: Context, given: np.ndarray) -> np.ndarray | None:
    """One number; stored numbers in a wider type stay stored, as they may be weights."""
    if given.size > 1 and context.operand().type.dtype in (*STORED, "int32"):
        return None
    return given.astype(context.result().type.dtype)


OPERATORS = (
    Record(("stablehlo.uniform_quantize",), (1, 1), "QuantizeLinear", uniform),
    Record(("stablehlo.uniform_dequantize",), (1, 1), "DequantizeLinear", uniform),
    Record(("stablehlo.convert",), (1, 1), "Cast, QuantizeLinear, DequantizeLinear", convert, _fold),
)
