"""Weights of a convolution as the array reads them: packed into vectors of N bytes, by tile, part and chunk.

The array multiplies by int8. Larger weights are split into parts that add up in the accumulator: part p has what is
left of each weight after p clipped parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from weft.compiler.ir.graph import Conv
from weft.compiler.ir.windows import Window
from weft.compiler.kernel.wide import WideConv
from weft.compiler.machine.emit import ceil_div
from weft.compiler.plan.pieces import Lines, Tile
from weft.hdl.isa import encoding
from weft.hdl.isa.config import Config

WEIGHTS = (-128, 127)
"""Least and largest weight of the array."""
_DENSE = 0.6
"""Fraction of non-zero vectors of a further part from which on all its vectors are multiplied."""


class Chunk(NamedTuple):
    """Part of a tile's contraction: kernel rows, kernel columns and vectors, each (first, count)."""

    ky: tuple[int, int]
    kx: tuple[int, int]
    kc: tuple[int, int]

    @property
    def steps(self) -> int:
        """Array tiles: vectors of the contraction."""
        return self.ky[1] * self.kx[1] * self.kc[1]


def count_parts(op: Conv | WideConv) -> int:
    """Return the number of int8 parts whose sum can be any of a convolution's weights."""
    ends = op.weight_range
    return max(1, *(ceil_div(end, limit) for end, limit in zip(ends, WEIGHTS, strict=True)))


def fit_4_bits(op: Conv | WideConv) -> bool:
    """Return whether all weights of a convolution fit 4 bits."""
    low, high = op.weight_range
    return encoding.INT4_MIN <= low <= high <= encoding.INT4_MAX


