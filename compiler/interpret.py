"""What device segments compute, without a device: operators by their meaning, on numpy arrays."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from weft.compiler.host.segments import from_buffer, run_host, to_buffer
from weft.compiler.ir.graph import DeviceOp, DeviceSegment, View
from weft.compiler.ir.model import Graph
from weft.compiler.operators.record import operator_of


def exact(segment: DeviceSegment) -> bool:
    """Whether `run_ops` gives the device's bytes: not if there is attention or softmax, which it does in float64."""
    return all(operator_of(op).exact for op in segment.ops)


def evaluate(op: DeviceOp, given: tuple[np.ndarray, ...], bits: int = 24) -> np.ndarray:
    """An operator's output (int8, shape of `op.dst`) for the contents of its source views.

    `bits` is the width of requantisation mantissas (`weft.hdl.isa.config.Config.mantissa_bits`).
    """
    return operator_of(op).evaluate(op, given, bits)


def run_ops(segment: DeviceSegment, inputs: dict[str, np.ndarray], bits: int = 24) -> dict[str, np.ndarray]:
    """Run a device segment on the contents of its input buffers.

    `inputs` maps buffer names to int8 arrays; the result maps the names of all buffers (those, "temp" and "output"
    ones) to their contents, flat. They are the device's bytes if `exact` says so; otherwise attention and softmax may
    be a few levels off, and what is computed from them more.
    """
    memory = {name: np.ascontiguousarray(value).reshape(-1).copy() for name, value in inputs.items()}
    for op in segment.ops:
        target = memory.setdefault(op.dst.buffer.name, np.zeros(op.dst.buffer.size, np.int8))
        given = tuple(_box(memory[view.buffer.name], view) for view in op.sources)
        result = evaluate(op, given, bits)
        for plane, view in zip(np.split(result, len(result) // op.dst.shape[0]), op.dst.planes, strict=False):
            _box(target, view)[...] = plane
    return memory | {state: memory[made].copy() for state, made in segment.states.items()}


def run_model(graph: Graph, values: Mapping[str, np.ndarray], bits: int = 24) -> dict[str, np.ndarray]:
    """Run a whole model: device segments as `run_ops` does, host segments by the host's evaluator.

    `values` are those of its inputs and of what it keeps, by name; the result has all that cross between host and
    device, and its outputs, as well.
    """
    found = dict(values)
    for segment in graph.segments:
        if not isinstance(segment, DeviceSegment):
            found |= run_host(segment, found)
            continue
        read = {view.buffer.name for op in segment.ops for view in op.sources}
        made = {op.dst.buffer.name for op in segment.ops} | segment.states.keys()
        entering = [item for item in graph.to_device if item.buffer.name in read]
        given = {item.buffer.name: to_buffer(item, found[item.value]) for item in entering}
        memory = run_ops(segment, given, bits)
        found |= {
            item.value: from_buffer(item, memory[item.buffer.name])
            for item in graph.from_device
            if item.buffer.name in made
        }
    return found


def _box(memory: np.ndarray, view: View) -> np.ndarray:
    """A view's elements, in the flat contents of its buffer; writable where no step is 0."""
    y, x = (
        slice(first, first + (count - 1) * step + 1, step or None)
        for first, count, step in zip((view.y, view.x), view.shape[1:3], view.step, strict=True)
    )
    images = slice(view.image, view.image + view.shape[0])
    box = memory.reshape(view.buffer.shape)[images, y, x, view.c : view.c + view.shape[3]]
    return box if all(view.step) else np.broadcast_to(box, view.shape)
