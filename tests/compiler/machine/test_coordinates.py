"""Windows whose steps are larger than coordinates of MM and VEC have: compiled, and compared with the micro-ops."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from support.golden_compare import compare
from support.op_cases import convolution, draw, random_inputs, segment_of, whole

from weft.compiler.backend import compile_segment
from weft.compiler.ir.graph import Conv, DeviceSegment, Pad, Pool, Window
from weft.compiler.machine.target import STEP_MAX, Target, coordinates, has_coordinates, is_far
from weft.compiler.planner import Planner
from weft.hdl.isa.config import PRESETS

CONFIGS = ("tiny", "small", "default")


def far_axis(rng: np.random.Generator) -> tuple[int, int, int, int]:
    """Kernel, stride, dilation and size of an axis, with a stride or a dilation of 120 to 700."""
    kernel, stride, dilation = draw(rng, 1, 5), draw(rng, 1, 3), draw(rng, 1, 2)
    if rng.random() < 0.7:
        stride = draw(rng, 120, 700)
        kernel = stride // draw(rng, 1, 3) if rng.random() < 0.3 else kernel
    else:
        dilation, kernel = draw(rng, 120, 400), draw(rng, 2, 3)
    reach = (kernel - 1) * dilation + 1
    return kernel, stride, dilation, reach + stride * draw(rng, 0, 4) + draw(rng, 0, stride - 1)


def far_window(rng: np.random.Generator) -> tuple[Window, tuple[int, int]]:
    """A window that is far along one axis and near along the other, which may be padded, and the size of its input."""
    far = far_axis(rng)
    size = draw(rng, 1, 4)
    near = (draw(rng, 1, size), draw(rng, 1, 2), 1, size)
    pads = (draw(rng, 0, 1), draw(rng, 0, 1))
    down = rng.random() < 0.4
    axes = (far, near) if down else (near, far)
    pad = (0, pads[0], 0, pads[1]) if down else (pads[0], 0, pads[1], 0)
    window = Window(*((axes[0][at], axes[1][at]) for at in range(3)), pad)
    return window, (axes[0][3], axes[1][3])


def far_segment(rng: np.random.Generator) -> DeviceSegment:
    """A convolution or a pool; the former also behind padding along the far axis, that may become its own."""
    window, (h, w) = far_window(rng)
    kind = rng.choice(["conv", "groups", "depthwise", "max", "average", "padded"])
    groups = 1 if kind != "groups" else 2
    channels = draw(rng, 1, 9) * groups
    src = whole("x", (1, h, w, channels), "input")
    if kind in ("max", "average"):
        dst = whole("y", (1, *window.output(h, w), channels), "output")
        return segment_of(Pool("pool", src, dst, str(kind), window, 1.0, 3, 3))
    pad, given = [], src
    if kind == "padded":
        around = tuple(draw(rng, 0, 300) if is_far(window, at % 2) else 0 for at in range(4))
        around = Window(pad=around)
        given = whole("padded", (1, *around.output(h, w), channels), "temp")
        pad = [Pad("pad", src, given, around, 5)]
    groups = channels if kind == "depthwise" else groups
    out = channels if kind == "depthwise" else draw(rng, 1, 20) * groups
    weight = rng.integers(-127, 128, (out, *window.kernel, channels // groups)).astype(np.int16)
    scale = np.full(out, 60 / (math.sqrt(weight[0].size) * 127 * 40))
    bias = rng.integers(-999, 999, out).astype(np.int32)
    dst = whole("y", (1, *window.output(*given.shape[1:3]), out), "output")
    return segment_of(*pad, Conv("conv", given, dst, weight, bias, scale, window, groups, 5, -3))


def check(seed: int) -> None:
    rng = np.random.default_rng(seed)
    segment, config = far_segment(rng), PRESETS[CONFIGS[seed % len(CONFIGS)]]
    inputs = random_inputs(rng, segment.ops[0])
    compare(compile_segment(segment, config), segment, inputs, config)


def test_far_windows() -> None:
    for seed in range(12):
        check(seed)


@pytest.mark.long
def test_many_far_windows() -> None:
    for seed in range(100, 700):
        check(seed)


def test_hops_cost_no_more_for_being_long() -> None:
    """Windows of few channels lie side by side, whatever is between them."""
    for config in (PRESETS["tiny"], PRESETS["default"]):
        planner = Planner(Target(config))
        near, far = (
            planner.cost(convolution(whole("x", (1, 1, 16000, 1), "input"), 64, Window((1, 400), (1, hop))))
            for hop in (STEP_MAX, 160)
        )
        assert near is not None
        assert far is not None
        assert far.cycles < 0.95 * near.cycles  # there are fewer of them


def test_coordinates_are_constant_where_steps_do_not_fit() -> None:
    near, far = Window((2, 2), (STEP_MAX, 1), (1, STEP_MAX)), Window((2, 2), (STEP_MAX + 1, 1))
    assert coordinates(near, 0, 7, 9) == (7, 9, STEP_MAX, 1)
    assert coordinates(near, 1, 7, 9) == (7, 9, 1, STEP_MAX)
    assert coordinates(far, 0, 7, 9) == (0, 1, 0, 0)
    assert coordinates(far, 1, 7, 9) == (7, 9, 1, 1)
    padded = dataclasses.replace(far, pad=(0, 1, 1, 0))
    assert (has_coordinates(padded, 0), has_coordinates(padded, 1)) == (False, True)
