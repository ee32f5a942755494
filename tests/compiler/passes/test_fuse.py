"""Fusion never changes results, and compiles no network that would fail without it."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest
from support.golden_compare import compare
from support.op_cases import convolution, draw, random_lookup, random_op, segment_of, split_operators, whole
from support.repeated import repeated

from weft.boards.registry import BOARDS
from weft.compiler.backend import compile_segment
from weft.compiler.errors import CompileError
from weft.compiler.ir.graph import Add, Conv, DeviceOp, DeviceSegment, Multiply, Pad, Pool, Rescale
from weft.compiler.ir.views import Buffer, View
from weft.compiler.ir.windows import Window
from weft.compiler.machine.target import Target
from weft.compiler.operators.record import Cost
from weft.compiler.passes.fuse import BYTES, compose_tables, fuse_lookup, fuse_pool
from weft.compiler.passes.order import choose_plans
from weft.compiler.passes.split_pool import split_pool
from weft.compiler.pipeline import PIPELINE, run_passes
from weft.compiler.planner import Planner
from weft.compiler.verify import run_ops, verify_segment
from weft.hdl.isa.config import PRESETS, Config

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
    result = convolution(src, outputs, window, name=name, kind="temp").replace(name=name)
    if rng.random() < 0.2:
        result = convolution(src, c, window, name=name, kind="temp").replace(name=name, groups=c)
        result = result.replace(weight=result.weight[..., :1])
    return result


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
    actual: Counter[str] = Counter()
    for seed in seeds:
        rng = np.random.default_rng(seed)
        name = list(CONFIGS)[seed % len(CONFIGS)]
        config = CONFIGS[name]
        segment = network(rng, products=bool(config.multiply), lookups=bool(config.lookup_tables))
        verify_segment(segment)
        planner = Planner(Target(config), tight=bool(seed % 7 == 0))
        message = refusal(segment, list(PIPELINE), planner)
        if message is not None:
            assert refusal(segment, APART, planner) is not None, (seed, name, message)
        actual["refused" if message else "compiled"] += 1
    return actual


def test_no_fusion_makes_a_network_too_large() -> None:
    assert check(range(30))["compiled"] > 15


@pytest.mark.long
def test_no_fusion_makes_a_network_too_large_for_long() -> None:
    check(range(1000, 4000))


TINY = PRESETS["tiny"]


class Judge(Planner):
    """Finds operators with a look-up table better, or worse, than others."""

    def __init__(self, *, eager: bool, config: Config = TINY) -> None:
        super().__init__(Target(config))
        self.eager = eager

    def cost(self, op: DeviceOp) -> Cost:
        return Cost(0.0, 0.0) if self.eager else Cost(1.0 + 9 * op.name.count("+"), 1.0)


EAGER, LAZY = Judge(eager=True), Judge(eager=False)


def inputs_of(rng: np.random.Generator, segment: DeviceSegment) -> dict[str, np.ndarray]:
    views = (view for op in segment.ops for view in op.sources if view.buffer.kind == "input")
    return {view.buffer.name: rng.integers(-128, 128, view.buffer.shape).astype(np.int8) for view in views}


def same(rng: np.random.Generator, before: DeviceSegment, after: DeviceSegment) -> None:
    inputs = inputs_of(rng, before)
    first, second = run_ops(before, inputs), run_ops(after, inputs)
    for op in before.ops:
        if op.dst.buffer.kind == "output":
            assert np.array_equal(first[op.dst.buffer.name], second[op.dst.buffer.name])


def follow(rng: np.random.Generator, src: View, name: str, kind: str) -> Rescale:
    """A requantisation, a clamp, a function of single values, or several of these."""
    scale, zero = (1.0, draw(rng, -128, 127)) if rng.random() < 0.5 else (rng.uniform(0.2, 2), 0)
    low, high = (-128, 127) if rng.random() < 0.5 else (draw(rng, -128, 0), draw(rng, 0, 127))
    y_zero = zero if scale == 1.0 else draw(rng, -128, 127)
    lookup = random_lookup(rng) if rng.random() < 0.6 else None
    dst = whole(name, src.shape, kind)
    return Rescale(name, src, dst, scale, zero, y_zero, low, high, lookup=lookup)


def random_chain(rng: np.random.Generator) -> DeviceSegment:
    """An operator, its pool and epilogue apart, and one to three functions of single values behind it."""
    op = random_op(rng)
    first = split_operators(op) if isinstance(op, Conv) else (op,)
    count = draw(rng, 1, 3)
    last = first[-1]
    shape = last.dst.shape
    ops = [*first[:-1], last.replace(dst=whole("f0", shape, "temp"))]
    for index in range(count):
        kind = "output" if index == count - 1 else "temp"
        ops.append(follow(rng, ops[-1].dst, f"f{index + 1}", kind))
    return DeviceSegment("chain", tuple(ops))


@repeated("seed", range(60))
def test_results_never_change(seed: int) -> None:
    rng = np.random.default_rng(seed)
    before = random_chain(rng)
    after = fuse_lookup(before, EAGER)
    assert len(after.ops) < len(before.ops) or not any(map(changes, before.ops[1:]))
    same(rng, before, after)
    same(rng, before, fuse_pool(after, EAGER))


def changes(op: DeviceOp) -> bool:
    return isinstance(op, Rescale) and (
        op.lookup is not None or op.scale != 1.0 or op.x_zero != op.y_zero or (op.low, op.high) != (-128, 127)
    )


@pytest.mark.parametrize("preset", ["tiny", "small", "default"])
@pytest.mark.parametrize("seed", range(6))
def test_compiled_chains_on_golden(preset: str, seed: int) -> None:
    """With as many tables as there may be, and with a single one, which is filled again and again."""
    rng = np.random.default_rng([seed, len(preset)])
    for tables in (1, int(rng.choice([2, 4, 8]))):
        config = PRESETS[preset].replace(lookup_tables=tables)
        segment = random_chain(rng)
        compare(compile_segment(segment, config, reuse=False), segment, inputs_of(rng, segment), config)


X = whole("x", (1, 4, 4, 4), "input")
MIDDLE = whole("m", (1, 4, 4, 4), "temp")
RESULT = whole("y", (1, 4, 4, 4), "output")
FIRST = Rescale("first", X, MIDDLE, 0.5)
TABLE = Rescale("table", MIDDLE, RESULT, lookup=np.roll(BYTES, 3))


def test_a_clamp_needs_no_table() -> None:
    (op,) = fuse_lookup(segment_of(FIRST, Rescale("clamp", MIDDLE, RESULT, low=-3, high=9)), EAGER).ops
    assert (op.lookup, op.low, op.high, op.name) == (None, -3, 9, "first+clamp")


def test_clamp_after_a_table_is_fused() -> None:
    first = FIRST.replace(lookup=np.roll(BYTES, 100))
    (op,) = fuse_lookup(segment_of(first, Rescale("clamp", MIDDLE, RESULT, low=-3, high=9)), EAGER).ops
    assert op.lookup is not None
    assert (op.lookup.min(), op.lookup.max(), op.low) == (-3, 9, -128)


ROW = dataclasses.replace(X.buffer, shape=(1, 1, 16, 4))
IN_A_ROW = dataclasses.replace(MIDDLE.buffer, shape=(1, 1, 16, 4))


def test_each_writer_of_a_part_has_the_table() -> None:
    rows = [[View(view.buffer, (1, 2, 4, 4), y=y) for view in (X, MIDDLE)] for y in (0, 2)]
    halves = [FIRST.replace(src=src, dst=dst) for src, dst in rows]
    segment = DeviceSegment("halves", (*halves, TABLE))
    fused = fuse_lookup(segment, EAGER)
    assert [(op.dst.buffer.name, op.dst.y) for op in fused.ops] == [
        (RESULT.buffer.name, 0),
        (RESULT.buffer.name, 2),
    ]
    x = np.random.default_rng(0).integers(-128, 128, X.shape).astype(np.int8)
    name = RESULT.buffer.name
    assert np.array_equal(run_ops(fused, {"x": x})[name], run_ops(segment, {"x": x})[name])


@pytest.mark.parametrize(
    ("reason", "ops"),
    [
        ("another reader", (FIRST, TABLE, Rescale("copy", MIDDLE, whole("z", MIDDLE.shape, "output")))),
        ("the host reads it", tuple(
            op.map_views(lambda view: whole("m", view.shape, "output") if view == MIDDLE else view)
            for op in (FIRST, TABLE)
        )),
        ("no writer", (TABLE.replace(src=X),)),
        ("a writer of pixels in a row", (
            FIRST.replace(src=View(X.buffer, (1, 2, 4, 4)), dst=View(MIDDLE.buffer, (1, 2, 4, 4))),
            FIRST.replace(src=View(ROW, (1, 1, 8, 4)), dst=View(IN_A_ROW, (1, 1, 8, 4), x=8)),
            TABLE)),
        ("a copy", (FIRST, Rescale("copy", MIDDLE, RESULT))),
    ],
)  # fmt: skip
def test_chains_that_stay(reason: str, ops: tuple[DeviceOp, ...]) -> None:
    assert fuse_lookup(DeviceSegment(reason, ops), EAGER).ops == ops


def test_only_if_it_takes_no_longer() -> None:
    assert fuse_lookup(segment_of(FIRST, TABLE), LAZY).ops == (FIRST, TABLE)
    small = segment_of(*(op.map_views(lambda view: whole(view.buffer.name, (1, 1, 1, 4), view.buffer.kind))
                         for op in (FIRST, TABLE)))  # fmt: skip
    assert len(fuse_lookup(small, Planner(Target(TINY))).ops) == 1


def test_not_without_tables() -> None:
    without = TINY.replace(lookup_tables=0)
    assert fuse_lookup(segment_of(FIRST, TABLE), Judge(eager=True, config=without)).ops == (FIRST, TABLE)
    with pytest.raises(
        CompileError, match=r"^table: this configuration has no look-up tables; set 'lookup_tables'"
    ):
        compile_segment(segment_of(FIRST, TABLE), without)


def test_a_maximum_only_passes_tables_that_rise() -> None:
    rising, falling = np.sort(random_lookup(np.random.default_rng(0))), BYTES[::-1].copy()
    for lookup, ops in ((rising, 1), (falling, 2)):
        conv = Conv(
            "conv",
            X,
            MIDDLE,
            np.ones((4, 1, 1, 4), np.int16),
            np.zeros(4, np.int32),
            np.ones(4),
            lookup=lookup,
        )
        pool = Pool("pool", MIDDLE, whole("y", (1, 2, 2, 4), "output"), "max", Window((2, 2), (2, 2)))
        before = segment_of(conv, pool)
        after = fuse_pool(before, EAGER)
        assert len(after.ops) == ops
        same(np.random.default_rng(1), before, after)


def test_tables_are_composed_in_order() -> None:
    rng = np.random.default_rng(2)
    first, second = random_lookup(rng), random_lookup(rng)
    both = compose_tables(first, second)
    assert both is not None
    assert [int(both[byte + 128]) for byte in range(-128, 128)] == [
        int(second[int(first[byte + 128]) + 128]) for byte in range(-128, 128)
    ]
