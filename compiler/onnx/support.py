"""What the device can do: every constraint is one function.

A constraint's docstring is the diagnostic, the line of the support table and the reason of a fallback. The function
returns None if the node satisfies it, else the value that does not ("" if there is none worth showing).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np

from weft.compiler.ir.graph import Conv
from weft.compiler.ir.layout import natural, packed
from weft.compiler.onnx.case import Case, Constraint, sentence
from weft.compiler.onnx.qdq import Activation, Constant, Pending, Tensor, parameters
from weft.compiler.onnx.support_attention import ATTENTION, PARTS, part
from weft.compiler.onnx.support_channels import (
    addable,
    batch_norm_inference,
    batch_norm_operands,
    divisible,
    multipliable,
    scaling,
    summands,
)
from weft.compiler.onnx.support_pool import ceil_average, mean_axes, pool_values, window_size, windows_filled
from weft.compiler.onnx.support_softmax import SOFTMAX

LIMIT = 127
"""Largest stride and dilation: the coordinate steps of the address generators have 8 bits."""
SCALE_LIMIT = 1 << 15
"""What a 16-bit mantissa without a shift could not hold."""


def input_quantised(case: Case) -> str | None:
    """The input must be an int8 or uint8 activation behind DequantizeLinear."""
    return None if isinstance(case.symbol(0), Activation) else f"input {case.node.inputs[0]!r} is not"


def inputs_quantised(case: Case) -> str | None:
    """All inputs must be int8 or uint8 activations behind DequantizeLinear."""
    for name, symbol in zip(case.node.inputs, case.symbols, strict=True):
        if not isinstance(symbol, Activation):
            return f"input {name!r} is not"
    return None


def input_quantisable(case: Case) -> str | None:
    """The input must be an int8 or uint8 activation behind DequantizeLinear, or the result of a device operator."""
    return (
        None if isinstance(case.symbol(0), Activation | Pending) else f"input {case.node.inputs[0]!r} is not"
    )


def image(case: Case) -> str | None:
    """Convolutions and pools must be two-dimensional: inputs of shape (N, C, H, W)."""
    return None if len(case.shape()) == 4 else f"the input has shape {case.shape()}"


def image_order(case: Case) -> str | None:
    """The input's elements must be in the order the device computes in (no reshape or transpose that mixes axes)."""
    symbol = case.symbol(0)
    assert isinstance(symbol, Activation)
    return (
        None
        if symbol.tensor.arranged(natural(case.shape())) is not None
        else f"input {case.node.inputs[0]!r}"
    )


def weights_constant(case: Case) -> str | None:
    """Weights must be constant int8 or uint8 values behind DequantizeLinear."""
    symbol = case.symbol(1)
    good = isinstance(symbol, Constant) and not symbol.exact and np.abs(symbol.values).max(initial=0) <= 255
    return None if good else f"input {case.node.inputs[1]!r} is not"


def weights_per_output(case: Case) -> str | None:
    """Weight scales must be per tensor or per output channel."""
    symbol = case.symbol(1)
    assert isinstance(symbol, Constant)
    axis = 0 if case.node.op == "Conv" or case.attribute("transB", 0) else symbol.values.ndim - 1
    inner = [size for index, size in enumerate(symbol.scale.shape) if index != axis]
    return None if math.prod(inner) == 1 else f"scales have shape {symbol.scale.shape}"


def weights_matrix(case: Case) -> str | None:
    """The second operand of a matrix product must be a matrix."""
    return None if len(case.shape(1)) == 2 else f"it has shape {case.shape(1)}"


def bias_constant(case: Case) -> str | None:
    """The bias must be constant, with one value for each output channel."""
    if not case.node.input(2):
        return None
    symbol = case.symbol(2)
    if not isinstance(symbol, Constant):
        return f"input {case.node.input(2)!r} is not"
    channels = case.output[1] if case.node.op == "Conv" else case.output[-1]
    size, last = symbol.values.size, symbol.values.shape[-1:]
    return None if size == 1 or (size,) == last == (channels,) else f"it has shape {symbol.values.shape}"


def window_steps(case: Case) -> str | None:
    """Strides and dilations must be at most 127, and pads must not be negative."""
    for key in ("strides", "dilations"):
        if max(case.ints(key, (1,))) > LIMIT:
            return f"{key} is {case.ints(key, ())}"
    return None if min(case.ints("pads", (0,))) >= 0 else f"pads is {case.ints('pads', ())}"


def plain_product(case: Case) -> str | None:
    """Gemm needs transA = 0, alpha = 1 and beta = 1."""
    for key, value in (("transA", 0), ("alpha", 1.0), ("beta", 1.0)):
        if case.attribute(key, value) != value:
            return f"{key} is {case.attribute(key)}"
    return None


