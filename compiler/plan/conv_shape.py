"""A convolution as the array computes it: pieces of input channels, and tiles of output columns.

There are two mappings of the contraction onto vectors of N bytes:

- *channels*: a vector holds N channels of one pixel; loops over the kernel are loops of the instruction.
- *windows*: LOAD lays the bytes of a whole kernel row side by side (overlapping windows along x), so that kw * cin
  bytes fill the vectors. It is used where it needs a tenth fewer vectors, that is for pixels of few channels: LOAD
  reads a row once for each vector of a window. If kernel rows lie side by side in DRAM
  (`weft.compiler.passes.gather_rows`), a window is the whole contraction.

Groups become block-diagonal tiles (`weft.compiler.plan.pieces`). Depthwise convolution is the extreme case, N groups
of one channel per tile, and uses 1/N of the array. If the array can sum along its rows, which takes several kernel
columns at a time, that path is used (`weft.compiler.plan.pieces.Lines`).
"""

from __future__ import annotations

import dataclasses
import hashlib
from functools import cached_property
from typing import Any

import numpy as np

from weft.compiler.ir.graph import Conv
from weft.compiler.ir.windows import Window
from weft.compiler.kernel.code import generate
from weft.compiler.kernel.wide import WideConv
from weft.compiler.machine.emit import Box, ceil_div
from weft.compiler.machine.target import BEFORE_MAX, COUNT_MAX, LENGTH_MAX, PITCH_MAX, STRIDE_MAX
from weft.compiler.plan.conv_weights import Chunk, PackedWeights, count_parts, fit_4_bits
from weft.compiler.plan.pieces import Lines, Piece, Tile, share_of, tap_words, tiles_of
from weft.compiler.plan.site import Site
from weft.hdl.isa import MicroOp


