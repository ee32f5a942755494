"""No pass that makes one operator of two may make a network that compiles one that does not."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from support.op_cases import convolution, draw, random_lookup, whole

from weft.boards.registry import BOARDS
from weft.compiler.errors import CompileError
from weft.compiler.ir.graph import (
    Add,
    Buffer,
    Conv,
    DeviceOp,
    DeviceSegment,
    Multiply,
    Pad,
    Pool,
    Rescale,
    View,
    Window,
)
from weft.compiler.machine.target import Target
from weft.compiler.passes.order import choose_plans
from weft.compiler.passes.split_pool import split_pool
from weft.compiler.pipeline import PIPELINE, run_passes
from weft.compiler.planner import Planner
from weft.compiler.verify import verify_segment
from weft.hdl.isa.config import PRESETS

CONFIGS = {
    "tiny": PRESETS["tiny"],
    "small": PRESETS["small"],
    "icepi-zero": BOARDS["icepi-zero"].config,
    "icebreaker": BOARDS["icebreaker"].config,
    "ulx3s-45f": BOARDS["ulx3s-45f"].config,
}
APART = [item for item in PIPELINE if item.run in (split_pool, choose_plans)]
"""The passes that a segment needs; all others may be left out."""


def large_conv(rng: np.random.Generator, name: str, src: View) -> Conv:
    """A convolution that reads far: many channels, large kernels, dilations."""
    _, h, w, c = src.shape
    kernel = [draw(rng, 1, min(size, int(rng.choice([1, 3, 3, 9])))) for size in (h, w)]
    dilation = [draw(rng, 1, max(1, (size - 1) // max(k - 1, 1))) if rng.random() < 0.2 else 1
                for size, k in zip((h, w), kernel, strict=True)]  # fmt: skip
    pad = tuple(draw(rng, 0, kernel[at % 2] - 1) for at in range(4))
    stride = (draw(rng, 1, 2), draw(rng, 1, 2)) if rng.random() < 0.4 else (1, 1)
    window = Window((kernel[0], kernel[1]), stride, (dilation[0], dilation[1]), pad)  # type: ignore[arg-type]
    outputs = int(rng.choice([1, 4, 24, 96]))
    made = convolution(src, outputs, window, name=name, kind="temp").replace(name=name)
    if rng.random() < 0.2:
        made = convolution(src, c, window, name=name, kind="temp").replace(name=name, groups=c)
        made = made.replace(weight=made.weight[..., :1])
    return made


def large_pool(rng: np.random.Generator, name: str, src: View) -> Pool:
    """A pool over anything from two pixels to all of the image."""
    n, h, w, c = src.shape
    kernel = (h, w) if rng.random() < 0.4 else (draw(rng, 1, h), draw(rng, 1, w))
    stride = (draw(rng, 1, 3), draw(rng, 1, 3))
    pad = (0, 0, 0, 0) if rng.random() < 0.6 else tuple(draw(rng, 0, kernel[at % 2] - 1) for at in range(4))
    window = Window(kernel, stride, pad=pad)  # type: ignore[arg-type]
    kind = "max" if rng.random() < 0.7 else "average"
    return Pool(name, src, whole(name, (n, *window.output(h, w), c), "temp"), kind, window, 1.0, 3, 3)


def follower(rng: np.random.Generator, name: str, src: View, others: list[View], products: bool) -> DeviceOp:
    """An operator that may become part of the one before it, or take it."""
    n, h, w, c = src.shape
    dst, kind = whole(name, src.shape, "temp"), rng.random()
    if kind < 0.3:
        return large_conv(rng, name, src)
    if kind < 0.55:
        return large_pool(rng, name, src)
    if kind < 0.65:
        window = Window(pad=(draw(rng, 0, 9), draw(rng, 0, 9), draw(rng, 0, 9), draw(rng, 0, 9)))
        return Pad(name, src, whole(name, (n, *window.output(h, w), c), "temp"), window, 3, 1.0, 3, 3)
    if kind < 0.75:
        return Rescale(name, src, dst, 0.7, 3, -4)
    if kind < 0.8:  # a copy into a wider buffer, as Concat has it
        buffer = Buffer(name, (n, h, w, c + draw(rng, 1, 300)))
        return Rescale(name, src, View(buffer, src.shape, c=draw(rng, 0, buffer.shape[3] - c)))
    alike = [view for view in others if view.shape == src.shape]
    other = (
        alike[int(rng.integers(len(alike)))]
        if alike and rng.random() < 0.7
        else whole(f"{name}_in", src.shape, "input")
    )
    if products and rng.random() < 0.3:
        return Multiply(name, src, other, dst, 0.01, 3, -5, 3)
    return Add(name, src, other, dst, 0.7, 0.6, 3, -5, 3)


def network(rng: np.random.Generator, *, products: bool, lookups: bool) -> DeviceSegment:
    side = int(rng.choice([1, 8, 30, 60, 200]))
    shape = (
        1,
        draw(rng, 1, side),
        draw(rng, 1, int(rng.choice([side, 4 * side]))),
        int(rng.choice([1, 3, 16, 64, 400])),
    )
    values = [whole("x", shape, "input")]
    ops: list[DeviceOp] = []
    for index in range(draw(rng, 2, 5)):
        op = follower(rng, f"v{index}", values[-1], values[:-1], products)
        if lookups and rng.random() < 0.15 and not isinstance(op, Pad):
            op = op.replace(lookup=random_lookup(rng))
        ops.append(op)
        values.append(op.dst)
    read = {view.buffer.name for op in ops for view in op.sources}
    ops = [op if op.dst.buffer.name in read else _as_output(op) for op in ops]
    return DeviceSegment("network", tuple(ops))


def _as_output(op: DeviceOp) -> DeviceOp:
    buffer = op.dst.buffer
    return op.replace(dst=View(Buffer(buffer.name, buffer.shape, "output"), op.dst.shape, c=op.dst.c))


def refusal(segment: DeviceSegment, passes: list, planner: Planner) -> str | None:
    try:
        run_passes(passes, segment, planner)
    except CompileError as error:
        return str(error)
    return None


def check(seeds: range) -> Counter[str]:
    """Networks that compile as they are, and those that do not, whose operators are too large each by itself."""
    found: Counter[str] = Counter()
    for seed in seeds:
        rng = np.random.default_rng(seed)
        name = list(CONFIGS)[seed % len(CONFIGS)]
        config = CONFIGS[name]
        segment = network(rng, products=bool(config.multiply), lookups=bool(config.lookup_tables))
        verify_segment(segment)
        planner = Planner(Target(config), tight=bool(seed % 7 == 0))
        said = refusal(segment, list(PIPELINE), planner)
        if said is not None:
            assert refusal(segment, APART, planner) is not None, (seed, name, said)
        found["refused" if said else "compiled"] += 1
    return found


def test_no_fusion_makes_a_network_too_large() -> None:
    assert check(range(30))["compiled"] > 15


@pytest.mark.long
def test_no_fusion_makes_a_network_too_large_for_long() -> None:
    check(range(1000, 4000))
