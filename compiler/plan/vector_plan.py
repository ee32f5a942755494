"""Choosing the tiles of pooling, addition and requantisation, and what these cost."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from weft.compiler.ir.graph import DeviceOp, Window
from weft.compiler.machine import overheads
from weft.compiler.machine.emit import ceil_div
from weft.compiler.machine.limits import COUNT_MAX, STRIDE_MAX
from weft.compiler.machine.target import Target
from weft.compiler.plan.site import Site
from weft.hdl.isa import PARAMETER_VECTORS
from weft.hdl.isa.config import LOOKUP_ENTRIES, Config


@dataclass(frozen=True)
class VectorPlan:
    """Rows, columns and channels of a tile of outputs; `src` and `out` are the sizes in vectors of slots for a source
    and for outputs, of which there are `slots` each, and `params` those for parameter blocks. There are none for what
    stays on chip: `moved` has for the sources and the output whether they are in memory.
    """

    h: int
    w: int
    channels: int
    src: int
    out: int
    slots: int
    params: int
    moved: tuple[bool, ...]

    def bytes_moved(self, op: DeviceOp) -> int:
        """Bytes of the operands and the output that are in memory, each once."""
        views = zip((*op.sources, op.dst), self.moved, strict=True)
        return sum(math.prod(view.shape) for view, moved in views if moved)


def plan(site: Site, window: Window) -> VectorPlan | None:
    """The largest tile of which three sets fit, else two, else one; whole rows and all channels first.

    None if not even the smallest tile fits.
    """
    n, src, dst, config = site.config.n, site.sources[0], site.dst, site.config
    params = _parameter_slots(config)
    room = site.room[1] - site.room[0] - params * PARAMETER_VECTORS
    moved = tuple(item.resident is None for item in (*site.sources, dst))
    if not _reached(site, window):
        return None
    per_pixel = ceil_div(dst.c, n)
    channels = [dst.c] + [n << k for k in reversed(range(16)) if n << k < dst.c]
    for slots in (3, 2, 1):
        for count in channels:
            vectors = ceil_div(count, n)
            for w in _halves(min(dst.w, COUNT_MAX)):
                for h in _halves(min(dst.h, COUNT_MAX)):
                    src_h, src_w = _extent(window, 0, h, src.h), _extent(window, 1, w, src.w)
                    size, out = src_h * src_w * vectors, h * w * vectors
                    fits = slots * (size * sum(moved[:-1]) + out * moved[-1]) <= room
                    strides = src_w * vectors * max(window.stride[0], window.dilation[0]) <= STRIDE_MAX
                    # A few tiles at least, so that the units overlap.
                    large = h * w * per_pixel > 2048 and (h > 1 or w > 64) and slots == 3
                    if fits and strides and not large and vectors * window.stride[1] <= STRIDE_MAX:
                        return VectorPlan(h, w, count, size, out, slots, params, moved)
    return None


def _reached(site: Site, window: Window) -> bool:
    """Whether instructions can step from row to row of what is on chip."""
    step = max(*window.stride, *window.dilation)
    held = [item for item in (*site.sources, site.dst) if item.resident is not None]
    return all(
        (item.h == 1 or item.w * vectors * step <= STRIDE_MAX) and vectors * step <= STRIDE_MAX
        for item in held
        for vectors in (ceil_div(item.c, site.config.n),)
    )


def cycles(op: DeviceOp, target: Target, vector: int, moved: int) -> tuple[float, float]:
    """What an operator takes by itself, by estimate, and what of that the bus: the `vector` cycles of its unit, to
    which come those for its look-up table, and `moved` bytes.
    """
    bus = target.moved(moved)
    filling = 0 if op.lookup is None else LOOKUP_ENTRIES
    return max(vector + filling, bus) + overheads.ALONE, bus


def _parameter_slots(config: Config) -> int:
    """Parameter blocks kept at a time: as many as averages at edges need, in at most a sixteenth of the scratchpad."""
    return max(2, min(36, config.scratchpad_size // 16 // PARAMETER_VECTORS))


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
