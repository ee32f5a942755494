"""Reductions and windows of StableHLO, and the means, average pools and softmax that are written with them."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from weft.extras.mlir.builder import Builder, compact_equal
from weft.extras.mlir.context import Context, Record
from weft.extras.mlir.program import Op, Value

_SUM, _MAX = "stablehlo.add", "stablehlo.maximum"
_STEPS = 16
"""Largest number of operations between a sum and the value that repeats it."""
_LARGE = 1 << 22
"""Largest number of elements of a value that is traced."""


def reducer(op: Op) -> str | None:
    """Return the operation that a reduction combines elements with, or None if it is not one operation of both
    arguments."""
    words = op.attributes.get("words", [])
    if isinstance(words, list) and len(words) > 1 and words[0] == "applies":
        return str(words[1])
    inner = [item.name for item in op.body if item.name != "stablehlo.return"]
    arguments = {operand.name for item in op.body for operand in item.operands if operand.name}
    return (
        inner[0]
        if len(inner) == 1 and arguments <= {"argument0", "argument1"} and len(arguments) == 2
        else None
    )


def recognise_mean(context: Context) -> bool:
    """Read a sum over axes or windows divided by the number of its elements; return whether it is one."""
    builder = context.builder
    for at in (1, 0):
        number = context.array(at)
        maker = builder.producers.get(context.operand(1 - at))
        if (
            number is None
            or maker is None
            or compact_equal(number).size > 1
            or (at == 0 and context.short == "divide")
        ):
            continue
        count = float(compact_equal(number).item())
        count = count if context.short == "divide" else (1 / count if count else math.nan)
        if maker.name == "stablehlo.reduce_window" and reducer(maker) == _SUM:
            return recognise_average_pool(context, maker, count)
        # ONNX's keepdims is a second operation here, which restores the axes of one element.
        inner, keep = builder.producers.get(maker.operands[0]) if maker.operands else None, 0
        if maker.name in ("stablehlo.broadcast_in_dim", "stablehlo.reshape") and inner is not None:
            maker, keep = inner, 1
        axes = find_summed_axes(builder, maker)
        if axes is None or context.result().type.quantisation is not None:
            continue
        shape = maker.operands[0].type.shape
        reduced_shape = tuple(1 if axis in axes else size for axis, size in enumerate(shape))
        if keep and context.shape(1 - at) != reduced_shape:
            continue
        if not math.isclose(
            count, math.prod(maker.operands[0].type.shape[axis] for axis in axes), rel_tol=1e-6
        ):
            continue
        result = context.emit(
            "ReduceMean",
            builder.real_value(maker.operands[0]),
            context.emit_constant(list(axes)),
            keepdims=keep,
        )
        context.put(result)
        return True
    return False


def recognise_softmax(context: Context) -> bool:
    """Read exponentials divided by their sum along one axis; return whether it is one.

    A maximum that is subtracted first does not change the result.
    """
    builder, result = context.builder, context.result()
    exponential = builder.producers.get(context.operand(0))
    if (
        exponential is None
        or exponential.name != "stablehlo.exponential"
        or result.type.quantisation is not None
    ):
        return False
    axis = _find_repeated_axis(builder, context.operand(1), context.operand(0), _SUM)
    if axis is None:
        return False
    source = exponential.operands[0]
    subtracted = builder.producers.get(source)
    if subtracted is not None and subtracted.name == "stablehlo.subtract":
        first, second = subtracted.operands
        if _find_repeated_axis(builder, second, first, _MAX) == axis:
            source = first
    context.put(context.emit("Softmax", builder.real_value(source), axis=axis))
    return True


def _find_repeated_axis(builder: Builder, value: Value, source: Value, combined: str) -> int | None:
    """Return the axis along which `value` repeats the sum or maximum of `source`, or None."""
    steps: list[Op] = []
    current = value
    for _ in range(_STEPS):
        op = builder.producers.get(current)
        if op is None or current.type.size > _LARGE:
            return None
        if op.name == "stablehlo.reduce":
            break
        if op.name == "stablehlo.maximum":
            variables = [operand for operand in op.operands if builder.arrays.get(operand) is None]
            floor = [builder.arrays[operand] for operand in op.operands if operand in builder.arrays]
            # A maximum with -inf changes nothing; exporters add it to the reduction.
            if combined != _MAX or len(variables) != 1 or not np.isneginf(compact_equal(floor[0])).all():
                return None
            current = variables[0]
            continue
        if op.name not in ("stablehlo.broadcast_in_dim", "stablehlo.reshape"):
            return None
        steps.append(op)
        current = op.operands[0]
    else:
        return None
    axes = [int(axis) for axis in op.attributes.get("dimensions", [])]
    if (
        reducer(op) != combined
        or op.operands[0] is not source
        or len(axes) != 1
        or not _starts(builder, op, combined)
    ):
        return None
    # Trace element numbers through the broadcasts: only an exact repetition along one axis is a softmax.
    places = np.arange(current.type.size).reshape(current.type.shape)
    wanted = np.broadcast_to(np.expand_dims(places, axes[0]), source.type.shape)
    for step in reversed(steps):
        places = apply_broadcast(step, places)
    return axes[0] if np.array_equal(places, wanted) else None


def _starts(builder: Builder, op: Op, combined: str) -> bool:
    """Return whether the initial value of a reduction is the neutral one."""
    start = builder.arrays.get(op.operands[1]) if len(op.operands) == 2 else None
    if start is None or start.size != 1:
        return False
    return bool(start.item() == 0) if combined == _SUM else bool(np.isneginf(start.astype(np.float64)).all())


def apply_broadcast(op: Op, values: np.ndarray) -> np.ndarray:
    """Apply broadcast_in_dim or reshape to an array."""
    shape = op.results[0].type.shape
    if op.name == "stablehlo.reshape":
        return values.reshape(shape)
    dims = [int(axis) for axis in op.attributes.get("dims", op.attributes.get("broadcast_dimensions", []))]
    wide = [1] * len(shape)
    for size, axis in zip(values.shape, dims, strict=True):
        wide[axis] = size
    if dims != sorted(dims):
        values = values.transpose(np.argsort(dims))
    return np.broadcast_to(values.reshape(wide), shape)


_REDUCTIONS = {"stablehlo.add": ("ReduceSum", 0.0), "stablehlo.maximum": ("ReduceMax", -math.inf),
               "stablehlo.minimum": ("ReduceMin", math.inf), "stablehlo.multiply": ("ReduceProd", 1.0)}  # fmt: skip


class Windows(NamedTuple):
    """Windows over some axes: the permutation that puts these axes last, and ONNX's attributes."""

    perm: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[int, ...]


