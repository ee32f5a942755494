"""The first products of a convolution and its last outputs, in finer parts: nothing else overlaps there.

The array begins with a part of the first chunk's weights and inputs, while the rest is on its way. The last outputs
leave in parts, each half of what is left, so that few are stored behind the last requantisation.
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
"""Instructions of a tile of outputs: LOADs of weights and parameters, MM, VEC."""
_DEAR = 4
"""How many times its own time on the bus an instruction of a part counts: it also ends what ran without a pause."""


class Part(NamedTuple):
    """A part of a chunk whose weights are `vectors` vectors from vector `first` of the chunk's on."""

    chunk: Chunk
    first: int
    vectors: int


def weight_parts(cycles: Any, size: Any, target: Target) -> Any:
    """How many parts the first chunk's weights come in, at most `size`, if the array takes so many cycles for it.

    Each has two LOADs and a MM. p parts cost p times these, and leave a p-th of the products to wait for the last of
    them: the square root of the ratio is best.
    """
    return _parts(cycles, 3, size, target)


def row_parts(cycles: Any, rows: Any, target: Target) -> Any:
    """The same for rows of inputs, N or more at a time, where each has a LOAD and a MM."""
    return _parts(cycles, 2, rows // target.config.n, target)


def _parts(cycles: Any, instructions: int, most: Any, target: Target) -> Any:
    best = np.rint(np.sqrt(cycles / target.moved(_DEAR * instructions * WORD_BYTES)))
    return np.maximum(1, np.minimum(best, most))


def first_parts(chunk: Chunk, columns: int, cycles: int, target: Target) -> list[Part]:
    """The parts of the first chunk of all, whose weights are `columns` vectors a step; `cycles` is what the array takes
    for it. Weights of a part must lie in a row: it is the outermost loop that is cut."""
    axis = next((index for index in range(3) if chunk[index][1] > 1), 2)
    first, size = chunk[axis]
    inner = chunk.steps // size
    found = []
    for at, count in evenly(size, int(weight_parts(cycles, size if axis < 2 else size // 2, target))):
        extents = list(chunk)
        extents[axis] = (first + at, count)
        found.append(Part(Chunk(*extents), at * inner * columns, count * inner * columns))
    return found


def evenly(size: int, parts: int) -> Iterator[tuple[int, int]]:
    """(first, count) of so many parts of `size`, the longer ones first."""
    at = 0
    for left in range(parts, 0, -1):
        count = ceil_div(size - at, left)
        yield at, count
        at += count


def last_rows(rows: Any, boxes: Any, shape: ConvShape) -> Any:
    """How many of the rows of the last inputs of a product are left to products of their own, so that their
    requantisation is shorter: N, where the array takes longer for these than the vector unit does.

    Weights must have come by then: of a single box, which brings them, the other rows have to take the array longer.
    """
    n, target = shape.config.n, shape.target
    steps = shape.steps / len(shape.tiles)
    reads = shape.requantised(n)
    slower = steps * n > reads + shape.vec_starts
    loads = target.moved(n * (n * steps + PARAMETER_VECTORS) + _TILE * WORD_BYTES)
    there = (boxes > 1) | ((rows - n) * steps >= loads)
    return np.where(slower & there & (rows >= 2 * n), n, rows)


def last_parts(tiles: int) -> list[int]:
    """How many tiles of the last ones leave together, one part after the other."""
    found = []
    while tiles:
        found.append(ceil_div(tiles, 2))
        tiles -= found[-1]
    return found
