"""Chains of operators in strips of rows: a strip of the last output, with all rows that it needs of earlier ones.

Rows that windows of two strips both need are computed twice.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from weft.compiler.ir.graph import (
    Add,
    Conv,
    DeviceOp,
    DeviceSegment,
    Multiply,
    Pad,
    Pool,
    Region,
    Rescale,
    Strips,
)
from weft.compiler.ir.views import Buffer, View
from weft.compiler.ir.windows import ONE, Window
from weft.compiler.operators.record import Cost
from weft.compiler.passes.keep_resident import cost_of, with_resident
from weft.compiler.planner import Planner

Rows = tuple[int, int]
"""First row, and the row after the last."""


class Part(NamedTuple):
    """An operator restricted to rows `computed` of its output: it reads rows `read`, with adapted windows."""

    computed: Rows
    read: Rows
    window: Window
    pool: Window | None


class StripLayout(NamedTuple):
    """Operators of all strips of a chain, with resident results, and the rest of the scratchpad for each operator."""

    ops: tuple[DeviceOp, ...]
    resident: Mapping[str, int]
    regions: tuple[Region, ...]
    cost: Cost


def in_strips(chain: Sequence[DeviceOp], height: int) -> list[tuple[DeviceOp, ...]] | None:
    """Return the chain for every `height` rows of its last output; None if a strip would read only padding.

    All results but the last must be temporaries with one writer in the chain, and be read whole by later operators of
    the chain only.
    """
    strips = []
    for index, first in enumerate(range(0, chain[-1].dst.shape[1], height)):
        last = min(first + height, chain[-1].dst.shape[1])
        parts = parts_of(chain, (first, last))
        if parts is None:
            return None
        strips.append(_strip(chain, parts, index))
    return strips


def _strip(chain: Sequence[DeviceOp], parts: Sequence[Part], index: int) -> tuple[DeviceOp, ...]:
    needed = {op.dst.buffer.name: part.computed for op, part in zip(chain[:-1], parts, strict=False)}
    return tuple(_cut(op, part, needed, index) for op, part in zip(chain, parts, strict=True))


def parts_of(chain: Sequence[DeviceOp], rows: Rows) -> list[Part] | None:
    """Return each operator's part for some rows of the chain's last output; None if a part would read only padding."""
    inner = {op.dst.buffer.name for op in chain[:-1]}
    needed = {chain[-1].dst.buffer.name: rows}
    parts: list[Part] = []
    # Backwards: the rows that an operator must compute are those that its readers need.
    for op in reversed(chain):
        part = _part(op, needed[op.dst.buffer.name])
        if part is None:
            return None
        parts.append(part)
        for view, read in rows_read(op, part):
            name = view.buffer.name
            if name in inner:
                # Several readers: the union of their rows.
                first, last = needed.get(name, read)
                needed[name] = min(first, read[0]), max(last, read[1])
    return parts[::-1]


def rows_read(op: DeviceOp, part: Part) -> list[tuple[View, Rows]]:
    """Return an operator's operands, each with the rows that it reads; all rows of an operand that broadcasts one
    row."""
    first, *others = op.sources
    full_height = first.shape[1] if not isinstance(op, Conv) else 0
    return [
        (first, part.read),
        *((view, part.computed if view.shape[1] >= full_height else (0, 1)) for view in others),
    ]


def _part(op: DeviceOp, wanted: Rows) -> Part | None:
    """Return an operator's part for some rows of its output; None if it would read only padding."""
    window, computed, pool = getattr(op, "window", ONE), wanted, getattr(op, "pool", None)
    _, height, width, _ = op.sources[0].shape
    if pool is not None:
        reach = _input_rows(pool, wanted, window.output(height, width)[0])
        if reach is None:
            return None
        wanted, pool = reach
    read = _input_rows(window, wanted, height)
    return None if read is None else Part(computed, *read, pool)


def _input_rows(window: Window, wanted: Rows, height: int) -> tuple[Rows, Window] | None:
    """Return the rows that a window reads for some outputs, and the window for these rows; missing rows become
    padding."""
    first = wanted[0] * window.stride[0] - window.pad[0]
    last = (
        (wanted[1] - 1) * window.stride[0] - window.pad[0] + (window.kernel[0] - 1) * window.dilation[0] + 1
    )
    if first >= height or last <= 0:
        return None
    _, left, _, right = window.pad
    pad = (max(0, -first), left, max(0, last - height), right)
    return (max(first, 0), min(last, height)), dataclasses.replace(window, pad=pad)


def _cut(op: DeviceOp, part: Part, inner: Mapping[str, Rows], index: int) -> DeviceOp:
    """Return an operator of strip `index`; results inside the chain have only the rows `inner`."""
    wanted = part.computed

    def view(old: View, rows: Rows) -> View:
        name = old.buffer.name
        n, _, w, c = old.shape
        shape = (n, rows[1] - rows[0], w, c)
        if name not in inner:
            return dataclasses.replace(old, shape=shape, y=old.y + rows[0] * old.step[0])
        first, last = inner[name]
        buffer = Buffer(f"{name}/{index}", (n, last - first, w, c))
        return View(buffer, shape, y=rows[0] - first)

    dst = view(op.dst, wanted)
    if not isinstance(op, Conv):
        places = {old: view(old, rows) for old, rows in rows_read(op, part)} | {op.dst: dst}
        narrowed = op.map_views(lambda old: places[old])
        return narrowed.replace(window=part.window) if isinstance(narrowed, Pool | Pad) else narrowed
    epilogue = op.epilogue
    if epilogue is not None:
        own = epilogue.sources[0]
        n, _, w, c = own.shape
        shape = (n, wanted[1] - wanted[0], w, c)
        place = View(Buffer(f"{own.buffer.name}/{index}", shape), shape)
        epilogue = epilogue.map_views(
            lambda old: place if old == own else dst if old == op.dst else view(old, wanted)
        )
    return op.replace(
        src=view(op.src, part.read), window=part.window, pool=part.pool, dst=dst, epilogue=epilogue
    )


