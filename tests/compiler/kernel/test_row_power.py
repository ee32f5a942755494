"""Powers of two tensors: against float64, and compiled programs on the golden interpreter and the RTL."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support.golden_compare import compare, compare_on_rtl
from support.op_cases import draw, random_inputs, random_source, random_view

from weft.boards.registry import BOARDS
from weft.compiler.backend import compile_segment
from weft.compiler.ir.graph import DeviceSegment
from weft.compiler.kernel.code import generate
from weft.compiler.kernel.rows import LARGEST_LOGARITHM, POWER_TABLES, RowPower
from weft.compiler.operators.record import operator_of
from weft.hdl.isa.config import PRESETS

TINY = PRESETS["tiny"].replace(kernel=64, lookup_tables=POWER_TABLES)
CONFIGS = {
    "tiny": TINY,
    "small": PRESETS["small"].replace(kernel=64),
    "default": PRESETS["default"],
    "tang-primer-20k": BOARDS["tang-primer-20k"].config.replace(lookup_tables=POWER_TABLES),
}


def random_op(rng: np.random.Generator, most: int) -> RowPower:
    """Draw bases and exponents of every scale, up to the largest logarithm; results fill the bytes or saturate."""
    shape = draw(rng, 1, 2), draw(rng, 1, 4), draw(rng, 1, 12), draw(rng, 1, most)
    other = tuple(1 if rng.random() < 0.2 else size for size in shape)
    a_step = float(10.0 ** rng.uniform(-4, 2))
    b_zero = draw(rng, -128, 127)
    largest = max(abs(math.log(a_step)), abs(math.log(255 * a_step)))
    steps = max(128 + b_zero, 127 - b_zero)
    b_step = LARGEST_LOGARITHM / largest / steps * float(10.0 ** -rng.uniform(0, 2))
    typical = (np.array([1, 20, 255]) * a_step) ** float(rng.uniform(-128 - b_zero, 127 - b_zero) * b_step)
    fields = {"y_zero": draw(rng, -128, 127)}
    if rng.random() < 0.3:
        fields |= {"low": draw(rng, -128, 0), "high": draw(rng, 0, 127)}
    return RowPower(
        "power", random_source(rng, "x", shape), random_source(rng, "e", other), random_view(rng, "y", shape, "output"),
        a_step, b_step, b_zero, swapped=bool(rng.integers(2)), scale=float(100 / rng.choice(typical)), **fields,
    )  # fmt: skip


def exact(op: RowPower, first: np.ndarray, second: np.ndarray) -> np.ndarray:
    base, exponent = (second, first) if op.swapped else (first, second)
    a, b = (base.astype(np.float64) + 128) * op.a_step, (exponent.astype(np.float64) - op.b_zero) * op.b_step
    with np.errstate(all="ignore"):
        actual = np.rint(np.power(a, b) * op.scale) + op.y_zero
    return np.clip(actual, op.low, op.high)


def test_results_are_near_float64() -> None:
    wrong = total = 0
    for case in range(300):
        rng = np.random.default_rng(case)
        op = random_op(rng, 300 if case % 10 == 0 else 40)
        inputs = [rng.integers(-128, 128, view.shape).astype(np.int8) for view in op.sources]
        for tensor in inputs:
            tensor[rng.random(tensor.shape) < 0.1] = rng.choice([-128, -127, 127, op.b_zero])
        actual = operator_of(op).evaluate(op, tuple(inputs), 24).astype(int)
        difference = np.abs(actual - exact(op, *inputs))
        assert difference.max() <= 1, (case, op)
        wrong, total = wrong + int(difference.sum()), total + difference.size
    assert wrong < 0.02 * total


@pytest.mark.parametrize("scale", [1e-30, 1e-6, 1.0, 1e6, 1e30])
@pytest.mark.parametrize("b_step", [1e-6, 0.04, 30.0])
def test_base_zero(scale: float, b_step: float) -> None:
    """0, 1 or infinity at any scale; and 1 to any power is 1."""
    rng = np.random.default_rng(1)
    op = random_op(rng, 8).replace(
        a_step=1.0, b_step=b_step, b_zero=0, swapped=False, scale=scale, y_zero=-3, low=-128, high=127
    )
    e = np.array([-128, -1, 0, 1, 127], np.int8).reshape(1, 1, 1, 5)
    views = [
        source.__class__(source.buffer.__class__(name, e.shape, "input"), e.shape)
        for name, source in zip("xe", op.sources, strict=True)
    ]
    op = op.replace(first=views[0], second=views[1], dst=views[0])
    one = min(round(scale) - 3, 127) if scale >= 1 else -3
    for level, expected in ((-128, [127, 127, one, -3, -3]), (-127, [one] * 5)):
        x = np.full_like(e, level)
        assert operator_of(op).evaluate(op, (x, e), 24).reshape(-1).tolist() == expected


@pytest.mark.parametrize("name", CONFIGS)
def test_golden(name: str) -> None:
    config, rng = CONFIGS[name], np.random.default_rng(8)
    for _ in range(12):
        op = random_op(rng, 90)
        segment = DeviceSegment("rows", (op,))
        compare(compile_segment(segment, config), segment, random_inputs(rng, op), config)


def test_on_rtl() -> None:
    rng = np.random.default_rng(9)
    for case in range(4):
        op = random_op(rng, 30)
        compare_on_rtl(DeviceSegment("rows", (op,)), random_inputs(rng, op), TINY, case)


@pytest.mark.parametrize("n", [2, 128])
def test_micro_operations(n: int) -> None:
    """At most 64 micro-operations and four tables."""
    op = random_op(np.random.default_rng(3), 9).replace(low=-100, high=100)
    ops = generate(op.rows(), n)
    assert len(ops) <= 64
    assert len({item.immediate for item in ops if item.op.name == "TABLE"}) == POWER_TABLES
