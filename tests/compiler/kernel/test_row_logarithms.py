"""Logarithms in kernels: against float64, and compiled programs on the golden interpreter and the RTL."""

from __future__ import annotations

import numpy as np
import pytest
from support.golden_compare import compare, compare_on_rtl
from support.op_cases import draw, random_source, random_view, whole

from weft.compiler.backend import compile_segment
from weft.compiler.errors import CompileError
from weft.compiler.ir.graph import DeviceSegment
from weft.compiler.kernel.code import generate
from weft.compiler.kernel.evaluate import evaluate
from weft.compiler.kernel.expressions import Rows
from weft.compiler.kernel.products import LOG_PLACES, logarithm
from weft.compiler.kernel.rows import WHOLE_LOGARITHMS, RowLogSoftmax
from weft.compiler.operators.record import operator_of
from weft.hdl.isa.config import PRESETS

CONFIGS = {name: PRESETS[name].replace(kernel=64) for name in ("tiny", "small", "default")}


def random_op(rng: np.random.Generator, most: int, channels: int = 0) -> RowLogSoftmax:
    """Draw any scales: results end at 0, or part of them saturates."""
    shape = draw(rng, 1, 2), draw(rng, 1, 5), draw(rng, 1, 30), channels or draw(rng, 1, most)
    x_scale = float(10.0 ** rng.uniform(-3, 0.5))
    span = 255 * x_scale + np.log(shape[3])
    fields = {"y_zero": 127 if rng.random() < 0.5 else draw(rng, -128, 127)}
    if rng.random() < 0.3:
        fields |= {"low": draw(rng, -128, 0), "high": draw(rng, 0, 127)}
    return RowLogSoftmax(
        "logs", random_source(rng, "x", shape), random_view(rng, "y", shape, "output"), x_scale,
        float(255 / span * 10.0 ** rng.uniform(-0.5, 1)), **fields,
    )  # fmt: skip


