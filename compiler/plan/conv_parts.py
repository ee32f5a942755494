"""Parts of a convolution: possible tiles, blocks and chunks with their costs, and finer parts at its edges.

All cycles are estimates. Arrays have an entry for each tile size, or each (tile size, chunk size).

Nothing else overlaps with the first products and the last outputs, so they come in finer parts: the array starts with a
part of the first chunk's weights and inputs, while the rest is loading. The last outputs are stored in parts, each half
of the remainder, so that few are stored after the last requantisation.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from weft.compiler.machine import target as overheads
from weft.compiler.machine.emit import ceil_div, row_reads
from weft.compiler.machine.target import COUNT_MAX, LENGTH_MAX, PITCH_MAX, RUN_MAX, STRIDE_MAX, Target
from weft.compiler.plan.conv_shape import ConvShape, cuts
from weft.compiler.plan.conv_weights import Chunk
from weft.hdl.isa import PARAMETER_VECTORS, WORD_BYTES
from weft.hdl.isa.config import LOOKUP_ENTRIES
from weft.hdl.isa.operands import rmw_latency

Array = np.ndarray


class Zone(NamedTuple):
    """Sizes of zones A, B and O in vectors, and the fraction of B that lies in a bank of A."""

    a: int
    b: int
    o: int
    shared: float


@dataclass(frozen=True)
class _Chunks:
    """Ways to cut a tile's contraction, as arrays: weights in vectors, number of chunks, and their extents."""

    limit: Array
    count: Array
    ky: Array
    kx: Array
    kc: Array


class _Distinct(NamedTuple):
    """Column of few distinct numbers: these, and the index of each row's number."""

    values: Array
    which: Array

    @classmethod
    def of(cls, column: Array) -> _Distinct:
        return cls(*np.unique(column, return_inverse=True))


