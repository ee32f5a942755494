"""Rules that every graph keeps: shapes that agree, buffers that are written before they are read."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import numpy as np

from weft.compiler.host.segments import from_buffer, run_host, to_buffer
from weft.compiler.ir.graph import Buffer, Conv, DeviceOp, DeviceSegment, IrError, View
from weft.compiler.ir.model import Graph
from weft.compiler.operators.record import operator_of

_BY_THE_HOST = ("input", "state", "pages", "table")
"""Kinds of buffers that hold something before a segment runs."""


def verify(graph: Graph) -> None:
    """Raise `IrError` if a graph breaks a rule: shapes that disagree, buffers read before they are written."""
    written = {transfer.buffer.name for transfer in graph.to_device}
    buffers: dict[str, Buffer] = {}
    for transfer in (*graph.to_device, *graph.from_device):
        _verify_alias(transfer.buffer, buffers, f"value {transfer.value!r}")
    for segment in graph.segments:
        if isinstance(segment, DeviceSegment):
            _verify_segment(segment, buffers, written, set())
    for transfer in graph.from_device:
        if transfer.buffer.name not in written:
            raise IrError(f"output {transfer.value!r}: buffer {transfer.buffer.name!r} is never written")


def verify_segment(segment: DeviceSegment, known: set[Hashable] | None = None) -> None:
    """Raise `IrError` if a device segment by itself breaks a rule: the host writes all buffers that are its own to
    write. Operators that are in `known`, but for names, keep the rules for one operator; the others are added."""
    views = (view for op in segment.ops for view in op.sources)
    written = {view.buffer.name for view in views if view.buffer.kind in _BY_THE_HOST}
    _verify_segment(segment, {}, written, set() if known is None else known)


def verify_op(op: DeviceOp) -> None:
    """Raise `IrError` if shapes, ranges or dtypes of one operator disagree."""
    operator_of(op).verify(op)


def _verify_segment(
    segment: DeviceSegment, buffers: dict[str, Buffer], written: set[str], known: set[Hashable]
) -> None:
    on_chip: set[str] = set()
    for op in segment.ops:
        views = (*op.sources, op.dst)
        if isinstance(op, Conv) and op.epilogue is not None:
            views += (op.epilogue.sources[0], op.epilogue.dst)
            on_chip.add(op.epilogue.sources[0].buffer.name)
        kind = op.signature, *((view.image, view.y, view.x, view.c) for view in views)
        if kind not in known:
            verify_op(op)
            known.add(kind)
        for view in op.sources:
            _verify_alias(view.buffer, buffers, op.name)
            if view.buffer.name not in written:
                raise IrError(f"{op.name}: reads buffer {view.buffer.name!r} before it is written")
        _verify_alias(op.dst.buffer, buffers, op.name)
        written.add(op.dst.buffer.name)
    for state, made in segment.states.items():
        _verify_state(state, made, buffers, written)
    for name in on_chip & set(buffers):
        raise IrError(f"buffer {name!r} stays on chip in one operator and is used by another")


def _verify_state(state: str, made: str, buffers: dict[str, Buffer], written: set[str]) -> None:
    """What a state becomes must be made, where no later operator takes its place, and be as large."""
    old, new = buffers.get(state), buffers.get(made)
    if new is None or new.kind != "output" or made not in written:
        raise IrError(f"state {state!r}: buffer {made!r} is no output that is written")
    if old is not None and (old.kind != "state" or old.size != new.size):
        raise IrError(f"state {state!r} is {old.shape} {old.kind}, but becomes {new.shape}")


def _verify_alias(buffer: Buffer, buffers: dict[str, Buffer], where: str) -> None:
    """Buffers of one name must agree in size and kind."""
    first = buffers.setdefault(buffer.name, buffer)
    if (first.size, first.kind) != (buffer.size, buffer.kind):
        raise IrError(
            f"{where}: buffer {buffer.name!r} is {buffer.shape} {buffer.kind}, not {first.shape} {first.kind}"
        )


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