class PackedWeights:
    """Packed weights of one convolution, computed when they are first needed.

    Parameters
    ----------
    op : Conv or WideConv
    tiles : sequence of Tile
        Tiles of output columns.
    lines : Lines or None
        Lines of rows of A, if the array sums along its rows.
    window : Window
    fold : int
        Distance in bytes between the kernel columns of a folded window; 0 if windows are not folded.
    """

    def __init__(
        self,
        op: Conv | WideConv,
        tiles: Sequence[Tile],
        lines: Lines | None,
        window: Window,
        fold: int,
        config: Config,
    ) -> None:
        self.op, self.tiles, self.lines, self.window = op, tiles, lines, window
        self.fold, self.config = fold, config
        self._cache: dict[tuple[int, int], np.ndarray] = {}

    def vectors(self, index: int, part: int) -> np.ndarray:
        """Return the weights of a tile's part, int8 (ky, kx, vectors, column, N)."""
        if (index, part) not in self._cache:
            self._cache[index, part] = self._pack(self.tiles[index], part)
        return self._cache[index, part]

    def chunk_bytes(self, first: int, count: int, part: int, chunk: Chunk) -> bytes:
        """Return the weights of one chunk of part `part` of `count` tiles: vectors by (ky, kx, kc, column), N lanes
        each.

        There are as many columns as the tiles have; with `lines` there are `tap_words` each. The array reads arbitrary
        values for the others, whose results are not stored.
        """
        parts = [
            self.vectors(index, part)[
                chunk.ky[0] : sum(chunk.ky), chunk.kx[0] : sum(chunk.kx), chunk.kc[0] : sum(chunk.kc)
            ]
            for index in range(first, first + count)
        ]
        return (parts[0] if count == 1 else np.concatenate(parts, axis=3)).tobytes()

    def nonzero_chunks(self, block: range, part: int, chunk: Chunk) -> list[tuple[int, Chunk]] | None:
        """Return the non-zero pieces of a chunk of a further part, as (tile, chunk of one kernel pixel); None if
        nearly all are.

        If the weights' zero point is off centre, few weights exceed `WEIGHTS`, and most vectors of the second part
        are zero.
        """
        pieces, filled, total = [], 0, 0
        (y, ky), (x, kx), (c, kc) = chunk
        for index in block:
            weights = self.vectors(index, part)[y : y + ky, x : x + kx, c : c + kc]
            used: np.ndarray = np.any(weights, axis=(3, 4))
            filled, total = filled + int(used.sum()), total + used.size
            for row, column in np.argwhere(used.any(axis=2)).tolist():
                # The edges of runs of non-zero vectors: pairs of (first, stop).
                runs = np.flatnonzero(np.diff(np.pad(used[row, column].astype(np.int8), 1))).reshape(-1, 2)
                pieces += [
                    (index, Chunk((y + row, 1), (x + column, 1), (c + start, stop - start)))
                    for start, stop in runs.tolist()
                ]
        return None if filled > _DENSE * total else pieces

    def count_multiplications(self, parts: int) -> float:
        """Return approximately how often the array multiplies all weights: once, plus the fraction in further
        parts."""
        if parts == 1:
            return 1.0
        fraction = 0.0
        for part in range(1, parts):
            share = self._nonzero_fraction(part)
            fraction += 1.0 if share > _DENSE else share
        # Rounded to few values, because plans are cached by it.
        return 1 + ceil_div(round(fraction * 64), 4) / 16

    def _nonzero_fraction(self, part: int) -> float:
        """Return the fraction of a part's weight vectors that are not zero."""
        op, n = self.op, self.config.n
        if op.groups > 1 or self.fold:
            tiles = [
                self.vectors(index, part).any(axis=(3, 4)).reshape(-1) for index in range(len(self.tiles))
            ]
            return float(np.concatenate(tiles).mean())
        # Count without packing, so that large weights are packed only once.
        beyond = (op.weight < part * WEIGHTS[0]) | (op.weight > part * WEIGHTS[1])
        lanes = np.logical_or.reduceat(beyond, range(0, op.weight.shape[3], n), axis=3)
        return float(np.logical_or.reduceat(lanes, range(0, len(lanes), n), axis=0).mean())

    def _pack(self, tile: Tile, part: int) -> np.ndarray:
        if self.lines is not None:
            weight = self.op.weight[tile.first : tile.first + tile.count, :, :, 0]
            return self.lines.words(weight, self.window, self.config)
        dense = self._dense(tile)  # (count, kh, kw, lanes)
        before = np.clip(dense, part * WEIGHTS[0], part * WEIGHTS[1])
        limited = np.clip(dense - before, *WEIGHTS)
        packed = limited.astype(np.int8).reshape(*dense.shape[:3], tile.piece.vectors, self.config.n)
        # B has one word per output column; the array loads them in this order.
        return packed.transpose(1, 2, 3, 0, 4)

    def _dense(self, tile: Tile) -> np.ndarray:
        """Return the weights of a tile over all input channels of its piece, with zeros between groups."""
        op, piece = self.op, tile.piece
        out, kh, kw, cin = op.weight.shape
        weight = op.weight[tile.first : tile.first + tile.count].astype(np.int16)
        lanes = piece.vectors * self.config.n
        if self.fold:
            dense = np.zeros((tile.count, kh, 1, lanes), np.int16)
            for k in range(kw):
                at = k * self.fold
                dense[:, :, 0, at : at + cin] = weight[:, :, k]
            return dense
        dense = np.zeros((tile.count, kh, kw, lanes), np.int16)
        per_out = out // op.groups
        for column in range(tile.count):
            at = (tile.first + column) // per_out * cin - piece.first
            dense[column, :, :, at : at + cin] = weight[column]
        return dense

    def bias(self, tile: Tile) -> np.ndarray:
        """Return the bias of a tile's columns with the input's zero point folded in, modulo 2**32."""
        rows = slice(tile.first, tile.first + tile.count)
        total = self.op.weight[rows].astype(np.int64).sum(axis=(1, 2, 3))
        return self.op.bias[rows].astype(np.int64) - self.op.x_zero * total
