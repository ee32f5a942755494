"""Channels that are left out, and their ranges: results never change, and no byte is outside of its range."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from support.golden_compare import compare
from support.op_cases import random_lookup, segment_of, whole
from support.pass_cases import prunable_network

from weft.boards.registry import BOARDS
from weft.compiler.backend import compile_segment
from weft.compiler.ir.graph import Add, Conv, DeviceSegment, Pad, Pool
from weft.compiler.ir.views import View
from weft.compiler.ir.windows import Window
from weft.compiler.machine.target import Target
from weft.compiler.passes.drop_channels import channel_ranges, drop_channels
from weft.compiler.planner import Planner
from weft.compiler.verify import run_ops
from weft.hdl.isa.config import PRESETS, Config

TINY = PRESETS["tiny"]
CONFIGS = PRESETS | {name: board.config for name, board in BOARDS.items()}
SIDE = 5
X = whole("x", (1, SIDE, SIDE, 6), "input")


def drop(segment: DeviceSegment, config: Config = TINY) -> DeviceSegment:
    return drop_channels(segment, Planner(Target(config)))


def channels_of(segment: DeviceSegment) -> dict[str, int]:
    return {op.dst.buffer.name: op.dst.buffer.shape[3] for op in segment.ops}


def conv(
    name: str, src: View, out: int, kernel: int = 1, *, pad: bool = True, kind: str = "temp", zero: int = -9,
    depthwise: bool = False,
) -> Conv:  # fmt: skip
    """A convolution with random weights; all zero points are `zero`."""
    rng = np.random.default_rng([ord(letter) for letter in name])
    side = kernel // 2 if pad else 0
    window = Window((kernel, kernel), pad=(side,) * 4)
    n, h, w, c = src.shape
    groups = c if depthwise else 1
    dst = whole(name, (n, *window.output(h, w), out), kind)
    weight = rng.integers(1, 128, (out, kernel, kernel, c // groups)) * rng.choice([-1, 1], (out, 1, 1, 1))
    scale = 50 / (np.sqrt(weight[0].size) * 127 * 40)
    return Conv(name, src, dst, weight.astype(np.int16), rng.integers(-99, 99, out).astype(np.int32),
                np.full(out, scale), window, groups, zero, zero)  # fmt: skip


def without(op: Conv, outputs: range, byte: int | None = None) -> Conv:
    """Some outputs all the same: `byte`, or else the zero point."""
    weight, bias = op.weight.copy(), op.bias.copy()
    weight[list(outputs)] = 0
    bias[list(outputs)] = 0 if byte is None else round((byte - op.y_zero) / op.scale[0])
    return op.replace(weight=weight, bias=bias)


def same(segment: DeviceSegment, config: Config = TINY) -> DeviceSegment:
    """Check that the reduced segment computes equal outputs, and return it."""
    result = drop(segment, config)
    for seed in range(2):
        rng = np.random.default_rng(seed)
        shape = next(
            view.buffer.shape for op in segment.ops for view in op.sources if view.buffer.name == "x"
        )
        inputs = {"x": rng.integers(-128, 128, shape).astype(np.int8)}
        before, behind = (run_ops(item, inputs, config.mantissa_bits) for item in (segment, result))
        for view in {op.dst for op in segment.ops if op.dst.buffer.kind == "output"}:
            assert np.array_equal(before[view.buffer.name], behind[view.buffer.name])
    return result


def test_zeros_between_convolutions() -> None:
    """Vectors of 4 stay full: of 12 channels 5 are needed, and 8 are left."""
    first = without(conv("a", X, 12, 3), range(3, 10))
    result = same(segment_of(first, conv("b", first.dst, 6, 3, kind="output")))
    assert channels_of(result) == {"a": 8, "b": 6}
    assert isinstance(result.ops[0], Conv)
    assert result.ops[0].weight[[0, 1, 2]].any(axis=(1, 2, 3)).all()


def test_all_channels() -> None:
    """A vector stays: there are no buffers without channels."""
    first = without(conv("a", X, 12), range(12), 20)
    result = same(segment_of(first, conv("b", first.dst, 6, pad=False, kind="output")))
    assert channels_of(result) == {"a": 4, "b": 6}


@pytest.mark.parametrize(("pad", "byte", "remaining"), [(False, 20, 4), (True, 20, 12), (True, None, 4)])
def test_constants_that_are_not_zero_stay_where_windows_read_padding(
    pad: bool, byte: int | None, remaining: int
) -> None:
    first = without(conv("a", X, 12), range(1, 10), byte)
    result = same(segment_of(first, conv("b", first.dst, 6, 3, pad=pad, kind="output")))
    assert channels_of(result)["a"] == remaining


def test_constants_go_into_the_bias() -> None:
    first = without(conv("a", X, 8), range(2, 8), 33)
    second = conv("b", first.dst, 3, 3, pad=False, kind="output")
    result = same(segment_of(first, second)).ops[1]
    assert isinstance(result, Conv)
    gone = second.weight[..., 4:].astype(int).sum(axis=(1, 2, 3)) * (33 - second.x_zero)
    assert (result.bias == second.bias + gone).all()


def test_a_bias_that_would_be_too_large() -> None:
    first = without(conv("a", X, 8), range(2, 8), 33)
    second = conv("b", first.dst, 3, pad=False, kind="output")
    full = second.replace(bias=np.full(3, (1 << 31) - 1, np.int32), weight=np.abs(second.weight))
    assert channels_of(drop(segment_of(first, full)))["a"] == 8


def test_constants_because_of_a_clamp() -> None:
    """Large biases, on the far side of the clamp for all inputs."""
    first = conv("a", X, 12)
    bias = first.bias.copy()
    bias[4:] = -(1 << 24)
    first = first.replace(bias=bias, low=-9)
    assert channels_of(same(segment_of(first, conv("b", first.dst, 6, kind="output")))) == {"a": 4, "b": 6}
    barely = first.replace(bias=np.where(bias < -99, -(first.weight.sum() * 0) - 1, bias).astype(np.int32))
    assert channels_of(drop(segment_of(barely, conv("b", first.dst, 6, kind="output"))))["a"] == 12


def test_unread_channels_are_dropped() -> None:
    first = conv("a", X, 12)
    second = conv("b", first.dst, 6, 3, kind="output")
    weight = second.weight.copy()
    weight[..., 2:9] = 0
    assert channels_of(same(segment_of(first, second.replace(weight=weight)))) == {"a": 8, "b": 6}


def test_chains_of_operators_on_each_channel() -> None:
    """Depthwise convolutions and pools keep the channels of what they read, as long as one is needed on either side."""
    first = without(conv("a", X, 16), range(9))
    middle = without(conv("b", first.dst, 16, 3, depthwise=True), range(3, 12))
    shape = (1, SIDE - 1, SIDE - 1, 16)
    pool = Pool("c", middle.dst, whole("c", shape, "temp"), "max", Window((2, 2)), 1.0, -9, -9)
    mean = Pool("d", pool.dst, whole("d", (1, 1, 1, 16), "temp"), "average", Window(shape[1:3]), 1.0, -9, -9)
    result = same(segment_of(first, middle, pool, mean, conv("e", mean.dst, 5, kind="output")))
    assert channels_of(result) == {"a": 4, "b": 4, "c": 4, "d": 4, "e": 5}


def test_sums_keep_channels_of_either_operand() -> None:
    one, two = without(conv("a", X, 12), range(9)), without(conv("b", X, 12), range(4, 12))
    total = Add("c", one.dst, two.dst, whole("c", one.dst.shape, "temp"), 0.7, 0.6, -9, -9, -9)
    result = same(segment_of(one, two, total, conv("d", total.dst, 5, kind="output")))
    assert channels_of(result) == {"a": 8, "b": 8, "c": 8, "d": 5}


def test_tables_need_not_rise() -> None:
    first = without(conv("a", X, 8), range(5)).replace(lookup=random_lookup(np.random.default_rng(1)))
    zero = first.lookup
    assert zero is not None
    second = conv("b", first.dst, 6, kind="output", zero=int(zero[first.y_zero + 128]))
    assert channels_of(same(segment_of(first, second))) == {"a": 4, "b": 6}


@pytest.mark.parametrize("what", ["output", "concatenation", "groups", "flattened", "input", "two writers"])
def test_channels_that_stay(what: str) -> None:
    """Channels that somebody counts."""
    first = without(conv("a", X, 12), range(9))
    last = conv("b", first.dst, 4, kind="output")
    if what == "output":
        first = first.replace(dst=whole("a", first.dst.shape, "output"))
        last = last.replace(src=first.dst)
    elif what == "concatenation":
        first = first.replace(dst=View(whole("a", (1, SIDE, SIDE, 15), "temp").buffer, first.dst.shape, c=3))
        last = conv("b", first.dst, 4, kind="output")
    elif what == "groups":
        last = last.replace(groups=2, weight=last.weight[..., :6])
    elif what == "flattened":
        buffer = dataclasses.replace(first.dst.buffer, shape=(1, 1, 1, SIDE * SIDE * 12))
        last = conv("b", View(buffer, buffer.shape), 4, kind="output")
    elif what == "input":
        first = conv("a", X, 12)
        weight = first.weight.copy()
        weight[..., :5] = 0
        first = first.replace(weight=weight)
    elif what == "two writers":
        half = (1, SIDE, SIDE, 6)
        ops = [without(conv("a", X, 6), range(5)), without(conv("c", X, 6), range(5))]
        dst = whole("a", (1, SIDE, SIDE, 12), "temp")
        parts = [op.replace(dst=View(dst.buffer, half, c=6 * index)) for index, op in enumerate(ops)]
        assert drop(segment_of(*parts, last)).ops == (*parts, last)
        return
    segment = segment_of(first, last)
    assert channels_of(same(segment)) == channels_of(segment)


def test_dilated_windows_may_see_padding_only() -> None:
    """The maximum over padding is not a maximum of the channel."""
    first = without(conv("a", X, 12), range(9), 50)
    window = Window((2, 2), dilation=(7, 7), pad=(3, 3, 4, 4))
    pool = Pool("b", first.dst, whole("b", (1, *window.output(SIDE, SIDE), 12), "temp"), "max", window)
    result = same(segment_of(first, pool, conv("c", pool.dst, 4, pad=False, kind="output")))
    assert channels_of(result)["b"] == 12


def test_padding_with_another_byte() -> None:
    first = without(conv("a", X, 12), range(9))
    for fill, remaining in ((-9, 4), (-8, 12)):
        window = Window(pad=(1, 1, 1, 1))
        pad = Pad("b", first.dst, whole("b", (1, SIDE + 2, SIDE + 2, 12), "temp"), window, fill, 1.0, -9, -9)
        result = same(segment_of(first, pad, conv("c", pad.dst, 4, pad=False, kind="output")))
        assert channels_of(result)["b"] == remaining


def test_random() -> None:
    changed = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        segment, config = prunable_network(rng), TINY.replace(n=int(rng.choice([2, 2, 4])))
        changed += same(segment, config).ops != segment.ops
    assert changed > 20


@pytest.mark.parametrize("name", CONFIGS)
def test_on_the_device(name: str) -> None:
    """Compiled as models are, for every preset and board."""
    config, cases = CONFIGS[name], 0
    for seed in range(60):
        rng = np.random.default_rng([seed, len(name)])
        segment = prunable_network(rng)
        lacking = not config.multiply and any(hasattr(op, "b_zero") for op in segment.ops)
        if lacking or (drop(segment, config).ops == segment.ops and config.n <= 16):
            continue
        shape = next(
            view.buffer.shape for op in segment.ops for view in op.sources if view.buffer.name == "x"
        )
        inputs = {"x": rng.integers(-128, 128, shape).astype(np.int8)}
        compare(compile_segment(segment, config), segment, inputs, config, temps=False)
        cases += 1
        if cases == 3:
            return
    assert cases


def test_wrapping_sums_have_the_full_range() -> None:
    """In 32 bits the least sum turns large, and the greatest turns negative."""
    op = conv("a", X, 12)
    op = op.replace(bias=np.full(12, (1 << 31) - 1000, np.int32))
    actual = run_ops(
        segment_of(op), {"x": np.random.default_rng(0).integers(-128, 128, X.shape).astype(np.int8)}
    )
    (ranges,) = channel_ranges((op,), 24).values()
    assert {int(actual["a"].min()), int(actual["a"].max())} == {-128, 127}
    assert (ranges.low == -128).all()
    assert (ranges.high == 127).all()


def test_ranges_contain_all_results() -> None:
    known = constant = 0
    for seed in range(200):
        rng = np.random.default_rng([seed, 7])
        segment = prunable_network(rng)
        ranges = channel_ranges(segment.ops, 24)
        shape = next(
            view.buffer.shape for op in segment.ops for view in op.sources if view.buffer.name == "x"
        )
        for kind in range(3):
            x = rng.integers(-128, 128, shape) if kind else rng.choice([-128, 127], shape)
            actual = run_ops(segment, {"x": x.astype(np.int8)}, 24)
            for op in segment.ops:
                name = op.dst.buffer.name
                if name in ranges:
                    values = actual[name].reshape(-1, op.dst.shape[3])
                    assert (values >= ranges[name].low).all(), (seed, op)
                    assert (values <= ranges[name].high).all(), (seed, op)
        known += len(ranges)
        constant += sum(int(item.constant.sum()) for item in ranges.values())
    assert known > 500
    assert constant > 1000
