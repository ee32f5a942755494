"""Random chains of operators: convolutions with operators of the vector unit between them."""

from __future__ import annotations

import dataclasses

import numpy as np

from support.op_cases import convolution, whole
from weft.compiler.ir.graph import Add, Conv, DeviceOp, DeviceSegment, Multiply, Pool, Rescale
from weft.compiler.ir.views import View
from weft.compiler.ir.windows import Window


def conv(name: str, src: View, out: int, kernel: int = 1, kind: str = "temp", stride: int = 1) -> Conv:
    """Build a padded convolution: stride 1 keeps the size."""
    window = Window((kernel, kernel), (stride, stride), pad=(kernel // 2,) * 4)
    op = convolution(src, out, window, name=name, kind=kind)
    scale = np.full(out, 60 / (np.sqrt(op.weight[0].size) * 127 * 40))
    bias = np.arange(out, dtype=np.int32)
    return dataclasses.replace(op, name=name, bias=bias, scale=scale, x_zero=5, y_zero=5)


def random_operators(rng: np.random.Generator) -> tuple[DeviceSegment, dict[str, np.ndarray]]:
    """Draw convolutions and vector-unit operators in turn; some second operands are one pixel that repeats."""
    shape = (
        int(rng.integers(1, 3)),
        int(rng.integers(1, 10)),
        int(rng.integers(2, 10)),
        int(rng.integers(1, 40)),
    )
    values, ops = [conv("v0", whole("x", shape, "input"), int(rng.integers(1, 40))).dst], list[DeviceOp]()
    ops.append(conv("v0", whole("x", shape, "input"), values[0].shape[3]))
    for index in range(1, 7):
        src, name = values[-1], f"v{index}"
        n, h, w, c = src.shape
        same = whole(name, src.shape, "temp")
        others = [item for item in values if item.shape == src.shape or item.shape == (n, 1, 1, c)]
        other = others[int(rng.integers(len(others)))]
        kind = int(rng.integers(6))
        size = (h, w) if rng.random() < 0.5 else (min(h, 2), min(w, 3))
        window = Window(size, (1, 2), pad=(0, size[1] // 2, 0, 0))
        pooled = whole(name, (n, *window.output(h, w), c), "temp")
        ops.append([
            conv(name, src, int(rng.integers(1, 40)), 3),
            Rescale(name, src, same, 0.8, 3, 5, -100, 90),
            Add(name, src, other, same, 0.7, 0.6, 5, 5, 5) if other.shape == src.shape else Rescale(name, src, same),
            Multiply(name, src, other, same, 0.02, 3, -4, 5),
            Pool(name, src, pooled, "max", window),
            Pool(name, src, pooled, "average", window, 0.9, 4, 2, include_pad=bool(rng.integers(2))),
        ][kind])  # fmt: skip
        values.append(ops[-1].dst)
    ops.append(conv("y", values[-1], 8, kind="output"))
    return DeviceSegment("s", tuple(ops)), {"x": rng.integers(-128, 128, shape).astype(np.int8)}
