"""Depthwise convolutions by sums along rows: programs on golden and RTL against their micro-ops."""

from __future__ import annotations

import numpy as np
import pytest
from support.golden_compare import compare, compare_on_rtl
from support.mostly_long import mostly_long
from support.op_cases import draw, random_inputs, random_view, segment_of

from weft.compiler.backend import compile_segment
from weft.compiler.ir.graph import Conv, DeviceSegment
from weft.compiler.ir.windows import Window
from weft.compiler.verify import verify_op
from weft.hdl.isa.config import PRESETS, Config

CONFIGS = {
    "tiny": PRESETS["tiny"].replace(depthwise_taps=2),
    "one lane": PRESETS["small"].replace(lanes=1, depthwise_taps=3, probability_bits=7),
    "small": PRESETS["small"].replace(depthwise_taps=4),
    "default": PRESETS["default"],
    "large": PRESETS["large"].replace(depthwise_taps=8),
}


def random_conv(rng: np.random.Generator, config: Config, most: int) -> Conv:
    """Draw any window, stride and padding, few channels and many; views of larger buffers."""
    while True:
        kernel = draw(rng, 1, 7), draw(rng, 2, 7)
        stride = draw(rng, 1, 2), int(rng.choice([1, 1, 2, 3]))
        pad = tuple(draw(rng, 0, size) for size in (*kernel, *kernel))
        window = Window(kernel, stride, (int(rng.choice([1, 1, 2])), 1), (pad[0], pad[1], pad[2], pad[3]))
        n, shape = config.n, (draw(rng, 1, most), draw(rng, 1, most))
        if rng.random() < 0.2:  # one dimension, pixels in a column
            shape, window = (3 * shape[0], 1), Window((kernel[1], 1), stride, (1, 1), (pad[1], 0, pad[3], 0))
            kernel = window.kernel
        channels = int(rng.choice([2, 3, n - 1, n, n + 1, 2 * n, 3 * n + 2]))
        images, result = draw(rng, 1, 2), window.output(*shape)
        if min(result) > 0:
            break
    src = random_view(rng, "x", (images, *shape, channels), "input")
    dst = random_view(rng, "y", (images, *result, channels), "output")
    taps = kernel[0] * kernel[1]
    op = Conv(
        "depthwise", src, dst, rng.integers(-127, 128, (channels, *kernel, 1)).astype(np.int16),
        rng.integers(-1000, 1000, channels).astype(np.int32), rng.uniform(0.5, 2, channels) / (60 * np.sqrt(taps)),
        window, channels, draw(rng, -128, 127), draw(rng, -128, 127),
    )  # fmt: skip
    verify_op(op)
    return op


def along(segment: DeviceSegment, config: Config) -> int:
    """Count instructions that sum along rows."""
    return sum(int(getattr(item, "depthwise", 0)) for item in compile_segment(segment, config).instructions)


@pytest.mark.parametrize("name", CONFIGS)
def test_golden(name: str) -> None:
    config, rng, used = CONFIGS[name], np.random.default_rng(5), 0
    for _ in range(16):
        op = random_conv(rng, config, 24)
        segment = segment_of(op)
        compare(compile_segment(segment, config), segment, random_inputs(rng, op), config)
        used += along(segment, config) > 0
    assert used >= 6


@pytest.mark.parametrize("name", mostly_long(["tiny", "one lane", "default"], 0))
def test_rtl(name: str) -> None:
    config, rng = CONFIGS[name], np.random.default_rng(7)
    for case in range(4):
        op = random_conv(rng, config, 12)
        compare_on_rtl(segment_of(op), random_inputs(rng, op), config, case)


@pytest.mark.long
@pytest.mark.parametrize("name", CONFIGS)
def test_many(name: str) -> None:
    config, rng = CONFIGS[name], np.random.default_rng(9)
    for _ in range(150):
        op = random_conv(rng, config, 60)
        segment = segment_of(op)
        compare(compile_segment(segment, config), segment, random_inputs(rng, op), config)


def test_images_larger_than_the_accumulator() -> None:
    """Lines in parts, each with its own leading rows."""
    config, rng = CONFIGS["tiny"], np.random.default_rng(11)
    window = Window((3, 3), (1, 1), (1, 1), (1, 1, 1, 1))
    for shape in ((3, 300), (120, 40)):
        src, dst = (
            random_view(rng, name, (1, *shape, 6), kind) for name, kind in (("x", "input"), ("y", "output"))
        )
        op = Conv(
            "depthwise", src, dst, rng.integers(-127, 128, (6, 3, 3, 1)).astype(np.int16), np.zeros(6, np.int32),
            np.full(6, 0.004), window, 6, 3, -4,
        )  # fmt: skip
        segment = segment_of(op)
        assert along(segment, config)
        compare(compile_segment(segment, config), segment, random_inputs(rng, op), config)
