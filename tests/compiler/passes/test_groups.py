"""Vector-unit operators beside convolutions: equal bytes for every grouping."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from support.branch_cases import branches
from support.configurations import every
from support.golden_compare import compare, compare_on_rtl
from support.memories import BANDWIDTHS
from support.op_cases import random_mixture, whole

from weft.compiler.backend import compile_segment
from weft.compiler.errors import CompileError
from weft.compiler.ir.graph import Conv, DeviceSegment, Pool, Rescale
from weft.compiler.ir.views import View, may_overlap
from weft.compiler.ir.windows import Window
from weft.compiler.machine.memory import runs
from weft.compiler.machine.target import Target
from weft.compiler.operators.record import operator_of
from weft.compiler.passes import groups, order
from weft.compiler.passes.split_pool import merge_split_pools, split_pool
from weft.compiler.pipeline import PIPELINE, run_passes
from weft.compiler.plan.conv_plan import ConvPlan
from weft.compiler.plan.vector_plan import ChannelPlan
from weft.compiler.planner import Planner
from weft.hdl.isa.config import PRESETS, Config

CONFIGS = every()


@pytest.fixture
def _force_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """All groups for which there is room, and all moves that are allowed."""
    monkeypatch.setattr(groups, "_GAIN", 1e9)
    monkeypatch.setattr(order, "_SHARE", -1e9)


def draw_network(rng: np.random.Generator, config: Config) -> tuple[DeviceSegment, dict[str, np.ndarray]]:
    """A network that the configuration has all units for."""
    while True:
        if rng.random() < 0.3:
            segment, inputs = random_mixture(rng, products=bool(config.multiply))
        else:
            segment, inputs = branches(rng, products=bool(config.multiply), tables=config.lookup_tables > 1)
        tables = config.lookup_tables or all(op.lookup is None for op in segment.ops)
        if tables and not any(operator_of(op).unsupported(op, config) for op in segment.ops):
            return segment, inputs


def check_results(name: str, seed: int, count: int) -> Counter[str]:
    """Compare some networks, and count kinds of groups."""
    config, actual = CONFIGS[name], Counter[str]()
    rng = np.random.default_rng([seed, len(name)])
    for case in range(count):
        segment, inputs = draw_network(rng, config)
        bandwidth = BANDWIDTHS[case % len(BANDWIDTHS)]
        passed: list[DeviceSegment] = []
        program = compile_segment(
            segment, config, bandwidth=bandwidth, watch=lambda _, item, passed=passed: passed.append(item)
        )
        result = passed[-1]
        assert set(result.resident) <= {
            view.buffer.name for op in result.ops for view in (*op.sources, op.dst)
        }
        for run in runs(result.overlapped):
            kinds = [type(result.ops[index]).__name__ for index in run]
            actual.update(kinds)
            actual["channels"] += sum(isinstance(result.ops[index].plan, ChannelPlan) for index in run)
            actual["three"] += len(kinds) > 2
            actual["ahead"] += kinds[0] != "Conv"
            actual["resident"] += any(
                view.buffer.name in result.resident for index in run for view in result.ops[index].sources
            )
            (own,) = (result.regions[index] for index in run if isinstance(result.ops[index].plan, ConvPlan))
            others = {result.regions[index] for index in run} - {own}
            assert all(one[1] <= own[0] or own[1] <= one[0] for one in others)
        compare(program, segment, inputs, config, temps=False)
    return actual


@pytest.mark.usefixtures("_force_groups")
def test_results() -> None:
    actual = Counter[str]()
    for name in ("tiny", "small", "default"):
        actual += check_results(name, 1, 16)
    kinds = ["Pool", "Rescale", "Add", "Pad", "Multiply", "channels", "three", "ahead", "resident"]
    assert all(actual[kind] >= 2 for kind in kinds), actual


@pytest.mark.long
@pytest.mark.usefixtures("_force_groups")
@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("seed", range(2, 6))
def test_results_of_every_configuration(name: str, seed: int) -> None:
    try:
        check_results(name, seed, 25)
    except CompileError as error:
        assert "fits on chip" in str(error)  # noqa: PT017 (a board's scratchpad)


@pytest.mark.usefixtures("_force_groups")
def test_on_rtl() -> None:
    rng = np.random.default_rng(5)
    for case in range(4):
        segment, inputs = branches(rng, 6, 12)
        compare_on_rtl(segment, inputs, PRESETS["tiny"], case)


@pytest.mark.long
@pytest.mark.usefixtures("_force_groups")
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("name", ["tiny", "small"])
def test_many_on_rtl(name: str, seed: int) -> None:
    segment, inputs = branches(np.random.default_rng([seed, len(name)]), 8, 30)
    compare_on_rtl(segment, inputs, PRESETS[name], seed)


def test_pools_in_one_piece() -> None:
    """Pieces of one pool are joined again; unrelated consecutive pools stay."""
    x = whole("x", (1, 12, 12, 64), "input")
    op = Pool(
        "y",
        x,
        whole("y", (1, 6, 5, 64), "output"),
        "max",
        Window((5, 5), (2, 2), (1, 1), (1, 0, 2, 1)),
        0.5,
        3,
    )
    segment = DeviceSegment("pool", (op,))
    parts = split_pool(segment, Planner(Target(PRESETS["default"]))).ops
    assert len(parts) == 2
    (whole_again,) = merge_split_pools(parts)
    assert isinstance(whole_again, Pool)
    assert (whole_again.window, whole_again.src, whole_again.dst) == (op.window, op.src, op.dst)
    assert (whole_again.scale, whole_again.x_zero) == (0.5, 3)
    other = parts[1].replace(name="z")
    assert merge_split_pools([parts[0], other]) == [parts[0], other]


def test_channels_of_their_own() -> None:
    wide = whole("a", (1, 4, 4, 16), "temp")
    low, high = (View(wide.buffer, (1, 4, 4, 8), c=first) for first in (0, 8))
    flat = whole("a", (1, 1, 16, 16), "temp")
    assert not may_overlap(low, high)
    assert may_overlap(low, wide)
    assert may_overlap(high, flat)
    assert not may_overlap(high, whole("b", (1, 4, 4, 16), "temp"))


@pytest.mark.parametrize("first", [0, 48])
def test_writers_of_equal_bytes_stay_in_order(first: int) -> None:
    """A convolution overwrites part of what a requantisation wrote, or writes the channels behind it."""
    rng = np.random.default_rng(3)
    x, y = whole("x", (1, 56, 56, 64), "input"), whole("y", (1, 56, 56, 112), "output")
    rescale = Rescale("rescale", View(x.buffer, (1, 56, 56, 48)), View(y.buffer, (1, 56, 56, 48)), 0.5)
    conv = Conv("conv", x, View(y.buffer, x.shape, c=first), rng.integers(-9, 9, (64, 3, 3, 64)).astype(np.int16),
                np.zeros(64, np.int32), np.full(64, 0.01), Window((3, 3), pad=(1, 1, 1, 1)))  # fmt: skip
    assert order.must_keep_order(rescale, conv) is (first == 0)
    planner = Planner(Target(PRESETS["default"]))
    assert run_passes(PIPELINE, DeviceSegment("pair", (rescale, conv)), planner).overlapped == (0,) * (
        first > 0
    )


@pytest.mark.parametrize("sequential", [False, True])
def test_where_units_take_turns_nothing_runs_beside(sequential: bool) -> None:
    rng = np.random.default_rng(3)
    x = whole("x", (1, 56, 56, 64), "input")
    middle, y = whole("z", x.shape, "output"), whole("y", x.shape, "output")
    conv = Conv("conv", x, y, rng.integers(-9, 9, (64, 3, 3, 64)).astype(np.int16), np.zeros(64, np.int32),
                np.full(64, 0.01), Window((3, 3), pad=(1, 1, 1, 1)))  # fmt: skip
    segment = DeviceSegment("pair", (Rescale("rescale", x, middle, 0.5), conv))
    planner = Planner(Target(PRESETS["default"], sequential=sequential))
    assert run_passes(PIPELINE, segment, planner).overlapped == (() if sequential else (0,))
