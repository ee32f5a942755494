"""Operators of the vector unit move next to convolutions, past nothing that they depend on, and only if it pays."""

from __future__ import annotations

import numpy as np
import pytest
from support.branch_cases import branches
from support.op_cases import convolution, random_mixture, whole

from weft.compiler.backend import compile_segment
from weft.compiler.ir.graph import DeviceOp, DeviceSegment, Pool, Rescale
from weft.compiler.ir.views import Buffer, View
from weft.compiler.ir.windows import Window
from weft.compiler.machine.target import Target
from weft.compiler.passes import order as module
from weft.compiler.passes.groups import overlap_rows
from weft.compiler.passes.order import order_beside
from weft.compiler.passes.split_pool import split_pool
from weft.compiler.pipeline import PIPELINE
from weft.compiler.planner import Planner
from weft.compiler.verify import run_ops, verify_segment
from weft.hdl.isa.config import PRESETS
from weft.hdl.isa.memmap import Counter
from weft.run.runtime import Image
from weft.sim.timing import TimingDevice

DEFAULT = PRESETS["default"]


def inception(channels: int = 128, side: int = 28) -> DeviceSegment:
    """A pooling, and two branches of a convolution each, whose results are side by side."""
    x = whole("x", (1, side, side, channels), "input")
    joint = Buffer("y", (1, side, side, 3 * channels), "output")

    def part(index: int) -> View:
        return View(joint, x.shape, c=index * channels)

    window = Window((3, 3), pad=(1, 1, 1, 1))
    pooled = whole("pooled", x.shape, "temp")
    small = convolution(x, channels, name="small", kind="temp").replace(name="small")
    ops: list[DeviceOp] = [
        Pool("pool", x, pooled, "max", window),
        small,
        convolution(small.dst, channels, window).replace(name="large", dst=part(0)),
        convolution(x, channels).replace(name="other", dst=part(1)),
        convolution(pooled, channels).replace(name="last", dst=part(2)),
    ]
    return DeviceSegment("inception", tuple(ops))


def cycles(segment: DeviceSegment, bandwidth: float, *, beside: bool) -> int:
    passes = [item for item in PIPELINE if beside or item.run not in (order_beside, overlap_rows)]
    image = Image(compile_segment(segment, DEFAULT, bandwidth=bandwidth, passes=passes))
    device = TimingDevice(DEFAULT, image.memory_bytes, bandwidth=bandwidth)
    image.run(device, {"x": np.zeros(segment.ops[0].sources[0].shape, np.int8)})
    return device.counters()[Counter.CYCLES]


def test_a_pool_moves_to_the_convolution_of_another_branch() -> None:
    """It takes hardly any time there."""
    segment = inception()
    planner = Planner(Target(DEFAULT))
    names = [op.name for op in order_beside(split_pool(segment, planner), planner).ops]
    assert names == ["small", "large", "pool/columns", "pool", "other", "last"]
    alone = cycles(DeviceSegment("pool", (segment.ops[0].replace(dst=whole("y", segment.ops[0].dst.shape, "output")),)),
                   16, beside=False)  # fmt: skip
    saved = cycles(segment, 16, beside=False) - cycles(segment, 16, beside=True)
    assert saved > 0.7 * alone


@pytest.mark.parametrize("bandwidth", [1, 4])
def test_not_slower_with_slow_memories(bandwidth: int) -> None:
    segment = inception()
    assert cycles(segment, bandwidth, beside=True) <= 1.01 * cycles(segment, bandwidth, beside=False)


def test_convolution_moves_next_to_a_reader_of_the_previous_one() -> None:
    """A requantisation of the small convolution runs beside the large one, which came first."""
    x = whole("x", (1, 56, 56, 64), "input")
    window = Window((3, 3), pad=(1, 1, 1, 1))
    few = whole("few", (1, 56, 56, 16), "input")
    small = convolution(few, 64, name="small", kind="temp").replace(name="small")
    ops: list[DeviceOp] = [
        convolution(x, 64, window).replace(name="large", dst=whole("z", x.shape, "output")),
        small,
        Rescale("rescale", small.dst, whole("y", x.shape, "output"), 0.5),
    ]
    result = order_beside(DeviceSegment("three", tuple(ops)), Planner(Target(DEFAULT)))
    names = [op.name for op in result.ops]
    assert abs(names.index("rescale") - names.index("large")) == 1
    assert names.index("small") < names.index("rescale")


def test_nothing_moves_where_units_take_turns_or_convolutions_are_small() -> None:
    for segment, target in (
        (inception(), Target(DEFAULT, sequential=True)),
        (inception(16, 7), Target(DEFAULT)),
    ):
        assert order_beside(segment, Planner(target)).ops == segment.ops


@pytest.mark.parametrize("seed", range(3))
def test_dependent_operators_stay_in_order(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SHARE", -1e9)
    rng, moved = np.random.default_rng(seed), 0
    for case in range(25):
        segment, inputs = branches(rng) if case % 2 else random_mixture(rng, products=True)
        result = order_beside(segment, Planner(Target(PRESETS["small"])))
        verify_segment(result)
        moved += result.ops != segment.ops
        expected, actual = (run_ops(item, inputs, 24) for item in (segment, result))
        outputs = {op.dst.buffer.name for op in segment.ops if op.dst.buffer.kind == "output"}
        assert all(np.array_equal(expected[name], actual[name]) for name in outputs)
    assert moved > 2