class ConvShape:
    """Geometry of one `Conv` at its site. Sizes are in elements, vectors of N bytes, or rows.

    Attributes
    ----------
    src, residual : TensorRef
        Input, and second operand of the epilogue, if any.
    region : Region
        Free part of the scratchpad.
    tiles_least : int
        Least number of tiles of pixels, if there are as many; above 1, each tile computes all channels before the next.
    narrow : bool
        Whether weights are stored in 4 bits.
    planes : int
        Bytes of an input element; each has products and a sum of its own.
    lead_rows : int
        Rows of A before those of each row of outputs.
    """

    def __init__(self, op: Conv | WideConv, site: Site, tiles_least: int = 1) -> None:
        op, site = _as_one_row(op, site)
        self.op, self.target, self.config = op, site.target, site.config
        self.wide = isinstance(op, WideConv) and op.wide
        self.fills = op.fills if isinstance(op, WideConv) else (op.x_zero,)
        self.planes = len(self.fills)
        self.region, self.tiles_least = site.room, tiles_least
        src, dst, residual = site.sources[0], site.dst, None
        if op.epilogue is not None and len(site.sources) > 1:
            residual = site.sources[1]
        window, pool = op.window, op.pool
        pointwise = window.kernel == (1, 1) and window.pad == (0, 0, 0, 0) and pool is None
        if pointwise and window.stride != (1, 1) and src.resident is None:
            oh, ow = window.output(src.h, src.w)
            src, window = src.subsample(window.stride, oh, ow), Window()
        if (
            pointwise
            and window.stride == (1, 1)
            and all(item.can_flatten for item in (src, dst, residual or dst))
        ):
            src, dst, residual = src.flatten(), dst.flatten(), residual.flatten() if residual else None
        self.src, self.dst, self.residual, self.window = src, dst, residual, window
        self.h, self.w = window.output(src.h, src.w)
        self.pool = pool if pool is not None else Window()
        self.pooled = pool is not None
        self.parts = count_parts(op)
        self.narrow = bool(self.config.int4 and fit_4_bits(op))
        self.lines = self._lines()
        self.lead_rows = 0 if self.lines is None else self.lines.lead_rows
        self._split_channels()
        fold = self.window.dilation[1] * src.pixel_pitch if self.folded else 0
        self.packed = PackedWeights(op, self.tiles, self.lines, self.window, fold, self.config)

    def _lines(self) -> Lines | None:
        """Return how sums along rows of the array make the outputs; None if they do not."""
        op = self.op
        single = op.groups > 1 and op.weight.shape[0] == op.groups and op.weight.shape[3] == 1
        if not single or type(op) is not Conv or self.pooled or self.parts > 1:
            return None
        return Lines.of(self.window, self.w, self.config)

    def _split_channels(self) -> None:
        op, n = self.op, self.config.n
        out, _, kw, cin = op.weight.shape
        self.folded = False
        if op.groups == 1:
            self.span = (kw - 1) * self.window.dilation[1] * self.src.pixel_pitch + cin
            windows = ceil_div(self.span, n)
            self.folded = (
                kw > 1 and self.planes == 1 and windows <= 0.9 * kw * ceil_div(cin, n) and self._folds()
            )
            self.pieces = [Piece(0, cin, 0, windows if self.folded else ceil_div(cin, n))]
            self.tiles = [Tile(o, min(n, out - o), self.pieces[0]) for o in range(0, out, n)]
        else:
            # Sums along rows take N channels per tile; block-diagonal tiles the fastest share.
            share = n if self.lines else share_of(op, self.target)
            self.tiles = tiles_of(op, share, n)
            self.pieces = list(dict.fromkeys(tile.piece for tile in self.tiles))
        self.plane_vectors = sum(piece.vectors for piece in self.pieces)
        self.vectors = self.planes * self.plane_vectors
        # One LOAD fetches all pieces if every vector but the last is full.
        self.aligned = all(piece.count % n == 0 for piece in self.pieces[:-1])

    def _folds(self) -> bool:
        """Return whether every row of windows overlaps its row in DRAM, which LOAD requires, and fits LOAD's fields."""
        if self.src.resident is not None:
            return False
        pad_left, (kw, sx, dx) = self.window.pad[1], self._x
        last = (self.w - 1) * sx - pad_left
        pitch = self.src.pixel_pitch
        return (
            (kw - 1) * dx - pad_left >= 0
            and last < self.src.w
            and pad_left * pitch <= BEFORE_MAX
            and self.span <= LENGTH_MAX
            and 0 < sx * pitch <= PITCH_MAX
        )

    @property
    def _x(self) -> tuple[int, int, int]:
        return self.window.kernel[1], self.window.stride[1], self.window.dilation[1]

    @cached_property
    def pointwise(self) -> bool:
        """True for a matrix product: rows of A are consecutive pixels of one row."""
        window = self.window
        return (
            window.kernel == window.stride == (1, 1)
            and window.pad == (0,) * 4
            and self.h == 1
            and not self.pooled
        )

    @cached_property
    def kernel_ops(self) -> tuple[MicroOp, ...]:
        """Micro-operations that turn sums into outputs; none on the fixed path."""
        return generate(self.op.kernel, self.config.n) if isinstance(self.op, WideConv) else ()

    @property
    def slots(self) -> int:
        """Slots per tile of outputs: for outputs, for the residual, and for lower bytes."""
        added = self.residual is not None and self.residual.resident is None
        return (self.dst.resident is None) + added + self.wide

    @property
    def uniform(self) -> bool:
        """True if output channels fill all vectors of a pixel but the last, so that tiles can lie side by side."""
        return all(tile.count == self.config.n for tile in self.tiles[:-1])

    @property
    def kernel(self) -> tuple[int, int]:
        """Kernel rows, and kernel columns or passes, that are loops of the instruction."""
        if self.lines is not None:
            return self.window.kernel[0], self.lines.passes
        return self.window.kernel[0], 1 if self.folded else self.window.kernel[1]

    @property
    def loop_window(self) -> Window:
        """Steps of the loops over outputs and kernel, and the padding against which coordinates are checked."""
        stride, dilation, pad = self.window.stride, self.window.dilation, self.window.pad
        if self.folded:
            return Window((1, 1), (stride[0], 1), (dilation[0], 0), (pad[0], 0, pad[2], 0))
        if self.lines is not None:
            dilation = (dilation[0], self.lines.step)
        return Window(self.window.kernel, stride, dilation, pad)

    @property
    def words(self) -> int:
        """Vectors of weights per step of the contraction, for a whole tile of outputs."""
        return self.config.n if self.lines is None else tap_words(self.config)

    @property
    def ahead(self) -> int:
        """Vectors before the loaded weights that the array reads and ignores."""
        return 0 if self.lines is None else self.config.n - 2 * self.config.depthwise_taps

    @property
    def around(self) -> int:
        """Vectors before and after the loaded weights that the array reads and ignores."""
        return self.config.n - self.words

    def accumulator_rows(self, conv: Box) -> int:
        """Return the accumulator rows for a box of a tile's outputs."""
        return conv.h * (conv.w + self.lead_rows) * self.planes

    def vector_reads(self, pixels: float) -> float:
        """Return the vector unit's reads for a tile of `pixels` final outputs."""
        groups = self.config.groups
        reads = max(len(self.kernel_ops), 1) * self.pool.kernel[0] * self.pool.kernel[1] * groups
        if self.op.epilogue is not None:
            reads += groups + (self.residual is not None)
        return pixels * reads

    @property
    def vec_starts(self) -> float:
        """Cycles to start the vector instructions of a tile."""
        first = self.target.vec_start(early=not self.kernel_ops)
        return first + (self.target.vec_start() if self.op.epilogue is not None else 0)

    @property
    def leaves_in_parts(self) -> bool:
        """True if a pixel's channels may be stored in parts.

        Parts that are not whole beats take the bus longer: then only many tiles are stored in parts, and only if
        memory is as fast as the bus.
        """
        bus, beat = self.config.bus_bytes, self.target.beat
        aligned = self.dst.pixel_pitch % bus == 0 == self.config.n % bus
        return self.dst.resident is None and (aligned or (beat == 1.0 and len(self.tiles) > 2))

    @property
    def outputs(self) -> tuple[int, int]:
        """Rows and columns of the final output (after pooling)."""
        return self.pool.output(self.h, self.w) if self.pooled else (self.h, self.w)

    @cached_property
    def steps(self) -> float:
        """Array tiles per block of rows: contraction vectors, summed over output tiles and parts."""
        kernel = self.kernel[0] * self.kernel[1]
        return self.planes * self.weight_passes * kernel * sum(tile.piece.vectors for tile in self.tiles)

    @cached_property
    def weight_passes(self) -> float:
        """Approximate number of times that the array multiplies all weights (`count_multiplications`)."""
        return self.packed.count_multiplications(self.parts)

    @cached_property
    def weight_bytes(self) -> float:
        """Bytes of all packed weights in memory."""
        return self.weight_values / (2 if self.narrow else 1)

    @property
    def weight_cycles(self) -> float:
        """Cycles to LOAD all packed weights once: limited by the bus, and by one word of values per cycle."""
        return max(self.target.transfer_cycles(self.weight_bytes), self.weight_values / self.config.bus_bytes)

    @cached_property
    def weight_values(self) -> float:
        """Values of all packed weights."""
        kernel, n = self.kernel[0] * self.kernel[1], self.config.n
        words = sum((self.words if self.lines else tile.count) * tile.piece.vectors for tile in self.tiles)
        return self.weight_passes * kernel * n * words

    @property
    def lookups(self) -> int:
        """Number of look-up tables that it uses."""
        return sum(op is not None and op.lookup is not None for op in (self.op, self.op.epilogue))

    @cached_property
    def key(self) -> str:
        """Hash of all that plans depend on: equal for layers that are planned alike."""
        known = (self.config.to_dict(), self.target.beat, *self.kind)
        return hashlib.sha256(repr(known).encode()).hexdigest()[:24]

    @cached_property
    def kind(self) -> tuple[Any, ...]:
        """All that plans depend on, except configuration and memory."""
        op = self.op
        return (
            op.weight.shape,
            op.groups,
            op.window,
            op.pool,
            self.weight_passes,
            type(op.epilogue).__name__,
            self.lookups,
            self.region,
            self.tiles_least,
            *(source.kind for source in (self.src, self.dst, self.residual) if source is not None),
            *((self.fills, self.wide) if isinstance(self.op, WideConv) else ()),
            *(("int4",) if self.narrow else ()),
            *(("in turn",) if self.target.sequential else ()),
        )

    def conv_box(self, box: Box) -> Box:
        """Return the box of convolution outputs that a box of final outputs needs."""
        if not self.pooled:
            return box
        y, h = self.pool.reach(0, box.y, box.h, self.h)
        x, w = self.pool.reach(1, box.x, box.w, self.w)
        return Box(y, x, h, w)

    def input_box(self, conv: Box, chunk: Chunk | None = None) -> Box:
        """Return the box of input pixels that a box of convolution outputs reads, through the whole kernel or a chunk.

        In the windows mapping columns are convolution outputs: there is one window for each.
        """
        (ky, kyn), (kx, kxn) = (chunk.ky, chunk.kx) if chunk else ((0, self.kernel[0]), (0, self.kernel[1]))
        y, h = self._reach(0, conv.y, conv.h, ky, kyn, self.src.h)
        if self.folded:
            return Box(y, conv.x, h, conv.w)
        if self.lines is not None:
            kx, kxn = 0, self.window.kernel[1]
        x, w = self._reach(1, conv.x, conv.w, kx, kxn, self.src.w)
        return Box(y, x, h, w)

    def _reach(self, axis: int, first: int, count: int, k: int, kn: int, size: int) -> tuple[int, int]:
        stride, dilation = self.window.stride[axis], self.window.dilation[axis]
        start = first * stride - self.window.pad[axis] + k * dilation
        stop = start + (count - 1) * stride + (kn - 1) * dilation + 1
        start = min(max(start, 0), size - 1)  # all in the padding: load one row, which no coordinate selects
        return start, max(min(stop, size) - start, 1)

    def cut(self, piece: Piece, limit: int) -> tuple[int, int, int]:
        """Return kernel rows, kernel columns and vectors of the largest chunks of at most `limit` vectors of weights;
        cut evenly.

        `limit` is at least `words`.
        """
        (kh, kw), steps = self.kernel, limit // self.words
        kc = min(piece.vectors, max(1, steps // (kh * kw)), COUNT_MAX)
        ky = min(kh, max(1, steps // (kw * kc)), COUNT_MAX)
        cut = ky == 1 and self.lines is None
        kx = min(kw, max(1, steps // (ky * kc)), COUNT_MAX) if cut else kw
        # Double buffering waits for the longer of two chunks, so cut evenly.
        return _evenly(kh, ky), _evenly(kw, kx), _evenly(piece.vectors, kc)

    def chunks(self, piece: Piece, limit: int) -> list[Chunk] | None:
        """Return the chunks of a tile's contraction (see `cut`); None if `limit` is too small for any."""
        if limit < self.words:
            return None
        (kh, kw), (ky, kx, kc) = self.kernel, self.cut(piece, limit)
        return [
            Chunk((y, min(ky, kh - y)), (x, min(kx, kw - x)), (c, min(kc, piece.vectors - c)))
            for c in range(0, piece.vectors, kc)
            for y in range(0, kh, ky)
            for x in range(0, kw, kx)
        ]

    @cached_property
    def has_one_piece(self) -> bool:
        """True if all tiles have the same input channels."""
        return len(self.pieces) == 1

    @cached_property
    def has_piece_per_tile(self) -> bool:
        """True if each tile has input channels of its own, so that a block's channels lie side by side."""
        return 1 < len(self.pieces) == len(self.tiles)

    def block_sizes(self, most: int) -> list[int]:
        """Return possible numbers of tiles per instruction, at most `most`: tiles of one piece, or of consecutive
        pieces."""
        if not self.uniform or len({piece.vectors for piece in self.pieces}) > 1:
            return [1]
        if self.has_one_piece or self.has_piece_per_tile:
            return cuts(len(self.tiles), most)
        each = len(self.tiles) // len(self.pieces)
        return [size for size in range(min(each, most), 0, -1) if each % size == 0]


def _as_one_row(op: Conv | WideConv, site: Site) -> tuple[Conv | WideConv, Site]:
    """Return a convolution over one column as one over one row: rows of A and windows need pixels of a row."""
    window, tensors = op.window, (*site.sources, site.dst)
    (kh, kw), (top, left, bottom, right) = window.kernel, window.pad
    single = all(tensor.w == 1 for tensor in tensors) and (kw, left, right) == (1, 0, 0)
    step = max(window.stride[0], window.dilation[0])
    fits = all(tensor.h * ceil_div(tensor.c, site.config.n) * step <= STRIDE_MAX for tensor in tensors)
    if not single or not fits or kh == 1 or op.pool is not None:
        return op, site
    turned = Window((1, kh), window.stride[::-1], window.dilation[::-1], (0, top, 0, bottom))
    weight = np.ascontiguousarray(op.weight.transpose(0, 2, 1, 3))
    sources = tuple(source.columns_as_rows() for source in site.sources)
    return (
        op.replace(window=turned, weight=weight),
        dataclasses.replace(site, sources=sources, dst=site.dst.columns_as_rows()),
    )


_FINE = 1.12
"""Least ratio of consecutive sizes to try: finer ones make no notable difference."""


def cuts(total: int, most: int) -> list[int]:
    """Return sizes that cut `total` evenly, at most `most`, largest first; if there are many, a selection down to 1."""
    sizes: list[int] = []
    parts = ceil_div(total, max(1, most))
    while parts <= total:
        size = ceil_div(total, parts)
        sizes.append(size)
        # Fewest parts whose size is smaller by the ratio `_FINE`.
        parts = max(parts + 1, ceil_div(total, max(1, min(size - 1, int(size / _FINE)))))
    return sizes


def _evenly(total: int, most: int) -> int:
    """Return the size of equal parts of `total`, with as few parts as with `most`."""
    return ceil_div(total, ceil_div(total, most))