class Parts:
    """Possible tile, block and chunk sizes of one convolution; `zones` are ways to divide the scratchpad."""

    def __init__(self, shape: ConvShape, zones: Sequence[Zone]) -> None:
        self.shape, self.config = shape, shape.config
        self.zones = zones
        self.target = shape.target
        self.instruction = self.target.transfer_cycles(WORD_BYTES)
        self.h, self.w = shape.outputs
        self.tiles = len(shape.tiles)
        self.inputs = shape.src.resident is None
        a, b, o, shared = (np.array(column) for column in zip(*zones, strict=True))
        self.zone_a, self.zone_b = _Distinct.of(a), _Distinct.of(b)
        self.zone_o, self.shared_fraction = o, shared

    # --- sizes

    @cached_property
    def sizes(self) -> Array:
        """(rows, columns) of tiles of final outputs, one per row, that fit the accumulator."""
        rows = max(1, self.config.accumulator_size // self.shape.planes)
        pairs = []
        for width in cuts(self.w, min(rows, COUNT_MAX)):
            for height in cuts(self.h, min(max(1, rows // (width + self.shape.lead_rows)), COUNT_MAX)):
                pairs.append((height, width))
        sizes = np.array(pairs, np.int64)
        spatial = -(-self.h // sizes[:, 0]) * -(-self.w // sizes[:, 1])
        least = min(self.shape.tiles_least, self.h * self.w)
        return sizes[spatial >= least]

    @cached_property
    def chunks(self) -> _Chunks:
        shape, words = self.shape, self.shape.words
        kinds = list({piece.vectors: piece for piece in shape.pieces}.values())
        (kh, kw), vectors = shape.kernel, max(piece.vectors for piece in kinds)
        steps = [kc * kh * kw for kc in cuts(vectors, COUNT_MAX)]
        steps += [ky * kw for ky in cuts(kh, kh - 1)] if kh > 1 else []
        steps += cuts(kw, kw - 1) if kw > 1 else []
        rows = []
        for limit in sorted({step * words for step in steps}):
            extents = [shape.cut(piece, limit) for piece in kinds]
            ky, kx, kc = (max(extent[axis] for extent in extents) for axis in range(3))
            count = max(
                ceil_div(kh, y) * ceil_div(kw, x) * ceil_div(piece.vectors, c)
                for piece, (y, x, c) in zip(kinds, extents, strict=True)
            )
            rows.append((max(y * x * c for y, x, c in extents) * words, count, ky, kx, kc))
        return _Chunks(*np.array(sorted(set(rows)), np.int64).T)

    @cached_property
    def convs(self) -> tuple[Array, Array]:
        """Rows and columns of convolution outputs of an inner tile."""
        return tuple(self._reach(axis, self.sizes[:, axis]) for axis in (0, 1))  # type: ignore[return-value]

    @cached_property
    def rows(self) -> Array:
        """Accumulator rows of an inner tile."""
        return self.convs[0] * (self.convs[1] + self.shape.lead_rows) * self.shape.planes

    def _reach(self, axis: int, count: Array) -> Array:
        shape, pool = self.shape, self.shape.pool
        if not shape.pooled:
            return count
        span = (count - 1) * pool.stride[axis] + (pool.kernel[axis] - 1) * pool.dilation[axis] + 1
        return np.minimum(span, (shape.h, shape.w)[axis])

    def reach_back(self, axis: int, count: Array, kernel: Array | int) -> Array:
        """Return the input rows or columns that `count` convolution outputs read through `kernel` kernel rows or
        columns."""
        if axis == 1 and self.shape.lines is not None:
            kernel = self.shape.window.kernel[1]
        window, total = self.shape.window, (self.shape.src.h, self.shape.src.w)[axis]
        if axis == 1 and self.shape.folded:
            return count
        return np.minimum(total, (count - 1) * window.stride[axis] + (kernel - 1) * window.dilation[axis] + 1)

    # --- costs

    @cached_property
    def spatial(self) -> Array:
        height, width = self.sizes.T
        return -(-self.h // height) * -(-self.w // width) * self.shape.src.n

    @cached_property
    def compute(self) -> Array:
        """Array cycles for every tile size, including smaller tiles at the edges."""
        totals = []
        for axis, total in enumerate(self.shape.outputs):
            size, inner = self.sizes[:, axis], self.convs[axis]
            # (outputs of a tile, number of tiles), for full tiles and the rest at the edge.
            full, edge = total // size, total % size
            totals.append(
                ((inner, full), (np.maximum(inner - (size - edge), 1), (edge > 0).astype(np.int64)))
            )
        area = sum(
            times_h
            * times_w
            * np.maximum(h * (w + self.shape.lead_rows), max(self.config.n, rmw_latency(self.config)))
            for h, times_h in totals[0]
            for w, times_w in totals[1]
        )
        return np.asarray(area * float(self.shape.steps * self.shape.src.n))

    @cached_property
    def vector(self) -> tuple[float, Array]:
        """Vector unit cycles: for reads and writes, and to start instructions."""
        shape = self.shape
        reads = shape.vector_reads(float(self.h * self.w * shape.src.n))
        work = self.tiles * reads + shape.lookups * LOOKUP_ENTRIES
        return work, self.tiles * self.spatial * shape.vec_starts

    def _load(self, h: Array, w: Array, count: Array | int, vectors: Array | int) -> Array:
        """Return LOAD cycles for `count` bytes, `vectors` vectors, of every pixel of a box (see `Emitter.load_box`)."""
        src, target = self.shape.src, self.target
        joined = src.rows_are_adjacent & (w == src.w)
        rows, pixels = np.where(joined, 1, h), np.where(joined, h * w, w)
        in_rows = rows * target.runs((pixels - 1) * float(src.pixel_pitch) + count)
        if src.pixel_pitch > PITCH_MAX:
            in_rows = np.where(pixels > 1, np.inf, in_rows)
        more = -(-rows * pixels // COUNT_MAX) - 1  # approximate number of further instructions
        each = rows * pixels * target.runs(np.asarray(count)) + more * self.instruction
        return np.maximum(np.minimum(in_rows, each), h * w * vectors)

    @cached_property
    def whole_input(self) -> tuple[Array, Array]:
        """Vectors of all inputs of each tile size, and the cycles to load them; zero if they are resident."""
        shape, src = self.shape, self.shape.src
        if not self.inputs:
            return np.zeros(len(self.sizes), np.int64), np.zeros(len(self.sizes))
        h, w = (self.reach_back(axis, self.convs[axis], shape.kernel[axis]) for axis in (0, 1))
        if shape.folded:
            step = shape.window.stride[1] * src.pixel_pitch
            reads = np.where(w > 1, row_reads(self.config, 2, step, shape.span), 1)
            run = (w - 1) * step + shape.span
            cycles = np.maximum(h * reads * self.target.runs(run), h * w * shape.vectors)
        elif shape.aligned:
            cycles = shape.planes * self._load(h, w, src.c, shape.plane_vectors)
        else:
            cycles = shape.planes * sum(
                self._load(h, w, piece.count, piece.vectors) for piece in shape.pieces
            )
        return h * w * shape.vectors, np.asarray(cycles, float)

    @cached_property
    def chunk_input(self) -> tuple[Array, Array]:
        """Vectors of one chunk's inputs, and the cycles to load them: (tile sizes, chunk sizes)."""
        shape, chunks = self.shape, self.chunks
        h = self.reach_back(0, self.convs[0][:, None], chunks.ky[None, :])
        w = self.reach_back(1, self.convs[1][:, None], chunks.kx[None, :])
        if shape.folded:
            pitch = shape.window.stride[1] * shape.src.pixel_pitch
            length = np.minimum(chunks.kc * self.config.n, shape.span)
            reads = np.where((w > 1) & (pitch < length), -(-length // self.config.n), 1)
            cycles = h * reads * self.target.runs((w - 1) * pitch + length)
            return h * w * chunks.kc, np.maximum(cycles, h * w * chunks.kc)
        count = np.minimum(chunks.kc * self.config.n, max(piece.count for piece in shape.pieces))
        return h * w * chunks.kc * shape.planes, self._load(h, w, count, chunks.kc) * shape.planes

    def store_cycles(self, store: Array | np.int64) -> Array:
        """Return the bus cycles for all outputs in STOREs of `store` tiles; 0 if outputs are resident."""
        dst, n = self.shape.dst, self.config.n
        if dst.resident is not None:
            return np.zeros_like(store, float)
        part = -(-self.tiles // store) * self.target.span(store * n) * (1 + self.shape.wide)
        pixel = np.where(store * n < dst.pixel_pitch, part, self.target.transfer_cycles(dst.c))
        return np.asarray(self.h * self.w * self.shape.src.n * pixel)

    def residual_cycles(self, store: Array) -> Array:
        """Return the bus cycles for the residual, as `Emitter.load_box` reads it; 0 if there is none in memory."""
        source = self.shape.residual
        if source is None or source.resident is not None:
            return np.zeros_like(store, float)
        pixel = self.target.transfer_cycles(source.pixel_pitch)
        each = self.target.runs(np.minimum(store * self.config.n, source.c))
        pixel = np.minimum(pixel, each)
        return source.n * source.h * source.w * pixel * -(-self.tiles // store)

    # --- frames

    def frames(self) -> tuple[Array, Array, Array, Array]:
        """Return tile size indices, blocks, whether inputs are chunked, and lower bounds of cycles; most promising
        first.

        The last array bounds the cycles of each frame and all frames after it.
        """
        shape, config = self.shape, self.config
        rows = self.rows
        blocks = np.array(shape.block_sizes(config.accumulator_size), np.int64)
        ways = np.array((False, True) if self.inputs else (False,))
        tile, block, chunked = (
            item.ravel() for item in np.meshgrid(np.arange(len(rows)), blocks, ways, indexing="ij")
        )
        # Sums of a block must fit the accumulator, and loops their counters.
        fits = (rows[tile] * block <= config.accumulator_size) & (
            np.maximum(self.convs[0], self.convs[1])[tile] <= COUNT_MAX
        )
        h, w = (self.reach_back(axis, self.convs[axis], shape.kernel[axis]) for axis in (0, 1))
        vectors, load = self.whole_input
        window = shape.loop_window if shape.folded else shape.window
        steps = max(*window.dilation, *window.stride)
        longest = shape.src.c if shape.aligned else max(piece.count for piece in shape.pieces)
        # Whole inputs: strides on chip, runs and pixel lengths must fit their fields.
        uncut_fits = (w * shape.vectors * steps <= STRIDE_MAX) | (
            (h == 1) & (shape.vectors * steps <= STRIDE_MAX)
        )
        uncut_fits &= ((w - 1) * float(shape.src.pixel_pitch) + longest <= RUN_MAX) & (longest <= LENGTH_MAX)
        fits &= chunked | ((vectors <= max(zone.a for zone in self.zones)) & uncut_fits)[tile]
        if not self.inputs and shape.src.w * shape.vectors * steps > STRIDE_MAX:
            fits &= False
        tile, block, chunked = tile[fits], block[fits], chunked[fits]
        size = shape.region[1] - shape.region[0]
        times = np.where(chunked & (vectors[tile] > size) & shape.has_one_piece, -(-self.tiles // block), 1)
        weights = shape.weight_cycles
        again = np.where(block * self.depth * shape.words > size, self.spatial[tile], 1.0)
        stored = float(self.store_cycles(np.int64(self.tiles)))
        work, starts = self.vector
        vec = work + starts[tile]

        def bound(load: Array) -> Array:
            traffic = load * self.spatial[tile] * times + weights * again + stored
            paced = np.maximum(np.maximum(self.compute[tile], traffic), vec)
            return np.asarray(paced + room_penalty(traffic, vec, 0.0) + 2 * overheads.RAMP_CYCLES)

        about = bound(load[tile])
        # Chunks of windows may take fewer cycles together than whole windows.
        chunks = (self.chunk_input[1] * self.chunks.count).min(axis=1) if chunked.any() else load
        sure = bound(np.where(chunked, np.minimum(load, chunks)[tile], load[tile]))
        order = np.argsort(about, kind="stable")
        least = np.minimum.accumulate(sure[order][::-1])[::-1]
        return tile[order], block[order], chunked[order], least

    @cached_property
    def depth(self) -> int:
        """Vectors of a tile's contraction, over all parts."""
        kernel = self.shape.kernel[0] * self.shape.kernel[1]
        return math.ceil(self.shape.weight_passes * kernel) * max(
            piece.vectors for piece in self.shape.pieces
        )


def room_penalty(traffic: Array, vec: Array, instructions: Array | float) -> Array:
    """Return a penalty that prefers plans with more room among equally fast ones; tuned on
    benchmarks/timing.py."""
    return 0.1 * np.maximum(traffic + instructions, vec) + 0.05 * traffic + 0.15 * instructions


_TILE = 4
"""Instructions per tile of outputs: LOADs of weights and parameters, MM, VEC."""
_DEAR = 4
"""Weight of a further instruction's bus time: it also interrupts a continuous run."""


class Part(NamedTuple):
    """Part of a chunk: its weights are `vectors` vectors from vector `first` of the chunk's weights on."""

    chunk: Chunk
    first: int
    vectors: int


def weight_parts(cycles: Any, size: Any, target: Target) -> Any:
    """Return the number of parts of the first chunk's weights, at most `size`; the array takes `cycles` for the chunk.

    Each part has two LOADs and a MM. p parts cost p times these, and delay a p-th of the products until the last part
    arrives: the square root of the ratio is best.
    """
    return _parts(cycles, 3, size, target)


def row_parts(cycles: Any, rows: Any, target: Target) -> Any:
    """Return the number of parts of the first inputs' rows, N or more rows each, with one LOAD and one MM per part."""
    return _parts(cycles, 2, rows // target.config.n, target)


def _parts(cycles: Any, instructions: int, most: Any, target: Target) -> Any:
    best = np.rint(np.sqrt(cycles / target.transfer_cycles(_DEAR * instructions * WORD_BYTES)))
    return np.maximum(1, np.minimum(best, most))


def first_parts(chunk: Chunk, columns: int, cycles: int, target: Target) -> list[Part]:
    """Return the parts of the operator's first chunk; its weights are `columns` vectors per step, and take `cycles`.

    A part's weights must be contiguous, so the outermost loop is cut.
    """
    axis = next((index for index in range(3) if chunk[index][1] > 1), 2)
    first, size = chunk[axis]
    inner = chunk.steps // size
    parts = []
    for at, count in split_evenly(size, int(weight_parts(cycles, size if axis < 2 else size // 2, target))):
        extents = list(chunk)
        extents[axis] = (first + at, count)
        parts.append(Part(Chunk(*extents), at * inner * columns, count * inner * columns))
    return parts


def split_evenly(size: int, parts: int) -> Iterator[tuple[int, int]]:
    """Yield (first, count) of `parts` parts of `size`, longer ones first."""
    at = 0
    for left in range(parts, 0, -1):
        count = ceil_div(size - at, left)
        yield at, count
        at += count


def last_rows(rows: Any, boxes: Any, shape: ConvShape) -> Any:
    """Return the rows of a product's last inputs to leave to products of their own, which shortens the last
    requantisation.

    These are N rows, if the array takes longer for them than the vector unit; else all rows. Weights must have
    arrived by then: with a single box, which brings them, the other rows must take the array long enough.
    """
    n, target = shape.config.n, shape.target
    steps = shape.steps / len(shape.tiles)
    reads = shape.vector_reads(n)
    # Splitting pays only if the array, not the vector unit, is the bottleneck.
    slower = steps * n > reads + shape.vec_starts
    loads = target.transfer_cycles(n * (n * steps + PARAMETER_VECTORS) + _TILE * WORD_BYTES)
    there = (boxes > 1) | ((rows - n) * steps >= loads)
    return np.where(slower & there & (rows >= 2 * n), n, rows)


def last_parts(tiles: int) -> list[int]:
    """Return the numbers of last tiles to store together, part after part."""
    parts = []
    while tiles:
        parts.append(ceil_div(tiles, 2))
        tiles -= parts[-1]
    return parts
