"""Rewrites of device segments: changed structure, unchanged results."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from weft.compiler.ir.graph import Add, Conv, DeviceOp, DeviceSegment, Pool, Rescale
from weft.compiler.ir.views import Buffer, View
from weft.compiler.ir.windows import Window
from weft.compiler.machine.target import Target
from weft.compiler.operators.record import Cost
from weft.compiler.passes.fuse import fuse_epilogue, fuse_pool
from weft.compiler.passes.views import write_views
from weft.compiler.planner import Planner
from weft.compiler.verify import run_ops
from weft.hdl.isa.config import PRESETS

INPUT = View(Buffer("x", (1, 6, 6, 4), "input"), (1, 6, 6, 4))
MIDDLE = View(Buffer("m", (1, 6, 6, 4)), (1, 6, 6, 4))
RESULT = View(Buffer("y", (1, 3, 3, 4), "output"), (1, 3, 3, 4))


def conv(dst: View = MIDDLE) -> Conv:
    rng = np.random.default_rng(0)
    weight = rng.integers(-127, 128, (4, 1, 1, 4)).astype(np.int16)
    return Conv("conv", INPUT, dst, weight, np.zeros(4, np.int32), np.full(4, 0.01), y_zero=5, low=-20)


POOL = Pool("pool", MIDDLE, RESULT, "max", Window((2, 2), (2, 2)), 1.0, 5, 5, -128, 60)


class Judge(Planner):
    """Finds fused operators better, or worse, than what they are made of."""

    def __init__(self, *, eager: bool) -> None:
        super().__init__(Target(PRESETS["tiny"]))
        self.eager = eager

    def cost(self, op: DeviceOp) -> Cost:
        fused = isinstance(op, Conv) and (op.pool is not None or op.epilogue is not None)
        return Cost(1.0, 1.0) if fused is not self.eager else Cost(0.0, 0.0)


EAGER, LAZY = Judge(eager=True), Judge(eager=False)


def same(before: DeviceSegment, after: DeviceSegment) -> None:
    x = np.random.default_rng(1).integers(-128, 128, INPUT.shape).astype(np.int8)
    first, second = run_ops(before, {"x": x}), run_ops(after, {"x": x})
    outputs = {op.dst.buffer.name for op in before.ops if op.dst.buffer.kind == "output"}
    for name in outputs:
        assert np.array_equal(first[name], second[name])


def test_pool_is_fused_with_both_clamps() -> None:
    before = DeviceSegment("s", (conv(), POOL))
    after = fuse_pool(before, EAGER)
    (op,) = after.ops
    assert isinstance(op, Conv)
    assert (op.name, op.pool, op.low, op.high) == ("conv+pool", POOL.window, -20, 60)
    same(before, after)


def test_unfused_operators_keep_clamp_and_buffer() -> None:
    copy = Rescale("copy", INPUT, View(Buffer("z", INPUT.shape, "output"), INPUT.shape))
    before = DeviceSegment("s", (conv(), copy, POOL))
    after = fuse_pool(before, LAZY)
    assert [op.name for op in after.ops] == ["conv+pool", "conv+pool/pool", "copy"]
    assert [(op.low, op.high) for op in after.ops[:2]] == [(-20, 60)] * 2
    assert after.ops[0].dst.buffer.name == "conv+pool/unpooled"
    same(before, after)


def test_fused_clamp_is_the_tighter_one_on_both_sides() -> None:
    before = DeviceSegment("s", (conv(), dataclasses.replace(POOL, low=-10)))
    after = fuse_pool(before, EAGER)
    assert (after.ops[0].low, after.ops[0].high) == (-10, 60)
    same(before, after)


@pytest.mark.parametrize(
    ("reason", "ops"),
    [
        ("average", (conv(), dataclasses.replace(POOL, kind="average"))),
        ("scale", (conv(), dataclasses.replace(POOL, scale=0.5))),
        ("zero point", (conv(), dataclasses.replace(POOL, y_zero=6))),
        ("empty clamp", (conv(), dataclasses.replace(POOL, high=-30))),
        (
            "another reader",
            (conv(), POOL, Rescale("copy", MIDDLE, View(Buffer("z", MIDDLE.shape), MIDDLE.shape))),
        ),
        ("no convolution", (dataclasses.replace(POOL, src=INPUT),)),
        (
            "other shape",
            (
                conv(),
                dataclasses.replace(
                    POOL,
                    src=View(Buffer("m", (1, 4, 9, 4)), (1, 4, 9, 4)),
                    dst=View(Buffer("y", (1, 2, 4, 4)), (1, 2, 4, 4)),
                ),
            ),
        ),
    ],
)
def test_pool_is_not_fused(reason: str, ops: tuple[DeviceOp, ...]) -> None:
    assert fuse_pool(DeviceSegment(reason, ops), EAGER).ops == ops


def test_pool_is_not_fused_if_the_host_reads_between() -> None:
    middle = View(Buffer("m", MIDDLE.shape, "output"), MIDDLE.shape)
    ops = (conv(middle), dataclasses.replace(POOL, src=middle))
    assert fuse_pool(DeviceSegment("s", ops), EAGER).ops == ops


JOINED = Buffer("y", (1, 6, 6, 9), "output")
OUTPUT = View(Buffer("m", MIDDLE.shape, "output"), MIDDLE.shape)
COPY = Rescale("copy", MIDDLE, View(JOINED, MIDDLE.shape, c=5))


def test_copies_disappear() -> None:
    before = DeviceSegment("s", (conv(), COPY))
    after = write_views(before, EAGER)
    assert [op.dst for op in after.ops] == [COPY.dst]
    same(before, after)


def test_chains_of_copies_disappear() -> None:
    between = View(Buffer("n", MIDDLE.shape), MIDDLE.shape)
    chain = (conv(), Rescale("first", MIDDLE, between), dataclasses.replace(COPY, src=between))
    after = write_views(DeviceSegment("s", chain), EAGER)
    assert [op.dst for op in after.ops] == [COPY.dst]
    same(DeviceSegment("s", chain), after)


@pytest.mark.parametrize(
    "ops",
    [
        (conv(), dataclasses.replace(COPY, scale=0.5)),
        (conv(), dataclasses.replace(COPY, y_zero=1)),
        (conv(), dataclasses.replace(COPY, low=0)),
        (conv(), COPY, dataclasses.replace(COPY, name="again", dst=View(JOINED, MIDDLE.shape, c=1))),
        (dataclasses.replace(COPY, src=INPUT),),
        (conv(OUTPUT), dataclasses.replace(COPY, src=OUTPUT)),
    ],
    ids=["scale", "zero point", "clamp", "two readers", "input", "read by the host"],
)
def test_copies_stay(ops: tuple[DeviceOp, ...]) -> None:
    assert write_views(DeviceSegment("s", ops), EAGER).ops == ops


SUM = View(Buffer("y", MIDDLE.shape, "output"), MIDDLE.shape)
SIDE = View(Buffer("side", MIDDLE.shape), MIDDLE.shape)
PART = View(Buffer("joint", (1, 6, 6, 9)), MIDDLE.shape, c=5)
ADD = Add("add", MIDDLE, INPUT, SUM, 0.7, 0.4, 5, -3, 9, -100, 90)


@pytest.mark.parametrize("add", [ADD, dataclasses.replace(ADD, a=INPUT, b=MIDDLE, a_zero=-3, b_zero=5)])
def test_addition_is_fused_from_either_side(add: Add) -> None:
    before = DeviceSegment("s", (conv(), add))
    after = fuse_epilogue(before, EAGER)
    (op,) = after.ops
    assert isinstance(op, Conv)
    assert op.name == "conv+add"
    assert op.dst == SUM
    assert isinstance(op.epilogue, Add)
    assert (op.epilogue.a, op.epilogue.b, op.epilogue.a_zero, op.epilogue.b_zero) == (MIDDLE, INPUT, 5, -3)
    same(before, after)
    alone = fuse_epilogue(before, LAZY)
    assert [item.name for item in alone.ops] == ["conv", "add"]
    assert (alone.ops[1].sources, alone.ops[1].dst) == ((MIDDLE, INPUT), SUM)
    same(before, alone)


def test_requantisation_is_fused() -> None:
    rescale = Rescale("again", MIDDLE, SUM, 0.6, 5, -7, -90, 80)
    before = DeviceSegment("s", (conv(), rescale))
    (op,) = fuse_epilogue(before, EAGER).ops
    assert isinstance(op, Conv)
    assert (op.name, op.epilogue, op.dst) == ("conv+again", rescale, SUM)
    same(before, fuse_epilogue(before, EAGER))
    assert fuse_epilogue(before, LAZY).ops == before.ops


def test_second_operator_after_a_convolution_is_not_fused() -> None:
    between = View(Buffer("t", MIDDLE.shape), MIDDLE.shape)
    ops = (conv(), dataclasses.replace(ADD, dst=between), Rescale("again", between, SUM, 0.6, 5, -7))
    before = DeviceSegment("s", ops)
    after = fuse_epilogue(before, EAGER)
    assert [op.name for op in after.ops] == ["conv+add", "again"]
    same(before, after)


def test_addition_goes_to_the_later_of_two_convolutions() -> None:
    other = dataclasses.replace(conv(SIDE), name="other")
    for ops in ((other, conv()), (conv(), other)):
        before = DeviceSegment("s", (*ops, dataclasses.replace(ADD, b=SIDE, b_zero=5)))
        after = fuse_epilogue(before, EAGER)
        assert [op.name for op in after.ops] == [ops[0].name, f"{ops[1].name}+add"]
        same(before, after)


def test_a_pooled_convolution_takes_an_addition_but_not_the_other_way_round() -> None:
    side = View(Buffer("x2", RESULT.shape, "input"), RESULT.shape)
    small = View(Buffer("t", RESULT.shape), RESULT.shape)
    ops = (
        conv(),
        dataclasses.replace(POOL, dst=small),
        dataclasses.replace(ADD, a=small, b=side, dst=RESULT),
    )
    (op,) = fuse_epilogue(fuse_pool(DeviceSegment("s", ops), EAGER), EAGER).ops
    assert isinstance(op, Conv)
    assert op.pool is not None
    assert op.epilogue is not None
    between = View(Buffer("t", MIDDLE.shape), MIDDLE.shape)
    (fused,) = fuse_epilogue(DeviceSegment("s", (conv(), dataclasses.replace(ADD, dst=between))), EAGER).ops
    ops = (fused, dataclasses.replace(POOL, src=between, x_zero=9, y_zero=9))
    assert fuse_pool(DeviceSegment("s", ops), EAGER).ops == ops


@pytest.mark.parametrize(
    "ops",
    [
        (conv(), dataclasses.replace(ADD, b=MIDDLE)),
        (conv(), ADD, dataclasses.replace(COPY, dst=View(JOINED, MIDDLE.shape))),
        (conv(OUTPUT), dataclasses.replace(ADD, a=OUTPUT)),
        (dataclasses.replace(POOL, dst=MIDDLE, window=Window()), ADD),
        (
            conv(View(JOINED, MIDDLE.shape, c=5)),
            dataclasses.replace(
                ADD, a=View(JOINED, MIDDLE.shape, c=5), dst=View(Buffer("z", MIDDLE.shape), MIDDLE.shape)
            ),
        ),
        (conv(PART), dataclasses.replace(ADD, a=PART)),
        (conv(), dataclasses.replace(ADD, dst=INPUT)),
    ],
    ids=[
        "to itself",
        "another reader",
        "read by the host",
        "no convolution",
        "part of an output",
        "part of a buffer",
        "in place",
    ],
)
def test_addition_is_not_fused(ops: tuple[DeviceOp, ...]) -> None:
    assert fuse_epilogue(DeviceSegment("s", ops), EAGER).ops == ops
