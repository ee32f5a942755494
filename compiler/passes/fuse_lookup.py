"""Requantisations and look-up tables become the look-up table of the operator before them, at no cost in cycles."""

from __future__ import annotations

import dataclasses

import numpy as np

from weft.compiler.ir.graph import DeviceOp, DeviceSegment, Rescale, readers
from weft.compiler.operators.record import operator_of
from weft.compiler.passes.fusion import fused_or_apart
from weft.compiler.planner import Planner

BYTES = np.arange(-128, 128, dtype=np.int8)
"""What a look-up table has entries for, in order."""


def composed(first: np.ndarray | None, second: np.ndarray | None) -> np.ndarray | None:
    """One look-up table for two, the second of which takes results of the first."""
    if first is None or second is None:
        return second if first is None else first
    return second[first.astype(np.int64) + 128]


def rising(lookup: np.ndarray) -> bool:
    """Whether a table never falls, so that the maximum of what it gives is what it gives for the maximum."""
    return bool((lookup[1:] >= lookup[:-1]).all())


def table_of(op: Rescale, bits: int) -> np.ndarray:
    """What a requantisation makes of all bytes, int8 (256,), with mantissas of so many `bits`."""
    return operator_of(op).evaluate(_on_bytes(op), (BYTES.reshape(1, 1, 1, -1),), bits).reshape(-1)


def fuse_lookup(segment: DeviceSegment, planner: Planner) -> DeviceSegment:
    """Requantisations, and functions of single values, become a look-up table of the operators before them, where that
    takes no longer.

    Nobody else may read what these make.
    """
    if not planner.config.lookup_tables:
        return segment
    reads = readers(segment.ops)
    ops: list[DeviceOp] = []
    written: dict[str, list[int]] = {}
    for op in segment.ops:
        writers = written.get(op.sources[0].buffer.name, [])
        joined: list[DeviceOp | None] = [None]
        if isinstance(op, Rescale) and all(
            _fusible(ops[at], op, reads[op.src.buffer.name]) for at in writers
        ):
            joined = [_joined(ops[at], op, planner, alone=len(writers) == 1) for at in writers] or [None]
        name = op.dst.buffer.name
        if None in joined:
            written.setdefault(name, []).append(len(ops))
            ops.append(op)
            continue
        for at, fused in zip(writers, joined, strict=True):
            assert fused is not None
            ops[at] = fused
        del written[op.sources[0].buffer.name]
        written[name] = sorted((*written.get(name, ()), *writers))
    return dataclasses.replace(segment, ops=tuple(ops))


def _joined(before: DeviceOp, op: Rescale, planner: Planner, *, alone: bool) -> DeviceOp | None:
    """Both as one operator, which writes what it did before; None if they are better apart.

    Several that write parts of a buffer each have the table: that is never slower than to read all of it again.
    """
    name, dst = f"{before.name}+{op.name}", dataclasses.replace(before.dst, buffer=op.dst.buffer)
    if before.lookup is None and op.lookup is None and op.keeps:
        low, high = max(before.low, op.low), min(before.high, op.high)
        if low <= high:  # nothing but a clamp
            return before.replace(name=name, dst=dst, low=low, high=high)
    table = table_of(op, planner.config.mantissa_bits)
    fused = before.replace(name=name, dst=dst, lookup=composed(before.lookup, table))
    if not alone:
        return fused if planner.plan(fused) is not None else None
    return fused if fused_or_apart(fused, before, op, planner, traffic=False) == (fused,) else None


def _on_bytes(op: Rescale) -> Rescale:
    """The same of an image of all bytes."""
    view = dataclasses.replace(op.src, shape=(1, 1, 1, BYTES.size))
    return op.replace(src=view, dst=view)


def _fusible(before: DeviceOp, op: Rescale, reads: int) -> bool:
    if op.unchanged:
        return False  # a copy, which `write_views` or `read_views` takes away
    same = op.src.buffer == before.dst.buffer and op.dst.contiguous and op.dst.shape == op.src.shape
    whole = op.src.contiguous and same and before.dst.buffer.kind == "temp"
    apart = op.dst.buffer.name not in {view.buffer.name for view in before.sources}
    alone = getattr(before, "epilogue", None) is None
    return operator_of(before).looked_up and whole and apart and alone and reads == 1