def spread(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Draw rows of any spread; some constant, some constant but for one element."""
    size = rng.choice([0, 0, 0.6, 4, 30, 150], (*shape[:3], 1))
    values = rng.normal(0, 1, shape) * size + rng.uniform(-128, 60, (*shape[:3], 1))
    values[..., -1] += rng.choice([0, 60, 200], shape[:3])
    return np.clip(np.rint(values), -128, 127).astype(np.int8)


def exact(op: RowLogSoftmax, x: np.ndarray) -> np.ndarray:
    values = x.astype(np.float64) * op.x_scale
    values -= values.max(-1, keepdims=True)
    values -= np.log(np.exp(values).sum(-1, keepdims=True))
    return np.clip(np.rint(values * op.scale) + op.y_zero, op.low, op.high)


def test_results_are_near_float64() -> None:
    """At most one step from the exact result, and rarely, for rows of every length."""
    wrong = total = 0
    for case in range(150):
        rng = np.random.default_rng(case)
        long = {0: 65535, 1: WHOLE_LOGARITHMS, 2: WHOLE_LOGARITHMS + 1, 3: 30000}.get(case, 0)
        op = random_op(rng, 2500 if case % 10 == 0 else 90, long)
        x = spread(rng, op.src.shape)[:1, :1]
        op = op.replace(src=whole("x", x.shape, "input"), dst=whole("y", x.shape, "output"))
        actual = operator_of(op).evaluate(op, (x,), 24).astype(int)
        difference = np.abs(actual - exact(op, x))
        assert difference.max() <= 1, (case, op)
        wrong, total = wrong + int(difference.sum()), total + difference.size
    assert wrong < 0.01 * total


@pytest.mark.parametrize("columns", [WHOLE_LOGARITHMS, WHOLE_LOGARITHMS + 1])
def test_many_small_terms(columns: int) -> None:
    """The sum of many small terms counts, in steps of 1/500."""
    views = (
        whole(*item) for item in (("x", (1, 1, 1, columns), "input"), ("y", (1, 1, 1, columns), "output"))
    )
    op = RowLogSoftmax("logs", *views, 0.04, 500.0, y_zero=100)
    x = np.full((1, 1, 1, columns), -110, np.int8)
    x[..., 7] = 120
    expected = exact(op, x)
    assert expected[..., 7] < 10
    assert np.abs(operator_of(op).evaluate(op, (x,), 24) - expected).max() <= 1


def test_logarithm() -> None:
    """At most 1.6e-4 off for any number, seen byte by byte through stored results."""
    rng = np.random.default_rng(2)
    numbers = np.unique(np.concatenate([np.arange(1, 300), (2.0 ** rng.uniform(0, 31, 3000)).astype(np.int64),
                                        *([(1 << k) - 1, 1 << k] for k in range(1, 31)), [(1 << 31) - 1]]))  # fmt: skip
    parts = [(numbers >> shift).astype(np.int64) & 0x7F for shift in (24, 17, 10, 3)]
    actual = np.zeros(len(numbers), np.int64)
    exact_of = np.zeros(len(numbers), np.int64)
    for byte in range(3):
        rows = Rows(1, 4)
        x = rows.read(0).maximum(0)
        for tensor in range(1, 4):
            x = (x << 7) + rows.read(tensor).maximum(0)
        x = ((x << 3) + 5).assume(1, (1 << 31) - 1)
        log = logarithm(x)
        assert (log.low, log.high) > (-(1 << 22), 0)
        rows.store((log.shift_right(8 * byte) - (log.shift_right(8 * byte + 8) << 8)) - 128)
        bytes_ = evaluate(rows, [part.astype(np.int8).reshape(-1, 1) for part in parts]).reshape(-1)
        actual += (bytes_.astype(np.int64) + 128) << (8 * byte)
        exact_of = (numbers >> 3 << 3) + 5
    difference = actual / 2**LOG_PLACES - np.log(exact_of)
    assert np.abs(difference).max() < 1.6e-4


@pytest.mark.parametrize("name", CONFIGS)
def test_golden(name: str) -> None:
    config, rng = CONFIGS[name], np.random.default_rng(8)
    for case in range(12):
        op = random_op(rng, 90, WHOLE_LOGARITHMS + 5 if case == 0 and name != "tiny" else 0)
        segment = DeviceSegment("rows", (op,))
        inputs = {op.src.buffer.name: spread(rng, op.src.buffer.shape)}
        compare(compile_segment(segment, config), segment, inputs, config)


def test_on_rtl() -> None:
    config, rng = CONFIGS["tiny"], np.random.default_rng(9)
    for case in range(4):
        op = random_op(rng, 30)
        inputs = {op.src.buffer.name: spread(rng, op.src.buffer.shape)}
        compare_on_rtl(DeviceSegment("rows", (op,)), inputs, config, case)


@pytest.mark.parametrize("n", [2, 4, 16, 32, 64, 128])
@pytest.mark.parametrize("columns", [1, 100, 101, WHOLE_LOGARITHMS, WHOLE_LOGARITHMS + 1])
def test_kernels_fit_64_micro_operations(n: int, columns: int) -> None:
    op = RowLogSoftmax(
        "logs", whole("x", (1, 1, 1, columns), "input"), whole("y", (1, 1, 1, columns), "output"), 1e-3, 9.0,
        low=-100, high=100,
    )  # fmt: skip
    assert len(generate(op.rows(), n)) <= (64 if columns <= WHOLE_LOGARITHMS or n <= 32 else 128)


def test_too_few_tables_are_refused() -> None:
    op, config = random_op(np.random.default_rng(1), 20), CONFIGS["tiny"].replace(lookup_tables=2)
    with pytest.raises(CompileError, match="reads 3 look-up tables, but the configuration has 2"):
        compile_segment(DeviceSegment("rows", (op,)), config)
