"""Convolutions with weights wider than the array's: the second part multiplies no more than necessary."""

from __future__ import annotations

import numpy as np
import pytest
from support.golden_compare import compare
from support.op_cases import (
    convolution,
    draw,
    random_conv,
    random_inputs,
    random_matmul,
    random_view,
    segment_of,
    whole,
)

from weft.boards.registry import BOARDS
from weft.compiler.backend import compile_segment
from weft.compiler.ir.graph import Add, Conv, DeviceSegment
from weft.compiler.ir.views import Buffer, View
from weft.compiler.ir.windows import Window
from weft.compiler.plan.conv_plan import ConvPlan, candidates
from weft.compiler.plan.conv_plan import plan as plan_of
from weft.compiler.plan.conv_shape import ConvShape
from weft.compiler.plan.conv_weights import WEIGHTS
from weft.hdl.isa import Mm
from weft.hdl.isa.config import PRESETS, Config
from weft.hdl.isa.memmap import Counter
from weft.run.runtime import Image
from weft.sim.timing import TimingDevice


def with_few_wide(rng: np.random.Generator, op: Conv, share: float) -> Conv:
    """Replace weights by small ones, with a share anywhere from -255 to 255."""
    weight = np.clip(np.rint(rng.normal(0, 35, op.weight.shape)), *WEIGHTS)
    wide = rng.random(op.weight.shape) < share
    weight = np.where(wide, rng.integers(-255, 256, op.weight.shape), weight)
    return op.replace(weight=weight.astype(np.int16))


@pytest.mark.parametrize("name", ["tiny", "small", "default"])
def test_few_wide_weights(name: str) -> None:
    config, rng = PRESETS[name], np.random.default_rng(5)
    for case in range(40):
        op = random_conv(rng) if case % 3 else random_matmul(rng)
        op = with_few_wide(rng, op, (0.001, 0.01, 0.1)[case % 3])
        segment = segment_of(op)
        compare(compile_segment(segment, config), segment, random_inputs(rng, op), config)


def products(op: Conv, name: str) -> int:
    """Count vectors of weights times the pixels that each multiplies."""
    instructions = compile_segment(segment_of(op), PRESETS[name]).instructions
    actual = [item for item in instructions if isinstance(item, Mm)]
    return sum(item.nt * item.ky * item.kx * item.kc * item.oy * item.ox for item in actual)


