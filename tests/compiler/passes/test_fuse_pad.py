"""Padding becomes that of convolutions and pools: when, when not, and that results never change."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from support.golden_compare import compare
from support.op_cases import convolution, draw, draw_window, random_lookup, segment_of, whole

from weft.compiler.backend import compile_segment
from weft.compiler.ir.graph import Conv, DeviceOp, DeviceSegment, Pad, Pool, Rescale
from weft.compiler.ir.windows import Window
from weft.compiler.machine.target import Target
from weft.compiler.passes.fuse import fuse_pad
from weft.compiler.planner import Planner
from weft.compiler.verify import run_ops
from weft.hdl.isa.config import PRESETS

PLANNER = Planner(Target(PRESETS["tiny"]))
X = whole("x", (1, 6, 5, 4), "input")
PADDED = whole("p", (1, 9, 7, 4), "temp")
PAD = Pad("pad", X, PADDED, Window(pad=(2, 0, 1, 2)), 7)
CONV = convolution(PADDED, 3, Window((3, 3), (2, 2), (1, 1), (0, 1, 0, 0))).replace(x_zero=7)
MAX = Pool("max", PADDED, whole("y", (1, 4, 3, 4), "output"), "max", Window((3, 3), (2, 2)), x_zero=7)
MEAN = MAX.replace(kind="average", scale=0.7)
LEAST = PAD.replace(fill=-128)


def same(before: DeviceSegment, after: DeviceSegment) -> None:
    x = np.random.default_rng(1).integers(-128, 128, X.shape).astype(np.int8)
    first, second = run_ops(before, {"x": x}), run_ops(after, {"x": x})
    for name in {op.dst.buffer.name for op in before.ops if op.dst.buffer.kind == "output"}:
        assert np.array_equal(first[name], second[name])


JOINED: dict[str, tuple[DeviceOp, ...]] = {
    "convolution": (PAD, CONV),
    "two convolutions": (PAD, CONV, CONV.replace(name="other", dst=whole("z", CONV.dst.shape, "output"))),
    "maximum": (LEAST, MAX),
    "mean": (PAD, MEAN),
    "mean that counts padding": (PAD, MEAN.replace(
        window=Window((3, 3), (2, 2), (1, 1), (0, 0, 0, 2)), include_pad=True, dst=whole("y", (1, 4, 4, 4), "output"))),
}  # fmt: skip


@pytest.mark.parametrize("kind", JOINED)
def test_joined(kind: str) -> None:
    before = segment_of(*JOINED[kind])
    after = fuse_pad(before, PLANNER)
    assert [type(op) for op in after.ops] == [type(op) for op in before.ops[1:]]
    same(before, after)


def test_both_paddings_add_up() -> None:
    (op,) = fuse_pad(segment_of(PAD, CONV), PLANNER).ops
    assert isinstance(op, Conv)
    assert (op.src, op.window.pad) == (X, (2, 1, 1, 2))


STAYS: dict[str, tuple[DeviceOp, ...]] = {
    "another byte than the zero point": (PAD.replace(fill=8), CONV),
    "another byte than a mean's": (PAD.replace(fill=8), MEAN),
    "a byte that may be the maximum": (PAD, MAX),
    "windows in the padding": (LEAST, MAX.replace(
        window=Window((1, 3), (2, 2)), dst=whole("y", (1, 5, 3, 4), "output"))),
    "a mean that leaves its own padding out": (PAD, MEAN.replace(
        window=Window((3, 3), (2, 2), (1, 1), (0, 0, 0, 2)), dst=whole("y", (1, 4, 4, 4), "output"))),
    "requantised": (PAD.replace(scale=0.5), CONV),
    "another zero point": (PAD.replace(y_zero=1), CONV),
    "clamped": (PAD.replace(high=100), CONV),
    "looked up": (PAD.replace(lookup=random_lookup(np.random.default_rng(0))), CONV),
    "another reader": (PAD, CONV, Rescale("copy", PADDED, whole("z", PADDED.shape, "output"))),
    "an output": (PAD.replace(dst=whole("p", PADDED.shape, "output")),
                  CONV.replace(src=whole("p", PADDED.shape, "output"))),
    "a part is read": (PAD, CONV.replace(
        src=dataclasses.replace(PADDED, shape=(1, 8, 7, 4), y=1), dst=whole("y", (1, 3, 3, 3), "output"))),
}  # fmt: skip


@pytest.mark.parametrize("reason", STAYS)
def test_stays(reason: str) -> None:
    before = segment_of(*STAYS[reason])
    assert fuse_pad(before, PLANNER).ops == before.ops


@pytest.mark.parametrize("preset", ["tiny", "small", "default"])
def test_random_paddings(preset: str) -> None:
    rng, config = np.random.default_rng([5, len(preset)]), PRESETS[preset]
    for _ in range(20):
        shape = (draw(rng, 1, 2), draw(rng, 1, 9), draw(rng, 1, 9), draw(rng, 1, 20))
        pad = Window(pad=tuple(draw(rng, 0, 5) for _ in range(4)))  # type: ignore[arg-type]
        zero = draw(rng, -128, 127)
        padded = whole("p", (shape[0], *pad.output(*shape[1:3]), shape[3]), "temp")
        window = draw_window(rng, *padded.shape[1:3])
        reader = convolution(padded, draw(rng, 1, 20), window).replace(x_zero=zero)
        segment = segment_of(Pad("pad", whole("x", shape, "input"), padded, pad, zero, 1.0, 3, 3), reader)
        assert len(fuse_pad(segment, PLANNER).ops) == 1
        inputs = {"x": rng.integers(-128, 128, shape).astype(np.int8)}
        compare(compile_segment(segment, config), segment, inputs, config)
