"""Convolutions of one weight for each channel in the vector unit, which multiplies pixels by a vector: so they need
neither array nor accumulator, and run beside a convolution that does."""

from __future__ import annotations

from dataclasses import dataclass

from weft.compiler.ir.graph import ONE, Conv, DeviceOp
from weft.compiler.machine import overheads
from weft.compiler.machine.emit import ceil_div
from weft.compiler.machine.limits import COUNT_MAX, STRIDE_MAX
from weft.compiler.plan.site import Site
from weft.hdl.isa import PARAMETER_VECTORS
from weft.hdl.isa.config import Config

BLOCK = PARAMETER_VECTORS + 1
"""Vectors of parameters of N channels, and of their weights."""
_PIXELS = 512
"""Of a tile at most, so that a convolution need not wait long for the vector unit."""
_SLOTS = (3, 2)


@dataclass(frozen=True)
class ChannelPlan:
    """Pixels and channels of a tile, of which there are `slots` sets on chip; `cycles`, and `traffic`, those of the
    bus, are estimates."""

    pixels: int
    channels: int
    slots: int
    cycles: float
    traffic: float


def channelwise(op: DeviceOp, config: Config) -> bool:
    """Whether an operator is such a convolution, for a configuration that multiplies elements."""
    return (
        type(op) is Conv
        and bool(config.multiply)
        and op.weight.shape[1:] == (1, 1, 1)
        and len(op.weight) == op.groups
        and op.window == ONE
        and op.pool is None
        and op.epilogue is None
        and op.lookup is None
        and -128 <= op.weight_range[0] <= op.weight_range[1] <= 127
    )


def plan(op: Conv, site: Site) -> ChannelPlan | None:
    """All channels if they fit with some pixels, else fewer; None if nothing fits twice, or if rows of pixels do not
    join."""
    config, flat = site.config, site.flattened()
    src, dst = flat.sources[0], flat.dst
    if (src.n, src.h, dst.n, dst.h) != (1, 1, 1, 1):
        return None
    vectors, loaded = ceil_div(dst.c, config.n), (src.resident is None) + (dst.resident is None)
    room = site.room[1] - site.room[0]
    for slots in _SLOTS:
        for parts in range(1, min(vectors, 8) + 1):
            some = ceil_div(vectors, parts)
            rest = room - some * BLOCK * (1 + (parts > 1))
            pixels = min(rest // (slots * some * loaded) if loaded else COUNT_MAX, dst.w, _PIXELS, COUNT_MAX)
            if pixels >= min(16, dst.w) and vectors <= STRIDE_MAX:
                pixels = ceil_div(dst.w, ceil_div(dst.w, pixels))
                return ChannelPlan(pixels, some * config.n, slots, *_cost(op, flat, pixels, parts))
    return None


def _cost(op: Conv, site: Site, pixels: int, parts: int) -> tuple[float, float]:
    """Estimates of cycles, and those of the bus."""
    target, dst = site.target, site.dst
    vectors = ceil_div(dst.c, target.config.n)
    each = target.moved(dst.c) if parts == 1 else parts * float(target.span(dst.c / parts))
    moved = sum(item.resident is None for item in (site.sources[0], dst)) * dst.w * each
    bus = moved + target.moved(vectors * BLOCK * target.config.n)
    work = vectors * (dst.w * target.config.groups + ceil_div(dst.w, pixels) * target.vec_start())
    return max(work, bus) + 2 * overheads.ENDS, bus
