"""Device operators from the model's: one function for each, called once the constraints hold.

Every function takes a `weft.compiler.onnx.case.Case` and returns the symbol of the node's result.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import numpy as np

from weft.compiler.ir.graph import Add, Buffer, Conv, Pool, Rescale, View, Window
from weft.compiler.ir.layout import Layout, natural, packed
from weft.compiler.onnx.case import Case
from weft.compiler.onnx.operators_attention import attention, softmax
from weft.compiler.onnx.qdq import Activation, Constant, Pending, Quant, Symbol, Tensor, parameters, result
from weft.compiler.onnx.support import aligned, permutation, product_rows, transposed
from weft.compiler.onnx.support_channels import affine, scaling, summands

INT32 = np.iinfo(np.int32)
ADD_WEIGHT = 64
"""Weight of the depthwise convolution that adds a constant: it is then exact to 1/64 of the input's scale."""


def _activation(case: Case, index: int = 0) -> Activation:
    symbol = case.symbol(index)
    assert isinstance(symbol, Activation)
    return symbol


def _arranged(case: Case, index: int = 0) -> tuple[Tensor, Quant]:
    """An input in the order of its shape, which the constraints have checked to be possible."""
    source = _activation(case, index)
    tensor = source.tensor.arranged(natural(case.shape(index)))
    assert tensor is not None
    return tensor, source.quant


def dequantise(case: Case) -> Symbol:
    node, tensor = case.node, case.symbol(0)
    quant = parameters(case.model, node, case.model.dtypes[node.inputs[0]])
    assert isinstance(tensor, Tensor)
    assert quant is not None
    return Activation(dataclasses.replace(tensor, via=(*tensor.via, node.index)), quant)


def rescale(source: Activation, name: str) -> Pending:
    """Requantisation of an activation, in whatever order its elements are."""
    tensor, quant = source.tensor, source.quant
    op = Rescale(name, tensor.view(), result(tensor.layout.nhwc), quant.scale, quant.zero)
    return Pending((op,), tensor.layout, (tensor,), ())


def conv(case: Case) -> Symbol:
    source, quant = _arranged(case)
    weight = case.symbol(1)
    assert isinstance(weight, Constant)
    values = weight.values.transpose(0, 2, 3, 1)
    window = conv_window(case, (values.shape[1], values.shape[2]))
    return _product(case, source, source.view(), quant, values, weight, window, natural(case.output))


def product(case: Case) -> Symbol:
    """Gemm or MatMul with a constant matrix: a 1x1 convolution over the rows, its columns in the input's order."""
    source = _activation(case)
    weight = case.symbol(1)
    assert isinstance(weight, Constant)
    found = product_rows(case)
    assert found is not None
    tensor, order = found
    # In order first, and transposed then: much quicker than both at once.
    rows = weight.values[:, order] if case.attribute("transB", 0) else weight.values[order].T
    values = np.ascontiguousarray(rows)[:, None, None, :]
    view = tensor.view((1, 1, math.prod(case.shape()[:-1]), case.shape()[-1]))
    return _product(case, tensor, view, source.quant, values, weight, Window(), packed(case.output))


def _product(
    case: Case,
    source: Tensor,
    view: View,
    quant: Quant,
    values: np.ndarray,
    weight: Constant,
    window: Window,
    layout: Layout,
) -> Pending:
    outputs = values.shape[0]
    scale = quant.scale * np.broadcast_to(weight.scale.reshape(-1), (outputs,))
    bias = np.zeros(outputs, np.int32)
    notes: tuple[str, ...] = ()
    symbol = case.symbol(2)
    if isinstance(symbol, Constant):
        bias, notes = add_bias(bias, symbol, scale)
    groups = int(case.node.attributes.get("group", 1))
    op = Conv(
        case.node.name,
        view,
        result(layout.nhwc),
        values.astype(np.int16),
        bias,
        scale,
        window,
        groups,
        quant.zero,
    )
    return Pending((op,), layout, (source,), (case.node.index,), notes=notes)