@pytest.mark.parametrize(("h", "channels"), [(6, 64), (12, 200)])
def test_second_part_covers_wide_weights_only(h: int, channels: int) -> None:
    """One wide weight adds one vector; if all are wide, the work doubles."""
    op = convolution(whole("x", (1, h, h, channels), "input"), 48, Window((3, 3), pad=(1, 1, 1, 1)))
    plain = 9 * 3 * -(-channels // 16) * h**2
    assert products(op, "default") == plain
    weight = op.weight.copy()
    weight[17, 1, 2, 40] = 200
    one = op.replace(weight=weight)
    assert products(one, "default") == plain + h**2
    assert products(op.replace(weight=np.full_like(weight, 200)), "default") == 2 * plain
    segment = segment_of(one)
    inputs = random_inputs(np.random.default_rng(0), one)
    compare(compile_segment(segment, PRESETS["default"]), segment, inputs, PRESETS["default"])


def cycles(op: Conv, config: Config) -> int:
    """Cycles of an operator on the cycle model."""
    image = Image(compile_segment(segment_of(op), config))
    model = TimingDevice(config, image.memory_bytes, bandwidth=config.bus_bytes)
    image.run(model, random_inputs(np.random.default_rng(0), op))
    return model.counters()[Counter.CYCLES]


def test_addends_do_not_delay_inputs() -> None:
    """The addend's LOAD waits for a slot of outputs, so the next inputs' LOADs come first."""
    x, y = whole("x", (1, 8, 8, 64), "input"), whole("y", (1, 8, 8, 32), "output")
    conv = convolution(x, 32, name="m", kind="temp")
    fused = conv.replace(dst=y, epilogue=Add("add", conv.dst, whole("r", y.shape, "input"), y, 0.7, 0.6))
    config = PRESETS["tiny"]
    assert fused.macs / config.n**2 >= 0.65 * cycles(fused, config)


def test_small_second_part_overlaps_the_first() -> None:
    """Weights that load during use need more than two slots; a small second part takes none from the first."""
    config = BOARDS["ulx3s-85f"].config
    op = convolution(whole("x", (1, 1, 2, 200), "input"), 1047)
    weight = op.weight.copy()
    weight[::20, 0, 0, 7] = 200
    assert cycles(op.replace(weight=weight), config) < 1.15 * cycles(op, config)


def test_inputs_in_chunks() -> None:
    """The second part's inputs come chunk by chunk, for one tile or several side by side."""
    config, rng, used = PRESETS["tiny"], np.random.default_rng(6), set()
    for case in range(120):
        grouped = [op for op in (random_conv(rng) for _ in range(9)) if op.groups > 1]
        op = with_few_wide(rng, grouped[0] if case % 2 and grouped else random_conv(rng), 0.01)
        found: list[ConvPlan] = []

        def choose(shape: ConvShape, found: list[ConvPlan] = found, block: int = case % 3) -> ConvPlan | None:
            known = [plan for plan in candidates(shape) if plan.chunked and (plan.block > 1 or not block)]
            found[:] = known[:1]
            return known[0] if known else plan_of(shape)

        segment = segment_of(op)
        compare(compile_segment(segment, config, choose=choose), segment, random_inputs(rng, op), config)
        used |= {(plan.chunked, plan.block > 1, op.groups > 1) for plan in found}
    assert used == {(True, several, grouped) for several in (False, True) for grouped in (False, True)}


@pytest.mark.parametrize("name", ["tiny", "small", "default"])
def test_images_of_one_column(name: str) -> None:
    """Convolutions of one dimension with pixels in a column, and a second that reads them on chip."""
    config, rng = PRESETS[name], np.random.default_rng(13)
    for _ in range(12):
        kernel, stride = draw(rng, 1, 9), draw(rng, 1, 3)
        window = Window(
            (kernel, 1), (stride, draw(rng, 1, 2)), (draw(rng, 1, 2), 1), (draw(rng, 0, kernel), 0, 0, 0)
        )
        height, groups = draw(rng, 1, 70), draw(rng, 1, 3)
        result = window.output(height, 1)[0]
        if result < 1:
            continue
        cin, out, images = groups * draw(rng, 1, 12), groups * draw(rng, 1, 12), draw(rng, 1, 2)
        src, dst = (random_view(rng, name, (images, size, 1, count), kind) for name, size, count, kind in
                    (("x", height, cin, "input"), ("y", result, out, "output")))  # fmt: skip
        between = Buffer("t", (images, result, 1, out))
        middle = View(between, between.shape)
        scale = rng.uniform(0.5, 2, out) / (60 * np.sqrt(kernel * cin))
        first = Conv(
            "first", src, middle, rng.integers(-127, 128, (out, kernel, 1, cin // groups)).astype(np.int16),
            rng.integers(-1000, 1000, out).astype(np.int32), scale, window, groups, draw(rng, -128, 127), 3,
        )  # fmt: skip
        second = Conv(
            "second", middle, dst, rng.integers(-127, 128, (out, 1, 1, out)).astype(np.int16),
            np.zeros(out, np.int32), np.full(out, 1 / (60 * np.sqrt(out))), x_zero=3, y_zero=-1,
        )  # fmt: skip
        segment = DeviceSegment("column", (first, second))
        inputs = random_inputs(rng, first)
        compare(compile_segment(segment, config), segment, inputs, config, temps=False)
