"""Choosing the block sizes of a convolution: how SRAM is divided, and what stays resident.

Every candidate is scored with a closed-form estimate of its cycles; the best one is taken, unless a `Choice` says
which. The scratchpad, or what other layers leave of it, is divided by banks into three zones, so that the units do not
meet in a bank: A (inputs; empty if they are on chip already), B (weights), O (parameters and outputs).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from weft.compiler.conv_shape import Chunk, ConvShape, Room
from weft.compiler.emit import COUNT_MAX, RUN_CYCLES, STRIDE_MAX, Box, bus_cycles, ceil_div, row_reads
from weft.hdl.config import Config
from weft.hdl.isa import PARAMETER_VECTORS

_LEAST_TILE = 4  # cycles between uses of an accumulator row (see the MM unit)


@dataclass(frozen=True)
class Zones:
    """First address and size in vectors of the three zones."""

    a: tuple[int, int]
    b: tuple[int, int]
    o: tuple[int, int]


def unit(config: Config) -> int:
    """What the scratchpad is divided by: vectors of a bank, or a quarter, if it has fewer than four."""
    return config.scratchpad_size // max(config.scratchpad_banks, 4)


@lru_cache
def zones(config: Config, room: Room | None = None, *, inputs: bool = True) -> tuple[Zones, ...]:
    """All ways to divide the scratchpad, or a part of it; without `inputs` zone A is empty."""
    size = unit(config)
    first, last = room or (0, config.scratchpad_size)
    units = (last - first) // size
    found = []
    for a in range(1, units - 1) if inputs else (0,):
        for b in range(1, units - a):
            starts = (first, first + a * size, first + (a + b) * size, last)
            found.append(Zones(*((start, stop - start) for start, stop in pairwise(starts))))
    return tuple(found)


@dataclass(frozen=True)
class Choice:
    """What is free in a `ConvPlan`; the rest of it follows. `zones` are the first vectors of zones B and O."""

    tile: tuple[int, int]
    zones: tuple[int, int]
    chunk: int
    group: int
    chunked: bool


@dataclass(frozen=True)
class ConvPlan:
    """Blocks of one convolution.

    `tile` is (rows, columns) of final outputs; `a_slot`, `b_slot`, `o_slot`, `c_slot` sizes of ring slots and
    `a_count`.. their numbers, with a second operand as many more like those of outputs, or instead of them if outputs
    stay on chip; `params` slots of the parameter ring; `group` the output tiles for which a block of weights stays
    while the spatial tiles pass; `store` the output tiles that leave in one STORE; `chunked` whether inputs are
    loaded per chunk of the contraction; `b_limit` the largest chunk in vectors. Estimates: `cycles`, and `traffic`,
    those of the bus for data.
    """

    zones: Zones
    tile: tuple[int, int]
    a_slot: int
    a_count: int
    b_limit: int
    b_count: int
    o_slot: int
    o_count: int
    c_slot: int
    c_count: int
    params: int
    group: int
    store: int
    chunked: bool
    cycles: float
    traffic: float

    @property
    def choice(self) -> Choice:
        zones = (self.zones.b[0], self.zones.o[0])
        return Choice(self.tile, zones, self.b_limit, self.group, self.chunked)


Chooser = Callable[[ConvShape], ConvPlan | None]
"""Gives the plan to compile a convolution by, or None if not even the smallest tile fits."""


_PLANNED: dict[str, ConvPlan | None] = {}
"""By `ConvShape.key`."""


def plan(shape: ConvShape) -> ConvPlan | None:
    """The best plan by estimate, or None if not even the smallest tile fits. Layers that are alike are planned once."""
    if shape.key not in _PLANNED:
        _PLANNED[shape.key] = min(_all(shape), key=lambda candidate: candidate.cycles, default=None)
    return _PLANNED[shape.key]


def candidates(shape: ConvShape) -> list[ConvPlan]:
    """All plans, the best by estimate first."""
    return sorted(_all(shape), key=lambda candidate: candidate.cycles)


def _all(shape: ConvShape) -> Iterator[ConvPlan]:
    """All plans; those that load inputs chunk by chunk only if there are no others."""
    inputs = shape.src.held is None
    for chunked in (False, True) if inputs else (False,):
        found = False
        for tile in _tiles(shape):
            for zone in zones(shape.config, shape.room, inputs=inputs):
                for candidate in _candidates(shape, tile, zone, chunked):
                    found = True
                    yield candidate
        if found:
            return


def boxes(shape: ConvShape, tile: tuple[int, int]) -> list[Box]:
    """The final output, cut into tiles in row-major order, evenly."""
    h, w = shape.outputs
    return [
        Box(y, x, min(tile[0], h - y), min(tile[1], w - x))
        for y in range(0, h, tile[0])
        for x in range(0, w, tile[1])
    ]


def _sizes(total: int, most: int, limit: int) -> list[int]:
    """Tile sizes that cut `total` evenly into as few parts as `most` allows, and some finer cuts, largest first."""
    found: list[int] = []
    for parts in range(ceil_div(total, max(1, most)), total + 1):
        size = ceil_div(total, parts)
        if size not in found:
            found.append(size)
        if len(found) == limit:
            break
    return found


def _tiles(shape: ConvShape) -> Iterator[tuple[int, int]]:
    rows = max(1, shape.config.accumulator_size // 2)
    h, w = shape.outputs
    widths = _sizes(w, min(rows, COUNT_MAX), 16 if h == 1 else 4)
    if widths[-1] > 1:
        widths.append(1)
    for width in widths:
        for height in [*_sizes(h, max(1, rows // width), 12), 1]:
            conv = shape.conv_box(Box(0, 0, height, width))
            if conv.h * conv.w <= rows and max(conv.h, conv.w, height, width) <= COUNT_MAX:
                yield height, width


def _typical(shape: ConvShape, tile: tuple[int, int]) -> Box:
    """The convolution outputs of an inner tile, at their largest."""
    pool = shape.pool
    if not shape.pooled:
        return Box(0, 0, min(tile[0], shape.h), min(tile[1], shape.w))
    sizes = [
        min(total, (count - 1) * pool.stride[axis] + (pool.kernel[axis] - 1) * pool.dilation[axis] + 1)
        for axis, (count, total) in enumerate(zip(tile, (shape.h, shape.w), strict=True))
    ]
    return Box(0, 0, sizes[0], sizes[1])


def _input_size(shape: ConvShape, conv: Box, chunk: Chunk | None) -> tuple[int, int]:
    """Largest input rows and columns of such a tile."""
    window = shape.window
    kernel = (chunk.ky[1], chunk.kx[1]) if chunk else shape.kernel
    sizes = []
    for axis, (count, total) in enumerate(((conv.h, shape.src.h), (conv.w, shape.src.w))):
        sizes.append(
            min(total, (count - 1) * window.stride[axis] + (kernel[axis] - 1) * window.dilation[axis] + 1)
        )
    return sizes[0], conv.w if shape.folded else sizes[1]


def _area(size: tuple[int, int]) -> int:
    return size[0] * size[1]


def _candidates(shape: ConvShape, tile: tuple[int, int], zone: Zones, chunked: bool) -> Iterator[ConvPlan]:
    config = shape.config
    conv = _typical(shape, tile)
    rows = conv.h * conv.w
    depth = config.accumulator_depth
    c_slot = (
        ceil_div(rows, depth) * depth if rows > depth // 2 or config.accumulator_banks > 2 else depth // 2
    )
    c_slot = min(c_slot, config.accumulator_size)
    c_count = min(config.accumulator_size // c_slot, 4)
    if rows > c_slot or c_count < 1:
        return
    kinds = {piece.vectors: piece for piece in shape.pieces}
    whole = shape.kernel[0] * shape.kernel[1] * max(kinds) * config.n
    limits = {min(whole, zone.b[1] // 3), min(whole, zone.b[1] // 2)}
    if shape.steps * config.n <= zone.b[1] or whole > zone.b[1] // 2:
        limits.add(min(whole, zone.b[1]))
    for limit in sorted(limits):
        cuts = [shape.chunks(piece, limit) for piece in kinds.values()]
        if None in cuts:
            continue
        chunks = [chunk for cut in cuts for chunk in cut or ()]
        slot = max(chunk.steps for chunk in chunks) * config.n
        b_count = zone.b[1] // slot
        if chunked:
            a_slot = max(_area(_input_size(shape, conv, chunk)) * chunk.kc[1] for chunk in chunks)
            vectors = max(chunk.kc[1] for chunk in chunks)
        else:
            a_slot, vectors = _area(_input_size(shape, conv, None)) * shape.vectors, shape.vectors
        pitch = _input_size(shape, conv, None)[1] * vectors
        if shape.src.held is not None:
            a_slot, pitch = 0, shape.src.w * vectors
        if (
            a_slot > zone.a[1]
            or b_count < 1
            or pitch * max(*shape.window.dilation, *shape.window.stride) > STRIDE_MAX
        ):
            continue
        a_count = zone.a[1] // a_slot if a_slot else 1
        most = max(len(cut or ()) for cut in cuts)
        yield from _grouped(
            shape, tile, zone, conv, chunked, most, (a_slot, a_count), (slot, b_count), (c_slot, c_count)
        )


def _parts(shape: ConvShape, tile: tuple[int, int], conv: Box) -> list[tuple[int, int, int]]:
    """Rows and columns of convolution outputs of inner and of edge tiles, and how many tiles are like that."""
    cuts = []
    for total, size, inner in zip(shape.outputs, tile, (conv.h, conv.w), strict=True):
        full, rest = divmod(total, size)
        cuts.append([(inner, full)] + ([(inner - (size - rest), 1)] if rest else []))
    return [(h, w, a * b) for h, a in cuts[0] for w, b in cuts[1]]


def _grouped(
    shape: ConvShape, tile: tuple[int, int], zone: Zones, conv: Box, chunked: bool, chunks: int,
    a: tuple[int, int], b: tuple[int, int], c: tuple[int, int],
) -> Iterator[ConvPlan]:  # fmt: skip
    tiles = len(shape.tiles)
    per_tile = shape.passes * chunks
    groups = {tiles}
    held = b[1] // per_tile
    if 0 < held < tiles and not chunked:
        groups |= {held, max(1, held // 2)}
    for group in groups:
        params = min(group, max(4, zone.o[1] // 4 // PARAMETER_VECTORS))
        # What comes then needs another block of parameters, and a second operand a slot for each of outputs.
        then = shape.op.then is not None
        added = shape.residual is not None and shape.residual.held is None
        room = zone.o[1] - (params + then) * PARAMETER_VECTORS
        out = tile[0] * tile[1]
        held_out = out * ((shape.dst.held is None) + added)
        store = min(group, room // held_out // 2) if shape.uniform and held_out else 1
        if store < 1:
            store = 1
        if room < held_out * store:
            continue
        o_count = min(room // (held_out * store), 4) if held_out else 1
        cycles, traffic = _estimate(shape, tile, conv, chunked, group, store, a, b, per_tile, c[1], o_count)
        yield ConvPlan(zone, tile, a[0], min(a[1], 64), b[0], b[1], out * store, o_count, c[0], c[1], params, group,
                       store, chunked, cycles, traffic)  # fmt: skip


def _second_operand(shape: ConvShape, tile: tuple[int, int], store: int) -> float:
    """Cycles of the bus for what is added to the outputs, as `Emitter.load_box` reads it; 0 if nothing is."""
    source, config = shape.residual, shape.config
    if source is None or source.held is not None:
        return 0.0
    pixel = source.pixel_pitch / config.bus_bytes
    if source.joined(*tile)[0] == 1:
        pixel = min(pixel, bus_cycles(config, 1, store * config.n))
    return source.n * source.h * source.w * pixel * ceil_div(len(shape.tiles), store)


def _input_tile(shape: ConvShape, conv: Box) -> float:
    """Cycles that LOAD takes for inputs of a tile: of the bus, as it reads them, or for the vectors it writes; 0 if
    they are on chip."""
    src, config = shape.src, shape.config
    if src.held is not None:
        return 0.0
    h, w = _input_size(shape, conv, None)
    run, reads = w * src.pixel_pitch, h
    if shape.folded:
        step = shape.window.stride[1] * src.pixel_pitch
        run, reads = (w - 1) * step + shape.span, h * row_reads(config, w, step, shape.span)
    times = 1 if shape.aligned else len(shape.pieces)
    return max(reads * (run / config.bus_bytes + RUN_CYCLES), h * w * shape.vectors) * times


def _outputs(shape: ConvShape, store: int) -> float:
    """Cycles of the bus for all outputs, stored so many tiles at a time; 0 if they stay on chip."""
    dst, config = shape.dst, shape.config
    if dst.held is not None:
        return 0.0
    pixel = dst.c / config.bus_bytes
    if store * config.n < dst.pixel_pitch:
        pixel = ceil_div(len(shape.tiles), store) * (store * config.n / config.bus_bytes + RUN_CYCLES)
    h, w = shape.outputs
    return h * w * shape.src.n * pixel


def _estimate(
    shape: ConvShape, tile: tuple[int, int], conv: Box, chunked: bool, group: int, store: int,
    a: tuple[int, int], b: tuple[int, int], per_tile: int, c_count: int, o_count: int,
) -> tuple[float, float]:  # fmt: skip
    """Cycles, and those of the bus for data."""
    config, src = shape.config, shape.src
    h, w = shape.outputs
    spatial = ceil_div(h, tile[0]) * ceil_div(w, tile[1]) * src.n
    compute = (
        shape.steps
        * src.n
        * sum(
            times * max(_area((part_h, part_w)), config.n, _LEAST_TILE)
            for part_h, part_w, times in _parts(shape, tile, conv)
        )
    )
    bus = config.bus_bytes
    groups = ceil_div(len(shape.tiles), group)
    a_tile = _input_tile(shape, conv)
    kept = spatial <= a[1] and not chunked
    a_loads = a_tile * spatial * (1 if kept else groups) * (len(shape.tiles) if chunked else 1)
    # Weights.
    b_all = shape.weight_bytes / bus
    b_held = group * per_tile <= b[1]
    b_loads = b_all * (1 if b_held else spatial)
    params = len(shape.tiles) * 12 * (1 if b_held else spatial)
    pool = shape.pool.kernel[0] * shape.pool.kernel[1]
    vec: float = len(shape.tiles) * (h * w * src.n * pool * config.groups + spatial * 24)
    stores = _outputs(shape, store)
    added = _second_operand(shape, tile, store)
    if shape.op.then is not None:
        operands = config.groups + (shape.residual is not None)
        vec += len(shape.tiles) * (h * w * src.n * operands + spatial * 24)
    load = a_loads + b_loads + params + added
    start = a_tile + b_all / len(shape.tiles) + 100
    tail = (vec / spatial / len(shape.tiles) + stores / spatial / max(1, len(shape.tiles) // store)) + 100
    penalty = 0.0
    if not kept and a[1] < 2:
        penalty += a_loads
    if not (b_held and groups == 1) and b[1] < 2:
        penalty += b_loads
    if b_held and groups > 1 and b[1] < 2 * group * per_tile:
        penalty += b_loads
    if c_count < 2:
        penalty += vec
    if o_count < 2:
        penalty += stores + added
    instructions = spatial * len(shape.tiles) * (per_tile + 3) * 64 / bus
    traffic = load + stores
    paced = max(compute, traffic + instructions, vec)
    # Of plans with the same pace, the one that leaves more room; weights tried on benchmarks/timing_cases.py.
    near = 0.05 * max(traffic, vec) + 0.015 * traffic
    return paced + near + start + tail + penalty, traffic