def row_order(case: Case) -> str | None:
    """The rows of a matrix product's input must be contiguous, and their elements in one order for all rows."""
    return None if product_rows(case) is not None else f"input {case.node.inputs[0]!r}"


def product_rows(case: Case) -> tuple[Tensor, np.ndarray] | None:
    """The first operand of a matrix product as rows, and the order of their elements (`Layout.row_order`)."""
    symbol = case.symbol(0)
    assert isinstance(symbol, Activation)
    for tensor in (symbol.tensor, symbol.tensor.arranged(packed(case.shape()))):
        order = None if tensor is None else tensor.layout.row_order(math.prod(case.shape()[:-1]))
        if tensor is not None and order is not None:
            return tensor, order
    return None


def product_input(case: Case) -> str | None:
    """The first operand of a matrix product must have two dimensions or more."""
    return None if len(case.shape()) >= 2 else f"it has shape {case.shape()}"


def same_order(case: Case) -> str | None:
    """Operands must have their elements in one order, and next to a constant in the order the device computes in."""
    return (
        None
        if aligned(case) is not None
        else f"inputs {' and '.join(repr(name) for name in case.node.inputs)}"
    )


def aligned(case: Case) -> tuple[Tensor, ...] | None:
    """The activations among the operands in a common layout, if there is one."""
    if scaling(case) is not None:
        return ()
    symbols = summands(case) if case.node.op == "Add" else case.symbols
    tensors = [symbol.tensor for symbol in symbols if isinstance(symbol, Activation)]
    layouts = [natural(case.output)]
    if len(tensors) == 2:
        layouts += [tensor.layout for tensor in tensors]
    for layout in layouts:
        arranged = [tensor.arranged(layout) for tensor in tensors]
        found = tuple(tensor for tensor in arranged if tensor is not None)
        if len(found) == len(tensors):
            return found
    return None


def concat_axis(case: Case) -> str | None:
    """Concat works along any axis of an image, and along the first or last axis of a matrix."""
    rank = len(case.output)
    axis = int(case.node.attributes["axis"]) % rank
    outer = math.prod(case.output[:axis])
    return None if rank == 4 or axis == rank - 1 or outer == 1 else f"axis {axis} of {rank}"


def concat_order(case: Case) -> str | None:
    """Inputs of Concat must have their elements in the order the device computes in."""
    for index, symbol in enumerate(case.symbols):
        assert isinstance(symbol, Activation)
        if symbol.tensor.arranged(natural(case.shape(index))) is None:
            return f"input {case.node.inputs[index]!r}"
    return None


def bounds_constant(case: Case) -> str | None:
    """The bounds of Clip must be constant."""
    for name in case.node.inputs[1:]:
        if name and name not in case.model.constants:
            return f"input {name!r} is not"
    return None


def movable(case: Case) -> str | None:
    """Reshapes and transposes must act on int8 or uint8 activations or on the result of a device operator."""
    good = isinstance(case.symbol(0), Activation | Pending | Tensor | Constant)
    return None if good else f"input {case.node.inputs[0]!r} is not"


def transposable(case: Case) -> str | None:
    """Transpose must lead to an order of elements that the operators behind it take."""
    if isinstance(case.symbol(0), Constant) or transposed(case) is not None:
        return None
    return f"perm is {permutation(case)}"


def permutation(case: Case) -> tuple[int, ...]:
    """The order of axes a Transpose node makes."""
    return case.ints("perm", tuple(reversed(range(len(case.shape())))))


def transposed(case: Case) -> Tensor | Pending | None:
    """The transposed value without moving a byte: preferably in an order the device computes in."""
    symbol, shape, output, perm = case.symbol(0), case.shape(), case.output, permutation(case)
    if isinstance(symbol, Activation):
        symbol = symbol.tensor
    assert isinstance(symbol, Tensor | Pending)
    back = tuple(np.argsort(perm).tolist())
    for layout in (natural(output), packed(output)):
        before = layout.transposed(output, back)
        assert before is not None
        if isinstance(symbol, Pending):
            if symbol.layout.same(before):
                return dataclasses.replace(symbol, layout=layout)
            continue
        arranged = symbol.arranged(before)
        if arranged is not None:
            return arranged.transposed(shape, perm, layout)
    moved = symbol.layout.transposed(shape, perm)
    if moved is None:
        return None
    if isinstance(symbol, Pending):
        return dataclasses.replace(symbol, layout=moved)
    return symbol.transposed(shape, perm, moved)


