"""Clamps, quantisation, and elementwise functions of one quantised value as tables of 256 entries or piecewise linear
functions.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from weft.compiler.errors import NarrowError
from weft.compiler.ir.graph import Conv, DeviceOp, Rescale
from weft.compiler.ir.products import Embedding
from weft.compiler.ir.views import Buffer, View
from weft.compiler.kernel.wide import WIDE_FUNCTION_TABLES, Lines, WideFunction, fit_lines
from weft.compiler.onnx.conditions import input_quantisable
from weft.compiler.onnx.elementwise import ARITHMETIC, MOVES, PLAIN
from weft.compiler.onnx.functions import Entries, Function
from weft.compiler.onnx.operator import DEQUANTISE, QUANTISE, NodeContext, Operator
from weft.compiler.onnx.qdq import (
    Activation,
    Pending,
    Quant,
    Recipe,
    Symbol,
    Tensor,
    finish,
    has_wide,
    quant_of,
    rescale,
    result_of,
)
from weft.compiler.onnx.wide import is_wide, upper_plane


def bounds_constant(context: NodeContext) -> str | None:
    """The bounds of Clip must be constant."""
    for name in context.node.inputs[1:]:
        if name and name not in context.model.constants:
            return f"input {name!r} is not"
    return None


def clamp(context: NodeContext) -> Symbol:
    """Return a Relu or Clip: it narrows the clamp of a pending result, and requantises an activation."""
    source = context.symbol(0)
    if isinstance(source, Activation):
        source = rescale(source, context.node.name)
    assert isinstance(source, Pending)
    low, high = (0.0, math.inf) if context.node.op == "Relu" else _bounds(context)
    return dataclasses.replace(
        source,
        nodes=(*source.nodes, context.node.index),
        low=min(max(source.low, low), high),
        high=min(max(source.high, low), high),
    )


def _bounds(context: NodeContext) -> tuple[float, float]:
    bounds = [
        float(context.node.attributes.get("min", -math.inf)),
        float(context.node.attributes.get("max", math.inf)),
    ]
    for index in range(2):
        name = context.node.input(1 + index)
        if name:
            bounds[index] = float(context.model.constants[name].reshape(-1)[0])
    return bounds[0], bounds[1]


CLAMP_OPERATORS = (
    Operator(("Clip",), (bounds_constant, input_quantisable), clamp),
    Operator(("Relu",), (input_quantisable,), clamp),
)


KERNEL = 32
"""Most micro-operations of kernels on 16-bit values, normalisations aside."""
SCALE_LIMIT = 1 << 15
"""Scales from here on need a shift beside a 16-bit mantissa."""


def per_tensor(context: NodeContext) -> str | None:
    """Activations must have 8 or 16 bits, and one constant positive scale and one zero point for the whole tensor."""
    quantisation = context.quantisation
    assert quantisation is not None
    if quant_of(quantisation) is not None:
        return None
    scales = quantisation.scales
    which = f"scale {float(scales):g}" if quantisation.per_tensor else f"{scales.size} scales"
    return f"{context.node.outputs[0]!r} has type {quantisation.dtype.name} and {which}"


def wide_engine(context: NodeContext) -> str | None:
    """Values of 16 bits need a kernel engine ('kernel' 32 or more)."""
    size = context.model.config.kernel
    supported = context.quant.bits == 8 or size >= KERNEL
    return None if supported else f"{context.node.outputs[0]!r} has 16 bits, and 'kernel' is {size}"


def wide_forms(context: NodeContext) -> str | None:
    """Values of 16 bits must be sums, products, convolutions, pools, extremes, copies, functions or normalisations."""
    symbol = context.symbol(0)
    if not isinstance(symbol, Pending) or not has_wide(symbol, context.quant):
        return None
    try:
        _finish_pending(context)
    except NarrowError as error:
        return str(error)
    return None


def scales_fit(context: NodeContext) -> str | None:
    """Requantisation scales must be below 32768."""
    quant, symbol = context.quant, context.symbol(0)
    if isinstance(symbol, Activation):
        return (
            None
            if symbol.quant.scale / quant.scale < SCALE_LIMIT
            else f"{symbol.quant.scale / quant.scale:g}"
        )
    assert isinstance(symbol, Pending)
    for op in symbol.ops:
        if isinstance(op, Embedding):
            continue  # its rows are quantised at compile time
        for name in ("scale", "a_scale", "b_scale"):
            value = getattr(op, name, 0.0)
            most = (abs(value) if isinstance(value, float) else float(np.abs(value).max())) / quant.scale
            if not most < SCALE_LIMIT:
                return f"{op.name} has {most:g}"
    return None


def sums_fit(context: NodeContext) -> str | None:
    """Sums of products must fit 32 bits for every possible input."""
    symbol = context.symbol(0)
    for op in symbol.ops if isinstance(symbol, Pending) else ():
        if isinstance(op, Conv) and not is_wide(op.src):
            # The largest sum has the input that is farthest from its zero point everywhere.
            totals = np.abs(op.weight).sum(axis=(1, 2, 3), dtype=np.int64)
            most = int(
                (totals * max(127 - op.x_zero, op.x_zero + 128) + np.abs(op.bias.astype(np.int64))).max()
            )
            if most >= 1 << 31:
                return f"{op.name} could reach {most}"
    return None


def dequantise(context: NodeContext) -> Symbol:
    """Return a value of 8 or 16 bits as an activation."""
    tensor = context.symbol(0)
    assert isinstance(tensor, Tensor)
    return Activation(tensor, context.quant)


def stored_on_device(context: NodeContext) -> str | None:
    """The integers of an activation must be a value of the device, or come from the host."""
    return None if isinstance(context.symbol(0), Tensor) else f"{context.node.inputs[0]!r} is not"


def quantise(context: NodeContext) -> Recipe | Tensor:
    """Complete a pending operator, requantise an activation, or return its tensor if nothing changes."""
    node, source, quant = context.node, context.symbol(0), context.quant
    name = node.outputs[0]
    if isinstance(source, Activation):
        if source.quant.same(quant):
            return dataclasses.replace(source.tensor, via=(*source.tensor.via, node.index))
        return finish(rescale(source, node.name), name, quant, node)
    return _finish_pending(context)


@functools.lru_cache(maxsize=1)
def _finish_pending(context: NodeContext) -> Recipe:
    """Return the completed recipe of a pending operator. Cached, because a constraint tries it first."""
    source = context.symbol(0)
    assert isinstance(source, Pending)
    return finish(source, context.node.outputs[0], context.quant, context.node)


QUANTISE_OPERATORS = (
    Operator((DEQUANTISE,), (per_tensor, wide_engine, stored_on_device), dequantise),
    Operator(
        (QUANTISE,), (per_tensor, wide_engine, input_quantisable, scales_fit, sums_fit, wide_forms), quantise
    ),
)


WIDE_STEPS = 8
"""Largest error, in 16-bit steps, of a function of a 16-bit value."""


def one_value(context: NodeContext) -> str | None:
    """The operator must be computed, element by element, from one quantised activation and constants."""
    if context.functions:
        return None
    other = next((name for name, functions in zip(context.node.inputs, context.arguments, strict=True)
                  if name and not functions and name not in context.model.constants), None)  # fmt: skip
    return f"inputs are {context.inputs}" if other is None else f"input {other!r} is not"


def tables(context: NodeContext) -> str | None:
    """The configuration must have look-up tables ('lookup_tables' above 0)."""
    return None if context.model.config.lookup_tables else ""


def numbers(context: NodeContext) -> str | None:
    """The result must be a number for every possible value of the activation."""
    if any(function.entries.is_defined for function in context.functions):
        return None
    return context.functions[0].entries.cause


def function_table(context: NodeContext) -> Recipe:
    """Return the table of a function from its root to its rounded result."""
    function = _choose_function(context)
    assert function is not None
    root, name, quant = function.root, context.node.outputs[0], context.quant
    view = result_of(name, root.layout.nhwc)
    view = upper_plane(view) if quant.bits > 8 else view
    ops: tuple[DeviceOp, ...]
    if root.wide:
        lines = _fit_function(context, function)
        assert isinstance(lines, WideFunction)
        ops = (lines.replace(src=root.view(), dst=view),)
    elif quant.bits > 8:
        # Upper and lower bytes of 16-bit results have a table each.
        stored = function.entries.stored_values.astype(np.int16)
        ops = tuple(
            Rescale(context.node.name, root.view(), plane, lookup=bytes_.astype(np.int8))
            for plane, bytes_ in zip(view.planes, (stored >> 8, (stored & 255) - 128), strict=True)
        )
    else:
        ops = (Rescale(context.node.name, root.view(), view, lookup=function.entries.stored_values),)
    output = Tensor(
        name,
        name,
        root.layout,
        root.layout,
        quant.unsigned,
        from_host=False,
        from_table=True,
        wide=quant.bits > 8,
    )
    nodes = tuple(dict.fromkeys((*root.via, *function.nodes)))
    return Recipe(output, ops, (root,), nodes, ())


def lines_near(context: NodeContext) -> str | None:
    """Functions of 16-bit values are piecewise linear with 256 intervals, at most 8 steps off (1 step for 8-bit
    results).
    """
    function = _choose_function(context)
    fitted = _fit_function(context, function) if function is not None and function.root.wide else None
    return fitted if isinstance(fitted, str) else None


def _fit_function(context: NodeContext, function: Function) -> WideFunction | str:
    """Return a function of a 16-bit root, without its views, or its error as text."""
    quant, before = context.quant, function.arguments[0]
    assert isinstance(before, Function)
    fields, error = _fit_lines(before.entries, function.entries, quant)
    if error > (WIDE_STEPS if quant.bits > 8 else 1):
        return f"the error is {error} steps"
    return WideFunction(
        name=context.node.name, wide=quant.bits > 8, src=_NO_VIEW, dst=_NO_VIEW, **fields._asdict()
    )


_NO_VIEW = View(Buffer("", (2, 1, 1, 1)), (1, 1, 1, 1))


@functools.lru_cache(maxsize=32)  # the steps of a recurrent network share their functions
def _fit_lines(real: Entries, rounded: Entries, quant: Quant) -> tuple[Lines, int]:
    """Return the lines nearest to a function of real numbers, and their largest error against its rounded results."""
    half = 1 << quant.bits - 1
    with np.errstate(all="ignore"):
        values = real.values.astype(np.float64) / quant.scale + quant.zero
    # Infinite results saturate, as do these numbers.
    exact = np.nan_to_num(values, nan=0.0, posinf=2.0**40, neginf=-(2.0**40))
    lines = fit_lines(exact, (-half, half - 1))
    fitted = WideFunction(name="", wide=quant.bits > 8, src=_NO_VIEW, dst=_NO_VIEW, **lines._asdict())
    return lines, int(np.abs(fitted.results - rounded.stored_values.astype(np.int64)).max())


def _choose_function(context: NodeContext) -> Function | None:
    """Return the function that becomes a table; None if a requantisation suffices.

    The nearest root is best, because older tensors need not stay. An older root is better if nothing else reads the
    nearer one.
    """
    source = _requantised_tensor(context)
    if source is not None and not source.from_table:
        return None
    usable = (function for function in context.functions if _usable(context, function))
    nearest = best = next(usable, None)
    while best is not None and _private(context, best):
        older = next(usable, None)
        if older is None:
            break
        best = older
    return None if source is not None and best is nearest else best


def _usable(context: NodeContext, function: Function) -> bool:
    """Return whether a function has a number for every value of its root, and the device has the units for it."""
    config = context.model.config
    if function.root.wide and (config.lookup_tables < WIDE_FUNCTION_TABLES or config.kernel < KERNEL):
        return False
    return function.entries.is_defined


def _requantised_tensor(context: NodeContext) -> Tensor | None:
    """Return the tensor that a rounding only rescales and clamps; None if there is none."""
    symbol = context.symbol(0)
    if isinstance(symbol, Activation):
        source = symbol.tensor
    elif isinstance(symbol, Pending) and isinstance(symbol.ops[0], Rescale) and len(symbol.ops) == 1:
        source = symbol.inputs[0]
    else:
        return None
    return source if scales_fit(context) is None else None


def _private(context: NodeContext, function: Function) -> bool:
    """Return whether only the nodes of a function read its root and all values in between."""
    inside = {*function.root.via, *function.nodes}
    names = [function.root.value]
    for name in names:
        if name in context.model.outputs:
            return False
        for user in context.model.users(name):
            if user.index not in inside:
                return False
            if user.index != context.node.index:
                names += [output for output in user.outputs if output not in names]
    return True


def _ends_function(context: NodeContext) -> bool:
    if not context.functions or not context.model.config.lookup_tables or per_tensor(context) is not None:
        return False
    return _choose_function(context) is not None


def _is_function(context: NodeContext) -> bool:
    return bool(context.functions)


def _no_symbol(context: NodeContext) -> None:
    """Return no symbol, because only `Match.functions` knows the result."""


_OTHERS = (*ARITHMETIC, *MOVES)

LOOKUP_OPERATORS = (
    Operator((QUANTISE,), (per_tensor, wide_engine, lines_near), function_table, applies=_ends_function),
    Operator(PLAIN, (one_value, tables, numbers), _no_symbol, elementwise=True),
    Operator(
        _OTHERS,
        (tables, numbers),
        _no_symbol,
        applies=_is_function,
        elementwise=True,
        title=f"{', '.join(sorted(_OTHERS))} in functions of one activation",
    ),
)


OPERATORS = (*CLAMP_OPERATORS, *LOOKUP_OPERATORS, *QUANTISE_OPERATORS)