def find_summed_axes(builder: Builder, op: Op) -> tuple[int, ...] | None:
    """Return the axes that an operation sums over, or None if it does something else."""
    if op.name != "stablehlo.reduce" or len(op.operands) != 2 or reducer(op) != "stablehlo.add":
        return None
    start = builder.arrays.get(op.operands[1])
    if start is None or start.size != 1 or start.item() != 0 or op.operands[0].type.quantisation is not None:
        return None
    return tuple(sorted(int(axis) for axis in op.attributes.get("dimensions", [])))


def starts_neutral(context: Context, combined: str) -> bool:
    """Return whether the initial value of a reduction is the neutral one of its type."""
    start, dtype = context.array(1), context.operand(1).type.dtype
    if start is None or start.size != 1:
        return False
    wanted = _REDUCTIONS[combined][1]
    if math.isinf(wanted) and not dtype.startswith(("float", "bfloat")):
        limits = np.iinfo(dtype)
        wanted = limits.min if wanted < 0 else limits.max
    return bool(float(start.item()) == wanted)


def reduce(context: Context) -> None:
    """Read the sum, product, minimum or maximum over axes."""
    combined = reducer(context.op)
    if combined not in _REDUCTIONS or len(context.op.operands) != 2:
        raise context.refuse(
            f"combines elements with {combined}; weft reads add, multiply, minimum and maximum"
        )
    if not starts_neutral(context, combined):
        raise context.refuse(
            "starts with a value that changes the result; weft reads the neutral one, as 0 for add"
        )
    axes = context.axes(context.integers("dimensions"), len(context.shape()), "dimensions")
    result = context.emit(
        _REDUCTIONS[combined][0],
        context.stored_operand()
        if context.is_plain_integer()
        else context.builder.real_value(context.operand()),
        context.emit_constant(list(axes)),
        keepdims=0,
    )
    context.finish(result)


