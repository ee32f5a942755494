"""Pieces of input channels and tiles of output columns: how groups of a convolution share vectors of the array."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from weft.compiler.ir.graph import Conv
from weft.compiler.ir.windows import Window
from weft.compiler.kernel.wide import WideConv
from weft.compiler.machine.emit import ceil_div
from weft.compiler.machine.target import Target, is_far
from weft.hdl.isa.config import Config


@dataclass(frozen=True)
class Piece:
    """`count` input channels from `first` on, in `vectors` vectors of a pixel from vector `at` on."""

    first: int
    count: int
    at: int
    vectors: int


@dataclass(frozen=True)
class Tile:
    """At most N output channels from `first` on, computed from `piece`."""

    first: int
    count: int
    piece: Piece


class _Layer(NamedTuple):
    """Cache key: all that tiles of a grouped convolution depend on."""

    weight: tuple[int, ...]
    groups: int
    src: tuple[int, ...]
    window: Window
    pool: Window | None

    @classmethod
    def of(cls, op: Conv | WideConv) -> _Layer:
        return cls(op.weight.shape, op.groups, op.src.shape, op.window, op.pool)

    @property
    def per_out(self) -> int:
        """Output channels of a group."""
        return self.weight[0] // self.groups


_KEPT = 1 << 10


def tiles_of(op: Conv | WideConv, share: int, n: int) -> list[Tile]:
    """Return tiles of a grouped convolution; `share` groups are a piece of block-diagonal weights, the last piece
    fewer."""
    return list(_tiles(_Layer.of(op), share, n))


@lru_cache(_KEPT)
def _tiles(op: _Layer, share: int, n: int) -> tuple[Tile, ...]:
    cin, per_out = op.weight[3], op.per_out
    tiles: list[Tile] = []
    at = 0
    for group in range(0, op.groups, share):
        groups = min(share, op.groups - group)
        piece = Piece(group * cin, groups * cin, at, ceil_div(groups * cin, n))
        at += piece.vectors
        first, count = group * per_out, groups * per_out
        tiles += [Tile(first + o, min(n, count - o), piece) for o in range(0, count, n)]
    return tuple(tiles)


_GAIN = 1.2
"""Factor by which a larger piece must be faster than the densest, by estimate."""


def share_of(op: Conv | WideConv, target: Target) -> int:
    """Return the number of groups per piece: what fits one vector of inputs and outputs, or more if that is clearly
    faster.

    More groups multiply more zeros, but their outputs fill vectors, which the vector unit processes whole. Channels
    that do not fill vectors also need a bus run for each pixel and piece.
    """
    return _share(_Layer.of(op), target)


@lru_cache(_KEPT)
def _share(op: _Layer, target: Target) -> int:
    n, per_out = target.config.n, op.per_out
    dense = max(1, n // max(op.weight[3], per_out))
    cycles = {
        share: _cycles(op, _tiles(op, share, n), target)
        for share in (dense, *(share for share in _shares(op.groups, per_out, n) if share > dense))
    }
    best = min(cycles, key=lambda share: round(cycles[share], 3))
    return best if _GAIN * cycles[best] < cycles[dense] else dense


def _shares(groups: int, per_out: int, n: int) -> Iterator[int]:
    """Yield numbers of groups with equally many tiles per piece, ascending, up to four tiles or all groups."""
    for share in range(1, groups + 1):
        single, even = share * per_out <= n, groups % share == 0 and share * per_out <= 4 * n
        if single or even or share == groups <= 8:
            yield share


def _cycles(op: _Layer, tiles: Sequence[Tile], target: Target) -> float:
    """Return cycles per output pixel: the slowest of array, vector unit and bus, plus half of the rest, part of which
    is hidden."""
    parts = _parts(op, tiles, target)
    return (max(parts) + sum(parts)) / 2


def _parts(op: _Layer, tiles: Sequence[Tile], target: Target) -> tuple[float, float, float]:
    """Return cycles of array, vector unit and bus per output pixel."""
    n, config = target.config.n, target.config
    pieces = list(dict.fromkeys(tile.piece for tile in tiles))
    window, height, width = op.window, *op.window.output(*op.src[1:3])
    pixels = max(1, op.src[0] * height * width)
    kernel = math.prod(window.kernel)
    # A tile takes N cycles at least, which few pixels do not fill.
    array = kernel * sum(tile.piece.vectors for tile in tiles) * max(1.0, n / pixels)
    pool = math.prod(op.pool.kernel) if op.pool is not None else 1
    vector = len(tiles) * config.groups * pool
    loads = target.transfer_cycles(op.src[3])
    if any(piece.count % n for piece in pieces[:-1]):
        runs = sum(target.run(piece.count) for piece in pieces)
        # One run per piece, or whole pixels once per piece.
        loads = min(runs, len(pieces) * loads)
    stores = target.transfer_cycles(op.weight[0])
    if any(tile.count < n for tile in tiles[:-1]):
        stores = sum(target.run(tile.count) for tile in tiles)
    read = math.prod(op.src[:3]) * math.prod(
        min(1.0, taps / step) for taps, step in zip(window.kernel, window.stride, strict=True)
    )
    weights = target.transfer_cycles(kernel * n * sum(tile.count * tile.piece.vectors for tile in tiles))
    return array, vector, (loads * read + weights) / pixels + stores


def tap_words(config: Config) -> int:
    """Return the words of a tile of B from the first tap to the last: every second of them has a tap.

    A tile's last word, and its words before the first tap, may have any value.
    """
    return 2 * config.depthwise_taps - 1


class Lines(NamedTuple):
    """Lines of rows of A that make a row of outputs: in `passes`, each with `taps` of a kernel's columns.

    A line starts with `taps` - 1 extra rows whose sums are ignored. Without a stride a pass has `taps` consecutive
    kernel columns. With a stride its columns are the stride apart, so that a line has only pixels that it needs.
    `step` is the distance between passes in pixels; `before` is the number of columns of the first pass before the
    kernel's own.
    """

    taps: int
    passes: int
    step: int
    before: int

    @classmethod
    def of(cls, window: Window, width: int, config: Config) -> Lines | None:
        """Return the lines of a window over `width` outputs; None if they are impossible, or not faster."""
        most, kernel, stride = config.depthwise_taps, window.kernel[1], window.stride[1]
        if not most or window.dilation[1] > 1 or is_far(window, 1):
            return None
        if stride > 1:
            lines = cls(ceil_div(kernel, stride), min(kernel, stride), 1, 0)
        else:
            passes = ceil_div(kernel, most)
            taps = ceil_div(kernel, passes)
            lines = cls(taps, passes, taps, passes * taps - kernel)
        fewer = lines.passes * (width + lines.lead_rows) < kernel * width
        return lines if lines.taps <= most and fewer else None

    @property
    def lead_rows(self) -> int:
        """Rows of a line without an output."""
        return self.taps - 1

    def words(self, weight: np.ndarray, window: Window, config: Config) -> np.ndarray:
        """Return weights (channels, rows, columns), of at most N channels, as the relevant words of tiles of B.

        The result is int8 (rows, passes, 1, `tap_words`, N).
        """
        channels, height, width = weight.shape
        tiles = np.zeros((height, self.passes, 1, tap_words(config), config.n), np.int8)
        # Fewer taps than the hardware has: the first ones stay zero.
        first = 2 * (config.depthwise_taps - self.taps)
        for column in range(width):
            if window.stride[1] > 1:
                tap, part = divmod(column, window.stride[1])
            else:
                part, tap = divmod(column + self.before, self.taps)
            tiles[:, part, 0, first + 2 * tap, :channels] = weight[:, :, column].T
        return tiles
