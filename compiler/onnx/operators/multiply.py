"""Mul and Div by constants and activations; products with constant matrices and of two activations."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from weft.compiler.ir.graph import Multiply
from weft.compiler.ir.layout import row_major_layout
from weft.compiler.ir.products import Counts, Product
from weft.compiler.ir.windows import Window
from weft.compiler.onnx.attention import (
    MAX_HEAD_SIZE,
    MAX_ROW,
    Find,
    Operand,
    heads_become_columns,
    heads_layout,
    splits,
)
from weft.compiler.onnx.conditions import (
    activation,
    bias_constant,
    input_quantised,
    multipliers,
    weights_constant,
    weights_per_output,
)
from weft.compiler.onnx.convolutions import (
    channel_operands,
    constant_factor,
    pair_operands,
    product_of,
    same_order,
    with_constant,
)
from weft.compiler.onnx.operator import NodeContext, Operator
from weft.compiler.onnx.operators.normalised_rows import scales_rows
from weft.compiler.onnx.qdq import Activation, Constant, Pending, Symbol, Tensor, as_activation, result
from weft.compiler.onnx.reorder import to_layout, to_row_major
from weft.compiler.onnx.selections import Operands, operands


def multipliable(context: NodeContext) -> str | None:
    """Mul and Div need a device value and one constant per channel."""
    return None if constant_factor(context) is not None else channel_operands(context)


def _both_activations(context: NodeContext) -> bool:
    return all(isinstance(symbol, Activation) for symbol in pair_operands(context)) and not scales_rows(
        context
    )


def pairs(context: NodeContext) -> str | None:
    """One of the two int8 or uint8 activations of Mul may broadcast."""
    pair = operands(context)
    return pair if isinstance(pair, str) else None


def product(context: NodeContext) -> Symbol:
    """Return the device's Multiply."""
    pair = operands(context)
    assert isinstance(pair, Operands)
    a, b = pair.quants
    op = Multiply(context.node.name, *pair.views, result(pair.shape), a.scale * b.scale, a.zero, b.zero)
    return Pending((op,), pair.layout, pair.tensors, (context.node.index,))


def divisible(context: NodeContext) -> str | None:
    """Div needs a device value and one non-zero constant per channel as its divisor."""
    divisor = context.symbol(1)
    if isinstance(divisor, Constant) and not divisor.floats.all():
        return f"input {context.node.inputs[1]!r} has zeros"
    if not isinstance(divisor, Constant):
        return f"input {context.node.inputs[1]!r} is not constant"
    return multipliable(context)


def multiply(context: NodeContext) -> Symbol:
    """Return Mul or Div; a scalar constant only changes the scale."""
    factor = constant_factor(context)
    for operand, value in (context.symbols, context.symbols[::-1]):
        if factor is not None and isinstance(operand, Activation):
            tensor = dataclasses.replace(operand.tensor, via=(*operand.tensor.via, context.node.index))
            return Activation(tensor, dataclasses.replace(operand.quant, scale=operand.quant.scale * factor))
        if isinstance(value, Constant):
            inverse = (
                Constant(1 / value.floats, np.ones(1), exact=True) if context.node.op == "Div" else value
            )
            return with_constant(context, operand, inverse)
    raise AssertionError("the constraints exclude all other products")


MULTIPLY_OPERATORS = (
    Operator(("Mul",), (pairs, multipliers), product, applies=_both_activations),
    Operator(("Div",), (divisible, same_order), multiply),
    Operator(("Mul",), (multipliable, same_order), multiply),
)


def product_input(context: NodeContext) -> str | None:
    """The first operand of a matrix product must have rank 2 or more."""
    return None if len(context.shape()) >= 2 else f"it has shape {context.shape()}"


def weights_matrix(context: NodeContext) -> str | None:
    """The second operand of a matrix product must be a matrix."""
    return None if len(context.shape(1)) == 2 else f"it has shape {context.shape(1)}"


def row_order(context: NodeContext) -> str | None:
    """Rows of a matrix product's input must be contiguous and in one order, if necessary after at most 256 copies."""
    return None if product_rows(context) is not None else f"input {context.node.inputs[0]!r}"


