"""Rules that every graph keeps: shapes that agree, buffers that are written before they are read."""

from __future__ import annotations

from collections.abc import Hashable

from weft.compiler.ir.graph import Buffer, Conv, DeviceOp, DeviceSegment, IrError
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
