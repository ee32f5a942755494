"""Depthwise convolutions on the array's path for sums along its rows (`weft.hdl.matrix.taps`)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from weft.compiler.ir.graph import Window
from weft.compiler.machine.coordinates import is_far
from weft.compiler.machine.emit import ceil_div
from weft.hdl.isa.config import Config


def tap_words(config: Config) -> int:
    """Words of a tile of B from the first one that has a tap to the last one: every second of these has one. The last
    word of a tile, and those ahead of the first tap, may be anything."""
    return 2 * config.depthwise_taps - 1


class Lines(NamedTuple):
    """How a row of outputs is made of lines of rows of A: in `passes`, each with `taps` of a kernel's columns.

    A line has `taps` - 1 rows more than there are outputs, at its start, whose sums nobody reads. Without a stride a
    pass has `taps` columns of the kernel in a row. With one its columns are the stride apart, so that a line only has
    pixels that it needs. `step` is from a pass to the next, in pixels, and `before` how many columns the first pass has
    ahead of the kernel's own.
    """

    taps: int
    passes: int
    step: int
    before: int

    @classmethod
    def of(cls, window: Window, width: int, config: Config) -> Lines | None:
        """The lines of a window that moves over `width` outputs; None if they cannot be, or take no fewer cycles."""
        most, kernel, stride = config.depthwise_taps, window.kernel[1], window.stride[1]
        if not most or window.dilation[1] > 1 or is_far(window, 1):
            return None
        if stride > 1:
            found = cls(ceil_div(kernel, stride), min(kernel, stride), 1, 0)
        else:
            passes = ceil_div(kernel, most)
            taps = ceil_div(kernel, passes)
            found = cls(taps, passes, taps, passes * taps - kernel)
        fewer = found.passes * (width + found.more) < kernel * width
        return found if found.taps <= most and fewer else None

    @property
    def more(self) -> int:
        """Rows of a line without an output."""
        return self.taps - 1

    def words(self, weight: np.ndarray, window: Window, config: Config) -> np.ndarray:
        """Weights (channels, rows, columns) of at most N channels as those words of tiles of B that matter: int8
        (rows, passes, 1, `tap_words`, N)."""
        channels, height, width = weight.shape
        tiles = np.zeros((height, self.passes, 1, tap_words(config), config.n), np.int8)
        first = 2 * (config.depthwise_taps - self.taps)
        for column in range(width):
            if window.stride[1] > 1:
                tap, part = divmod(column, window.stride[1])
            else:
                part, tap = divmod(column + self.before, self.taps)
            tiles[:, part, 0, first + 2 * tap, :channels] = weight[:, :, column].T
        return tiles
