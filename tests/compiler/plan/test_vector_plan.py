"""Tiles of the vector unit that just fit, and cycles counted by hand."""

from __future__ import annotations

import numpy as np
import pytest
from support.op_cases import whole

from weft.compiler.ir.graph import Add, Pool, Rescale
from weft.compiler.ir.windows import ONE, Window
from weft.compiler.machine import target as overheads
from weft.compiler.machine.target import Target
from weft.compiler.plan.vector_plan import VectorPlan, cycles, plan
from weft.compiler.planner import Planner
from weft.hdl.isa.config import LOOKUP_ENTRIES, PRESETS, Config

DEFAULT = PRESETS["default"]
PARAMS = 36
"""Blocks of 8 vectors of parameters, of the 16,384 vectors of its scratchpad: 16,096 are left."""


def add(h: int, w: int, c: int) -> Add:
    shape = (1, h, w, c)
    return Add(
        "sum", whole("a", shape, "input"), whole("b", shape, "input"), whole("y", shape, "output"), 0.5, 0.5
    )


def plan_tiles(
    op: Add | Pool | Rescale, window: Window = ONE, config: Config = DEFAULT, **resident: int
) -> VectorPlan | None:
    return plan(Planner(Target(config)).site(op, resident), window)


@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        ((40, 40, 16), (40, 40, 16)),
        ((44, 41, 16), (22, 41, 16)),  # 9 * 1,804 vectors do not fit: half of the rows
        ((1788, 1, 16), (1788, 1, 16)),  # 9 * 1,788 = 16,092
        ((1789, 1, 16), (895, 1, 16)),
        ((1, 1788, 16), (1, 1788, 16)),
        ((1, 1789, 16), (1, 895, 16)),
        ((40, 40, 17), (20, 40, 17)),  # two vectors for a pixel
        ((2, 1, 16 * 895), (1, 1, 16 * 895)),  # all channels first
        ((1, 1, 16 * 1789), (1, 1, 16 * 1024)),  # else a power of two of vectors
    ],
)
def test_three_sets_of_three_tensors_fit(shape: tuple[int, int, int], tile: tuple[int, int, int]) -> None:
    size = tile[0] * tile[1] * -(-tile[2] // 16)
    moved = 3 * shape[0] * shape[1] * shape[2]
    assert plan_tiles(add(*shape)) == VectorPlan(*tile, size, size, 3, PARAMS, moved)


@pytest.mark.parametrize(
    ("shape", "tile"),
    [
        ((32, 64, 16), (32, 64)),
        ((50, 50, 16), (25, 50)),
        ((1, 64, 16 * 40), (1, 64)),
        ((1, 65, 16 * 40), (1, 33)),
    ],
)
def test_tiles_are_a_few(shape: tuple[int, int, int], tile: tuple[int, int]) -> None:
    op = Rescale("r", whole("x", (1, *shape), "input"), whole("y", (1, *shape), "output"))
    size = tile[0] * tile[1] * shape[2] // 16
    moved = 2 * shape[0] * shape[1] * shape[2]
    assert plan_tiles(op) == VectorPlan(*tile, shape[2], size, size, 3, PARAMS, moved)


def test_windows_read_more_than_they_make() -> None:
    window = Window((3, 4), (2, 1), (1, 2))
    op = Pool("p", whole("x", (1, 40, 30, 16), "input"), whole("y", (1, 19, 24, 16), "output"), "max", window)
    moved = (40 * 30 + 19 * 24) * 16
    assert plan_tiles(op, window) == VectorPlan(19, 24, 16, 39 * 30, 19 * 24, 3, PARAMS, moved)


def test_resident_operands_need_no_slots() -> None:
    """6 * 1,936 vectors fit, and 3 * 1,936 if the result is resident too."""
    op = add(44, 44, 16)
    assert plan_tiles(op) == VectorPlan(22, 44, 16, 968, 968, 3, PARAMS, 3 * 44 * 44 * 16)
    assert plan_tiles(op, a=0) == VectorPlan(44, 44, 16, 1936, 1936, 3, PARAMS, 2 * 44 * 44 * 16)
    assert plan_tiles(op, a=0, y=9000) == VectorPlan(44, 44, 16, 1936, 0, 3, PARAMS, 44 * 44 * 16)
    assert plan_tiles(op, a=0, b=4000, y=9000) == VectorPlan(44, 44, 16, 1936, 0, 3, PARAMS, 0)


@pytest.mark.parametrize(
    ("region", "slots"),
    [((0, 25), 3), ((0, 24), 2), ((100, 122), 2), ((0, 21), 1), ((0, 19), 1), ((0, 18), 0)],
)
def test_fewer_sets_where_little_is_left(region: tuple[int, int], slots: int) -> None:
    """Two blocks of parameters, and as many sets of three vectors as fit."""
    site = Planner(Target(DEFAULT)).site(add(1, 1, 16), region=region)
    actual = plan(site, ONE)
    assert (0 if actual is None else actual.slots) == slots


def test_cycles_equal_the_slower_unit() -> None:
    op = Rescale("r", whole("x", (1, 8, 8, 16), "input"), whole("y", (1, 8, 8, 16), "output"))
    table = op.replace(lookup=np.zeros(LOOKUP_ENTRIES, np.int8))
    fast, slow = Target(DEFAULT), Target(DEFAULT, 2.0)
    assert cycles(op, fast, 1000, 3200) == (1000 + overheads.STANDALONE_CYCLES, 200)
    assert cycles(op, fast, 100, 3200) == (200 + overheads.STANDALONE_CYCLES, 200)
    assert cycles(op, slow, 1000, 3200) == (1600 + overheads.STANDALONE_CYCLES, 1600)
    assert cycles(table, fast, 1000, 3200) == (1000 + LOOKUP_ENTRIES + overheads.STANDALONE_CYCLES, 200)


def test_in_turn_all_units_take_their_time() -> None:
    op = Rescale("r", whole("x", (1, 8, 8, 8), "input"), whole("y", (1, 8, 8, 8), "output"))
    config = PRESETS["small"]
    target = Target(config, sequential=True)
    costs = target.sequential_costs
    assert costs is not None
    actual, bus = cycles(op, target, 640, 1024)
    assert (
        actual
        == costs.vec(1, 1, 640 / config.groups) + costs.load(2, 2, 64, 128) + overheads.STANDALONE_CYCLES
    )
    assert bus == 1024 / config.bus_bytes
