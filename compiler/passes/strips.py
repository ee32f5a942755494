"""Chains of operators in strips of rows: each strip of the last one's output with all that it needs of the others.

An operator ahead of the last computes, of its result, the rows that the others need for the strip. Where their windows
overlap, rows are computed again for the next strip.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from weft.compiler.ir.graph import (
    ONE,
    Add,
    Buffer,
    Conv,
    DeviceOp,
    DeviceSegment,
    Multiply,
    Pad,
    Pool,
    Region,
    Rescale,
    Strips,
    View,
    Window,
)  # fmt: skip
from weft.compiler.operators.record import Cost
from weft.compiler.passes.keep_resident import cost_of, with_resident
from weft.compiler.planner import Planner

Rows = tuple[int, int]
"""The first row, and the one behind the last."""


class Part(NamedTuple):
    """An operator for the rows `made` of its output: it reads rows `read`, and has windows of its own there."""

    made: Rows
    read: Rows
    window: Window
    pool: Window | None


class Laid(NamedTuple):
    """The operators of all strips of a chain, with what stays on chip and what is left of the scratchpad for each."""

    ops: tuple[DeviceOp, ...]
    resident: Mapping[str, int]
    regions: tuple[Region, ...]
    cost: Cost


def in_strips(chain: Sequence[DeviceOp], height: int) -> list[tuple[DeviceOp, ...]] | None:
    """The chain for every `height` rows of its last output; None if a strip would need nothing but padding.

    Results but the last must be temporaries that are written by one operator of the chain and read by later ones of it
    alone, whole.
    """
    made = []
    for index, first in enumerate(range(0, chain[-1].dst.shape[1], height)):
        last = min(first + height, chain[-1].dst.shape[1])
        parts = parts_of(chain, (first, last))
        if parts is None:
            return None
        made.append(_strip(chain, parts, index))
    return made


def _strip(chain: Sequence[DeviceOp], parts: Sequence[Part], index: int) -> tuple[DeviceOp, ...]:
    needed = {op.dst.buffer.name: part.made for op, part in zip(chain[:-1], parts, strict=False)}
    return tuple(_cut(op, part, needed, index) for op, part in zip(chain, parts, strict=True))


def parts_of(chain: Sequence[DeviceOp], rows: Rows) -> list[Part] | None:
    """What each operator of a chain does for some rows of its last output; None as `in_strips`."""
    inner = {op.dst.buffer.name for op in chain[:-1]}
    needed = {chain[-1].dst.buffer.name: rows}
    found: list[Part] = []
    for op in reversed(chain):
        part = _part(op, needed[op.dst.buffer.name])
        if part is None:
            return None
        found.append(part)
        for view, read in rows_read(op, part):
            name = view.buffer.name
            if name in inner:
                first, last = needed.get(name, read)
                needed[name] = min(first, read[0]), max(last, read[1])
    return found[::-1]


def rows_read(op: DeviceOp, part: Part) -> list[tuple[View, Rows]]:
    """The operands of an operator, each with the rows that it reads of them: all, where one row is for all of another
    operand."""
    first, *others = op.sources
    whole = first.shape[1] if not isinstance(op, Conv) else 0
    return [(first, part.read), *((view, part.made if view.shape[1] >= whole else (0, 1)) for view in others)]


def _part(op: DeviceOp, wanted: Rows) -> Part | None:
    """What an operator reads for some rows of its output; None if that is nothing but padding."""
    window, made, pool = getattr(op, "window", ONE), wanted, getattr(op, "pool", None)
    _, height, width, _ = op.sources[0].shape
    if pool is not None:
        found = _behind(pool, wanted, window.output(height, width)[0])
        if found is None:
            return None
        wanted, pool = found
    behind = _behind(window, wanted, height)
    return None if behind is None else Part(made, *behind, pool)


def _behind(window: Window, wanted: Rows, height: int) -> tuple[Rows, Window] | None:
    """The rows that a window reads for some outputs, and the window there: what it lacks of them is padding."""
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
    """An operator of strip `index`. Of results between operators of the chain there are only the rows `inner`."""
    wanted = part.made

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
        made = op.on(lambda old: places[old])
        return made.replace(window=part.window) if isinstance(made, Pool | Pad) else made
    epilogue = op.epilogue
    if epilogue is not None:
        own = epilogue.sources[0]
        n, _, w, c = own.shape
        shape = (n, wanted[1] - wanted[0], w, c)
        place = View(Buffer(f"{own.buffer.name}/{index}", shape), shape)
        epilogue = epilogue.on(
            lambda old: place if old == own else dst if old == op.dst else view(old, wanted)
        )
    return op.replace(
        src=view(op.src, part.read), window=part.window, pool=part.pool, dst=dst, epilogue=epilogue
    )


def as_images(ops: Sequence[DeviceOp]) -> tuple[DeviceOp, ...]:
    """The same operators, those that take element by element with the rows that convolutions see in their operands."""
    images = {
        view.buffer.name: view.shape for op in ops if isinstance(op, Conv | Pool) for view in (op.src, op.dst)
    }
    return tuple(_as_image(op, images) if isinstance(op, Add | Multiply | Rescale) else op for op in ops)


def _as_image(op: Add | Multiply | Rescale, images: Mapping[str, tuple[int, int, int, int]]) -> DeviceOp:
    """An operator on one row of pixels as one on the rows of an image."""
    views = [view for view in (*op.sources, op.dst) if view.shape == op.dst.shape]
    shapes = {images[view.buffer.name] for view in views if view.buffer.name in images}
    rest = {view.shape[:3] for view in op.sources} - {op.dst.shape[:3], (1, 1, 1)}
    if len(shapes) != 1 or rest or not all(view.contiguous for view in views):
        return op
    (shape,) = shapes
    if math.prod(shape) != op.dst.buffer.size or shape[3] != op.dst.shape[3]:
        return op
    image = {view: View(dataclasses.replace(view.buffer, shape=shape), shape) for view in views}
    return op.on(lambda view: image.get(view, view))


def lay(chain: Sequence[DeviceOp], height: int, planner: Planner) -> Laid | None:
    """A chain in strips of `height` rows with all that is between its operators on chip, whatever that costs; None
    if it does not fit, or `in_strips` finds none."""
    strips = in_strips(chain, height)
    if strips is None:
        return None
    known: dict[str, tuple[DeviceSegment, Cost] | None] = {}
    resident, regions, cost = dict[str, int](), list[Region](), Cost(0.0, 0.0)
    for strip in strips:
        kind = _kind(strip)
        held = known[kind] if kind in known else known.setdefault(kind, _held(strip, planner))
        if held is None:
            return None
        alike, estimate = held
        regions += alike.regions
        for own, other in zip(strip[:-1], alike.ops, strict=False):
            resident[own.dst.buffer.name] = alike.resident[other.dst.buffer.name]
        cost = Cost(cost.cycles + estimate.cycles, cost.traffic + estimate.traffic)
    return Laid(tuple(op for strip in strips for op in strip), resident, tuple(regions), cost)


def _kind(strip: Sequence[DeviceOp]) -> str:
    """What plans of a strip depend on: where it is in what lies in memory does not matter."""
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


def _held(strip: tuple[DeviceOp, ...], planner: Planner) -> tuple[DeviceSegment, Cost] | None:
    """One strip with all that is between its operators on chip, and estimates for it; None if it does not fit."""
    segment = DeviceSegment("strip", strip)
    for index in range(len(strip) - 1):
        kept = with_resident(segment, index, planner)
        if kept is None:
            return None
        segment = kept
    cost = cost_of(segment, range(len(strip)), planner)
    return None if cost is None else (segment, cost)


def replaced(segment: DeviceSegment, laid: Mapping[tuple[int, int], Laid], planner: Planner) -> DeviceSegment:
    """The segment with strips in the place of chains, by their first and last operators."""
    ops: list[DeviceOp] = []
    regions, strips = list[Region](), list[Strips]()
    resident, at = dict(segment.resident), 0
    whole = (0, planner.config.scratchpad_size)
    for (first, last), item in sorted(laid.items()):
        ops += segment.ops[at:first]
        regions += segment.regions[at:first] or [whole] * (first - at)
        macs = sum(op.macs for op in segment.ops[first : last + 1])
        strips.append(Strips(len(ops), len(ops) + len(item.ops), macs))
        ops += item.ops
        regions += item.regions
        resident |= item.resident
        at = last + 1
    ops += segment.ops[at:]
    regions += segment.regions[at:] or [whole] * (len(segment.ops) - at)
    return dataclasses.replace(
        segment, ops=tuple(ops), resident=resident, regions=tuple(regions), strips=tuple(strips)
    )
