"""Branches that meet: the same results in either order, and the quicker one of the two."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from support.golden_compare import compare
from support.op_cases import convolution, draw, whole

from weft.compiler.backend import compile_segment
from weft.compiler.ir.graph import Add, Conv, DeviceOp, DeviceSegment
from weft.compiler.ir.views import View
from weft.compiler.ir.windows import Window
from weft.compiler.machine.target import Target
from weft.compiler.passes import order as module
from weft.compiler.passes.order import order_branches
from weft.compiler.pipeline import PIPELINE
from weft.compiler.planner import Planner
from weft.compiler.verify import run_ops, verify_segment
from weft.hdl.isa.config import PRESETS
from weft.hdl.isa.memmap import Counter
from weft.run.runtime import Image
from weft.sim.timing import TimingDevice


def conv(src: View, name: str, out: int, kernel: int = 3, stride: int = 1) -> Conv:
    window = Window((kernel,) * 2, (stride,) * 2, pad=(kernel // 2,) * 4)
    return dataclasses.replace(convolution(src, out, window, name=name, kind="temp"), name=name)


def residual(side: int, channels: int, *, tail: bool = True) -> DeviceSegment:
    """Two convolutions, and a third one around them, to half as many pixels."""
    x = conv(whole("image", (1, side, side, 3), "input"), "x", channels)
    a = conv(x.dst, "a", 2 * channels, stride=2)
    b = conv(a.dst, "b", 2 * channels)
    c = conv(x.dst, "c", 2 * channels, 1, 2)
    total = Add("sum", b.dst, c.dst, whole("total", b.dst.shape, "temp"), 0.7, 0.7)
    last = conv(total.dst, "y", 8)
    y = dataclasses.replace(last, dst=whole("y", last.dst.shape, "output"))
    return DeviceSegment("residual", (x, a, b, c, total, y))


def cycles(segment: DeviceSegment, *, ordered: bool) -> int:
    config = PRESETS["default"]
    passes = [item for item in PIPELINE if ordered or item.run is not order_branches]
    program = compile_segment(segment, config, passes=passes)
    image = Image(program)
    device = TimingDevice(config, image.memory_bytes)
    image.run(device, {"image": np.zeros(segment.ops[0].sources[0].shape, np.int8)})
    return device.counters()[Counter.CYCLES]


def test_the_longer_branch_ends_in_the_sum() -> None:
    """Its result is the larger part of the work, and what it reads stays on chip meanwhile."""
    segment = residual(32, 16)
    result = order_branches(segment, Planner(Target(PRESETS["default"])))
    assert [op.name for op in result.ops] == ["x", "a", "c", "b", "sum", "y"]
    assert cycles(segment, ordered=True) < 0.97 * cycles(segment, ordered=False)


def random_branches(rng: np.random.Generator) -> DeviceSegment:
    """Convolutions of earlier values, and sums of any two that are alike."""
    first = conv(whole("image", (1, draw(rng, 3, 9), draw(rng, 3, 9), draw(rng, 1, 9)), "input"), "v0", 8)
    ops: list[DeviceOp] = [first]
    for index in range(1, draw(rng, 6, 12)):
        values = [op.dst for op in ops]
        if rng.random() < 0.4 and len(values) > 1:
            a, b = (values[int(at)] for at in rng.choice(len(values), 2, replace=False))
            ops.append(Add(f"v{index}", a, b, whole(f"v{index}", a.shape, "temp"), 0.6, 0.6))
        else:
            source = values[-1] if rng.random() < 0.3 else values[draw(rng, 0, len(values) - 1)]
            ops.append(conv(source, f"v{index}", 8, int(rng.choice([1, 3]))))
    read = {view.buffer.name for op in ops for view in op.sources}
    ended = [op if op.dst.buffer.name in read else op.replace(dst=whole(op.dst.buffer.name, op.dst.shape, "output"))
             for op in ops]  # fmt: skip
    return DeviceSegment("branches", tuple(ended))


@pytest.mark.parametrize("name", ["tiny", "default"])
def test_results_are_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config, rng, moved = PRESETS[name], np.random.default_rng(3), 0
    costs = itertools.count(0, -1)
    monkeypatch.setattr(module, "_cost", lambda *_: float(next(costs)))
    for _ in range(90):
        segment = random_branches(rng)
        result = order_branches(segment, Planner(Target(config)))
        verify_segment(result)
        assert sorted(op.name for op in result.ops) == sorted(op.name for op in segment.ops)
        if [op.name for op in result.ops] == [op.name for op in segment.ops]:
            continue
        moved += 1
        source = segment.ops[0].sources[0]
        inputs = {"image": rng.integers(-128, 128, source.shape).astype(np.int8)}
        expected, actual = run_ops(segment, inputs), run_ops(result, inputs)
        outputs = [op.dst.buffer.name for op in segment.ops if op.dst.buffer.kind == "output"]
        assert all(np.array_equal(expected[key], actual[key]) for key in outputs)
        passes = [item for item in PIPELINE if item.run is not order_branches]
        compare(compile_segment(result, config, passes=passes), result, inputs, config, temps=False)
    assert moved > 5
