"""Products of matrices."""

from __future__ import annotations

import math

from weft.compiler.tflite.context import Context
from weft.compiler.tflite.operators.convolutions import bias, weights
from weft.compiler.tflite.record import Record


def fully_connected(context: Context) -> None:
    """Rows of as many elements as the weights take, times the weights' transpose."""
    data, matrix = context.tensor(0), context.tensor(1)
    if context.option("WeightsFormat"):
        raise context.refuse(
            "has shuffled weights, which weft does not read; convert the model with the default format"
        )
    if matrix.rank != 2:
        raise context.refuse(f"has weights of {matrix.rank} dimensions; they must have 2")
    outputs, inputs = matrix.shape
    count = math.prod(data.shape)
    if not inputs or count % inputs:
        raise context.refuse(f"takes rows of {inputs} elements; {data.label} has {count:,}")
    value = _rows(context, (count // inputs, inputs))
    made = context.emit("Gemm", value, weights(context, 1, (0, 1)), *bias(context, 2, 0, 1), transB=1)
    made = context.activated(made)
    if context.output().shape == (count // inputs, outputs):
        return context.finish(made)
    return context.finish_reshaped(made)


def _rows(context: Context, shape: tuple[int, int]) -> str:
    """The first input as a matrix."""
    tensor = context.tensor()
    if tensor.shape == shape:
        return context.real()
    value = context.reshaped(context.stored(), shape)
    if tensor.quantisation is None:
        return value if tensor.dtype.startswith("float") else context.real()
    if not tensor.quantisation.whole:
        raise context.refuse(f"reads {tensor.label}, which has a scale for each element of a dimension")
    return context.builder.dequantised(value, tensor, (0, 1))


def batch_product(context: Context) -> None:
    """Products of the last two axes of both inputs, either of which may be transposed."""
    values = []
    for index, name in enumerate(("AdjX", "AdjY")):
        tensor = context.tensor(index)
        if tensor.rank < 2:
            raise context.refuse(f"takes matrices; {tensor.label} has {tensor.rank} dimensions")
        if context.option(name):
            values.append(
                weights(context, index, (*range(tensor.rank - 2), tensor.rank - 1, tensor.rank - 2))
            )
        else:
            values.append(context.real(index))
    context.finish(context.emit("MatMul", *values))


OPERATORS = (
    Record(("FULLY_CONNECTED",), (2, 3), "Gemm", fully_connected),
    Record(("BATCH_MATMUL",), (2, 2), "MatMul", batch_product),
)
