"""Choosing the tiles of pooling, addition and requantisation, and what these cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from weft.compiler.ir.graph import DeviceOp, Window
from weft.compiler.machine import overheads
from weft.compiler.machine.emit import ceil_div
from weft.compiler.machine.limits import COUNT_MAX, STRIDE_MAX
from weft.compiler.machine.target import Target
from weft.compiler.plan.site import Site
from weft.hdl.isa import PARAMETER_VECTORS
from weft.hdl.isa.config import LOOKUP_ENTRIES


@dataclass(frozen=True)
class VectorPlan:
    """Rows, columns and channels of a tile of outputs; `src` and `out` are the sizes in vectors of slots for a source
    and for outputs, of which there are `slots` each, and `params` those for parameter blocks. Tensors that are on chip
    have no slots. `moved` counts the bytes of those that are not, each once.
    """

    h: int
    w: int
    channels: int
    src: int
    out: int
    slots: int
    params: int
    moved: int


def plan(site: Site, window: Window) -> VectorPlan | None:
    """The largest tile of which three sets fit, else two, else one; whole rows and all channels first.

    None if not even the smallest tile fits.
    """
    n, src, dst = site.config.n, site.sources[0], site.dst
    room = site.room[1] - site.room[0]
    params = _parameter_slots(room)
    room -= params * PARAMETER_VECTORS
    loaded = sum(item.resident is None for item in site.sources)
    # Rows and pixels of what is on chip are further apart than those of a tile.
    there = [item.on_chip(0, 0, 0, n) for item in (*site.sources, dst) if item.resident is not None]
    per_pixel = ceil_div(dst.c, n)
    channels = [dst.c] + [n << k for k in reversed(range(16)) if n << k < dst.c]
    for slots in (3, 2, 1):
        for count in channels:
            vectors = ceil_div(count, n)
            for w in _halves(min(dst.w, COUNT_MAX)):
                for h in _halves(min(dst.h, COUNT_MAX)):
                    src_h, src_w = _extent(window, 0, h, src.h), _extent(window, 1, w, src.w)
                    size, out = src_h * src_w * vectors, (dst.resident is None) * h * w * vectors
                    fits = slots * (size * loaded + out) <= room
                    row = max([src_w * vectors, *(place.row for place in there)])
                    pixel = max([vectors, *(place.pixel for place in there)])
                    strides = row * max(window.stride[0], window.dilation[0]) <= STRIDE_MAX
                    # A few tiles at least, so that the units overlap.
                    large = h * w * per_pixel > 2048 and (h > 1 or w > 64) and slots == 3
                    if fits and strides and not large and pixel * window.stride[1] <= STRIDE_MAX:
                        return VectorPlan(h, w, count, size, out, slots, params, _moved(site))
    return None


def cycles(op: DeviceOp, target: Target, vector: int, moved: int) -> tuple[float, float]:
    """What an operator takes by itself, by estimate, and what of that the bus: the `vector` cycles of its unit, to
    which come those for its look-up table, and `moved` bytes.
    """
    bus = target.moved(moved)
    if target.in_turn is not None:
        vectors = moved / target.config.n
        work = target.in_turn.vec(1, 1, vector / target.config.groups)
        return work + target.in_turn.load(2, 2, vectors / 2, vectors) + overheads.ALONE, bus
    filling = 0 if op.lookup is None else LOOKUP_ENTRIES
    return max(vector + filling, bus) + overheads.ALONE, bus


def _moved(site: Site) -> int:
    """Bytes of the tensors in memory."""
    return sum(
        item.n * item.h * item.w * item.c for item in (*site.sources, site.dst) if item.resident is None
    )


def _parameter_slots(room: int) -> int:
    """Parameter blocks kept at a time: as many as averages at edges need, in at most a sixteenth of the scratchpad."""
    return max(2, min(36, room // 16 // PARAMETER_VECTORS))


def _halves(size: int) -> Iterator[int]:
    while True:
        yield size
        if size == 1:
            return
        size = ceil_div(size, 2)


def _extent(window: Window, axis: int, count: int, size: int) -> int:
    """Input rows or columns, of `size`, that `count` outputs read."""
    span = (count - 1) * window.stride[axis] + (window.kernel[axis] - 1) * window.dilation[axis] + 1
    return min(size, span)