def add_bias(bias: np.ndarray, value: Constant, scale: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """`bias` plus a constant of one value per channel at the accumulator's `scale`, with a note if that rounds."""
    given = np.broadcast_to(np.broadcast_to(value.scale, value.values.shape).reshape(-1), scale.shape)
    integers = np.broadcast_to(value.values.reshape(-1), scale.shape)
    exact = integers * (1.0 if np.allclose(given, scale, rtol=1e-6, atol=0) else given / scale)
    rounded = np.rint(exact)
    notes = [] if np.array_equal(rounded, exact) else ["the bias was rounded to the accumulator's scale"]
    total = rounded + bias
    if (total < INT32.min).any() or (total > INT32.max).any():
        notes.append("the bias was clamped to int32")
    return np.clip(total, INT32.min, INT32.max).astype(np.int32), tuple(notes)


def add(case: Case) -> Symbol:
    symbols = summands(case)
    for operand, value in (symbols, symbols[::-1]):
        if isinstance(value, Constant):
            return _with_constant(case, operand, value)
    a_quant, b_quant = (symbol.quant for symbol in symbols if isinstance(symbol, Activation))
    tensors = aligned(case)
    assert tensors is not None
    a, b = tensors
    layout = a.layout
    op = Add(
        case.node.name,
        a.view(),
        b.view(),
        result(layout.nhwc),
        a_quant.scale,
        b_quant.scale,
        a_quant.zero,
        b_quant.zero,
    )
    return Pending((op,), layout, (a, b), (case.node.index,))


def multiply(case: Case) -> Symbol:
    """Mul or Div; by one number it is only another scale."""
    factor = scaling(case)
    for operand, value in (case.symbols, case.symbols[::-1]):
        if factor is not None and isinstance(operand, Activation):
            tensor = dataclasses.replace(operand.tensor, via=(*operand.tensor.via, case.node.index))
            return Activation(tensor, dataclasses.replace(operand.quant, scale=operand.quant.scale * factor))
        if isinstance(value, Constant):
            inverse = Constant(1 / value.floats, np.ones(1), exact=True) if case.node.op == "Div" else value
            return _with_constant(case, operand, inverse)
    raise AssertionError("the constraints let no other product pass")


def _with_constant(case: Case, operand: Symbol, value: Constant) -> Pending:
    """Add or Mul of one constant a channel: into the convolution before it, else as a depthwise 1x1 convolution."""
    if case.node.op == "Add":
        return _shifted(case, _convolution(case, operand, ADD_WEIGHT), value.floats)
    return _scaled(case, _convolution(case, operand, 1), value.floats)


def batch_norm(case: Case) -> Pending:
    """Each channel times a factor plus an offset: into the convolution before it, or as one of its own."""
    factors, offsets = affine(case)
    return _shifted(case, _scaled(case, _convolution(case, case.symbol(0), ADD_WEIGHT), factors), offsets)


def _convolution(case: Case, operand: Symbol, weight: int) -> Pending:
    """A result of a convolution, or the depthwise one that leaves an activation as it is."""
    pending = _depthwise(case, operand, weight) if isinstance(operand, Activation) else operand
    assert isinstance(pending, Pending)
    return pending


def _scaled(case: Case, operand: Pending, factors: np.ndarray) -> Pending:
    (op,) = operand.ops
    assert isinstance(op, Conv)
    values = np.broadcast_to(factors.reshape(-1), op.scale.shape)
    sign = np.sign(values).astype(np.int16)
    bias = np.minimum(op.bias * sign.astype(np.int64), INT32.max).astype(np.int32)
    scale = op.scale * np.where(sign, np.abs(values), 1)
    op = dataclasses.replace(op, weight=op.weight * sign[:, None, None, None], bias=bias, scale=scale)
    return dataclasses.replace(operand, ops=(op,), nodes=_nodes(case, operand))


def _shifted(case: Case, operand: Pending, offsets: np.ndarray) -> Pending:
    (op,) = operand.ops
    assert isinstance(op, Conv)
    values = np.broadcast_to(offsets.reshape(-1), op.scale.shape)
    bias, notes = add_bias(op.bias, Constant(values, np.ones(1), exact=True), op.scale)
    op = dataclasses.replace(op, bias=bias)
    return dataclasses.replace(
        operand, ops=(op,), nodes=_nodes(case, operand), notes=(*operand.notes, *notes)
    )


def _nodes(case: Case, operand: Pending) -> tuple[int, ...]:
    return tuple(dict.fromkeys((*operand.nodes, case.node.index)))


def _depthwise(case: Case, source: Activation, weight: int) -> Pending:
    """Every channel times `weight`, at a scale that makes it the identity."""
    layout = natural(case.output)
    tensor = source.tensor.arranged(layout)
    assert tensor is not None
    count = layout.nhwc[3]
    op = Conv(
        case.node.name,
        tensor.view(),
        result(layout.nhwc),
        np.full((count, 1, 1, 1), weight, np.int16),
        np.zeros(count, np.int32),
        np.full(count, source.quant.scale / weight),
        groups=count,
        x_zero=source.quant.zero,
    )
    return Pending((op,), layout, (tensor,), (case.node.index,))


def pool(case: Case) -> Symbol:
    node = case.node
    kind = "max" if node.op.endswith("MaxPool") else "average"
    if node.op in ("GlobalAveragePool", "GlobalMaxPool", "ReduceMean"):
        h, w = case.shape()[2:] if len(case.shape()) == 4 else (1, case.shape()[1])
        return _pool(case, kind, Window((h, w), (1, 1)), False)
    kernel = case.ints("kernel_shape", ())
    return _pool(
        case, kind, conv_window(case, (kernel[0], kernel[1])), bool(case.attribute("count_include_pad", 0))
    )


def _pool(case: Case, kind: str, window: Window, include_pad: bool) -> Pending:
    source, quant = _arranged(case)
    n, h, w, c = source.layout.nhwc if len(case.shape()) == 4 else (case.shape()[0], 1, *case.shape()[1:])
    shape = (n, *window.output(h, w), c)
    layout = natural(case.output)
    if len(case.output) != 4:  # ReduceMean without kept dimensions: the same bytes
        layout = dataclasses.replace(packed(case.output), nhwc=shape)
    op = Pool(
        case.node.name,
        source.view((n, h, w, c)),
        result(shape),
        kind,
        window,
        quant.scale,
        quant.zero,
        include_pad=include_pad,
    )
    return Pending((op,), layout, (source,), (case.node.index,))


def conv_window(case: Case, kernel: tuple[int, int]) -> Window:
    """The window of a Conv or pool node, with padding made explicit from auto_pad, ceil_mode and the output's shape."""
    stride, dilation = case.ints("strides", (1, 1)), case.ints("dilations", (1, 1))
    pads = list(case.ints("pads", (0, 0, 0, 0)))
    auto = case.attribute("auto_pad", "NOTSET")
    for axis in range(2):
        size, out = case.shape()[2 + axis], case.output[2 + axis]
        span = (kernel[axis] - 1) * dilation[axis] + 1
        reach = (out - 1) * stride[axis] + span - size
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            total = max(reach, 0)
            pads[axis] = total // 2 if auto == "SAME_UPPER" else (total + 1) // 2
            pads[axis + 2] = total - pads[axis]
        elif (size + pads[axis] + pads[axis + 2] - span) // stride[axis] + 1 != out:
            pads[axis + 2] = reach - pads[axis]
    return Window(
        kernel, (stride[0], stride[1]), (dilation[0], dilation[1]), (pads[0], pads[1], pads[2], pads[3])
    )


def clamp(case: Case) -> Symbol:
    """Relu or Clip: tightens the clamp of a pending result; on an activation it becomes a requantisation."""
    source = case.symbol(0)
    if isinstance(source, Activation):
        source = rescale(source, case.node.name)
    assert isinstance(source, Pending)
    low, high = (0.0, math.inf) if case.node.op == "Relu" else _bounds(case)
    return dataclasses.replace(
        source,
        nodes=(*source.nodes, case.node.index),
        low=min(max(source.low, low), high),
        high=min(max(source.high, low), high),
    )


def _bounds(case: Case) -> tuple[float, float]:
    bounds = [
        float(case.node.attributes.get("min", -math.inf)),
        float(case.node.attributes.get("max", math.inf)),
    ]
    for index in range(2):
        name = case.node.input(1 + index)
        if name:
            bounds[index] = float(case.model.constants[name].reshape(-1)[0])
    return bounds[0], bounds[1]


def concat(case: Case) -> Symbol:
    """Every input is requantised into its box of the result."""
    rank = len(case.output)
    axis = case.node.attributes["axis"] % rank
    layout = natural(case.output)
    n, h, w, c = layout.nhwc
    dim = {0: 1, 1: 3, 2: 1, 3: 2}[axis] if rank == 4 else (3 if axis == rank - 1 else 2)
    shape = (1, n * h, w, c) if rank == 4 and axis == 0 else layout.nhwc
    buffer = Buffer(result(shape).buffer.name, shape)
    ops, inputs, position = [], [], 0
    for index in range(len(case.symbols)):
        source, quant = _arranged(case, index)
        box = list(source.layout.nhwc)
        if rank == 4 and axis == 0:
            box = [1, box[0] * box[1], *box[2:]]
        boxed = (box[0], box[1], box[2], box[3])
        at = {dim: position}
        dst = View(buffer, boxed, at.get(1, 0), at.get(2, 0), at.get(3, 0))
        ops.append(Rescale(f"{case.node.name}.{index}", source.view(boxed), dst, quant.scale, quant.zero))
        inputs.append(source)
        position += box[dim]
    return Pending(tuple(ops), layout, tuple(inputs), (case.node.index,))


def move(case: Case) -> Symbol:
    """Reshape and its kin: the same bytes under another shape."""
    source, index = case.symbol(0), case.node.index
    if isinstance(source, Constant):
        return _move_constant(case, source)
    moved = transposed(case) if case.node.op == "Transpose" else source
    if isinstance(moved, Pending):
        return dataclasses.replace(moved, nodes=(*moved.nodes, index))
    if isinstance(moved, Activation):
        moved = moved.tensor
    assert isinstance(moved, Tensor)
    moved = dataclasses.replace(moved, via=(*moved.via, index))
    return Activation(moved, source.quant) if isinstance(source, Activation) else moved


def _move_constant(case: Case, source: Constant) -> Symbol:
    if case.node.op == "Transpose":
        perm = permutation(case)
        return Constant(source.values.transpose(perm), source.scale.transpose(perm), source.exact)
    if case.node.op == "Identity":
        return source
    if source.scale.size != 1:
        return None
    return Constant(
        source.values.reshape(case.output), source.scale.reshape((1,) * len(case.output)), source.exact
    )


HANDLERS: dict[str, Callable[[Case], Symbol]] = {
    "Add": add,
    "Attention": attention,
    "AveragePool": pool,
    "BatchNormalization": batch_norm,
    "Clip": clamp,
    "Concat": concat,
    "Conv": conv,
    "DequantizeLinear": dequantise,
    "Div": multiply,
    "Flatten": move,
    "Gemm": product,
    "GlobalAveragePool": pool,
    "GlobalMaxPool": pool,
    "Identity": move,
    "MatMul": product,
    "MaxPool": pool,
    "Mul": multiply,
    "ReduceMean": pool,
    "Relu": clamp,
    "Reshape": move,
    "Softmax": softmax,
    "Squeeze": move,
    "Transpose": move,
    "Unsqueeze": move,
}
"""How each operator of `weft.compiler.onnx.support.CONSTRAINTS` but QuantizeLinear becomes a symbol."""
