"""Elements that ONNX's Slice takes along an axis."""

from __future__ import annotations

import numpy as np


def slice_indices(size: int, start: int, end: int, step: int) -> np.ndarray:
    """Indices along an axis of `size` elements (int64), from `start` to `end` by `step`.

    Both ends count from the back if they are negative, and are then clamped. Python clamps a start ahead of the first
    element to nothing if the step is negative, ONNX to the first element.
    """
    low, high = (0, size) if step > 0 else (-1, size - 1)
    first, last = (at + size if at < 0 else at for at in (int(start), int(end)))
    first, last = min(max(first, 0), high), min(max(last, low), high)
    return np.arange(first, last, step, dtype=np.int64)
