"""Padding of windows as numbers."""

from __future__ import annotations

from collections.abc import Sequence

from weft.compiler.tflite.context import Context


def pads_of(
    context: Context,
    sizes: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
) -> tuple[int, ...]:
    """Rows and columns in front, then behind: none if padding is VALID, else as many that there is a window for every
    stride, an odd one behind.
    """
    before, behind = [], []
    for size, window, stride, dilation in zip(sizes, kernel, strides, dilations, strict=True):
        span = (window - 1) * dilation + 1
        if span > size and not context.same:
            raise context.refuse(f"has a window over {span:,} rows or columns, of which there are {size:,}")
        reach = (-(-size // stride) - 1) * stride + span
        pad = max(reach - size, 0) if context.same else 0
        before.append(pad // 2)
        behind.append(pad - pad // 2)
    return (*before, *behind)
