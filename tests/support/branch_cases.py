"""Random parallel branches that end in a concatenation: vector-unit operators and independent convolutions."""

from __future__ import annotations

import numpy as np

from support.op_cases import convolution, draw, random_lookup, whole
from weft.compiler.ir.graph import Add, Conv, DeviceOp, DeviceSegment, Multiply, Pad, Pool, Rescale
from weft.compiler.ir.views import Buffer, View
from weft.compiler.ir.windows import ONE, Window

KINDS = ("pool", "rescale", "sum", "product", "pad", "overlapping maximum", "channels")


def vector(rng: np.random.Generator, name: str, src: View, dst: View | None, kind: str) -> DeviceOp:
    """Draw an operator of the vector unit whose result is as large as `src`."""
    to = dst or whole(name, src.shape, "temp")
    zeros = [draw(rng, -128, 127) for _ in range(3)]
    if kind == "pool":
        window = Window((3, 3), pad=(1, 1, 1, 1)) if rng.random() < 0.7 else ONE
        reduction = "average" if rng.random() < 0.5 else "max"
        return Pool(name, src, to, reduction, window, rng.uniform(0.3, 2), zeros[0], zeros[1])
    if kind == "overlapping maximum":
        return Pool(name, src, to, "max", Window((5, 5), pad=(2, 2, 2, 2)))
    if kind == "channels":
        return channels(rng, name, src, to)
    if kind == "sum":
        return Add(name, src, src, to, rng.uniform(0.1, 2), rng.uniform(0.1, 2), *zeros)
    if kind == "product":
        return Multiply(name, src, src, to, 0.01, *zeros)
    if kind == "pad" and src.shape[1] > 1:
        part = View(src.buffer, (src.shape[0], src.shape[1] - 1, *src.shape[2:]), y=src.y, x=src.x, c=src.c)
        return Pad(name, part, to, Window(pad=(1, 0, 0, 0)), zeros[2], rng.uniform(0.1, 3), *zeros[:2])
    return Rescale(name, src, to, rng.uniform(0.1, 3), *zeros[:2])


def channels(rng: np.random.Generator, name: str, src: View, dst: View) -> Conv:
    """Draw a depthwise 1x1 convolution; some have weights beyond 8 bits."""
    count, most = src.shape[3], 255 if rng.random() < 0.1 else 127
    return Conv(
        name, src, dst, rng.integers(-most, most + 1, (count, 1, 1, 1)).astype(np.int16),
        rng.integers(-3000, 3000, count).astype(np.int32), rng.uniform(0.002, 0.02, count), groups=count,
        x_zero=draw(rng, -128, 127), y_zero=draw(rng, -128, 127), low=draw(rng, -128, 0), high=draw(rng, 1, 127),
    )  # fmt: skip


def _conv(rng: np.random.Generator, name: str, src: View, dst: View | None, out: int) -> DeviceOp:
    kernel = int(rng.choice([1, 3]))
    made = convolution(src, out, Window((kernel, kernel), pad=(kernel // 2,) * 4), name=name, kind="temp")
    scale = np.full(out, 60 / (np.sqrt(src.shape[3]) * kernel * 127 * 40))
    return made.replace(name=name, scale=scale, dst=dst or made.dst)


def branches(
    rng: np.random.Generator, side: int = 9, most: int = 40, *, products: bool = True, tables: bool = True
) -> tuple[DeviceSegment, dict[str, np.ndarray]]:
    """Draw two to four branches, of one or two operators each, that write channels of one buffer, and a convolution of
    it. Some have look-up tables. The operators of all branches are in random order."""
    n, h, w = draw(rng, 1, 2), draw(rng, 2, side), draw(rng, 2, side)
    x = whole("x", (n, h, w, draw(rng, 1, most)), "input")
    kinds = [kind for kind in KINDS if products or kind != "product"]
    lengths = [draw(rng, 1, 2) for _ in range(draw(rng, 2, 4))]
    widths = [draw(rng, 1, most) if rng.random() < 0.5 else x.shape[3] for _ in lengths]
    convs = [rng.random() < 0.6 if width == x.shape[3] else True for width in widths]
    joint = Buffer("joint", (n, h, w, sum(widths)))
    chains: list[list[DeviceOp]] = []
    for number, (length, width, conv) in enumerate(zip(lengths, widths, convs, strict=True)):
        chain, src = list[DeviceOp](), x
        for index in range(length):
            last, name = index == length - 1, f"v{number}{index}"
            dst = View(joint, (n, h, w, width), c=sum(widths[:number])) if last else None
            if conv and (last or rng.random() < 0.5):
                op = _conv(rng, name, src, dst, width)
            else:
                op = vector(rng, name, src, dst, str(rng.choice(kinds)))
            chain.append(op.replace(lookup=random_lookup(rng)) if tables and rng.random() < 0.4 else op)
            src = op.dst
        chains.append(chain)
    ops = list[DeviceOp]()
    while any(chains):
        chain = [item for item in chains if item][int(rng.integers(sum(map(bool, chains))))]
        ops.append(chain.pop(0))
    ops.append(_conv(rng, "y", View(joint, joint.shape), whole("y", (n, h, w, 8), "output"), 8))
    inputs = {"x": rng.integers(-128, 128, x.shape).astype(np.int8)}
    return DeviceSegment("branches", tuple(ops)), inputs
