"""Normalisations that a model writes out: LayerNormalization, RMSNormalization, and division by norms.

Roundings to 8 bits in between are kept: each Q/DQ pair ends an operator of the device, and the next operator reads its
result. So a quantised mean square is a tensor of one channel that scales the elements.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from weft.compiler.ir.layout import Layout
from weft.compiler.kernel.operators import LayerNorm
from weft.compiler.kernel.products import RowNorm, RowProduct, RowScale, RowShare
from weft.compiler.onnx.conditions import activation, input_quantised, kernel_room
from weft.compiler.onnx.operator import QUANTISE, NodeContext, Operator
from weft.compiler.onnx.operators.lookup import per_tensor
from weft.compiler.onnx.operators.reductions import positive
from weft.compiler.onnx.qdq import (
    Activation,
    Pending,
    Recipe,
    RowElements,
    RowNumber,
    Tensor,
    finish,
    result,
)
from weft.compiler.onnx.reorder import to_layout
from weft.compiler.onnx.row_forms import (
    Divisor,
    Rows,
    along,
    divisor_of,
    repeats,
    row_fits,
    rows_of,
    same_values,
)
from weft.compiler.onnx.selections import operands

MOST_OFFSET = 1024
"""Largest offset from the zero point under a root, in steps."""


def row_mean(context: NodeContext) -> str | None:
    """The number that is subtracted from an activation must be its own mean."""
    x, mean = context.symbols
    assert isinstance(x, Activation)
    assert isinstance(mean, RowNumber)
    count = math.prod(mean.shape[axis] for axis in mean.axes)
    is_mean = (mean.total, mean.offset, mean.root, mean.least, mean.gain) == ("sum", 0.0, "", 0.0, 1.0)
    is_mean = is_mean and math.isclose(mean.factor * count, x.quant.scale, rel_tol=1e-4)
    own = is_mean and same_values(x, mean.source) and context.shape(0) == mean.shape == context.output
    fits = own and repeats(context.shape(1), mean.shape, mean.axes)
    return None if fits else f"input {context.node.inputs[1]!r} is not"


def centre(context: NodeContext) -> RowElements:
    """Return an activation less its mean."""
    x, mean = context.symbols
    assert isinstance(x, Activation)
    assert isinstance(mean, RowNumber)
    return RowElements(x, mean.shape, mean.axes, (*mean.nodes, context.node.index))


def row_square(context: NodeContext) -> str | None:
    """Distances from a mean may be squared and divided."""
    symbol, power = context.symbol(0), context.floats(1)
    assert isinstance(symbol, RowElements)
    if symbol.squared:
        supported = False
    elif context.node.op == "Pow":
        supported = power is not None and power.size == 1 and float(power.reshape(-1)[0]) == 2
    else:
        supported = context.node.op == "Mul" and context.symbol(1) is symbol
    return None if supported and context.output == symbol.shape else f"inputs are {context.inputs}"


def square(context: NodeContext) -> RowElements:
    """Return the squares of distances from a mean."""
    symbol = context.symbol(0)
    assert isinstance(symbol, RowElements)
    return dataclasses.replace(symbol, nodes=(*symbol.nodes, context.node.index), squared=True)


def row_norm(context: NodeContext) -> str | None:
    """A row must be divided by a total of its own or of another value's rows, or by the root of such a total."""
    return None if _division(context) is not None else f"inputs are {context.inputs}"


def norm_room(context: NodeContext) -> str | None:
    """Division of rows by a total of other rows needs 'kernel' 128 or more if 'n' is above 16."""
    division, config = _division(context), context.model.config
    assert division is not None
    supported = config.n <= 16 or config.kernel >= 128 or _own_norm(*division[:2]) or _is_share(*division[:2])
    return None if supported else f"'kernel' is {config.kernel}"


@dataclasses.dataclass(frozen=True, eq=False)
class _Parts:
    """Elements of an activation, less its mean if `centre`, that a Mul or Div node changes."""

    source: Activation
    shape: tuple[int, ...]
    centre: bool
    nodes: tuple[int, ...]
    axes: tuple[int, ...] | None


