"""Chains in strips: results equal to the whole, and the work of each strip."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from support.chain_cases import random_operators
from support.golden_compare import compare
from support.op_cases import convolution, random_convolutions, whole

from weft.boards.registry import BOARDS
from weft.compiler.backend import compile_segment
from weft.compiler.ir.graph import Conv, DeviceSegment, Multiply
from weft.compiler.ir.views import Buffer, View
from weft.compiler.ir.windows import Window
from weft.compiler.machine.target import Target
from weft.compiler.passes.strips import as_images, in_strips, lay_out_strips, replace_chains
from weft.compiler.pipeline import PIPELINE
from weft.compiler.planner import Planner
from weft.compiler.verify import run_ops
from weft.hdl.isa.config import PRESETS, Config
from weft.run.runtime import Image
from weft.sim.rtl.device import RtlDevice
from weft.sim.timing import TimingDevice


def chain_of(ops: tuple[Conv, ...]) -> range | None:
    """The longest chain at the end of operators whose results are read by its own operators alone."""
    for first in range(len(ops) - 1):
        inner = {op.dst.buffer.name for op in ops[first:-1]}
        ahead = {view.buffer.name for op in ops[:first] for view in op.sources}
        if all(op.dst.buffer.kind == "temp" for op in ops[first:-1]) and not inner & ahead:
            return range(first, len(ops))
    return None


def in_order(segment: DeviceSegment, height: int) -> DeviceSegment | None:
    """Return the segment with its last chain in strips and results in memory, or None."""
    chain = chain_of(segment.ops)  # type: ignore[arg-type]
    strips = in_strips(segment.ops[chain.start :], height) if chain else None  # type: ignore[arg-type]
    if strips is None:
        return None
    return dataclasses.replace(
        segment, ops=(*segment.ops[: chain.start], *(op for strip in strips for op in strip))
    )


def test_strips_compute_the_same() -> None:
    actual = 0
    for seed in range(60):
        segment, inputs = random_convolutions(np.random.default_rng([seed, 7]), side=12, channels=5)
        expected = run_ops(segment, inputs, 24)
        for height in range(1, segment.ops[-1].dst.shape[1] + 1):
            cut = in_order(segment, height)
            if cut is not None:
                name = segment.ops[-1].dst.buffer.name
                assert np.array_equal(run_ops(cut, inputs, 24)[name], expected[name]), (seed, height)
                actual += 1
    assert actual > 80


def test_strips_of_other_operators_compute_the_same() -> None:
    """Pooling, sums, products with one pixel for all, and requantisation between the convolutions."""
    actual = 0
    for seed in range(60):
        segment, inputs = random_operators(np.random.default_rng([seed, 8]))
        expected = run_ops(segment, inputs, 24)
        for height in range(1, segment.ops[-1].dst.shape[1] + 1):
            cut = in_order(segment, height)
            if cut is not None:
                assert np.array_equal(run_ops(cut, inputs, 24)["y"], expected["y"]), (seed, height)
                actual += len(cut.ops) > len(segment.ops)
    assert actual > 80


def test_rows_of_pixels_become_rows_of_an_image() -> None:
    row, one = View(Buffer("a", (1, 1, 48, 8)), (1, 1, 48, 8)), whole("gate", (1, 1, 1, 8), "input")
    gated = View(Buffer("b", (1, 1, 48, 8)), (1, 1, 48, 8))
    ops = (
        pad("a", whole("x", (1, 6, 8, 8), "input"), 8),
        Multiply("gated", row, one, gated, 0.02),
        pad("y", whole("b", (1, 6, 8, 8), "temp"), 8, kind="output"),
    )
    _, product, _ = as_images(ops)
    assert [view.shape for view in (*product.sources, product.dst)] == [
        (1, 6, 8, 8),
        (1, 1, 1, 8),
        (1, 6, 8, 8),
    ]
    rng = np.random.default_rng(1)
    inputs = {name: rng.integers(-128, 128, size).astype(np.int8) for name, size in (("x", 384), ("gate", 8))}
    results = [run_ops(DeviceSegment("s", item), inputs, 24)["y"] for item in (ops, as_images(ops))]
    assert np.array_equal(*results)
    strips = in_strips(as_images(ops), 2)
    assert strips is not None
    assert [strip[1].sources[0].shape[1] for strip in strips] == [3, 4, 3]


def test_rows_that_two_strips_need_are_computed_twice() -> None:
    """3 x 3 behind 3 x 3: a row more at the border of each strip, and padding at the borders of the image alone."""
    first = pad("a", whole("x", (1, 8, 8, 4), "input"), 4)
    second = pad("y", first.dst, 4, kind="output")
    strips = in_strips((first, second), 4)
    assert strips is not None
    (a0, y0), (a1, y1) = strips
    assert [op.dst.shape[1] for op in (a0, y0, a1, y1)] == [5, 4, 5, 4]
    assert [(op.src.y, op.src.shape[1]) for op in (a0, a1)] == [(0, 6), (2, 6)]
    assert [op.window.pad for op in (a0, y0, a1, y1)] == [
        (1, 1, 0, 1), (1, 1, 0, 1), (0, 1, 1, 1), (0, 1, 1, 1),
    ]  # fmt: skip
    assert (y0.dst.y, y1.dst.y) == (0, 4)


def test_strip_of_padding_alone_is_refused() -> None:
    op = convolution(whole("x", (1, 2, 2, 4), "input"), 4, Window((1, 1), pad=(2, 0, 0, 0)), name="a")
    assert in_strips((op,), 1) is None
    assert in_strips((op,), 3) is not None


def pad(name: str, src: View, out: int, kind: str = "temp", kernel: int = 3) -> Conv:
    window = Window((kernel, kernel), pad=(kernel // 2,) * 4)
    op = convolution(src, out, window, name=name, kind=kind)
    scale = np.full(out, 60 / (np.sqrt(op.weight[0].size) * 127 * 40))
    return dataclasses.replace(op, name=name, scale=scale, x_zero=5, y_zero=5)


def strips_of(
    segment: DeviceSegment, config: Config, height: int, bandwidth: float | None = None
) -> DeviceSegment | None:
    """The segment with its last chain in strips, and what is between on chip; None if that cannot be."""
    chain = chain_of(segment.ops)  # type: ignore[arg-type]
    planner = Planner(Target(config, bandwidth))
    laid = lay_out_strips(segment.ops[chain.start :], height, planner) if chain else None  # type: ignore[arg-type]
    return None if laid is None else replace_chains(segment, {(chain.start, chain.stop - 1): laid}, planner)


WITHOUT = tuple(item for item in PIPELINE if item.name in ("keep_resident", "choose_plans"))


def draw_chain(config: Config, count: int, side: int, channels: int, bandwidth: float | None = None) -> int:
    """Chains that fit in strips, which the golden interpreter computes as their operators mean."""
    fit = 0
    for seed in range(count):
        rng = np.random.default_rng([seed, config.n, 3])
        all_kinds = seed % 2 and config.multiply
        segment, inputs = random_operators(rng) if all_kinds else random_convolutions(rng, side, channels)
        height = int(rng.integers(1, segment.ops[-1].dst.shape[1] + 1))
        cut = strips_of(segment, config, height, bandwidth)
        if cut is not None:
            program = compile_segment(cut, config, bandwidth=bandwidth, passes=WITHOUT)
            between = {op.dst.buffer.name for op in cut.ops[cut.strips[0].first : -1]}
            assert not (between - {cut.ops[-1].dst.buffer.name}) & set(program.buffers)
            compare(program, segment, inputs, config, temps=False)
            fit += 1
    return fit


@pytest.mark.parametrize(("preset", "least"), [("tiny", 8), ("small", 12), ("default", 12)])
def test_random_chains(preset: str, least: int) -> None:
    assert draw_chain(PRESETS[preset], 50, 9, 24) >= least


@pytest.mark.long
@pytest.mark.parametrize("name", sorted({board.name for board in BOARDS.values()}))
def test_random_chains_on_boards(name: str) -> None:
    """Configurations of boards, behind memories of all speeds."""
    config = BOARDS[name].config
    for bandwidth in (1, 2, 8, 64):
        assert draw_chain(config, 40, 14, 40, bandwidth) > 4


def draw_fitting_chain(
    seed: int, config: Config
) -> tuple[DeviceSegment, DeviceSegment, dict[str, np.ndarray]]:
    """A drawn chain that fits, as it is and in strips."""
    for draw in range(seed, 10_000, 100):
        rng = np.random.default_rng([draw, config.n, 5])
        segment, inputs = random_operators(rng) if seed % 2 else random_convolutions(rng, 10, 20)
        cut = strips_of(segment, config, int(rng.integers(1, segment.ops[-1].dst.shape[1] + 1)))
        if cut is not None and len(cut.ops) > len(segment.ops):
            return segment, cut, inputs
    raise AssertionError("no chain fits")


def on_rtl(config: Config, seed: int) -> None:
    """The RTL computes what the operators mean, with random stalls in every other case; without them the cycle model
    agrees in every counter."""
    segment, cut, inputs = draw_fitting_chain(seed, config)
    image = Image(compile_segment(cut, config, passes=WITHOUT))
    stalls = 0.3 if seed % 2 else 0.0
    with RtlDevice(
        config, image.memory_bytes, latency=7 * seed + 1, stall_probability=stalls, stall_seed=seed
    ) as rtl:
        image.run(rtl, inputs)
        name = segment.ops[-1].dst.buffer.name
        actual, counters = image.read(rtl, name).reshape(-1), rtl.counters()
    assert np.array_equal(actual, run_ops(segment, inputs, config.mantissa_bits)[name]), seed
    if not stalls:
        model = TimingDevice(config, image.memory_bytes, latency=7 * seed + 1)
        image.run(model, inputs)
        assert counters == model.counters()


@pytest.mark.parametrize("preset", ["tiny", "small", "default"])
def test_strips_on_rtl(preset: str) -> None:
    for seed in range(4):
        on_rtl(PRESETS[preset], seed)


@pytest.mark.long
@pytest.mark.parametrize("preset", ["tiny", "small", "default", "large"])
def test_more_strips_on_rtl(preset: str) -> None:
    for seed in range(4, 40):
        on_rtl(PRESETS[preset], seed)