def per_tensor(case: Case) -> str | None:
    """Activations must be int8 or uint8 with one constant scale above zero and zero point for the whole tensor."""
    quantise = case.node.op == "QuantizeLinear"
    value = case.node.outputs[0] if quantise else case.node.inputs[0]
    dtype = case.model.dtypes[value]
    if parameters(case.model, case.node, dtype) is not None:
        return None
    scale = case.model.constants.get(case.node.input(1))
    each = f" and {scale.size} scales" if scale is not None and scale.size != 1 else ""
    one = f" and scale {scale.reshape(-1)[0]:g}" if scale is not None and scale.size == 1 else ""
    return f"{value!r} has type {dtype}{each or one}"


def scales_fit(case: Case) -> str | None:
    """Requantisation scales must be below 32768."""
    symbol, quant = case.symbol(0), parameters(case.model, case.node, case.model.dtypes[case.node.outputs[0]])
    assert quant is not None
    if isinstance(symbol, Activation):
        return (
            None
            if symbol.quant.scale / quant.scale < SCALE_LIMIT
            else f"{symbol.quant.scale / quant.scale:g}"
        )
    assert isinstance(symbol, Pending)
    for op in symbol.ops:
        for name in ("scale", "a_scale", "b_scale"):
            most = float(np.max(getattr(op, name, 0.0))) / quant.scale
            if not most < SCALE_LIMIT:
                return f"{op.name} has {most:g}"
    return None


def sums_fit(case: Case) -> str | None:
    """Sums of products must fit 32 bits for every possible input."""
    symbol = case.symbol(0)
    for op in symbol.ops if isinstance(symbol, Pending) else ():
        if isinstance(op, Conv):
            totals = np.abs(op.weight).sum(axis=(1, 2, 3), dtype=np.int64)
            most = int(
                (totals * max(127 - op.x_zero, op.x_zero + 128) + np.abs(op.bias.astype(np.int64))).max()
            )
            if most >= 1 << 31:
                return f"{op.name} could reach {most}"
    return None


MATRIX = (product_input, input_quantised, weights_constant, weights_matrix, weights_per_output, row_order)
WINDOW = (image, input_quantised, image_order, window_steps)
MOVE = (movable,)

CONSTRAINTS: dict[str, tuple[Constraint, ...]] = {
    "Add": (addable, same_order),
    "Attention": ATTENTION,
    "AveragePool": (*WINDOW, windows_filled, window_size, ceil_average),
    "BatchNormalization": (batch_norm_operands, batch_norm_inference, same_order),
    "Clip": (bounds_constant, input_quantisable),
    "Concat": (inputs_quantised, concat_axis, concat_order),
    "Conv": (
        image,
        input_quantised,
        image_order,
        weights_constant,
        weights_per_output,
        bias_constant,
        window_steps,
    ),
    "DequantizeLinear": (per_tensor,),
    "Div": (divisible, same_order),
    "Flatten": MOVE,
    "Gemm": (*MATRIX, plain_product, bias_constant),
    "GlobalAveragePool": (image, input_quantised, image_order, window_size),
    "GlobalMaxPool": (image, input_quantised, image_order, window_size),
    "Identity": MOVE,
    "MatMul": MATRIX,
    "MaxPool": (*WINDOW, windows_filled, window_size, pool_values),
    "Mul": (multipliable, same_order),
    "QuantizeLinear": (per_tensor, input_quantisable, scales_fit, sums_fit),
    "ReduceMean": (input_quantised, image_order, mean_axes, window_size),
    "Relu": (input_quantisable,),
    "Reshape": MOVE,
    "Softmax": SOFTMAX,
    "Squeeze": MOVE,
    "Transpose": (movable, transposable),
    "Unsqueeze": MOVE,
}
"""What must hold for each operator the device has, in the order it is checked."""


def obstacle(case: Case) -> str | None:
    """Why the device cannot run a node, or None if it can."""
    role = part(case)
    if role is None and case.node.op not in CONSTRAINTS:
        return f"the device has no operator {case.node.op}"
    for constraint in CONSTRAINTS[case.node.op] if role is None else PARTS[role]:
        found = constraint(case)
        if found is not None:
            return sentence(constraint) + (f" ({found})" if found else "")
    return None


WRITTEN_OUT = "Attention written out"
"""What the support table calls MatMul, Mul or Div, Add or Where, Softmax, MatMul with Q/DQ pairs between them."""


def table() -> Iterator[tuple[str, tuple[str, ...]]]:
    """The support table: each operator with the sentences of its constraints."""
    parts = tuple(dict.fromkeys(constraint for part in PARTS.values() for constraint in part))
    for operator, constraints in sorted((CONSTRAINTS | {WRITTEN_OUT: parts}).items()):
        yield operator, tuple(sentence(constraint) + "." for constraint in constraints)
