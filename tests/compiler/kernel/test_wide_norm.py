"""16-bit normalisations against float64, ranges of their kernels, and programs on golden and RTL."""

from __future__ import annotations

import numpy as np
import pytest
from support import wide_cases
from support.golden_compare import compare, compare_on_rtl
from support.op_cases import draw
from support.wide_cases import Rng, Shape

from weft.compiler.backend import compile_segment
from weft.compiler.errors import CompileError
from weft.compiler.kernel.code import generate
from weft.compiler.kernel.wide import WideLayerNorm

CONFIGS = {name: config.replace(kernel=128) for name, config in wide_cases.CONFIGS.items()}
STEPS = {False: 1, True: 8}
"""Allowed error of results of 8 and of 16 bits, in steps."""
EXTREMES = ("least", "most", "turns", "halves", "one", "one less", "two", "steps", "middle")


def random_norm(rng: Rng, channels: int, *, wide: bool | None = None) -> WideLayerNorm:
    """Draw rows with this number of channels, with or without the mean, and any epsilon."""
    shape = (draw(rng, 1, 2), draw(rng, 1, 3), draw(rng, 1, 12), channels)
    wide = bool(rng.integers(2)) if wide is None else wide
    scale = float(rng.uniform(5, 40)) * (256 * float(rng.uniform(0.3, 1)) if wide else 1)
    weight = rng.normal(1, 0.3, channels) * rng.choice([-1, 1, 1, 1, 0, 0.01], channels)
    return WideLayerNorm(
        "norm", wide_cases.source(rng, "x", shape, wide=True), wide_cases.target(rng, shape, wide=wide), weight,
        rng.normal(0, 1, channels) * float(rng.choice([0, 1, 3])), float(10 ** rng.uniform(-9, 12)), scale,
        wide_cases.zero(rng, wide=True), centre=bool(rng.integers(2)), wide=wide, **wide_cases.clamp(rng, wide=wide),
    )  # fmt: skip


