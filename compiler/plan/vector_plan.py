"""Planning of pooling, addition, requantisation and row operators, and their costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from weft.compiler.ir.graph import Conv, DeviceOp
from weft.compiler.ir.windows import ONE, Window
from weft.compiler.machine import target as overheads
from weft.compiler.machine.emit import ceil_div
from weft.compiler.machine.target import COUNT_MAX, STRIDE_MAX, Target, has_coordinates
from weft.compiler.machine.tensors import TensorRef
from weft.compiler.plan.site import Site
from weft.hdl.isa import COORDINATE_MAX, PARAMETER_VECTORS
from weft.hdl.isa.config import LOOKUP_ENTRIES, Config

_BESIDE_CYCLES = 2048
"""Most vector unit cycles of a tile beside a convolution."""
_BESIDE_VECTORS = 64
"""Vectors that such a tile may always have."""


@dataclass(frozen=True)
class VectorPlan:
    """Tile of outputs: rows, columns and channels.

    `src` and `out` are slot sizes in vectors for a source and for outputs, with `slots` slots each; `params` is the
    number of slots for parameter blocks. Resident tensors have no slots. `moved` are the bytes of all others, each
    counted once.
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
    """Return the largest tile of which three sets fit, else two, else one; whole rows and all channels first.

    None if not even the smallest tile fits.
    """
    return _largest_tile(site, window, 2048, 64, 1)


def _channels(site: Site) -> list[int]:
    """Return possible numbers of channels of a tile."""
    n, c = site.config.n, site.dst.c
    return [c] + [n << k for k in reversed(range(16)) if n << k < c]


def _largest_tile(
    site: Site, window: Window, most: int, few: int, least: int, only: int | None = None
) -> VectorPlan | None:
    """Return the largest tile with at least `least` sets, and with `only` channels, if given.

    Where three sets fit, tiles have at most `most` vectors, except that `few` pixels of a row are always allowed.
    """
    if not (has_coordinates(window, 0) and has_coordinates(window, 1)):
        return None
    n, src, dst = site.config.n, site.sources[0], site.dst
    room = site.room[1] - site.room[0]
    params = _parameter_slots(room)
    room -= params * PARAMETER_VECTORS
    loaded = sum(item.resident is None for item in site.sources)
    # Rows and pixels of resident tensors are further apart than those of a tile.
    there = [item.on_chip(0, 0, 0, n) for item in (*site.sources, dst) if item.resident is not None]
    per_pixel = ceil_div(dst.c, n)
    channels = _channels(site) if only is None else [only]
    across = max(window.stride[1], window.dilation[1])
    # With three sets a LOAD, a VEC and a STORE overlap; take fewer only if no tile fits three times.
    for slots in range(3, least - 1, -1):
        for count in channels:
            vectors = ceil_div(count, n)
            for w in _halves(min(dst.w, COUNT_MAX)):
                for h in _halves(min(dst.h, COUNT_MAX)):
                    src_h, src_w = _extent(window, 0, h, src.h), _extent(window, 1, w, src.w)
                    size, out = src_h * src_w * vectors, (dst.resident is None) * h * w * vectors
                    fits = slots * (size * loaded + out) <= room
                    # Largest row stride among slots and resident tensors.
                    row = max([src_w * vectors, *(place.row for place in there)])
                    pixel = max([vectors, *(place.pixel for place in there)])
                    strides = row * max(window.stride[0], window.dilation[0]) <= STRIDE_MAX
                    # Several tiles are needed for the units to overlap.
                    large = (
                        h * w * (per_pixel if only is None else vectors) > most
                        and (h > 1 or w > few)
                        and slots == 3
                    )
                    if fits and strides and not large and pixel * across <= STRIDE_MAX:
                        return VectorPlan(h, w, count, size, out, slots, params, _traffic_bytes(site))
    return None


