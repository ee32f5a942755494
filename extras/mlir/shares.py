"""Chains of operations that are one of ONNX's: means, average pools, and softmax."""

from __future__ import annotations

import math

import numpy as np

from weft.extras.mlir.builder import Builder, reduced
from weft.extras.mlir.context import Context
from weft.extras.mlir.program import Op, Value

_SUM, _MAX = "stablehlo.add", "stablehlo.maximum"
_STEPS = 16
"""Most operations between a sum and where it is repeated."""
_LARGE = 1 << 22
"""Most elements of a value that it is followed through."""


def reducer(op: Op) -> str | None:
    """What a reduction combines elements with, None if it is not one operation of the two."""
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


def mean_of(context: Context) -> bool:
    """A sum over axes or windows, divided by the number of its elements."""
    from weft.extras.mlir.operators.reductions import averaged, summed_axes

    builder = context.builder
    for at in (1, 0):
        number = context.array(at)
        maker = builder.makers.get(context.operand(1 - at))
        if (
            number is None
            or maker is None
            or reduced(number).size > 1
            or (at == 0 and context.short == "divide")
        ):
            continue
        count = float(reduced(number).item())
        count = count if context.short == "divide" else (1 / count if count else math.nan)
        if maker.name == "stablehlo.reduce_window" and reducer(maker) == _SUM:
            return averaged(context, maker, count)
        inner, keep = builder.makers.get(maker.operands[0]) if maker.operands else None, 0
        if maker.name in ("stablehlo.broadcast_in_dim", "stablehlo.reshape") and inner is not None:
            maker, keep = inner, 1
        axes = summed_axes(builder, maker)
        if axes is None or context.result().type.quantisation is not None:
            continue
        whole = maker.operands[0].type.shape
        kept = tuple(1 if axis in axes else size for axis, size in enumerate(whole))
        if keep and context.shape(1 - at) != kept:
            continue
        if not math.isclose(
            count, math.prod(maker.operands[0].type.shape[axis] for axis in axes), rel_tol=1e-6
        ):
            continue
        made = context.emit(
            "ReduceMean", builder.real(maker.operands[0]), context.numbers(list(axes)), keepdims=keep
        )
        context.put(made)
        return True
    return False


def softmax_of(context: Context) -> bool:
    """Exponentials divided by their sum along one axis; what is subtracted of all ahead changes nothing."""
    builder, result = context.builder, context.result()
    exponential = builder.makers.get(context.operand(0))
    if (
        exponential is None
        or exponential.name != "stablehlo.exponential"
        or result.type.quantisation is not None
    ):
        return False
    axis = _repeated(builder, context.operand(1), context.operand(0), _SUM)
    if axis is None:
        return False
    source = exponential.operands[0]
    subtracted = builder.makers.get(source)
    if subtracted is not None and subtracted.name == "stablehlo.subtract":
        first, second = subtracted.operands
        if _repeated(builder, second, first, _MAX) == axis:
            source = first
    context.put(context.emit("Softmax", builder.real(source), axis=axis))
    return True


def _repeated(builder: Builder, value: Value, source: Value, combined: str) -> int | None:
    """The axis along which `value` repeats the sum or the maximum of `source`; None if it is something else."""
    steps: list[Op] = []
    made = value
    for _ in range(_STEPS):
        op = builder.makers.get(made)
        if op is None or made.type.size > _LARGE:
            return None
        if op.name == "stablehlo.reduce":
            break
        if op.name == "stablehlo.maximum":
            found = [operand for operand in op.operands if builder.arrays.get(operand) is None]
            floor = [builder.arrays[operand] for operand in op.operands if operand in builder.arrays]
            if combined != _MAX or len(found) != 1 or not np.isneginf(reduced(floor[0])).all():
                return None
            made = found[0]
            continue
        if op.name not in ("stablehlo.broadcast_in_dim", "stablehlo.reshape"):
            return None
        steps.append(op)
        made = op.operands[0]
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
    places = np.arange(made.type.size).reshape(made.type.shape)
    wanted = np.broadcast_to(np.expand_dims(places, axes[0]), source.type.shape)
    for step in reversed(steps):
        places = spread(step, places)
    return axes[0] if np.array_equal(places, wanted) else None


def _starts(builder: Builder, op: Op, combined: str) -> bool:
    """Whether a reduction starts with what changes nothing."""
    start = builder.arrays.get(op.operands[1]) if len(op.operands) == 2 else None
    if start is None or start.size != 1:
        return False
    return bool(start.item() == 0) if combined == _SUM else bool(np.isneginf(start.astype(np.float64)).all())


def spread(op: Op, values: np.ndarray) -> np.ndarray:
    """What broadcast_in_dim or reshape makes of an array."""
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