def extreme(kind: str, channels: int) -> np.ndarray:
    low, high = wide_cases.LIMITS[True]
    one = np.arange(channels) == channels // 2
    return np.asarray({
        "least": np.full(channels, low), "most": np.full(channels, high), "turns": np.resize([low, high], channels),
        "halves": np.where(np.arange(channels) < channels // 2, low, high), "one": np.where(one, high, low),
        "one less": np.where(one, low, high), "two": np.where(one, 12, 11), "steps": np.resize([0, 0, 1], channels),
        "middle": np.full(channels, 1234),
    }[kind])  # fmt: skip


def rows_of(rng: Rng, shape: Shape) -> np.ndarray:
    """Draw rows of any spread about any mean, some with an outlier or at the ends."""
    std, mean = 10 ** rng.uniform(-1, 4.2, (*shape[:3], 1)), rng.uniform(-25000, 25000, (*shape[:3], 1))
    x = rng.normal(0, 1, shape) * std + mean
    outlier = rng.random(shape) < 0.3 / shape[3] * (shape[3] < 5000)
    x = np.where(outlier, x * rng.uniform(-3, 30, shape), x)
    x = np.asarray(np.clip(np.rint(x), *wide_cases.LIMITS[True]).astype(np.int64))
    for row in x.reshape(-1, shape[3]):
        if rng.random() < 0.2:
            row[:] = extreme(str(rng.choice(EXTREMES)), shape[3])
    return x


def exact(op: WideLayerNorm, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Results in float64, and their allowed error: larger beyond 15 bits, beside far larger elements, and for tiny
    variation."""
    distance = x - (x.mean(axis=-1, keepdims=True) if op.centre else op.x_zero)
    root = np.sqrt(np.square(distance).mean(axis=-1, keepdims=True) + op.epsilon)
    normal, unit = distance / root * op.weight * op.scale, np.abs(op.weight * op.scale) / root
    allowed = STEPS[op.wide] * np.maximum(1, np.abs(normal) / 20000)
    allowed = allowed + op.wide * unit * (
        2.0**-12 * op.centre + np.abs(distance).max(axis=-1, keepdims=True) / 2**16
    )
    return wide_cases.saturate(normal + op.bias * op.scale, op.y_zero, op.clamp, wide=op.wide), allowed


def split(x: np.ndarray) -> list[np.ndarray]:
    return np.split(wide_cases.planes(x), 2)


@pytest.mark.parametrize("wide", [False, True])
def test_results_are_near_float64(wide: bool) -> None:
    """Rows of one element to 20000."""
    wrong = total = 0
    for case in range(160):
        rng = np.random.default_rng(case)
        channels = int(rng.choice([1, 2, 3, 5, 17, 64, 100, 300, 768, 1000])) if case % 40 else 20000
        op = random_norm(rng, channels, wide=wide)
        x = rows_of(rng, op.src.shape)
        expected, allowed = exact(op, x)
        difference = np.abs(wide_cases.run(op, split(x), wide=wide) - expected)
        assert (difference <= allowed).all(), (case, channels, op.centre, op.epsilon, difference.max())
        wrong, total = wrong + int((difference > STEPS[wide] / 4).sum()), total + difference.size
    assert wrong < 0.05 * total


@pytest.mark.parametrize("channels", [1, 2, 3, 64, 1000, 20000])
def test_ranges(channels: int) -> None:
    """Every expression stays in its range, for rows at the ends and of any spread."""
    for case in range(24):
        rng = np.random.default_rng([case, channels])
        op = random_norm(rng, channels)
        op = op.replace(epsilon=float(rng.choice([0, 1e-12, 1.0, 1e4, 1e9, 1e12])))
        rows = np.stack(
            [extreme(kind, channels) for kind in EXTREMES] + list(rows_of(rng, (1, 1, 6, channels))[0, 0])
        )
        tensors = [plane.astype(np.int8) for plane in np.split(wide_cases.planes(rows), 2)]
        wide_cases.check_ranges(op.rows(), [*tensors, *(vector[None] for vector in op.vectors)])


@pytest.mark.parametrize("kind", ["least", "most", "middle"])
@pytest.mark.parametrize("wide", [False, True])
def test_rows_of_one_value_are_their_bias(kind: str, wide: bool) -> None:
    for channels in (1, 3, 64, 777):
        op = random_norm(np.random.default_rng(channels), channels, wide=wide).replace(
            centre=True, epsilon=1e-9
        )
        x = np.broadcast_to(extreme(kind, channels), op.src.shape)
        bias = wide_cases.saturate(op.bias * op.scale, op.y_zero, op.clamp, wide=wide)
        assert np.abs(wide_cases.run(op, split(x), wide=wide) - bias).max() <= STEPS[wide]


@pytest.mark.parametrize("name", CONFIGS)
def test_golden(name: str) -> None:
    config, rng = CONFIGS[name], np.random.default_rng(len(name))
    for channels in (1, 7, 20, 3 * config.n):
        segment = wide_cases.segment(random_norm(rng, channels))
        compare(compile_segment(segment, config), segment, wide_cases.buffers(rng, segment.ops[0]), config)


def test_on_rtl() -> None:
    """Kernels fit the engine of other tests."""
    rng, config = np.random.default_rng(2), wide_cases.CONFIGS["tiny"]
    for case, channels in enumerate((7, 16)):
        ops = (random_norm(rng, channels, wide=bool(case)) for _ in range(100))
        op = next(op for op in ops if len(generate(op.rows(), config.n)) <= config.kernel)
        compare_on_rtl(wide_cases.segment(op), wide_cases.buffers(rng, op), config, case)


@pytest.mark.parametrize("name", CONFIGS)
def test_kernels_fit_the_largest_that_is_asked_for(name: str) -> None:
    """The limit is 128 micro-operations."""
    for channels in (1, 5, 768, 8000):
        for case in range(4):
            op = random_norm(np.random.default_rng(case), channels).replace(clamp=(-100, 100))
            assert len(generate(op.rows(), CONFIGS[name].n)) <= 128


def test_rows_larger_than_the_scratchpad_are_refused() -> None:
    op = random_norm(np.random.default_rng(0), 1000)
    with pytest.raises(CompileError, match=r"^norm: not even one output of this widelayernorm fits on chip"):
        compile_segment(wide_cases.segment(op), CONFIGS["no room"])


@pytest.mark.long
@pytest.mark.parametrize("name", CONFIGS)
def test_many(name: str) -> None:
    config, rng = CONFIGS[name], np.random.default_rng([5, len(name)])
    for _ in range(30):
        segment = wide_cases.segment(random_norm(rng, draw(rng, 1, 8 * config.n)))
        compare(compile_segment(segment, config), segment, wide_cases.buffers(rng, segment.ops[0]), config)


@pytest.mark.long
@pytest.mark.parametrize("name", ["tiny", "small"])
def test_many_on_rtl(name: str) -> None:
    rng = np.random.default_rng(3)
    for case in range(10):
        segment = wide_cases.segment(random_norm(rng, draw(rng, 1, 40)))
        compare_on_rtl(segment, wide_cases.buffers(rng, segment.ops[0]), CONFIGS[name], case)
