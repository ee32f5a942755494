"""Graphs as text: one line an operator."""

from __future__ import annotations

import zlib
from typing import Any

from weft.compiler.ir.graph import Attention, DeviceSegment, View
from weft.compiler.ir.model import Graph


def dump(graph: Graph) -> str:
    """All segments, in order."""
    parts = (
        dump_segment(item)
        if isinstance(item, DeviceSegment)
        else f"host {item.name}: {', '.join(item.inputs)} -> {', '.join(item.outputs)}\n"
        for item in graph.segments
    )
    return "".join(parts)


def dump_segment(segment: DeviceSegment) -> str:
    """A device segment: operators with operands, results and plans, and what is known of buffers."""
    lines = [f"device {segment.name}:"]
    lines += [f"  rows of {name} side by side: {rows}" for name, rows in segment.rows.items()]
    lines += [f"  {name} stays on chip at vector {address}" for name, address in segment.resident.items()]
    lines += [f"  {name} becomes {made} at the end" for name, made in segment.states.items()]
    lines += [f"  operators {first} to {stop - 1} are a chain in strips" for first, stop, _ in segment.strips]
    for index, op in enumerate(segment.ops):
        read = ", ".join(map(_view, op.sources))
        lines.append(f"  {type(op).__name__.lower()} {op.name}: {read} -> {_view(op.dst)}{_details(op)}")
        if segment.regions:
            lines.append("    vectors {} to {}".format(*segment.regions[index]))
        if index in segment.overlapped:
            lines.append("    runs beside the next one")
        if op.plan is not None:
            lines.append(f"    {op.plan}")
    return "\n".join(lines) + "\n"


def _view(view: View) -> str:
    at = "" if view.contiguous else f"@{view.y},{view.x},{view.c}"
    at += "" if view.step == (1, 1) else f":{view.step[0]},{view.step[1]}"
    return f"{view.buffer.name}{at}[{'x'.join(map(str, view.shape))}]"


def _details(op: Any) -> str:
    parts = []
    for key in ("window", "pool"):
        window = getattr(op, key, None)
        if window is not None:
            parts.append(f"{key}(k{window.kernel} s{window.stride} d{window.dilation} p{window.pad})")
    if op.lookup is not None:
        parts.append(f"lookup({zlib.crc32(op.lookup.tobytes()):08x})")
    epilogue = getattr(op, "epilogue", None)
    if epilogue is not None:
        parts.append(f"epilogue({type(epilogue).__name__.lower()} {epilogue.name})")
    if isinstance(op, Attention):
        mask = f" causal{op.offset:+d}" if op.causal else ""
        rounded = "" if op.rounding is None else f" scores[{op.rounding.low}, {op.rounding.high}]"
        parts.append(f"heads({op.heads} on {op.kv_heads}) lengths{op.lengths}{mask}{rounded}")
    return (" " + " ".join(parts)) if parts else ""
