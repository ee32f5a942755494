"""Axes that two orders of the same bytes have in common, and the views of a buffer at places along them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from weft.compiler.ir.graph import Buffer, View

LOOPS = 3
"""Loops around channels: images, rows, columns."""
LANES = 16
"""Channels at a time, and `SETUP` cycles of an operator, by which ways are compared."""
SETUP = 300
_PASSES = 2
"""Cycles of the vector unit for so many channels, whatever it does with them."""


class Axis(NamedTuple):
    """An axis that two orders of the same elements have in common, and the bytes from one place to the next in both."""

    size: int
    before: int
    behind: int


def view_of(name: str, total: int, loops: Sequence[tuple[int, int]], block: int, offset: int) -> View | None:
    """A view of a buffer of `total` bytes: `block` bytes at each place along loops of (count, pitch), from the block
    on that has byte `offset`; None if there is none."""
    around: list[tuple[int, int]] = [(1, total)] * (LOOPS - len(loops))
    (n, images), (h, rows), (w, columns) = [*around, *loops]
    columns = block if w == 1 else columns
    buffer = Buffer(name, (total // images, images // rows, rows // block, block))
    y, x = offset // rows, offset % rows // block
    view = View(buffer, (n, h, w, block), y, x, step=(1, columns // block))
    fits = all(end <= most for end, most in zip(view.ends, buffer.shape, strict=True))
    return view if fits and buffer.size == total else None


def places(axes: Sequence[Axis], pitch: str) -> np.ndarray:
    """The offsets of all places along some axes, the last of which is innermost."""
    found = np.zeros(1, np.int64)
    for axis in axes:
        found = (found[:, None] + np.arange(axis.size) * getattr(axis, pitch)).reshape(-1)
    return found


def product_cycles(pixels: int, outputs: int, inputs: int) -> int:
    """Cycles of a device of middle size for a product of `pixels` by `inputs` with so many `outputs`.

    Of few pixels it takes as long as its weights take to come.
    """
    across, deep = -(-outputs // LANES), -(-inputs // LANES)
    return SETUP + across * max(deep * max(pixels, LANES), _PASSES * pixels)


def copy_cycles(pixels: int, channels: int) -> int:
    """The same for copies of so many `channels` of pixels."""
    return SETUP + _PASSES * pixels * -(-channels // LANES)