def _parts(context: NodeContext, index: int) -> _Parts | None:
    symbol = context.symbol(index)
    if isinstance(symbol, Activation):
        return _Parts(symbol, context.shape(index), False, (), None)
    if isinstance(symbol, RowElements) and not symbol.squared:
        return _Parts(symbol.source, symbol.shape, True, symbol.nodes, symbol.axes)
    return None


def _sides(context: NodeContext) -> tuple[tuple[int, int], ...]:
    """Return the possible (elements, number) among the inputs, by index."""
    return ((0, 1),) if context.node.op == "Div" else ((0, 1), (1, 0))


def _division(context: NodeContext) -> tuple[_Parts, RowNumber, Rows] | None:
    """Return the elements, the number that divides them, and the elements as rows; None if the node is no such
    division.
    """
    expected_root = "root" if context.node.op == "Div" else "inverse"
    for at, other in _sides(context):
        parts, number = _parts(context, at), context.symbol(other)
        if parts is None or not isinstance(number, RowNumber):
            continue
        if parts.axes not in (None, number.axes) or (parts.shape, context.output) != (
            number.shape,
            number.shape,
        ):
            continue
        shape = context.shape(other)
        if shape != parts.shape and not repeats(shape, parts.shape, number.axes):
            continue
        plain = expected_root == "root" and not number.root and not number.least and _divides_plainly(number)
        if not (number.root == expected_root or plain or _is_share(parts, number)) or number.gain <= 0:
            continue
        rows = rows_of(parts.source.tensor, parts.shape, number.axes)
        return None if rows is None else (parts, number, rows)
    return None


def normalise(context: NodeContext) -> Pending:
    """Return the device's LayerNorm, RowNorm or RowShare."""
    division = _division(context)
    assert division is not None
    parts, number, (tensor, layout, _) = division
    quant, count, used = parts.source.quant, layout.nhwc[3], [tensor]
    views: dict[str, Any] = {"name": context.node.name, "src": tensor.view(), "dst": result(layout.nhwc)}
    fields = views | {"x_zero": quant.zero, "centre": parts.centre}
    gain = quant.scale * (1 / number.gain if context.node.op == "Div" else number.gain)
    op: LayerNorm | RowProduct
    if context.node.op == "Div" and _is_share(parts, number):
        op = RowShare(**fields, gain=gain / number.factor)
    elif _own_norm(parts, number):
        unit, added = number.factor * count, max(number.offset, number.least)
        weight = np.full(count, gain / math.sqrt(unit))
        op = LayerNorm(
            **fields, weight=weight, bias=np.zeros(count), epsilon=added / unit, least=number.least > 0
        )
    else:
        of = rows_of(number.source.tensor, number.shape, number.axes)
        assert of is not None
        used.append(of.tensor)
        op = RowNorm(
            **fields, gain=gain, of=of.tensor.view(), total=number.total, factor=number.factor, offset=number.offset,
            root=number.root and "root", least=number.least, of_zero=number.source.quant.zero,
        )  # fmt: skip
    nodes = (*parts.nodes, *number.nodes, context.node.index)
    return Pending((op,), layout, tuple(used), tuple(dict.fromkeys(nodes)))


def _divides_plainly(number: RowNumber) -> bool:
    """Return whether a total divides as it is: an offset may only prevent a division by 0."""
    return number.total in ("sum", "magnitudes", "largest") and (
        not number.offset or (positive(number) and number.offset <= number.factor / 64)
    )


def _is_share(parts: _Parts, number: RowNumber) -> bool:
    """Return whether a number is the sum of the elements' magnitudes.

    If that is 0, so are the elements, and a lower bound does not matter.
    """
    own = number.total == "magnitudes" and not number.root and same_values(parts.source, number.source)
    return own and not parts.centre and not number.offset and number.least <= number.factor


def _own_norm(parts: _Parts, number: RowNumber) -> bool:
    """Return whether the elements are divided by their own norm."""
    kind = number.total == ("spread" if parts.centre else "squares") and number.root
    return bool(kind) and same_values(parts.source, number.source) and not (number.offset and number.least)


def row_factor(context: NodeContext) -> str | None:
    """A row, of at most an eighth of the scratchpad, may be scaled by a quantised number or the root of one."""
    return None if _factor(context) is not None else f"inputs are {context.inputs}"


