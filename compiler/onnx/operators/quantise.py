"""QuantizeLinear and DequantizeLinear: where values of the device and constants begin and end."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from weft.compiler.ir.embedding import Embedding
from weft.compiler.ir.graph import Conv
from weft.compiler.ir.planes import BITS
from weft.compiler.onnx.conditions import input_quantisable
from weft.compiler.onnx.context import NodeContext
from weft.compiler.onnx.operator import Operator
from weft.compiler.onnx.qdq import (
    Activation,
    Pending,
    Recipe,
    Symbol,
    Tensor,
    check_parameters,
    constant,
    finish,
    has_wide,
    parameters,
    rescale,
)
from weft.compiler.onnx.wide import NarrowError, is_wide

KERNEL = 32
"""Micro-operations that kernels on values of 16 bits take at most, normalisations left out."""
SCALE_LIMIT = 1 << 15
"""Scales from here on do not fit a mantissa of 16 bits without a shift."""


def per_tensor(context: NodeContext) -> str | None:
    """Activations must have 8 or 16 bits, and one constant scale above zero and zero point for the whole tensor."""
    quantise = context.node.op == "QuantizeLinear"
    value = context.node.outputs[0] if quantise else context.node.inputs[0]
    dtype = context.model.dtypes[value]
    if parameters(context.model, context.node, dtype) is not None:
        return None
    scale = context.model.constants.get(context.node.input(1))
    each = f" and {scale.size} scales" if scale is not None and scale.size != 1 else ""
    one = f" and scale {scale.reshape(-1)[0]:g}" if scale is not None and scale.size == 1 else ""
    return f"{value!r} has type {dtype}{each or one}"


def wide_engine(context: NodeContext) -> str | None:
    """Values of 16 bits need a kernel engine ('kernel' 32 or more)."""
    node, size = context.node, context.model.config.kernel
    value = node.outputs[0] if node.op == "QuantizeLinear" else node.inputs[0]
    good = BITS[context.model.dtypes[value]] == 8 or size >= KERNEL
    return None if good else f"{value!r} is one, and 'kernel' is {size}"


def wide_forms(context: NodeContext) -> str | None:
    """Values of 16 bits are sums, products, convolutions, pools, minima, maxima, copies, functions, normalisations."""
    symbol, node = context.symbol(0), context.node
    if not isinstance(symbol, Pending):
        return None
    quant = parameters(context.model, node, context.model.dtypes[node.outputs[0]])
    assert quant is not None
    if not has_wide(symbol, quant):
        return None
    try:
        _finished(context)
    except NarrowError as error:
        return str(error)
    return None


def scales_fit(context: NodeContext) -> str | None:
    """Requantisation scales must be below 32768."""
    model, node, symbol = context.model, context.node, context.symbol(0)
    quant = parameters(model, node, model.dtypes[node.outputs[0]])
    assert quant is not None
    if isinstance(symbol, Activation):
        return (
            None
            if symbol.quant.scale / quant.scale < SCALE_LIMIT
            else f"{symbol.quant.scale / quant.scale:g}"
        )
    assert isinstance(symbol, Pending)
    for op in symbol.ops:
        if isinstance(op, Embedding):
            continue  # whose rows are quantised ahead
        for name in ("scale", "a_scale", "b_scale"):
            given = getattr(op, name, 0.0)
            most = (abs(given) if isinstance(given, float) else float(np.abs(given).max())) / quant.scale
            if not most < SCALE_LIMIT:
                return f"{op.name} has {most:g}"
    return None


def sums_fit(context: NodeContext) -> str | None:
    """Sums of products must fit 32 bits for every possible input."""
    symbol = context.symbol(0)
    for op in symbol.ops if isinstance(symbol, Pending) else ():
        if isinstance(op, Conv) and not is_wide(op.src):
            totals = np.abs(op.weight).sum(axis=(1, 2, 3), dtype=np.int64)
            most = int(
                (totals * max(127 - op.x_zero, op.x_zero + 128) + np.abs(op.bias.astype(np.int64))).max()
            )
            if most >= 1 << 31:
                return f"{op.name} could reach {most}"
    return None


def dequantise(context: NodeContext) -> Symbol:
    """A value of 8 or 16 bits as an activation."""
    node, tensor = context.node, context.symbol(0)
    quant = parameters(context.model, node, context.model.dtypes[node.inputs[0]])
    assert isinstance(tensor, Tensor)
    assert quant is not None
    return Activation(dataclasses.replace(tensor, via=(*tensor.via, node.index)), quant)


def _of_constant(context: NodeContext) -> bool:
    """Whether it is a constant that is dequantised: weights, biases, tables."""
    return context.node.inputs[0] in context.model.constants


def _dequantise_constant(context: NodeContext) -> Symbol:
    return constant(context.model, context.node)


def quantise(context: NodeContext) -> Recipe | Tensor:
    """Complete a pending operator, requantise an activation, or recognise that nothing happens."""
    model, node, source = context.model, context.node, context.symbol(0)
    name = node.outputs[0]
    quant = parameters(model, node, model.dtypes[name])
    assert quant is not None
    if isinstance(source, Activation):
        if source.quant.same(quant):
            return dataclasses.replace(source.tensor, via=(*source.tensor.via, node.index))
        return finish(rescale(source, node.name), name, quant, node)
    return _finished(context)


@functools.lru_cache(maxsize=1)
def _finished(context: NodeContext) -> Recipe:
    """Complete the pending operator that a node quantises: first to know that it can be."""
    node, source = context.node, context.symbol(0)
    quant = parameters(context.model, node, context.model.dtypes[node.outputs[0]])
    assert isinstance(source, Pending)
    assert quant is not None
    return finish(source, node.outputs[0], quant, node)


OPERATORS = (
    Operator(("DequantizeLinear",), (), _dequantise_constant, applies=_of_constant),
    Operator(("DequantizeLinear",), (per_tensor, wide_engine), dequantise, check=check_parameters),
    Operator(
        ("QuantizeLinear",),
        (per_tensor, wide_engine, input_quantisable, scales_fit, sums_fit, wide_forms),
        quantise,
        check=check_parameters,
    ),
)