def as_images(ops: Sequence[DeviceOp]) -> tuple[DeviceOp, ...]:
    """Return the operators, with elementwise ones on the image shapes that convolutions use for their operands."""
    images = {
        view.buffer.name: view.shape for op in ops if isinstance(op, Conv | Pool) for view in (op.src, op.dst)
    }
    return tuple(_as_image(op, images) if isinstance(op, Add | Multiply | Rescale) else op for op in ops)


def _as_image(op: Add | Multiply | Rescale, images: Mapping[str, tuple[int, int, int, int]]) -> DeviceOp:
    """Return an operator on one row of pixels as an operator on an image's rows."""
    views = [view for view in (*op.sources, op.dst) if view.shape == op.dst.shape]
    shapes = {images[view.buffer.name] for view in views if view.buffer.name in images}
    other_shapes = {view.shape[:3] for view in op.sources} - {op.dst.shape[:3], (1, 1, 1)}
    if len(shapes) != 1 or other_shapes or not all(view.contiguous for view in views):
        return op
    (shape,) = shapes
    if math.prod(shape) != op.dst.buffer.size or shape[3] != op.dst.shape[3]:
        return op
    image = {view: View(dataclasses.replace(view.buffer, shape=shape), shape) for view in views}
    return op.map_views(lambda view: image.get(view, view))


def lay_out_strips(chain: Sequence[DeviceOp], height: int, planner: Planner) -> StripLayout | None:
    """Return a chain in strips of `height` rows with all intermediate results on chip, at any cost.

    None if it does not fit, or `in_strips` returns None.
    """
    strips = in_strips(chain, height)
    if strips is None:
        return None
    known: dict[str, tuple[DeviceSegment, Cost] | None] = {}
    resident, regions, cost = dict[str, int](), list[Region](), Cost(0.0, 0.0)
    for strip in strips:
        # Inner strips have equal plans, so plan each kind once.
        kind = _plan_key(strip)
        placed = known[kind] if kind in known else known.setdefault(kind, _resident_strip(strip, planner))
        if placed is None:
            return None
        alike, estimate = placed
        regions += alike.regions
        for own, other in zip(strip[:-1], alike.ops, strict=False):
            resident[own.dst.buffer.name] = alike.resident[other.dst.buffer.name]
        cost = Cost(cost.cycles + estimate.cycles, cost.traffic + estimate.traffic)
    return StripLayout(tuple(op for strip in strips for op in strip), resident, tuple(regions), cost)


def _plan_key(strip: Sequence[DeviceOp]) -> str:
    """Return a key of what a strip's plans depend on: all but its position in buffers in memory."""
    inner = {op.dst.buffer.name for op in strip[:-1]}
    return repr(
        [
            (
                getattr(op, "window", ONE),
                getattr(op, "pool", None),
                [(view.shape, view.buffer.name in inner and view.y) for view in (*op.sources, op.dst)],
            )
            for op in strip
        ]
    )


def _resident_strip(strip: tuple[DeviceOp, ...], planner: Planner) -> tuple[DeviceSegment, Cost] | None:
    """Return a strip with all intermediate results on chip, and its estimate; None if it does not fit."""
    segment = DeviceSegment("strip", strip)
    for index in range(len(strip) - 1):
        with_next = with_resident(segment, index, planner)
        if with_next is None:
            return None
        segment = with_next
    cost = cost_of(segment, range(len(strip)), planner)
    return None if cost is None else (segment, cost)


def replace_chains(
    segment: DeviceSegment, laid: Mapping[tuple[int, int], StripLayout], planner: Planner
) -> DeviceSegment:
    """Return the segment with chains, given by first and last operators, replaced by their strips."""
    ops: list[DeviceOp] = []
    regions, strips = list[Region](), list[Strips]()
    resident, at = dict(segment.resident), 0
    scratchpad = (0, planner.config.scratchpad_size)
    for (first, last), item in sorted(laid.items()):
        ops += segment.ops[at:first]
        regions += segment.regions[at:first] or [scratchpad] * (first - at)
        macs = sum(op.macs for op in segment.ops[first : last + 1])
        strips.append(Strips(len(ops), len(ops) + len(item.ops), macs))
        ops += item.ops
        regions += item.regions
        resident |= item.resident
        at = last + 1
    ops += segment.ops[at:]
    regions += segment.regions[at:] or [scratchpad] * (len(segment.ops) - at)
    return dataclasses.replace(
        segment, ops=tuple(ops), resident=resident, regions=tuple(regions), strips=tuple(strips)
    )
