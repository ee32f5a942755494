"""Edges of a convolution: first products and last outputs in finer parts, because nothing else overlaps with them.

The array starts with a part of the first chunk's weights and inputs, while the rest is loading. The last outputs are
stored in parts, each half of the remainder, so that few are stored after the last requantisation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from weft.compiler.machine.emit import ceil_div
from weft.compiler.machine.target import Target
from weft.compiler.plan.conv_shape import Chunk, ConvShape
from weft.hdl.isa import PARAMETER_VECTORS, WORD_BYTES

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
