"""Requantisations and look-up tables behind operators: when they become one with them; results never change."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from support.golden_compare import compare
from support.op_cases import apart, draw, random_lookup, random_op, segment_of, whole
from support.repeated import repeated

from weft.compiler.backend import compile_segment
from weft.compiler.errors import CompileError
from weft.compiler.ir.graph import Conv, DeviceOp, DeviceSegment, Pool, Rescale, View, Window
from weft.compiler.machine.target import Target
from weft.compiler.operators.record import Cost
from weft.compiler.passes.fuse import BYTES, compose_tables, fuse_lookup, fuse_pool
from weft.compiler.planner import Planner
from weft.compiler.verify import run_ops
from weft.hdl.isa.config import PRESETS, Config

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
    first = apart(op) if isinstance(op, Conv) else (op,)
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


def test_a_clamp_behind_a_table_is_part_of_it() -> None:
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
def test_what_stays(reason: str, ops: tuple[DeviceOp, ...]) -> None:
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
