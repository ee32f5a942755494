"""The windows of Conv and of pools as the device takes them, of values with one to three dimensions behind channels.

The device's images have rows and columns. A value with one dimension is a row; of one with three, depth is further
images, as long as windows take one element of it at a time.
"""

from __future__ import annotations

from weft.compiler.ir.graph import Window
from weft.compiler.ir.windows import Axis, axes
from weft.compiler.onnx.context import NodeContext

_NONE = Axis(1, 1, 1)
"""The axis that values with one dimension have not."""
RANKS = (3, 4, 5)
"""Dimensions of values that are images, with those of images and channels."""


def spatial_axes(context: NodeContext, kernel: tuple[int, ...]) -> tuple[Axis, Axis, Axis]:
    """Windows of a Conv or pool node along depth, rows and columns."""
    found = axes(context.shape()[2:], {**context.node.attributes, "kernel_shape": kernel})
    depth, y, x = (*[_NONE] * (3 - len(found)), *found)
    return depth, y, x


def window_of(context: NodeContext, kernel: tuple[int, ...]) -> Window:
    """The window of a Conv or pool node, with padding made explicit from auto_pad and ceil_mode."""
    _, y, x = spatial_axes(context, kernel)
    pad = (y.before, x.before, y.behind, x.behind)
    return Window((y.kernel, x.kernel), (y.stride, x.stride), (y.dilation, x.dilation), pad)


def depth_tap(context: NodeContext, kernel: tuple[int, ...]) -> int | None:
    """The element along depth that windows take of each image, of all others taking none; None if there is no such."""
    depth, _, _ = spatial_axes(context, kernel)
    if depth.size == depth.count == 1:
        tap, rest = divmod(depth.before, depth.dilation)
        return tap if not rest and tap < depth.kernel else None
    plain = (depth.kernel, depth.stride, depth.before, depth.behind) == (1, 1, 0, 0)
    return 0 if plain else None
