"""Which elements of their input operators take that only move them: for each output, along each axis."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from weft.compiler.host.evaluate import EvaluationError, Evaluator
from weft.compiler.ir.network import Network, Type
from weft.compiler.ir.slices import slice_indices
from weft.compiler.onnx.boxes import Indices
from weft.compiler.onnx.context import NodeContext

LARGEST = 1 << 24
"""Most elements of an input whose places are told by floats."""


class Taken(NamedTuple):
    """What one output takes of the input, seen as a value of `shape`."""

    shape: tuple[int, ...]
    indices: Indices


def constants(context: NodeContext, name: str, index: int) -> tuple[int, ...] | None:
    """Integers that are an attribute in older versions of an operator, and an input in newer ones; None if they are not
    known, () if they are left out.
    """
    if name in context.node.attributes:
        return tuple(np.atleast_1d(context.node.attributes[name]).tolist())
    if not context.node.input(index):
        return ()
    given = context.model.constants.get(context.node.input(index))
    return None if given is None else tuple(given.reshape(-1).tolist())


@functools.lru_cache(maxsize=1)
def taken(context: NodeContext) -> tuple[Taken, ...] | None:
    """What each output takes; None if that is not known before the model runs.

    All conditions of a node ask for it, one after the other, and Resize has to be evaluated to know.
    """
    return _TAKEN[context.node.op](context)


def _all(shape: tuple[int, ...]) -> list[np.ndarray]:
    return [np.arange(size) for size in shape]


def _slice(context: NodeContext) -> tuple[Taken, ...] | None:
    shape = context.shape()
    given = [constants(context, name, at) for at, name in enumerate(("starts", "ends", "axes", "steps"), 1)]
    starts, ends, axes, steps = (item for item in given)
    if starts is None or ends is None or axes is None or steps is None:
        return None
    indices = _all(shape)
    axes, steps = axes or tuple(range(len(starts))), steps or (1,) * len(starts)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        indices[axis] = slice_indices(shape[axis], start, end, step)
    return (Taken(shape, tuple(indices)),)


def _split(context: NodeContext) -> tuple[Taken, ...]:
    shape, first, made = context.shape(), 0, []
    axis = int(context.node.attributes.get("axis", 0)) % len(shape)
    for output in context.node.outputs:
        indices = _all(shape)
        indices[axis] = np.arange(first, first + context.model.shapes[output][axis])
        first = int(indices[axis][-1]) + 1
        made.append(Taken(shape, tuple(indices)))
    return tuple(made)


def _gather(context: NodeContext) -> tuple[Taken, ...] | None:
    shape, given = context.shape(), context.model.constants.get(context.node.inputs[1])
    if given is None:
        return None
    indices, axis = _all(shape), int(context.node.attributes.get("axis", 0)) % len(shape)
    indices[axis] = given.reshape(-1).astype(np.int64) % shape[axis]
    return (Taken(shape, tuple(indices)),)


def _expand(context: NodeContext) -> tuple[Taken, ...]:
    output = context.output
    shape = (1,) * (len(output) - len(context.shape())) + context.shape()
    pairs = zip(shape, output, strict=True)
    return (Taken(shape, tuple(np.arange(many) % size for size, many in pairs)),)


def _pad(context: NodeContext) -> tuple[Taken, ...] | None:
    shape, pads = context.shape(), constants(context, "pads", 1)
    axes = constants(context, "axes", 3)
    mode = str(context.attribute("mode", "constant"))
    if pads is None or axes is None or (min(pads) < 0 and mode != "constant"):
        return None
    indices = _all(shape)
    axes = axes or tuple(range(len(shape)))
    for at, axis in enumerate(axes):
        before, after = pads[at], pads[at + len(axes)]
        kept = indices[axis][max(-before, 0) : shape[axis] - max(-after, 0)]
        filling = {"constant_values": -1} if mode == "constant" else {}
        around = (max(before, 0), max(after, 0))
        indices[axis] = np.pad(kept, around, mode, **filling)  # type: ignore[call-overload]
    return (Taken(shape, tuple(indices)),)


def _resize(context: NodeContext) -> tuple[Taken, ...] | None:
    shape = context.shape()
    lanes = places(context) if str(context.attribute("mode", "nearest")) == "nearest" else None
    if lanes is None:
        return None
    indices = [lane[:, 0].astype(np.int64) for lane in lanes]
    for lane, found, size in zip(lanes, indices, shape, strict=True):
        if (lane != found[:, None]).any() or found.min() < 0 or found.max() >= size:
            return None  # what is outside is filled
    return (Taken(shape, tuple(indices)),)


def places(context: NodeContext) -> list[np.ndarray] | None:
    """What a Resize makes of the places along each axis, (output, others), by evaluating it: modes of coordinates are
    many. None if it is not known before the model runs.
    """
    shape, output = context.shape(), context.output
    given = [name for name in context.node.inputs[1:] if name and name not in context.model.constants]
    if given or max(math.prod(shape), math.prod(output)) > LARGEST:
        return None
    try:
        evaluator = Evaluator(_alone(context))
        lanes = []
        for axis, size in enumerate(shape):
            along = [1] * len(shape)
            along[axis] = size
            ramp = np.broadcast_to(np.arange(size, dtype=np.float32).reshape(along), shape)
            (found,) = evaluator.run({"x": np.ascontiguousarray(ramp)})
            lanes.append(np.moveaxis(found, axis, 0).reshape(output[axis], -1))
    except EvaluationError:
        return None
    return lanes


def _alone(context: NodeContext) -> Network:
    """The node as a network by itself, of floats."""
    node = dataclasses.replace(context.node, inputs=("x", *context.node.inputs[1:]), outputs=("y",))
    known = context.model.constants
    return Network(
        (node,),
        ("x",),
        ("y",),
        {"x": Type("float32", context.shape()), "y": Type("float32", context.output)},
        {name: known[name] for name in node.inputs[1:] if name},
        context.model.network.opsets,
    )


_TAKEN: dict[str, Callable[[NodeContext], tuple[Taken, ...] | None]] = {
    "Expand": _expand,
    "Gather": _gather,
    "Pad": _pad,
    "Resize": _resize,
    "Slice": _slice,
    "Split": _split,
    "Tile": _expand,
    "Upsample": _resize,
}
