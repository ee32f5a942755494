"""Operators and networks that passes of the compiler change."""

from __future__ import annotations

import numpy as np

from support.op_cases import draw, random_mixture, whole
from weft.compiler.ir.graph import Conv, DeviceOp, DeviceSegment, Pool
from weft.compiler.ir.windows import Window
from weft.hdl.isa.config import Config


def prunable_network(rng: np.random.Generator) -> DeviceSegment:
    """Draw operators of all kinds; convolutions have outputs or inputs without weights, and extreme biases."""
    segment, _ = random_mixture(rng, side=6, channels=30, products=True)
    zero = draw(rng, -128, 127) if rng.random() < 0.85 else None
    ops: list[DeviceOp] = []
    for op in segment.ops:
        if zero is not None:
            names = ("x_zero", "y_zero", "a_zero", "b_zero", "fill")
            op = op.replace(**{name: zero for name in names if hasattr(op, name)})
        if isinstance(op, Conv):
            share = rng.uniform(0.3, 1)
            weight, bias = op.weight.copy(), op.bias.copy()
            weight[rng.random(len(weight)) < share] = 0
            bias[rng.random(len(bias)) < 0.1] = int(rng.choice([-1, 1])) << 27
            bias[rng.random(len(bias)) < share / 2] = 0
            if rng.random() < 0.3:
                weight[..., rng.random(weight.shape[3]) < share] = 0
            op = op.replace(weight=weight, bias=bias)
        ops.append(op)
    return DeviceSegment("pruned", tuple(ops))


def pool(kind: str, size: tuple[int, int], window: Window, channels: int = 5) -> Pool:
    src = whole("x", (1, *size, channels), "input")
    dst = whole("y", (1, *window.output(*size), channels), "output")
    scale = 1.0 if kind == "max" else 1.3
    return Pool("pool", src, dst, kind, window, scale=scale, x_zero=3 if kind == "average" else 0)


def overlapping_pool(rng: np.random.Generator, config: Config) -> Pool:
    """Draw a max pool whose windows overlap along one axis or both."""
    kernel = (draw(rng, 2, 5), draw(rng, 2, 5))
    dilation = (draw(rng, 1, 2), draw(rng, 1, 2))
    pad = tuple(draw(rng, 0, kernel[axis % 2] // 2) for axis in range(4))
    window = Window(kernel, (1, draw(rng, 1, 2)), dilation, (pad[0], pad[1], pad[2], pad[3]))
    size = (draw(rng, 10, 24), draw(rng, 10, 24))
    op = pool("max", size, window, draw(rng, config.n, 3 * config.n))
    return op.replace(low=draw(rng, -128, -60), high=draw(rng, 60, 127))