def windows(context: Context, op: Op) -> Windows:
    """Return the windows of reduce_window, over all axes but two that have windows of one element."""
    rank = len(op.operands[0].type.shape)
    inner = Context(op, context.builder)
    sizes = inner.integers("window_dimensions", rank=rank)
    strides = inner.integers("window_strides", default=[1] * rank, rank=rank)
    dilations = inner.integers("window_dilations", default=[1] * rank, rank=rank)
    base = inner.integers("base_dilations", default=[1] * rank, rank=rank)
    pads = inner.integers("padding", default=[0] * 2 * rank, rank=2 * rank)
    if any(step != 1 for step in base):
        raise inner.refuse("dilates its input; weft reads windows over what is there")
    if min((*sizes, *strides, *dilations)) < 1 or min(pads) < 0:
        raise inner.refuse("has sizes, strides or dilations below 1, or negative padding")
    used = [
        axis
        for axis in range(rank)
        if (sizes[axis], strides[axis], *pads[2 * axis : 2 * axis + 2]) != (1, 1, 0, 0)
    ]
    # Unless the windows tell the layout, take channels last, then channels first.
    spatial = used if used and len(used) == rank - 2 else list(range(1, rank - 1))
    if not set(used) <= set(spatial):
        spatial = list(range(2, rank))
    if rank < 3 or not set(used) <= set(spatial):
        raise inner.refuse(
            f"has windows over axes {used} of {rank}; weft reads them over all but images and channels"
        )
    outer = [axis for axis in range(rank) if axis not in spatial]
    return Windows(
        (*outer, *spatial),
        tuple(sizes[axis] for axis in spatial),
        tuple(strides[axis] for axis in spatial),
        tuple(dilations[axis] for axis in spatial),
        (*(pads[2 * axis] for axis in spatial), *(pads[2 * axis + 1] for axis in spatial)),
    )


def emit_pool(context: Context, operator: str, op: Op, window: Windows, **attributes: Any) -> str:
    """Emit a pool of ONNX on an input whose window axes are permuted to the end."""
    source = context.builder.emit_transposed_real(op.operands[0], window.perm)
    result = context.emit(
        operator,
        source,
        kernel_shape=window.kernel,
        strides=window.strides,
        dilations=window.dilations,
        pads=window.pads,
        **attributes,
    )
    return context.transpose(result, tuple(int(axis) for axis in np.argsort(window.perm)))


def reduce_window(context: Context) -> None:
    """Read the maximum or the sum over windows."""
    combined = reducer(context.op)
    if combined not in ("stablehlo.maximum", "stablehlo.add") or len(context.op.operands) != 2:
        raise context.refuse(f"combines elements with {combined}; weft reads maximum and add")
    window = windows(context, context.op)
    if not starts_neutral(context, combined) and not (combined == "stablehlo.maximum" and _least(context)):
        raise context.refuse("starts with a value that changes the result; weft reads -inf, or 0 for add")
    if combined == "stablehlo.maximum":
        return context.finish(emit_pool(context, "MaxPool", context.op, window))
    # ONNX has no pool of sums: a mean times the number of elements is one.
    mean = emit_pool(context, "AveragePool", context.op, window, count_include_pad=1)
    count = context.emit_constant(math.prod(window.kernel), "float32")
    return context.finish(context.emit("Mul", mean, count, suffix="sum"))


def _least(context: Context) -> bool:
    """Return whether windows start with the least stored number."""
    start, quantisation = context.array(1), context.operand(1).type.quantisation
    return start is not None and quantisation is not None and start.item() == quantisation.low


def recognise_average_pool(context: Context, op: Op, count: float) -> bool:
    """Read a sum over windows divided by the window's size, padding included; return whether it is one."""
    start = context.builder.arrays.get(op.operands[1])
    if (
        start is None
        or compact_equal(start).size > 1
        or compact_equal(start).item() != 0
        or context.result().type.quantisation
    ):
        return False
    window = windows(context, op)
    if not math.isclose(count, math.prod(window.kernel), rel_tol=1e-6):
        return False
    context.put(emit_pool(context, "AveragePool", op, window, count_include_pad=1))
    return True


OPERATORS = (
    Record(("stablehlo.reduce",), (2, None), "ReduceSum, ReduceMax, ReduceMin, ReduceProd", reduce),
    Record(("stablehlo.reduce_window",), (2, None), "MaxPool, AveragePool", reduce_window),
)