def plan_beside(site: Site, window: Window) -> VectorPlan | None:
    """Plan small tiles, of which at least two fit, to run beside a convolution; None if there is no such plan.

    Small tiles keep the convolution's results from waiting long for the vector unit. The number of channels is that
    with the least traffic.
    """
    reads = window.kernel[0] * window.kernel[1] * site.config.groups
    most = max(_BESIDE_VECTORS, _BESIDE_CYCLES // reads)
    pointwise = window.kernel == (1, 1)  # no element is read twice
    plans = [
        plan
        for count in (None, *([] if pointwise else _channels(site)[1:4]))
        if (plan := _largest_tile(site, window, most, 8, 2, count)) is not None
    ]
    return min(
        (replace(item, moved=_tile_traffic(site, window, item)) for item in plans),
        key=_by_moved,
        default=None,
    )


def _by_moved(plan: VectorPlan) -> int:
    return plan.moved


def _tile_traffic(site: Site, window: Window, plan: VectorPlan) -> int:
    """Return the bytes that tiles move, including bytes read twice and the overhead of short runs as bytes."""
    src, dst, target = site.sources[0], site.dst, site.target
    if src.resident is not None:
        return plan.moved
    rows = ceil_div(dst.h, plan.h) * _extent(window, 0, plan.h, src.h)
    columns = ceil_div(dst.w, plan.w) * _extent(window, 1, plan.w, src.w)
    again = max(0, rows * columns - src.h * src.w) * src.n * src.c
    if plan.channels >= dst.c:
        return plan.moved + again
    return round(
        (plan.moved + again) * float(target.run(plan.channels) / target.transfer_cycles(plan.channels))
    )


def cycles(op: DeviceOp, target: Target, vector: int, moved: int) -> tuple[float, float]:
    """Return the estimated cycles of an operator that runs alone, and cycles of the bus.

    Parameters
    ----------
    vector : int
        Cycles of the vector unit, without filling a look-up table.
    moved : int
        Bytes that the bus moves.
    """
    bus = target.transfer_cycles(moved)
    if target.sequential_costs is not None:
        vectors = moved / target.config.n
        work = target.sequential_costs.vec(1, 1, vector / target.config.groups)
        return work + target.sequential_costs.load(
            2, 2, vectors / 2, vectors
        ) + overheads.STANDALONE_CYCLES, bus
    filling = 0 if op.lookup is None else LOOKUP_ENTRIES
    return max(vector + filling, bus) + overheads.STANDALONE_CYCLES, bus


def _traffic_bytes(site: Site) -> int:
    """Return the bytes of the tensors in memory."""
    return sum(
        item.n * item.h * item.w * item.c for item in (*site.sources, site.dst) if item.resident is None
    )


def _parameter_slots(room: int) -> int:
    """Return parameter blocks to keep: as many as averages at edges need, in at most a sixteenth of the scratchpad."""
    return max(2, min(36, room // 16 // PARAMETER_VECTORS))


def _halves(size: int) -> Iterator[int]:
    while True:
        yield size
        if size == 1:
            return
        size = ceil_div(size, 2)


def _extent(window: Window, axis: int, count: int, size: int) -> int:
    """Return the input rows or columns, of `size`, that `count` outputs read."""
    span = (count - 1) * window.stride[axis] + (window.kernel[axis] - 1) * window.dilation[axis] + 1
    return min(size, span)


_MOST = 2048
"""Most vectors of a tile, so that the units overlap."""


@dataclass(frozen=True)
class RowPlan:
    """Tile of a row operator: rows, vectors per row, and slots of the rings of sources and results."""

    rows: int
    vectors: int
    slots: int


def plan_rows(site: Site, constants: int, most: int = COUNT_MAX, *, wide: bool = False) -> RowPlan | None:
    """Plan as many rows as fit three times, else twice, else once; None if not even one row fits.

    `constants` vectors are needed for each vector of a row. A tile has a few strips of the engine at least, if they
    fit, and at most `most` rows. With `wide` results have two planes.
    """
    counts = [ceil_div(tensor.c, site.config.n) for tensor in (*site.sources, site.dst)]
    vectors = max(counts)
    # Results of 16 bits have a vector of upper and one of lower bytes.
    counts[-1] *= 1 + wide
    room = site.room[1] - site.room[0] - constants * vectors
    if vectors > min(COUNT_MAX, STRIDE_MAX):
        return None
    for slots in (3, 2, 1):
        rows = min(room // (slots * sum(counts)), site.dst.w, most)
        if rows >= min(site.dst.w, most, 16) or (slots == 1 and rows >= 1):
            return RowPlan(max(1, min(rows, max(16, _MOST // vectors))), vectors, slots)
    return None


def image_plan(site: Site, constants: int) -> RowPlan | None:
    """Plan as many vectors of channels, with all pixels of an image, as fit three times, else twice, else once.

    `constants` vectors are needed for each; results overwrite their sources. None if not even one vector fits, or
    there are too many pixels. `rows` of the plan are pixels.
    """
    pixels, all_vectors = site.dst.h * site.dst.w, ceil_div(site.dst.c, site.config.n)
    for slots in (3, 2, 1):
        vectors = min(site.config.scratchpad_size // (slots * pixels + constants), all_vectors)
        if pixels <= COUNT_MAX and vectors >= min(all_vectors, 8 if slots > 1 else 1):
            return RowPlan(pixels, vectors, slots)
    return None


@dataclass(frozen=True)
class SoftmaxPlan:
    """Tile of a softmax: rows, vectors of a chunk of a row, and slots for chunks of the source and of the other
    rings."""

    rows: int
    vectors: int
    sources: int
    slots: int


def plan_softmax(src: TensorRef, config: Config) -> SoftmaxPlan | None:
    """Plan whole rows if a few fit, else chunks that are loaded twice, with at most as many rows as row states.

    None if not even one row of one vector fits.
    """
    room = config.scratchpad_size - PARAMETER_VECTORS
    row_vectors = ceil_div(src.c, config.n)
    sizes = [row_vectors] + [1 << k for k in reversed(range(12)) if 1 << k < row_vectors]
    for vectors in (size for size in sizes if size * config.n <= COORDINATE_MAX):
        chunks = ceil_div(row_vectors, vectors)
        for slots in (2, 1):
            # With a slot for each chunk, the second pass finds all of them on chip.
            sources = max(slots, chunks if chunks <= 4 else slots)
            rows = min(
                room // (vectors * (sources + 2 * slots)),
                config.alignments // vectors,
                config.row_states,
                src.w,
            )
            if rows >= min(src.w, 8) or (rows >= 1 and vectors == 1):
                # At least two tiles, so that units overlap.
                rows = min(rows, ceil_div(src.w, 2) if src.w > 16 else rows)
                return SoftmaxPlan(rows, vectors, sources, slots)
    return None


BLOCK = PARAMETER_VECTORS + 1
"""Vectors of the parameters and weights of N channels."""
_PIXELS = 512
"""Most pixels of a tile, so that a convolution need not wait long for the vector unit."""
_SLOTS = (3, 2)


@dataclass(frozen=True)
class ChannelPlan:
    """Tile of a channelwise convolution: pixels and channels, with `slots` sets on chip.

    `cycles`, and `traffic` (cycles of the bus), are estimates.
    """

    pixels: int
    channels: int
    slots: int
    cycles: float
    traffic: float


def channelwise(op: DeviceOp, config: Config) -> bool:
    """Return whether an operator is a 1x1 convolution with one weight per channel that the vector unit can compute."""
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


def plan_channelwise(op: Conv, site: Site) -> ChannelPlan | None:
    """Plan all channels if they fit with some pixels, else fewer; None if nothing fits twice, or rows are not
    adjacent."""
    config, flat = site.config, site.flatten()
    src, dst = flat.sources[0], flat.dst
    if (src.n, src.h, dst.n, dst.h) != (1, 1, 1, 1):
        return None
    vectors, loaded = ceil_div(dst.c, config.n), (src.resident is None) + (dst.resident is None)
    room = site.room[1] - site.room[0]
    for slots in _SLOTS:
        for parts in range(1, min(vectors, 8) + 1):
            some = ceil_div(vectors, parts)
            # The constants of the next part load while this part's are in use.
            room_left = room - some * BLOCK * (1 + (parts > 1))
            pixels = min(
                room_left // (slots * some * loaded) if loaded else COUNT_MAX, dst.w, _PIXELS, COUNT_MAX
            )
            if pixels >= min(16, dst.w) and vectors <= STRIDE_MAX:
                # Equal tiles.
                pixels = ceil_div(dst.w, ceil_div(dst.w, pixels))
                return ChannelPlan(pixels, some * config.n, slots, *_cost(op, flat, pixels, parts))
    return None


def _cost(op: Conv, site: Site, pixels: int, parts: int) -> tuple[float, float]:
    """Return estimated cycles, and cycles of the bus."""
    target, dst = site.target, site.dst
    vectors = ceil_div(dst.c, target.config.n)
    each = target.transfer_cycles(dst.c) if parts == 1 else parts * float(target.span(dst.c / parts))
    traffic = sum(item.resident is None for item in (site.sources[0], dst)) * dst.w * each
    bus = traffic + target.transfer_cycles(vectors * BLOCK * target.config.n)
    work = vectors * (dst.w * target.config.groups + ceil_div(dst.w, pixels) * target.vec_start())
    return max(work, bus) + 2 * overheads.RAMP_CYCLES, bus
