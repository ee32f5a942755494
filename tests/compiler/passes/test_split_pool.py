"""Pools over more than the scratchpad holds: their decomposition, with results unchanged."""

from __future__ import annotations

import numpy as np
import pytest
from support.golden_compare import compare
from support.op_cases import draw, random_inputs, segment_of
from support.pass_cases import overlapping_pool, pool

from weft.boards.registry import BOARDS
from weft.compiler.backend import compile_segment
from weft.compiler.ir.graph import Conv, DeviceOp, Pool
from weft.compiler.ir.windows import Window
from weft.compiler.machine.target import Target
from weft.compiler.passes.split_pool import split_pool
from weft.compiler.planner import Planner
from weft.hdl.isa.config import PRESETS, Config

TINY = PRESETS["tiny"]
CONFIGS = {"tiny": TINY, **{name: board.config for name, board in BOARDS.items()}}


def split(op: Pool, config: Config) -> tuple[DeviceOp, ...]:
    return split_pool(segment_of(op), Planner(Target(config))).ops


def side(config: Config, share: float) -> int:
    """The side of an image that takes this share of the scratchpad, for N channels or fewer."""
    return int((share * config.scratchpad_size) ** 0.5)


@pytest.mark.parametrize(
    ("kind", "share", "kinds"),
    [
        ("average", 0.2, [Pool]),  # two windows fit
        ("average", 0.7, [Pool]),  # one window, one output: sums would be of one row
        ("average", 1.4, [Conv]),  # not even one
        ("max", 1.4, [Pool, Pool]),
    ],
)
def test_forms(kind: str, share: float, kinds: list[type]) -> None:
    size = (side(PRESETS["default"], share),) * 2
    op = pool(kind, size, Window(size))
    assert [type(item) for item in split(op, PRESETS["default"])] == kinds


def test_many_outputs_are_sums() -> None:
    """Windows that overlap: the array adds up rows of outputs, the vector unit every window by itself."""
    config = PRESETS["default"].replace(lanes=1)
    size = side(config, 0.7)
    op = pool("average", (size + 15, size + 15), Window((size, size)))
    assert [type(item) for item in split(op, config)] == [Conv]


@pytest.mark.parametrize(
    ("kernel", "stride", "parts"), [(3, 1, 2), (5, 1, 2), (3, 2, 1), (2, 2, 1), (2, 1, 1)]
)
def test_overlapping_maxima_take_one_axis_at_a_time(kernel: int, stride: int, parts: int) -> None:
    """One axis at a time reads 6 elements instead of 9, and 10 instead of 25; with stride 2, 9 instead of 9."""
    op = pool("max", (27, 27), Window((kernel, kernel), (stride, stride), pad=(1, 1, 1, 1)), 64)
    assert len(split(op, PRESETS["default"])) == parts


@pytest.mark.parametrize("name", CONFIGS)
def test_overlapping_windows(name: str) -> None:
    config, rng, divided = CONFIGS[name], np.random.default_rng(len(name)), 0
    for _ in range(3):
        op = overlapping_pool(rng, config)
        segment = segment_of(op)
        divided += len(split(op, config)) == 2
        compare(compile_segment(segment, config), segment, random_inputs(rng, op), config)
    assert divided


@pytest.mark.parametrize("name", CONFIGS)
def test_random(name: str) -> None:
    config, rng = CONFIGS[name].replace(scratchpad_depth=64), np.random.default_rng(len(name))
    for case in range(6):
        size = max(2, side(config, float(rng.uniform(0.3, 1.3))))
        kernel = (draw(rng, max(1, size - 3), size), draw(rng, max(1, size - 3), size))
        kind = "max" if case == 0 else "average"
        op = pool(kind, (size, size), Window(kernel), draw(rng, 1, 3 * config.n))
        segment = segment_of(op)
        compare(compile_segment(segment, config), segment, random_inputs(rng, op), config)
