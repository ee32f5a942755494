"""Rows of an input side by side: how the host lays out what a convolution of few channels reads.

A pixel of few channels fills a vector badly, and LOAD joins only bytes that follow one another: pixels of a row. As the
host writes the input anyhow, it can put all rows that a row of windows covers side by side, pixel by pixel. The
convolution is then one over a single row of kh * cin channels, with kh * kw * cin bytes of contraction and no gaps. The
input takes up to kh / stride times the memory.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from weft.compiler.ir.graph import Buffer, Conv, View, Window


@dataclass(frozen=True)
class Rows:
    """Of `count` rows in the buffer, row y holds ``y * stride - pad + k * dilation`` of the input's `height`, for all k
    below `kernel`.

    Channel ``k * c + i`` of a pixel is channel i (of c) of row k; rows that the input has not are `fill`, int8 as it is
    stored.
    """

    height: int
    kernel: int
    stride: int
    dilation: int
    pad: int
    count: int
    fill: int

    def gather(self, array: np.ndarray) -> np.ndarray:
        """The buffer, (n, count, w, kernel * c), of an input (n, height, w, c)."""
        n, h, w, c = array.shape
        assert h == self.height
        rows = (
            self.stride * np.arange(self.count)[:, None]
            - self.pad
            + self.dilation * np.arange(self.kernel)[None, :]
        )
        taken = array[:, np.clip(rows, 0, h - 1)]
        taken[:, (rows < 0) | (rows >= h)] = self.fill
        return taken.transpose(0, 1, 3, 2, 4).reshape(n, self.count, w, self.kernel * c)


def gathered(op: Conv) -> tuple[Conv, Rows]:
    """The same convolution of an input whose rows are side by side, and how they are. It must not have groups."""
    (kh, kw), (sy, sx), (dy, dx) = op.window.kernel, op.window.stride, op.window.dilation
    top, left, _, right = op.window.pad
    n, h, w, c = op.src.shape
    rows = Rows(h, kh, sy, dy, top, op.window.output(h, w)[0], op.x_zero)
    shape = (n, rows.count, w, kh * c)
    src = View(Buffer(op.src.buffer.name, shape, op.src.buffer.kind), shape)
    weight = op.weight.transpose(0, 2, 1, 3).reshape(len(op.weight), 1, kw, kh * c)
    window = Window((1, kw), (1, sx), (1, dx), (0, left, 0, right))
    return dataclasses.replace(op, src=src, weight=weight, window=window), rows