def product_rows(context: NodeContext) -> tuple[Tensor, np.ndarray] | None:
    """Return the first operand of a matrix product as rows, and the order of their elements (`Layout.row_order`)."""
    symbol = context.symbol(0)
    assert isinstance(symbol, Activation)
    for tensor in (symbol.tensor, to_row_major(symbol.tensor, context.shape())):
        order = None if tensor is None else tensor.layout.row_order(math.prod(context.shape()[:-1]))
        if tensor is not None and order is not None:
            return tensor, order
    return None


def plain_product(context: NodeContext) -> str | None:
    """Gemm must have transA 0, alpha 1 and beta 1."""
    for key, value in (("transA", 0), ("alpha", 1.0), ("beta", 1.0)):
        if context.attribute(key, value) != value:
            return f"{key} is {context.attribute(key)}"
    return None


def matrix_product(context: NodeContext) -> Symbol:
    """Return Gemm or MatMul with a constant matrix as a 1x1 convolution, its columns in the input's order."""
    source = activation(context)
    weight = context.symbol(1)
    assert isinstance(weight, Constant)
    product_input_rows = product_rows(context)
    assert product_input_rows is not None
    tensor, order = product_input_rows
    # Reordering first and then transposing is much faster than both at once.
    rows = weight.values[:, order] if context.attribute("transB", 0) else weight.values[order].T
    values = np.ascontiguousarray(rows)[:, None, None, :]
    view = tensor.view((1, 1, math.prod(context.shape()[:-1]), context.shape()[-1]))
    return product_of(
        context, tensor, view, source.quant, values, weight, Window(), row_major_layout(context.output)
    )


_MATRIX = (product_input, input_quantised, weights_constant, weights_matrix, weights_per_output, row_order)

MATRIX_PRODUCT_OPERATORS = (
    Operator(("Gemm",), (*_MATRIX, plain_product, bias_constant), matrix_product),
    Operator(("MatMul",), _MATRIX, matrix_product),
)


NOT_FUSED = "not part of a fused attention: {}"
"""Note on products that start no attention, with the obstacle."""


@dataclass(frozen=True)
class _Solution:
    """Both operands on the device: matrices for each image and head; an operand may have fewer of them."""

    counts: Counts
    own: tuple[Counts, Counts]
    rows: int
    transposed: tuple[bool, bool]
    tensors: tuple[Tensor, Tensor]
    shapes: tuple[tuple[int, int, int, int], tuple[int, int, int, int]]


def _operand(context: NodeContext, index: int) -> Activation | None:
    """Return an input as an activation; an 8-bit constant with one scale counts."""
    symbol = as_activation(context.symbol(index))
    return symbol if isinstance(symbol, Activation) else None


def _applies(context: NodeContext) -> bool:
    """Return whether at least one matrix of a product is an activation, and the other is no plain weight matrix."""
    kinds = [type(symbol) for symbol in context.symbols]
    if kinds == [Activation, Activation]:
        return context.alone is not None
    return kinds == [Constant, Activation] or (kinds == [Activation, Constant] and len(context.shape(1)) > 2)


def both_quantised(context: NodeContext) -> str | None:
    """The matrices must be int8 or uint8 activations, or 8-bit constants with one scale."""
    wrong = [name for index, name in enumerate(context.node.inputs) if _operand(context, index) is None]
    return f"input {wrong[0]!r} is not" if wrong else None


def both_matrices(context: NodeContext) -> str | None:
    """Both operands must have rank 2 or more."""
    shapes = context.shape(0), context.shape(1)
    return None if min(map(len, shapes)) >= 2 else f"shapes are {shapes[0]} and {shapes[1]}"


def batches(context: NodeContext) -> str | None:
    """One operand may only broadcast over all batches, or over the last of its leading dimensions."""
    return None if any(_counts(context)) else f"shapes are {context.shape(0)} and {context.shape(1)}"


def lengths(context: NodeContext) -> str | None:
    """Rows of both matrices must have at most 32767 elements, and rows of all heads together at most 65535."""
    sizes = context.shape(0)[-1], context.shape(1)[-1]
    rows = [
        operand.tensor.layout.nhwc[3]
        for index in range(2)
        if (operand := _operand(context, index)) is not None
    ]
    supported = max(sizes) <= MAX_HEAD_SIZE and max(rows) <= MAX_ROW
    return None if supported else f"they have {sizes[0]} and {sizes[1]}, of {max(rows)}"


