"""Graph verifier and reference execution."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

import numpy as np

from weft.compiler.errors import IrError
from weft.compiler.host.segments import from_buffer, run_host, to_buffer
from weft.compiler.ir.graph import Conv, DeviceOp, DeviceSegment
from weft.compiler.ir.model import Graph
from weft.compiler.ir.views import Buffer, View
from weft.compiler.operators.record import operator_of

_BY_THE_HOST = ("input", "state", "pages", "table")
"""Kinds of buffers that have contents before a segment runs."""


def verify(graph: Graph) -> None:
    """Check a graph's rules: shapes agree, and buffers are written before they are read.

    Raises
    ------
    IrError
        If a rule is broken.
    """
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
    """Check the rules for a device segment by itself, assuming that the host writes all buffers that it can write.

    Operators in `known`, names aside, have passed the rules for single operators; others are added to it. Raises
    `IrError`.
    """
    views = (view for op in segment.ops for view in op.sources)
    written = {view.buffer.name for view in views if view.buffer.kind in _BY_THE_HOST}
    _verify_segment(segment, {}, written, set() if known is None else known)


def verify_op(op: DeviceOp) -> None:
    """Check shapes, ranges and dtypes of one operator; raises `IrError`."""
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
        # Signatures ignore positions of views, which the checks depend on.
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
    for state, output in segment.states.items():
        _verify_state(state, output, buffers, written)
    for name in on_chip & set(buffers):
        raise IrError(f"buffer {name!r} stays on chip in one operator and is used by another")


def _verify_state(state: str, output: str, buffers: dict[str, Buffer], written: set[str]) -> None:
    """Check that a state's new value is a written output of the state's size."""
    old, new = buffers.get(state), buffers.get(output)
    if new is None or new.kind != "output" or output not in written:
        raise IrError(f"state {state!r}: buffer {output!r} is no output that is written")
    if old is not None and (old.kind != "state" or old.size != new.size):
        raise IrError(f"state {state!r} is {old.shape} {old.kind}, but becomes {new.shape}")


def _verify_alias(buffer: Buffer, buffers: dict[str, Buffer], label: str) -> None:
    """Check that buffers with one name agree in size and kind."""
    first = buffers.setdefault(buffer.name, buffer)
    if (first.size, first.kind) != (buffer.size, buffer.kind):
        raise IrError(
            f"{label}: buffer {buffer.name!r} is {buffer.shape} {buffer.kind}, not {first.shape} {first.kind}"
        )


def is_exact(segment: DeviceSegment) -> bool:
    """Return whether `run_ops` gives the device's bytes: it computes attention and softmax in float64."""
    return all(operator_of(op).exact for op in segment.ops)


def evaluate(op: DeviceOp, sources: tuple[np.ndarray, ...], bits: int = 24) -> np.ndarray:
    """Return an operator's output (int8, shape of `op.dst`) for the contents of its source views.

    `bits` is the width of requantisation mantissas (`weft.hdl.isa.config.Config.mantissa_bits`).
    """
    return operator_of(op).evaluate(op, sources, bits)


def run_ops(segment: DeviceSegment, inputs: dict[str, np.ndarray], bits: int = 24) -> dict[str, np.ndarray]:
    """Run a device segment on the contents of its input buffers.

    `inputs` maps buffer names to int8 arrays. The result maps the names of these and of all "temp" and "output"
    buffers to their contents, flat. They are the device's bytes if `is_exact` holds. Otherwise attention and softmax
    may be a few levels off, and later results more.
    """
    memory = {name: np.ascontiguousarray(value).reshape(-1).copy() for name, value in inputs.items()}
    for op in segment.ops:
        target = memory.setdefault(op.dst.buffer.name, np.zeros(op.dst.buffer.size, np.int8))
        sources = tuple(_box(memory[view.buffer.name], view) for view in op.sources)
        result = evaluate(op, sources, bits)
        # 16-bit results are two planes, one after the other.
        for plane, view in zip(np.split(result, len(result) // op.dst.shape[0]), op.dst.planes, strict=False):
            _box(target, view)[...] = plane
    return memory | {state: memory[output].copy() for state, output in segment.states.items()}


def run_model(graph: Graph, values: Mapping[str, np.ndarray], bits: int = 24) -> dict[str, np.ndarray]:
    """Run a whole model: device segments by `run_ops`, host segments by the host's evaluator.

    `values` are its inputs and states by name. The result also has all values that are transferred between host and
    device, and the outputs.
    """
    results = dict(values)
    for segment in graph.segments:
        if not isinstance(segment, DeviceSegment):
            results |= run_host(segment, results)
            continue
        read = {view.buffer.name for op in segment.ops for view in op.sources}
        written = {op.dst.buffer.name for op in segment.ops} | segment.states.keys()
        entering = [item for item in graph.to_device if item.buffer.name in read]
        buffers = {item.buffer.name: to_buffer(item, results[item.value]) for item in entering}
        memory = run_ops(segment, buffers, bits)
        results |= {
            item.value: from_buffer(item, memory[item.buffer.name])
            for item in graph.from_device
            if item.buffer.name in written
        }
    return results


def _box(memory: np.ndarray, view: View) -> np.ndarray:
    """Return a view's elements from its buffer's flat contents; writable unless a step is 0."""
    y, x = (
        slice(first, first + (count - 1) * step + 1, step or None)
        for first, count, step in zip((view.y, view.x), view.shape[1:3], view.step, strict=True)
    )
    images = slice(view.image, view.image + view.shape[0])
    box = memory.reshape(view.buffer.shape)[images, y, x, view.c : view.c + view.shape[3]]
    return box if all(view.step) else np.broadcast_to(box, view.shape)
