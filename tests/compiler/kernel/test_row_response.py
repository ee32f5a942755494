"""Normalisation by neighbours: against float64, and compiled programs on the golden interpreter and the RTL."""

from __future__ import annotations

import numpy as np
import pytest
from support.golden_compare import compare, compare_on_rtl
from support.op_cases import draw, random_inputs, random_source, random_view, whole

from weft.compiler.backend import compile_segment
from weft.compiler.ir.graph import DeviceSegment
from weft.compiler.kernel.code import generate
from weft.compiler.kernel.rows import LARGEST_SUM, ONE_TABLE_RATIO, RowResponse, table_count
from weft.compiler.onnx.wide import upper_plane
from weft.compiler.operators.record import operator_of
from weft.hdl.isa.config import PRESETS

CONFIGS = {name: PRESETS[name].replace(kernel=64) for name in ("tiny", "small", "default")}


def random_op(rng: np.random.Generator, most: int) -> RowResponse:
    """Draw any gain; the largest results fill half of the bytes or saturate."""
    shape = draw(rng, 1, 2), draw(rng, 1, 4), draw(rng, 1, 20), draw(rng, 1, most)
    bias, ratio = (
        10.0 ** rng.uniform(-3, 3),
        rng.choice([0.0, ONE_TABLE_RATIO, ONE_TABLE_RATIO**2, 10.0 ** rng.uniform(-2, 2.4)]),
    )
    power = float(rng.choice([0, 0.25, 0.5, 0.75, 1]))
    fields = {"x_zero": draw(rng, -128, 127), "y_zero": draw(rng, -128, 127)}
    if rng.random() < 0.3:
        fields |= {"low": draw(rng, -128, 0), "high": draw(rng, 0, 127)}
    return RowResponse(
        "response", random_source(rng, "x", shape), upper_plane(whole("s", shape, "input")),
        random_view(rng, "y", shape, "output"), bias, float(ratio * bias / LARGEST_SUM), power,
        float(rng.uniform(0.3, 1.5) * bias**power * (1 + ratio * rng.random()) ** power), **fields,
    )  # fmt: skip


def random_sums(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Integers from 0 up of every magnitude, and the ends of tables."""
    sums = LARGEST_SUM * 10.0 ** -rng.uniform(0, 5, shape)
    ends = rng.choice([0, 1, 4079, 4080, 4095, 4096, LARGEST_SUM - 1, LARGEST_SUM], shape)
    return np.where(rng.random(shape) < 0.2, ends, np.rint(sums)).astype(np.int64)


def planes(sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    stored = sums - (1 << 15)
    return (stored >> 8).astype(np.int8), ((stored & 255) - 128).astype(np.int8)


def test_results_are_near_float64() -> None:
    wrong = total = 0
    for case in range(150):
        rng = np.random.default_rng(case)
        op = random_op(rng, 90)
        x = rng.integers(-128, 128, op.src.shape).astype(np.int8)
        sums = random_sums(rng, op.src.shape)
        actual = operator_of(op).evaluate(op, (x, *planes(sums)), 24).astype(int)
        exact = (x.astype(float) - op.x_zero) * op.scale * (op.bias + op.gain * sums) ** -op.power
        expected = np.clip(np.rint(exact) + op.y_zero, op.low, op.high)
        difference = np.abs(actual - expected)
        assert difference.max() <= 1, (case, op)
        wrong, total = wrong + int(difference.sum()), total + difference.size
    assert wrong < 0.03 * total


@pytest.mark.parametrize("ratio", [ONE_TABLE_RATIO, ONE_TABLE_RATIO**2])
@pytest.mark.parametrize("ends", [(0, 200), (4070, 4100), (LARGEST_SUM - 300, LARGEST_SUM)])
def test_ends_of_tables(ratio: float, ends: tuple[int, int]) -> None:
    """Results at table ends are hardly less exact: 0.2 % of 100 steps."""
    rng, shape = np.random.default_rng(4), (1, 1, 90, 90)
    sums = rng.integers(ends[0], ends[1] + 1, shape)
    gain = ratio / LARGEST_SUM
    op = RowResponse(
        "response", whole("x", shape, "input"), upper_plane(whole("s", shape, "input")), whole("y", shape, "output"),
        1.0, gain, 1.0, float(0.8 * (1 + gain * ends[0])),
    )  # fmt: skip
    x = rng.integers(-128, 128, shape).astype(np.int8)
    actual = operator_of(op).evaluate(op, (x, *planes(sums)), 24).astype(int)
    exact = x.astype(float) * op.scale / (1 + gain * sums)
    assert np.abs(actual - exact).max() < 0.72
    assert (actual != np.rint(exact)).mean() < 0.08


@pytest.mark.parametrize("name", CONFIGS)
def test_golden(name: str) -> None:
    config, rng = CONFIGS[name], np.random.default_rng(8)
    for _ in range(10):
        op = random_op(rng, 90)
        segment = DeviceSegment("rows", (op,))
        compare(compile_segment(segment, config), segment, random_inputs(rng, op), config)


def test_on_rtl() -> None:
    config, rng = CONFIGS["tiny"], np.random.default_rng(9)
    for case in range(4):
        op = random_op(rng, 30)
        compare_on_rtl(DeviceSegment("rows", (op,)), random_inputs(rng, op), config, case)


@pytest.mark.parametrize("n", [2, 128])
@pytest.mark.parametrize("ratio", [ONE_TABLE_RATIO, 2 * ONE_TABLE_RATIO])
def test_kernels_fit_64_micro_operations(n: int, ratio: float) -> None:
    op = random_op(np.random.default_rng(3), 9).replace(
        bias=1.0, gain=ratio / LARGEST_SUM, low=-100, high=100
    )
    ops = generate(op.rows(), n)
    assert len(ops) <= 64
    assert sum(item.op.name == "TABLE" for item in ops) == 2 * table_count(ratio)
