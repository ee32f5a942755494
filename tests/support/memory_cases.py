"""Programs with different memory traffic: random operators, larger than in `support.op_cases`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from support.attention_cases import random_attention
from support.attention_cases import random_inputs as attention_inputs
from support.op_cases import convolution, draw, random_inputs, random_op, random_view, segment_of, whole
from weft.compiler.backend import compile_segment
from weft.compiler.errors import CompileError
from weft.compiler.ir.graph import Add, Conv, DeviceOp, DeviceSegment, Pool, Rescale
from weft.compiler.ir.windows import Window
from weft.hdl.isa.config import Config
from weft.run.runtime import Image

Rng = np.random.Generator
Case = tuple[str, Image, dict[str, np.ndarray]]
"""A name, the program, and the contents of its input buffers."""
SCALE = 0.001


def dense(rng: Rng) -> DeviceOp:
    """Draw one or few vectors times a matrix: mostly long sequential loads."""
    rows = int(rng.choice([1, 1, 1, 2, 5]))
    features, out = draw(rng, 100, 900), draw(rng, 20, 250)
    return convolution(whole("x", (1, 1, rows, features), "input"), out)


def plain_conv(rng: Rng) -> DeviceOp:
    """Draw a convolution without groups."""
    size, kernel = draw(rng, 6, 18), int(rng.choice([1, 3, 3, 5]))
    x = random_view(rng, "x", (1, size, draw(rng, 6, 24), draw(rng, 8, 70)), "input")
    pad = (kernel // 2,) * 4
    return convolution(x, draw(rng, 4, 60), Window((kernel, kernel), (draw(rng, 1, 2),) * 2, pad=pad))


def first_conv(rng: Rng) -> DeviceOp:
    """Draw a convolution of an image of one to four channels."""
    x = whole("x", (1, draw(rng, 20, 50), draw(rng, 20, 50), draw(rng, 1, 4)), "input")
    return convolution(x, draw(rng, 4, 24), Window((3, 3), (draw(rng, 1, 2),) * 2, pad=(1, 1, 1, 1)))


def depthwise(rng: Rng) -> DeviceOp:
    """Draw a depthwise convolution: rows of narrow channels, each group a run of its own."""
    channels, kernel = draw(rng, 3, 70), int(rng.choice([3, 3, 5]))
    size = draw(rng, 8, 24)
    x = random_view(rng, "x", (1, size, draw(rng, 8, 24), channels), "input")
    window = Window((kernel, kernel), (draw(rng, 1, 2),) * 2, pad=(kernel // 2,) * 4)
    y = random_view(rng, "y", (1, *window.output(*x.shape[1:3]), channels), "output")
    weight = rng.integers(-127, 128, (channels, kernel, kernel, 1)).astype(np.int16)
    return Conv(
        "depthwise", x, y, weight, np.zeros(channels, np.int32), np.full(channels, SCALE), window, channels
    )


def sum_of(rng: Rng) -> DeviceOp:
    """Draw a sum of two operands: half as many bytes are stored as loaded."""
    shape = (1, draw(rng, 8, 40), draw(rng, 8, 40), draw(rng, 1, 40))
    a, b, y = (
        random_view(rng, name, shape, kind)
        for name, kind in zip("aby", ("input", "input", "output"), strict=True)
    )
    return Add("add", a, b, y, 0.7, 0.6, 3, 3, 3)


def copy(rng: Rng) -> DeviceOp:
    """Draw a copy, whose destination may have only a few bytes a pixel."""
    shape = (1, draw(rng, 8, 50), draw(rng, 8, 50), draw(rng, 1, 40))
    return Rescale("copy", random_view(rng, "x", shape, "input"), random_view(rng, "y", shape, "output"))


def pool(rng: Rng) -> DeviceOp:
    shape = (1, draw(rng, 8, 40), draw(rng, 8, 40), draw(rng, 1, 40))
    window = Window((3, 3), (draw(rng, 1, 3),) * 2, pad=(1, 1, 1, 1))
    y = random_view(rng, "y", (1, *window.output(*shape[1:3]), shape[3]), "output")
    return Pool("pool", whole("x", shape, "input"), y, "max", window)


KINDS: dict[str, Callable[[Rng], DeviceOp]] = {
    "dense": dense,
    "convolution": plain_conv,
    "first": first_conv,
    "depthwise": depthwise,
    "add": sum_of,
    "copy": copy,
    "pool": pool,
    "small": random_op,
}


def cases(config: Config, seed: int, each: int, bandwidth: float) -> Iterator[Case]:
    """Yield `each` programs of every kind, and of attention, planned for a memory of `bandwidth` bytes a cycle."""
    for kind in (*KINDS, "attention"):
        for index in range(each):
            rng = np.random.default_rng([seed, *kind.encode(), index, config.n])
            yield f"{kind} {index}", *case(rng, config, kind, bandwidth)


def case(rng: Rng, config: Config, kind: str, bandwidth: float) -> tuple[Image, dict[str, np.ndarray]]:
    """Draw a program of a kind that the configuration supports, and contents of its input buffers."""
    while True:
        if kind == "attention":
            attention = random_attention(rng, config)
            segment, inputs = DeviceSegment("attention", (attention,)), attention_inputs(rng, attention)
        else:
            op = KINDS[kind](rng)
            segment, inputs = segment_of(op), random_inputs(rng, op)
        try:
            return Image(compile_segment(segment, config, bandwidth=bandwidth)), inputs
        except CompileError:  # products, say, or look-up tables
            if kind != "small" and config.lookup_tables:
                raise