def _factor(context: NodeContext) -> tuple[_Parts, Divisor, Rows, Tensor] | None:
    """Return the elements and their factor, and both as rows; None if the node is no such product."""
    for at, other in _sides(context):
        parts = _parts(context, at)
        shape = context.shape(other)
        if parts is None or parts.shape != context.output or len(shape) > len(parts.shape):
            continue
        padded = (1,) * (len(parts.shape) - len(shape)) + shape
        axes = tuple(axis for axis, size in enumerate(padded) if size == 1 < parts.shape[axis])
        axes = axes if parts.axes is None else parts.axes
        if not axes or not repeats(shape, parts.shape, axes):
            continue
        divisor = divisor_of(context, other, divides=context.node.op == "Div")
        if divisor is None or divisor.offset > MOST_OFFSET:
            continue
        rows = rows_of(parts.source.tensor, parts.shape, axes)
        if rows is None or not row_fits(context.model.config, rows.layout.nhwc[3]):
            continue
        all_axes = tuple(range(len(padded)))
        number = to_layout(divisor.tensor, Layout(padded, all_axes, (*rows.layout.nhwc[:3], 1)))
        return None if number is None else (parts, divisor, rows, number)
    return None


def scale(context: NodeContext) -> Pending:
    """Return the device's RowScale."""
    factor = _factor(context)
    assert factor is not None
    parts, divisor, (tensor, layout, _), number = factor
    quant = parts.source.quant
    op = RowScale(
        name=context.node.name, src=tensor.view(), dst=result(layout.nhwc), gain=quant.scale * divisor.gain,
        x_zero=quant.zero, centre=parts.centre, number=number.view(), by=divisor.by, offset=divisor.offset,
        r_zero=divisor.zero,
    )  # fmt: skip
    nodes = (*parts.nodes, *divisor.nodes, context.node.index)
    return Pending((op,), layout, (tensor, number), tuple(dict.fromkeys(nodes)))


def elements_plain(context: NodeContext) -> str | None:
    """Quantised distances from a mean must not be squares."""
    symbol = context.symbol(0)
    assert isinstance(symbol, RowElements)
    rows = None if symbol.squared else rows_of(symbol.source.tensor, symbol.shape, symbol.axes)
    return None if rows is not None else f"input {context.node.inputs[0]!r} is"


def distances(context: NodeContext) -> Recipe:
    """Return the device's RowScale without a number."""
    symbol, node = context.symbol(0), context.node
    assert isinstance(symbol, RowElements)
    rows = rows_of(symbol.source.tensor, symbol.shape, symbol.axes)
    assert rows is not None
    tensor, layout, _ = rows
    op = RowScale(
        name=node.name,
        src=tensor.view(),
        dst=result(layout.nhwc),
        gain=symbol.source.quant.scale,
        centre=True,
    )
    return finish(Pending((op,), layout, (tensor,), symbol.nodes), node.outputs[0], context.quant, node)


def normal_affine(context: NodeContext) -> str | None:
    """After a normalisation, a finite constant that is equal for all rows may be multiplied or added."""
    return None if _constant(context) is not None else f"inputs are {context.inputs}"


def _constant(context: NodeContext) -> tuple[Pending, np.ndarray] | None:
    """Return the normalisation and the constant for each of its elements; None if there is none."""
    for at in (0, 1):
        pending, floats = context.symbol(at), context.floats(1 - at)
        if not isinstance(pending, Pending) or floats is None or not np.isfinite(floats).all():
            continue
        layout = pending.layout
        if layout.shape != context.output or (pending.low, pending.high) != (-math.inf, math.inf):
            continue
        axes: list[int] = []
        count = 1
        for axis in layout.perm[::-1]:
            if count < layout.nhwc[3]:
                axes.insert(0, axis)
                count *= layout.shape[axis]
        values = along(floats, layout.shape, tuple(axes))
        return None if values is None else (pending, values)
    return None


def affine(context: NodeContext) -> Pending:
    """Return the normalisation with other weights or biases."""
    normalisation = _constant(context)
    assert normalisation is not None
    pending, values = normalisation
    (op,) = pending.ops
    assert isinstance(op, LayerNorm | RowProduct)
    weight = np.ones(len(values)) if op.weight is None else op.weight
    bias = np.zeros(len(values)) if op.bias is None else op.bias
    if context.node.op == "Mul":
        op = op.replace(weight=weight * values, bias=bias * values)
    else:
        op = op.replace(weight=weight, bias=bias + values)
    return dataclasses.replace(pending, ops=(op,), nodes=(*pending.nodes, context.node.index))


