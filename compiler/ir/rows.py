"""Rows of an input side by side: how the host lays out what a convolution of few channels reads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


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
