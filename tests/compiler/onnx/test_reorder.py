"""Reordering of bytes: all orders of small values, runs along an axis, and Transposes against ONNX Runtime."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from math import prod

import numpy as np
import onnx
import pytest
from onnx import helper
from support import one_step
from support.golden_compare import compare, compare_on_rtl
from support.graph_runs import device_ops
from support.mostly_long import mostly_long
from support.qdq_models import Builder, Quantised, Rng
from support.repeated import repeated

from weft.boards.registry import BOARDS
from weft.compiler.backend import compile_segment
from weft.compiler.ir.graph import Conv, DeviceSegment, Rescale
from weft.compiler.ir.layout import Layout
from weft.compiler.ir.views import View
from weft.compiler.machine.target import Target
from weft.compiler.onnx import reorder
from weft.compiler.onnx.qdq import Tensor
from weft.compiler.onnx.reorder import (
    Axis,
    Interleaving,
    Run,
    cheapest,
    common_axes,
    find_runs,
    interleavings,
    to_layout,
)
from weft.compiler.pipeline import PIPELINE, run_passes
from weft.compiler.planner import Planner
from weft.compiler.verify import run_ops
from weft.hdl.isa.config import PRESETS, Config

CONFIGS = PRESETS | {name: board.config for name, board in BOARDS.items()}


def laid_out(shape: tuple[int, ...], perm: tuple[int, ...]) -> Layout:
    return Layout(shape, perm, (1, 1, 1, prod(shape)))


def kind_of(view: View) -> View:
    kind = "input" if view.buffer.name == "x" else "output"
    return dataclasses.replace(view, buffer=dataclasses.replace(view.buffer, kind=kind))


@repeated("seed", range(60))
def test_orders(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(int(size) for size in rng.integers(1, 7, int(rng.integers(1, 6))))
    before, behind = (laid_out(shape, tuple(rng.permutation(len(shape)).tolist())) for _ in range(2))
    moved = to_layout(Tensor("x", "x", before, before, unsigned=False, from_host=False), behind)
    assert moved is not None
    assert moved.layout == behind
    values = rng.integers(-128, 128, shape).astype(np.int8)
    if moved.recipe is None:
        assert np.array_equal(values.transpose(before.perm).ravel(), values.transpose(behind.perm).ravel())
        return
    views = [view for op in moved.recipe.ops for view in (*op.sources, op.dst)]
    assert all(view.step[1] == 1 for view in views if view.shape[2] == 1)
    segment = DeviceSegment("orders", tuple(op.map_views(kind_of) for op in moved.recipe.ops))
    memory = run_ops(segment, {"x": values.transpose(before.perm)})
    assert np.array_equal(memory[moved.storage], values.transpose(behind.perm).ravel())


def test_axes_that_cut_across_each_other() -> None:
    assert common_axes([(4, 36), (36, 1)], [(9, 16), (16, 1)]) is None
    assert cheapest(((36, 1), (4, 36)), ((16, 1), (9, 16))) is None


def test_too_many_copies() -> None:
    """Rows and columns that trade places are as many copies as the lesser of them, pixels and channels likewise."""

    def transpose(a: int, b: int, bytes_: int = 1) -> reorder.CopyOrder | Interleaving | None:
        inner = ((bytes_, 1),) if bytes_ > 1 else ()
        return cheapest(((a, b * bytes_), (b, bytes_), *inner), ((b, bytes_), (a, b * bytes_), *inner))

    actual = transpose(256, 999, 8)
    assert isinstance(actual, reorder.CopyOrder)
    assert actual.plain
    assert prod(axis.size for axis in actual.rest) == 256
    assert transpose(257, 999, 8) is None
    assert transpose(257, 999) is None
    square = transpose(32, 32)
    assert isinstance(square, reorder.CopyOrder)
    assert square.plain  # the weights of a product of all would come as often as they multiply: once


def shuffle(pixels: int, groups: int, channels: int) -> tuple[reorder.CopyOrder | Interleaving, ...]:
    """The ways of changing groups of channels into channels of groups, and back."""
    size = groups * channels
    before = ((pixels, size), (groups, channels), (channels, 1))
    behind = ((pixels, size), (channels, 1), (groups, channels))
    back = ((pixels, size), (groups, 1), (channels, groups))
    actual = cheapest(before, behind), cheapest(((pixels, size), (channels, groups), (groups, 1)), back)
    assert all(actual)
    return tuple(way for way in actual if way is not None)


@pytest.mark.parametrize(("groups", "channels"), [(4, 68), (4, 34), (2, 400), (3, 80), (8, 48)])
def test_channels_of_groups_are_products_of_slices(groups: int, channels: int) -> None:
    """At less than 85 % of what a product of all by all takes, or copies of bytes."""
    for way in shuffle(196, groups, channels):
        assert isinstance(way, Interleaving)
        assert way.cost < 0.85 * min(196 * (groups * channels / 16) ** 2, 2 * 196 * groups * channels)


@pytest.mark.parametrize(("pixels", "groups", "channels"), [(196, 4, 4), (1, 2, 100), (9, 40, 40)])
def test_few_channels_are_one_product_and_few_pixels_are_copied(
    pixels: int, groups: int, channels: int
) -> None:
    for way in shuffle(pixels, groups, channels):
        assert isinstance(way, reorder.CopyOrder)


@repeated("seed", range(40))
def test_interleavings(seed: int) -> None:
    """All ways that there are, of few and of many places along axes, with up to four axes beside the two."""
    rng = np.random.default_rng([seed, 9])
    sizes = [int(rng.integers(2, 5)) for _ in range(int(rng.integers(0, 4)))]
    pair = [int(rng.integers(2, 40)), int(rng.integers(2, 9))]
    shape = (*sizes, *(pair if seed % 2 else pair[::-1]))
    perm = list(rng.permutation(len(sizes)).tolist()) if seed % 4 < 2 else list(range(len(sizes)))
    before = laid_out(shape, tuple(range(len(shape))))
    behind = laid_out(shape, (*perm, len(shape) - 1, len(shape) - 2))
    axes = common_axes(before.canonical, behind.canonical)
    assert axes is not None
    total = prod(shape)
    actual = list(interleavings(axes, total, 256))
    assert actual
    values = rng.integers(-128, 128, shape).astype(np.int8)
    for way in actual:
        ops = tuple(op.map_views(kind_of) for op in way.ops(total, "x", "y"))
        assert len(ops) == way.operators
        assert max(op.weight.size for op in ops if isinstance(op, Conv)) == way.weights
        memory = run_ops(DeviceSegment("orders", ops), {"x": values})
        assert np.array_equal(memory["y"], values.transpose(behind.perm).ravel())


def shuffles(config: Config) -> list[tuple[DeviceSegment, dict[str, np.ndarray], bool]]:
    """Groups of channels, or channels of groups, in the other order by products of slices, some of which are not full;
    with inputs, and whether slices are read by windows."""
    rng = np.random.default_rng(config.digest)
    pixels, groups, channels = (
        int(rng.integers(1, 12)),
        int(rng.integers(2, 5)),
        int(rng.choice([5, 16, 21, 36])),
    )
    inner, outer = (channels, groups) if config.digest % 2 else (groups, channels)
    axes = [Axis(pixels, inner * outer, inner * outer), Axis(inner, 1, outer), Axis(outer, inner, 1)]
    result = []
    for way in interleavings(axes, pixels * inner * outer, 256):
        ops = tuple(op.map_views(kind_of) for op in way.ops(pixels * inner * outer, "x", "y"))
        inputs = {"x": rng.integers(-128, 128, ops[0].sources[0].buffer.shape).astype(np.int8)}
        result.append((DeviceSegment("orders", ops), inputs, way.spread))
    return result


@pytest.mark.parametrize("name", CONFIGS)
def test_products_of_slices_on_every_configuration(name: str) -> None:
    for segment, inputs, _ in shuffles(CONFIGS[name]):
        compare(compile_segment(segment, CONFIGS[name]), segment, inputs, CONFIGS[name])


@pytest.mark.parametrize("name", mostly_long(["tiny", "small", "default"], 0))
def test_products_of_slices_on_rtl(name: str) -> None:
    for segment, inputs, spread in shuffles(PRESETS[name]):
        compare_on_rtl(segment, inputs, PRESETS[name], int(spread))


def test_copies_where_products_are_dearer() -> None:
    """Few pixels of many channels are copied byte by byte."""
    actual = cheapest(((3, 1), (2, 3 * 400), (400, 3)), ((3, 1), (400, 3), (2, 3 * 400)))
    assert actual is not None
    assert actual.cost <= 2 * (300 + 2 * 3 * 400) + 1


Move = Callable[[Builder, Quantised], str]


def steps(*moves: tuple[str, object]) -> Move:
    """Reshapes and transposes in a row."""

    def move(built: Builder, source: Quantised) -> str:
        value = built.dequantise(source)
        for op, given in moves:
            if op == "Reshape":
                value = built.node(op, [value, built.constant(np.array(given, np.int64))])
            else:
                value = built.node(op, [value], perm=given)
        return value

    return move


SHUFFLE = steps(("Reshape", (2, 3, 4, 5, 6)), ("Transpose", (0, 2, 1, 3, 4)), ("Reshape", (2, 12, 5, 6)))
UNSHUFFLE = steps(
    ("Reshape", (1, 3, 4, 2, 6, 2)), ("Transpose", (0, 1, 3, 5, 2, 4)), ("Reshape", (1, 12, 4, 6))
)
TO_SPACE = steps(
    ("Reshape", (1, 3, 2, 2, 4, 6)), ("Transpose", (0, 1, 4, 2, 5, 3)), ("Reshape", (1, 3, 8, 12))
)
WINDOWS = steps(("Reshape", (1, 2, 4, 3, 4, 10)), ("Transpose", (0, 1, 3, 2, 4, 5)), ("Reshape", (6, 16, 10)))
IMAGES: dict[str, tuple[Move, tuple[int, ...]]] = {
    "channel shuffle": (SHUFFLE, (2, 12, 5, 6)),
    "pixels to channels": (UNSHUFFLE, (1, 3, 8, 12)),
    "channels to pixels": (TO_SPACE, (1, 12, 4, 6)),
    "rows and columns": (steps(("Transpose", (0, 1, 3, 2))), (2, 5, 4, 7)),
    "images and channels": (steps(("Transpose", (1, 0, 2, 3))), (3, 4, 5, 6)),
    "backwards": (steps(("Transpose", (3, 2, 1, 0))), (2, 3, 4, 5)),
    "channels last": (steps(("Transpose", (0, 2, 3, 1)), ("Reshape", (2, 8, 6, 5))), (2, 8, 5, 6)),
}  # fmt: skip
TOKENS: dict[str, tuple[Move, tuple[int, ...]]] = {
    "windows": (WINDOWS, (1, 8, 12, 10)),
    "tokens and features": (steps(("Transpose", (0, 2, 1))), (2, 9, 20)),
    "tokens first": (steps(("Transpose", (1, 0, 2))), (3, 9, 20)),
    "heads": (steps(("Reshape", (2, 9, 4, 5)), ("Transpose", (0, 2, 1, 3)), ("Reshape", (8, 9, 5))), (2, 9, 20)),
}  # fmt: skip


def convolve(built: Builder, move: Move, shape: tuple[int, ...]) -> onnx.ModelProto:
    source = built.conv(built.input(shape), shape[1], (1, 1))
    name = move(built, source)
    value = built.like(name, built.shape_of(name), source)
    return built.finish(built.conv(value, 6, (1, 1)))


def multiply(built: Builder, move: Move, shape: tuple[int, ...]) -> onnx.ModelProto:
    source = built.dense(built.input(shape), shape[-1], op="MatMul")
    name = move(built, source)
    return built.finish(built.dense(built.like(name, built.shape_of(name), source), 7, op="MatMul"))


@pytest.mark.parametrize("name", [*IMAGES, *TOKENS])
def test_models(name: str) -> None:
    tally = one_step.Tally()
    for seed in range(3):
        rng = np.random.default_rng(seed)
        build, cases = (convolve, IMAGES) if name in IMAGES else (multiply, TOKENS)
        one_step.check(build(Builder(rng), *cases[name]), rng, tally, "tiny" if seed else "small")
    assert tally.wrong < 0.01 * tally.elements


def random_move(rng: Rng, shape: tuple[int, ...]) -> Move:
    """A reshape to other factors, a transpose, and back to a shape with four axes."""
    factors = [size for whole in shape for size in _factors(rng, whole)]
    perm = rng.permutation(len(factors)).tolist()
    moved = [factors[axis] for axis in perm]
    cuts = sorted(rng.choice(len(factors) + 1, 3).tolist())
    final = [prod(moved[a:b]) for a, b in zip([0, *cuts], [*cuts, len(factors)], strict=True)]
    return steps(("Reshape", factors), ("Transpose", perm), ("Reshape", final))


def _factors(rng: Rng, size: int) -> list[int]:
    parts = [part for part in range(1, size + 1) if size % part == 0]
    first = int(rng.choice(parts))
    return [first, size // first]


@pytest.mark.parametrize("seed", range(24))
def test_random(seed: int) -> None:
    rng = np.random.default_rng([seed, 5])
    shape = tuple(int(rng.choice([1, 2, 4, 6, 8])) for _ in range(4))
    built = Builder(rng)
    source = built.conv(built.input(shape), shape[1], (1, 1)) if seed % 2 else built.input(shape)
    name = random_move(rng, shape)(built, source)
    value = built.like(name, built.shape_of(name), source)
    if seed % 3 == 0:
        half = built.node(
            "Slice",
            [built.dequantise(value), *(built.constant(np.array([at], np.int64)) for at in (0, 1, 2))],
        )
        value = built.like(half, built.shape_of(half), value)
    elif seed % 3 == 1:
        value = built.add(value, built.conv(value, value.shape[1], (1, 1)))
    one_step.check(built.finish(built.conv(value, 3, (1, 1))), rng, one_step.Tally())


def shuffle_unit(built: Builder, given: Quantised) -> Quantised:
    """A unit of ShuffleNet V2 (N. Ma et al., 2018, arXiv:1807.11164), with Q/DQ pairs between all operators."""
    n, c, h, w = given.shape
    names = [built.name("half") for _ in range(2)]
    split = helper.make_node(
        "Split", [built.dequantise(given)], names, name=built.name("split"), axis=1, num_outputs=2
    )
    built.nodes.append(split)
    remaining, right = (built.like(name, (n, c // 2, h, w), given) for name in names)
    right = built.conv(right, c // 2, (1, 1), relu=True)
    right = built.conv(right, c // 2, (3, 3), pads=(1, 1, 1, 1), groups=c // 2)
    value = built.concat([remaining, built.like(built.dequantise(right), right.shape, remaining)], 1)
    for shape, perm in (((n, 2, c // 2, h, w), (0, 2, 1, 3, 4)), ((n, c, h, w), None)):
        sizes = built.constant(np.array(shape, np.int64))
        value = built.like(built.node("Reshape", [built.dequantise(value), sizes]), shape, value)
        if perm is not None:
            moved = built.node("Transpose", [built.dequantise(value)], perm=perm)
            value = built.like(moved, built.shape_of(moved), value)
    return value


def test_shuffle_units() -> None:
    """Halves are read where they are: of all that moves data only the shuffles, and what joins the halves, are left."""
    rng = np.random.default_rng(2)
    built = Builder(rng)
    value = built.input((1, 12, 6, 6))
    for _ in range(3):
        value = shuffle_unit(built, value)
    tally = one_step.Tally()
    graph = one_step.check(built.finish(value), rng, tally, None)
    (segment,) = (item for item in graph.segments if isinstance(item, DeviceSegment))
    ops = run_passes(PIPELINE, segment, Planner(Target(PRESETS["small"]))).ops
    shuffles = [op for op in ops if isinstance(op, Conv) and op.weight.shape == (12, 1, 1, 12)]
    assert len(shuffles) == 2  # the last is the host's, who reads in any order
    assert len([op for op in ops if isinstance(op, Rescale)]) == 3
    one_step.on_golden(graph, "small", rng)


def test_shared_values_are_moved_once() -> None:
    rng = np.random.default_rng(1)
    built = Builder(rng)
    source = built.conv(built.input((2, 12, 5, 6)), 12, (1, 1))
    value = built.like(SHUFFLE(built, source), source.shape, source)
    graph = one_step.check(
        built.finish(
            built.add(built.conv(value, 4, (1, 1)), built.conv(value, 4, (3, 3), pads=(1, 1, 1, 1)))
        ),
        rng,
        one_step.Tally(),
    )
    assert [len(op.weight) for op in device_ops(graph) if isinstance(op, Conv)] == [12, 12, 4, 4]


def places(actual: list[Run]) -> dict[int, int]:
    return {
        run.target + at * run.target_step: run.source + at * run.step
        for run in actual
        for at in range(run.length)
    }


@pytest.mark.parametrize("unit", [1, 2, 6])
def test_runs_cover_the_requested_places(unit: int) -> None:
    for seed in range(60):
        rng = np.random.default_rng([seed, unit])
        indices = rng.integers(0, 4 * unit, int(rng.integers(1, 20)))
        if seed % 2:
            indices = np.sort(indices)
        actual = find_runs(indices, unit=unit)
        assert actual is not None
        assert places(actual) == dict(enumerate(indices.tolist()))
        for run in actual:
            assert run.length == 1 or (run.step >= 0 and run.step % unit == 0)
            assert run.length == 1 or run.step or run.source % unit == 0, (
                "a place between elements is not repeated"
            )


def test_runs_are_few() -> None:
    assert find_runs(np.arange(100)) == [Run(0, 0, 100, 1, 1)]
    assert len(find_runs(np.repeat(np.arange(50), 2)) or ()) == 2
    assert find_runs(np.random.default_rng(0).permutation(200)) is None
    assert len(find_runs(np.arange(1, 80, 4), unit=8) or ()) == 2