def norm_order(context: NodeContext) -> str | None:
    """The axis of LpNormalization must be channels on the device, or at most 256 copies must make it channels."""
    return None if _along_axis(context) is not None else f"axis is {context.attribute('axis', -1)}"


def _along_axis(context: NodeContext) -> Rows | None:
    axis = int(context.node.attributes.get("axis", -1)) % len(context.shape())
    return rows_of(activation(context).tensor, context.shape(), (axis,))


def norm_length(context: NodeContext) -> str | None:
    """A row of LpNormalization must have at most 32768 elements, and fit an eighth of the scratchpad."""
    count = context.shape()[int(context.node.attributes.get("axis", -1)) % len(context.shape())]
    return None if count <= 1 << 15 and row_fits(context.model.config, count) else f"there are {count}"


def norm(context: NodeContext) -> Pending:
    """Return the device's LayerNorm without a mean, or a RowShare."""
    rows, quant = _along_axis(context), activation(context).quant
    assert rows is not None
    tensor, layout, _ = rows
    views: dict[str, Any] = {"name": context.node.name, "src": tensor.view(), "dst": result(layout.nhwc)}
    op: LayerNorm | RowShare
    if int(context.node.attributes.get("p", 2)) == 1:
        op = RowShare(**views, x_zero=quant.zero)
    else:
        count = layout.nhwc[3]
        weight, bias = np.full(count, 1 / math.sqrt(count)), np.zeros(count)
        op = LayerNorm(**views, weight=weight, bias=bias, epsilon=0.0, x_zero=quant.zero, centre=False)
    return Pending((op,), layout, (tensor,), (context.node.index,))


def _takes_mean(context: NodeContext) -> bool:
    return isinstance(context.symbol(0), Activation) and isinstance(context.symbol(1), RowNumber)


def _squares(context: NodeContext) -> bool:
    symbols = context.symbols
    both = len(symbols) > 1 and isinstance(symbols[0], RowElements) and symbols[0] is symbols[1]
    return isinstance(context.symbol(0), RowElements) and (context.node.op == "Pow" or both)


def _divides(context: NodeContext) -> bool:
    """Return whether elements meet a per-row number that is not quantised yet."""
    kinds = [type(symbol) for symbol in context.symbols]
    return RowNumber in kinds and (RowElements in kinds or Activation in kinds)


def scales_rows(context: NodeContext) -> bool:
    """Return whether elements meet a quantised number per row, and no other operator computes that."""
    if context.model.config.kernel < 64 or context.node.op not in ("Mul", "Div"):
        return False
    if any(isinstance(symbol, RowElements) for symbol in context.symbols):
        return True
    if context.node.op == "Mul" and not isinstance(operands(context), str):
        return False
    return _factor(context) is not None


_NORMALS = (LayerNorm, RowNorm, RowScale, RowShare)


def _reads_elements(context: NodeContext) -> bool:
    return isinstance(context.symbol(0), RowElements)


def _reads_normalisation(context: NodeContext) -> bool:
    return any(isinstance(symbol, Pending) and type(symbol.ops[0]) in _NORMALS for symbol in context.symbols)


_TITLE = "Normalisations written out"
OPERATORS = (
    Operator(("Sub",), (row_mean,), centre, applies=_takes_mean, title=_TITLE),
    Operator(("Pow", "Mul"), (row_square,), square, applies=_squares, title=_TITLE),
    Operator(("Mul", "Div"), (row_norm, norm_room), normalise, applies=_divides, title=_TITLE),
    Operator(("Mul", "Div"), (row_factor,), scale, applies=scales_rows, title=_TITLE),
    Operator(("Mul", "Add"), (normal_affine,), affine, applies=_reads_normalisation, title=_TITLE),
    Operator((QUANTISE,), (per_tensor, elements_plain), distances, applies=_reads_elements),
    Operator(("LpNormalization",), (kernel_room, input_quantised, norm_order, norm_length), norm),
)
