"""What the device can do: every constraint is one function.

A constraint's docstring is the diagnostic, the line of the support table and the reason of a fallback. The function
returns None if the node satisfies it, else the value that does not ("" if there is none worth showing).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from weft.compiler.ir import Conv
from weft.compiler.layout import natural, packed
from weft.compiler.onnx_import import Model, Node
from weft.compiler.qdq import Activation, Constant, Pending, Symbol, Tensor, is_conv, parameters

LIMIT = 127
"""Largest stride and dilation: the coordinate steps of the address generators have 8 bits."""
SCALE_LIMIT = 1 << 15
"""What a 16-bit mantissa without a shift could not hold."""


@dataclass(frozen=True, eq=False)
class Case:
    """A node with the symbols of its inputs (None for those left out)."""

    model: Model
    node: Node
    symbols: tuple[Symbol, ...]

    def symbol(self, index: int) -> Symbol:
        return self.symbols[index] if index < len(self.symbols) else None

    def shape(self, index: int = 0) -> tuple[int, ...]:
        return self.model.shapes[self.node.inputs[index]]

    @property
    def output(self) -> tuple[int, ...]:
        return self.model.shapes[self.node.outputs[0]]

    def attribute(self, name: str, default: object = None) -> object:
        return self.node.attributes.get(name, default)

    def ints(self, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(self.node.attributes.get(name, default))


Constraint = Callable[[Case], str | None]


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


def addable(case: Case) -> str | None:
    """Add takes two int8 or uint8 activations of one shape, or a device value and one constant for each channel."""
    kinds = [type(symbol) for symbol in case.symbols]
    if kinds == [Activation, Activation]:
        same = case.shape(0) == case.shape(1)
        return None if same else f"shapes are {case.shape(0)} and {case.shape(1)}"
    return _with_constant(case)


def multipliable(case: Case) -> str | None:
    """Mul takes a device value and one constant for each channel."""
    return _with_constant(case)


def _with_constant(case: Case) -> str | None:
    for one, other in (case.symbols, case.symbols[::-1]):
        device = isinstance(one, Activation) or (isinstance(one, Pending) and is_conv(one))
        if device and isinstance(other, Constant):
            return channel_constant(case, one, other)
    return f"inputs are {' and '.join(repr(name) for name in case.node.inputs)}"


def channel_constant(case: Case, operand: Symbol, value: Constant) -> str | None:
    shape = case.output
    if shape not in (case.shape(0), case.shape(1)):
        return f"the result has shape {shape}"
    axis = channel_axis(shape, operand)
    if axis is None:
        return "the result was reshaped before"
    wanted = [1] * len(shape)
    wanted[axis] = shape[axis]
    full = (1,) * (len(shape) - value.values.ndim) + value.values.shape
    fits = len(full) == len(shape) and all(size in (1, most) for size, most in zip(full, wanted, strict=True))
    return None if fits else f"the constant has shape {value.values.shape}"


def channel_axis(shape: tuple[int, ...], operand: Symbol) -> int | None:
    """The axis of a value of `shape` that is channels on the device; None if no single one is."""
    axis = 1 if len(shape) == 4 else len(shape) - 1
    if not isinstance(operand, Pending):
        return axis
    if operand.layout == packed(shape):
        axis = len(shape) - 1
    elif operand.layout != natural(shape):
        return None
    return axis if operand.ops[0].dst.shape[3] == shape[axis] else None


def same_order(case: Case) -> str | None:
    """Operands must have their elements in one order, and next to a constant in the order the device computes in."""
    return (
        None
        if aligned(case) is not None
        else f"inputs {' and '.join(repr(name) for name in case.node.inputs)}"
    )


def aligned(case: Case) -> tuple[Tensor, ...] | None:
    """The activations among the operands in a common layout, if there is one."""
    tensors = [symbol.tensor for symbol in case.symbols if isinstance(symbol, Activation)]
    layouts = [natural(case.output)]
    if len(tensors) == 2:
        layouts += [tensor.layout for tensor in tensors]
    for layout in layouts:
        arranged = [tensor.arranged(layout) for tensor in tensors]
        found = tuple(tensor for tensor in arranged if tensor is not None)
        if len(found) == len(tensors):
            return found
    return None


def pool_values(case: Case) -> str | None:
    """MaxPool gives values only, no indices."""
    return None if len([name for name in case.node.outputs if name]) == 1 else "it has a second output"


def ceil_average(case: Case) -> str | None:
    """AveragePool with ceil_mode and count_include_pad must not reach past its padding."""
    if not (case.attribute("ceil_mode", 0) and case.attribute("count_include_pad", 0)):
        return None
    kernel, pads = case.ints("kernel_shape", ()), case.ints("pads", (0, 0, 0, 0))
    strides, dilations = case.ints("strides", (1, 1)), case.ints("dilations", (1, 1))
    for axis in range(2):
        reach = (case.output[2 + axis] - 1) * strides[axis] + (kernel[axis] - 1) * dilations[axis] + 1
        if reach > case.shape()[2 + axis] + pads[axis] + pads[axis + 2]:
            return f"the last window ends at {reach}"
    return None


def windows_filled(case: Case) -> str | None:
    """Every window of a pool must hold at least one element of the input."""
    kernel, pads = case.ints("kernel_shape", ()), case.ints("pads", (0, 0, 0, 0))
    strides, dilations = case.ints("strides", (1, 1)), case.ints("dilations", (1, 1))
    if case.attribute("auto_pad", b"NOTSET") != b"NOTSET":
        return None
    for axis in range(2):
        starts = np.arange(case.output[2 + axis]) * strides[axis] - pads[axis]
        elements = starts[:, None] + np.arange(kernel[axis]) * dilations[axis]
        inside = ((elements >= 0) & (elements < case.shape()[2 + axis])).any(1)
        if not inside.all():
            return f"along {'height' if axis == 0 else 'width'}, output {int(np.argmin(inside))} has none"
    return None


def mean_axes(case: Case) -> str | None:
    """ReduceMean must be over the two spatial dimensions, with constant axes."""
    axes = reduced_axes(case)
    return None if axes == (2, 3) else f"axes are {axes}"


def reduced_axes(case: Case) -> tuple[int, ...] | None:
    """The constant, non-negative axes of a reduction; None if they are not known."""
    axes = case.node.attributes.get("axes")
    if axes is None and case.node.input(1):
        given = case.model.constants.get(case.node.input(1))
        axes = None if given is None else given.tolist()
    rank = len(case.shape())
    return None if axes is None else tuple(sorted(axis % rank for axis in axes))


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
    """Transpose may only move dimensions of size 1, or lead from or to the order the device computes in."""
    if isinstance(case.symbol(0), Constant) or transposed(case) is not None:
        return None
    return f"perm is {permutation(case)}"


def permutation(case: Case) -> tuple[int, ...]:
    """The order of axes a Transpose node makes."""
    return case.ints("perm", tuple(reversed(range(len(case.shape())))))


def transposed(case: Case) -> Tensor | Pending | None:
    """The transposed value without moving a byte, if it then is in an order that other operators take."""
    symbol, output, back = case.symbol(0), case.output, tuple(np.argsort(permutation(case)).tolist())
    if isinstance(symbol, Activation):
        symbol = symbol.tensor
    assert isinstance(symbol, Tensor | Pending)
    for layout in (natural(output), packed(output)):
        before = layout.transposed(output, back)
        assert before is not None
        if isinstance(symbol, Pending):
            if symbol.layout.same(before):
                return dataclasses.replace(symbol, layout=layout)
            continue
        arranged = symbol.arranged(before)
        if arranged is not None:
            return dataclasses.replace(arranged, layout=layout, origin="")
    return None


def per_tensor(case: Case) -> str | None:
    """Activations must be int8 or uint8 with one constant scale and zero point for the whole tensor."""
    quantise = case.node.op == "QuantizeLinear"
    value = case.node.outputs[0] if quantise else case.node.inputs[0]
    dtype = case.model.dtypes[value]
    return None if parameters(case.model, case.node, dtype) is not None else f"{value!r} has type {dtype}"


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
            totals = np.abs(op.weight.astype(np.int64)).sum(axis=(1, 2, 3))
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
    "AveragePool": (*WINDOW, windows_filled, ceil_average),
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
    "Flatten": MOVE,
    "Gemm": (*MATRIX, plain_product, bias_constant),
    "GlobalAveragePool": (image, input_quantised, image_order),
    "GlobalMaxPool": (image, input_quantised, image_order),
    "Identity": MOVE,
    "MatMul": MATRIX,
    "MaxPool": (*WINDOW, windows_filled, pool_values),
    "Mul": (multipliable, same_order),
    "QuantizeLinear": (per_tensor, input_quantisable, scales_fit, sums_fit),
    "ReduceMean": (image, input_quantised, image_order, mean_axes),
    "Relu": (input_quantisable,),
    "Reshape": MOVE,
    "Squeeze": MOVE,
    "Transpose": (movable, transposable),
    "Unsqueeze": MOVE,
}
"""What must hold for each operator the device has, in the order it is checked."""


def sentence(constraint: Constraint) -> str:
    """A constraint's docstring as one line without its full stop."""
    return " ".join((constraint.__doc__ or constraint.__name__).split()).rstrip(".")


def obstacle(case: Case) -> str | None:
    """Why the device cannot run a node, or None if it can."""
    if case.node.op not in CONSTRAINTS:
        return f"the device has no operator {case.node.op}"
    for constraint in CONSTRAINTS[case.node.op]:
        found = constraint(case)
        if found is not None:
            return sentence(constraint) + (f" ({found})" if found else "")
    return None


def table() -> Iterator[tuple[str, tuple[str, ...]]]:
    """The support table: each operator with the sentences of its constraints."""
    for operator, constraints in sorted(CONSTRAINTS.items()):
        yield operator, tuple(sentence(constraint) + "." for constraint in constraints)
