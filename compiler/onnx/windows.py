"""The windows of Conv and of pools as the device takes them."""

from __future__ import annotations

from weft.compiler.ir.graph import Window
from weft.compiler.ir.windows import axes
from weft.compiler.onnx.context import NodeContext


def window_of(context: NodeContext, kernel: tuple[int, int]) -> Window:
    """The window of a Conv or pool node, with padding made explicit from auto_pad and ceil_mode."""
    y, x = axes(context.shape()[2:], {**context.node.attributes, "kernel_shape": kernel})
    pad = (y.before, x.before, y.behind, x.behind)
    return Window(kernel, (y.stride, x.stride), (y.dilation, x.dilation), pad)