def matrix_order(context: NodeContext) -> str | None:
    """Rows of the first matrix and columns of the second (with softmax: or rows) must be contiguous, or be copied."""
    return None if next(_solutions(context), None) is not None else f"inputs {context.inputs}"


def _counts(context: NodeContext) -> Iterator[tuple[Counts, Counts, Counts]]:
    """Yield (images, heads) of the result and of both operands, for every way to see the leading dimensions."""
    leads = context.shape(0)[:-2], context.shape(1)[:-2]
    full = context.output[:-2]
    if leads[0] == leads[1]:
        for images, heads, _ in splits(full):
            yield ((images, heads),) * 3
        return
    padded = [(1,) * (len(full) - len(lead)) + lead for lead in leads]
    for at in range(len(full) + 1):
        own = [_part(lead, full, at) for lead in padded]
        if own[0] is not None and own[1] is not None:
            yield (math.prod(full[:at]), math.prod(full[at:])), own[0], own[1]


def _part(lead: tuple[int, ...], full: tuple[int, ...], at: int) -> Counts | None:
    """Return an operand's images before axis `at` and heads after it; None if it broadcasts in another way."""
    images, heads = lead[:at], lead[at:]
    rank = len(heads)
    while rank and heads[rank - 1] == 1:
        rank -= 1
    equal_or_one = images == full[:at] or math.prod(images) == 1
    return (
        (math.prod(images), math.prod(heads))
        if equal_or_one and heads[:rank] == full[at : at + rank]
        else None
    )


def _solutions(context: NodeContext) -> Iterator[_Solution]:
    """Yield solutions without copies, then solutions that copy operands into a suitable order."""
    a, b = _operand(context, 0), _operand(context, 1)
    assert a is not None
    assert b is not None
    (*lead, rows, depth), columns = context.shape(0), context.shape(1)[-1]
    counts = list(_counts(context))
    if math.prod(context.shape(1)[:-2]) == 1:  # one second matrix: all first matrices are rows of one
        rows, counts = rows * math.prod(lead), [((1, 1), (1, 1), (1, 1))]
    firsts, seconds = [Operand(a, "ihsd", rows, depth)], [Operand(b, "ihds", columns, depth)]
    if context.model.config.softmax:  # only then LOAD can transpose
        firsts.append(Operand(a, "ihds", depth, rows))
        seconds.append(Operand(b, "ihsd", depth, columns))
    finds: tuple[Find, ...] = (Tensor.in_layout, to_layout)
    for find, (full, first, second), one, other in itertools.product(finds, counts, firsts, seconds):
        left, right = one.find_layout(*first, find), other.find_layout(*second, find)
        if left is not None and right is not None:
            tensors, shapes = (left[0], right[0]), (left[1], right[1])
            transposed = one.axes == "ihds", other.axes == "ihds"
            yield _Solution(full, (first, second), rows, transposed, tensors, shapes)


def product_of_activations(context: NodeContext) -> Pending:
    """Return the device's Product; with heads side by side if the model moves them there next."""
    solution = next(_solutions(context))
    quants = [activation.quant for index in range(2) if (activation := _operand(context, index)) is not None]
    beside = len(context.output) > 2 and heads_become_columns(context.model, context.node.outputs[0])
    layout = heads_layout(
        "ihsd", "ishd" if beside else "ihsd", *solution.counts, solution.rows, context.output[-1]
    )
    (a, b), (a_shape, b_shape) = solution.tensors, solution.shapes
    op = Product(
        context.node.name, a.view(a_shape), b.view(b_shape), result(layout.nhwc), solution.counts, *solution.own,
        solution.transposed[1], quants[0].scale * quants[1].scale, quants[0].zero, quants[1].zero,
        a_transposed=solution.transposed[0],
    )  # fmt: skip
    notes = (NOT_FUSED.format(context.alone),) if context.alone else ()
    return Pending((op,), layout, solution.tensors, (context.node.index,), notes=notes)


PRODUCT_OF_ACTIVATIONS_OPERATORS = (
    Operator(
        ("MatMul",),
        (both_quantised, both_matrices, batches, lengths, matrix_order),
        product_of_activations,
        applies=_applies,
        title="MatMul of two activations",
    ),
)


OPERATORS = (*MATRIX_PRODUCT_OPERATORS, *MULTIPLY_OPERATORS, *PRODUCT_OF_ACTIVATIONS_OPERATORS)
