"""The kernels of a decoder: the engine against what their expressions mean, and that against float64."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.kernel_rows import run_kernel
from weft.compiler.kernel.evaluate import evaluate_targets
from weft.compiler.kernel.expressions import WORD, Rows, constant
from weft.compiler.language import kernels
from weft.hdl.isa.config import Config

_ROOM = {"kernel": 128, "lookup_tables": 4, "accumulator_depth": 512, "scratchpad_depth": 2048}
CONFIGS = [Config.load(name).replace(**_ROOM) for name in ("tiny", "small", "default")]
SIZES = [(1, 1), (1, 5), (3, 16), (8, 33), (9, 96), (17, 40)]
"""Rows and columns."""


def digits(values: np.ndarray) -> np.ndarray:
    """Two digits of numbers: int8 (rows, columns, 2)."""
    low = ((values + 128) & 0xFF) - 128
    return np.stack([(values - low) >> 8, low], axis=-1).astype(np.int8)


def residual(values: np.ndarray, shift: np.ndarray | int = 0) -> list[np.ndarray]:
    """Three digits of numbers, the lowest one beside a shift: two tensors int8 (rows, columns, 2)."""
    low = ((values + 128) & 0xFF) - 128
    beside = np.broadcast_to(np.asarray(shift), values.shape)
    return [digits((values - low) >> 8), np.stack([low, beside], axis=-1).astype(np.int8)]


def residual_of(found: dict[int, np.ndarray]) -> np.ndarray:
    return number(found, 0) * 256 + found[1]


def number(found: dict[int, np.ndarray], target: int) -> np.ndarray:
    return found[target].astype(int) * 256 + found[target + 2]


def run(rows: Rows, tensors: list[np.ndarray], config: Config) -> dict[int, np.ndarray]:
    """What the engine stores, which is what the expressions mean."""
    found, meant = run_kernel(rows, tensors, config), evaluate_targets(rows, tensors)
    assert found.keys() == meant.keys()
    for target, values in meant.items():
        assert np.array_equal(found[target], values), target
    return found


def values_of(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Rows of very different sizes, among them one of zeros and one that is full."""
    sizes = 2.0 ** rng.uniform(0, 15, (rows, 1))
    values = np.clip(np.rint(rng.standard_normal((rows, columns)) * sizes), -32639, 32639).astype(int)
    values[rng.integers(rows)] = 0
    values[rng.integers(rows)] = 32639
    return values


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: str(config.n))
@pytest.mark.parametrize("size", SIZES)
def test_rows_become_bytes_by_a_power_of_two(config: Config, size: tuple[int, int]) -> None:
    rng = np.random.default_rng(size)
    x = values_of(rng, *size)
    found = run(kernels.quantise(size[1]), [digits(x)], config)
    bits = kernels.MOST_BITS - found[1].astype(int)
    assert np.array_equal(bits[:, 0], [int(row.max()).bit_length() for row in np.abs(x)])
    exact = np.rint(x * 2.0 ** (kernels.BYTE_BITS - bits))
    assert np.array_equal(found[0], np.minimum(exact, 127))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: str(config.n))
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("epsilon", [0.0, 1e-6, 1e-2, 10.0])
@pytest.mark.parametrize("gains", [False, True])
def test_rows_are_normalised(config: Config, size: tuple[int, int], epsilon: float, gains: bool) -> None:
    rng = np.random.default_rng(size)
    x, unit = values_of(rng, *size) * 199, 2.0**-13
    whole = rng.integers(-32639, 32640, size[1])
    tensors = [*residual(x), digits(whole[None])] if gains else residual(x)
    found = run(kernels.normalise(size[1], epsilon, unit, gains=gains), tensors, config)
    bits = kernels.MOST_BITS - found[1].astype(int)
    made = found[0] * 2.0 ** (bits - kernels.BYTE_BITS) * kernels.normal_unit(size[1])
    real = x * unit
    root = np.sqrt(np.mean(real**2, axis=1, keepdims=True) + epsilon)
    exact = real / np.where(root > 0, root, 1) * (whole / 2.0**kernels.GAIN_PLACES if gains else 1)
    step = 2.0 ** (bits - kernels.BYTE_BITS) * kernels.normal_unit(size[1])
    # Half a step, a whole one where the largest element is saturated, and what roots of 14 bits are off.
    assert (np.abs(made - exact) <= 1.01 * step + 2e-3 * np.abs(exact)).all()
    shown = np.abs(exact).max(axis=1) > 2 * kernels.normal_unit(size[1])
    assert (np.abs(found[0]).max(axis=1)[shown] >= 63).all()


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: str(config.n))
@pytest.mark.parametrize("size", [(1, 2), (3, 16), (8, 34), (9, 64)])
def test_heads_are_turned(config: Config, size: tuple[int, int]) -> None:
    rng = np.random.default_rng(size)
    rows, columns = size
    most, mantissa, shift = 127 * 127 * 64, 21000, 17
    sums = rng.integers(-most, most + 1, (rows, columns))
    angles = rng.uniform(-np.pi, np.pi, (rows, columns // 2)).repeat(2, axis=1)
    scale = 1 << kernels.ANGLE_PLACES
    cosine, sine = (np.rint(scale * f(angles)).astype(int) for f in (np.cos, np.sin))
    sine[:, ::2] *= -1
    row = rng.integers(kernels.MOST_BITS - 16, kernels.MOST_BITS + 1, (rows, 1))
    tensors = [sums[:, :, None], digits(cosine), digits(sine), row.astype(np.int8)]
    found = run(kernels.rotate(columns, most, mantissa, shift), tensors, config)
    even, odd = sums[:, ::2], sums[:, 1::2]
    turned = np.empty(size)
    c, s = np.cos(angles[:, ::2]), np.sin(angles[:, ::2])
    turned[:, ::2], turned[:, 1::2] = even * c - odd * s, even * s + odd * c
    exact = turned * mantissa * 2.0 ** -(shift + row)
    assert (np.abs(found[0] - np.clip(exact, -128, 127)) <= 0.51 + 1e-4 * np.abs(exact)).all()


def scaled_of(rng: np.random.Generator, columns: int, largest: float, bits: int = 16) -> kernels.Scaled:
    """Scales of which the largest one makes `largest` steps of the largest sum of a row with all bits."""
    most = 127 * 127 * 200
    scales = rng.uniform(0.01, 1, columns)
    scales *= largest / (scales.max() * most) * 2.0 ** (kernels.BYTE_BITS - bits)
    return kernels.Scaled.of(scales, np.full(columns, most), bits)


def products(
    rng: np.random.Generator, size: tuple[int, int], scaled: kernels.Scaled
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sums, the shifts of rows, and what the sums are in steps."""
    sums = rng.integers(-scaled.most, scaled.most + 1, size)
    row = rng.integers(kernels.MOST_BITS - 16, kernels.MOST_BITS + 1, (size[0], 1))
    steps = sums * scaled.factors * 2.0 ** (kernels.MOST_BITS - kernels.BYTE_BITS - row)
    return sums, row, steps


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: str(config.n))
@pytest.mark.parametrize("size", SIZES)
def test_sums_are_added_to_rows(config: Config, size: tuple[int, int]) -> None:
    rng = np.random.default_rng(size)
    scaled = scaled_of(rng, size[1], 20000)
    x, (sums, row, steps) = values_of(rng, *size) * 199, products(rng, size, scaled)
    tensors = [sums[:, :, None], digits(scaled.mantissas[None].astype(int)), *residual(x, row)]
    found = run(kernels.add(size[1], scaled), tensors, config)
    assert np.array_equal(residual_of(found), x + np.rint(steps))
    assert np.array_equal(found[3], np.broadcast_to(row, size))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: str(config.n))
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("factor", [1.0, 0.37, 211.0])
def test_rows_begin(config: Config, size: tuple[int, int], factor: float) -> None:
    x = values_of(np.random.default_rng(size), *size)
    found = run(kernels.begin(size[1], factor), [digits(x)], config)
    assert (np.abs(residual_of(found) - x * factor) <= 0.51 + 1e-5 * np.abs(x * factor)).all()


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: str(config.n))
def test_shifts_are_laid_beside_rows(config: Config) -> None:
    row = np.arange(7)[:, None].astype(np.int8)
    found = run(kernels.prepare(40), [row], config)
    assert np.array_equal(found[0], np.broadcast_to(row, (7, 40)))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: str(config.n))
@pytest.mark.parametrize("size", SIZES)
def test_sums_become_bytes_and_digits(config: Config, size: tuple[int, int]) -> None:
    rng = np.random.default_rng(size)
    scaled = scaled_of(rng, size[1], 400)
    sums, row, steps = products(rng, size, scaled)
    tensors = [sums[:, :, None], digits(scaled.mantissas[None].astype(int)), row.astype(np.int8)]
    found = run(kernels.requantise(size[1], scaled), tensors, config)
    assert np.array_equal(found[0], np.clip(np.rint(steps), -128, 127))
    found = run(kernels.logits(size[1], scaled), tensors, config)
    assert np.array_equal(number(found, 0), np.rint(steps))


@pytest.mark.parametrize("config", CONFIGS[1:], ids=lambda config: str(config.n))
@pytest.mark.parametrize("size", SIZES)
def test_gates_open(config: Config, size: tuple[int, int]) -> None:
    rng = np.random.default_rng(size)
    gate, up = (scaled_of(rng, size[1], 12 * 4096) for _ in range(2))
    (first, row, x), (second, _, _) = products(rng, size, gate), products(rng, size, up)
    y = second * up.factors * 2.0 ** (kernels.MOST_BITS - kernels.BYTE_BITS - row)
    tensors = [
        np.stack([first, second], axis=-1),
        digits(gate.mantissas[None].astype(int)),
        digits(up.mantissas[None].astype(int)),
        row.astype(np.int8),
    ]
    found = run(kernels.gated(size[1], gate, up, 3), tensors, config)
    x, y = x / 4096, y / 4096
    exact = x / (1 + np.exp(-x)) * y * 512
    error = np.abs(number(found, 0) - np.clip(exact, -32639, 32639))
    # The sigmoid is linear between entries 1/16 apart.
    assert (error <= 1 + 512 * np.abs(x * y) * 3e-4 + 0.1 * np.abs(y)).all()


def test_products_saturate() -> None:
    """What leaves 32 bits is the number at that end, in the engine and in what expressions mean."""
    rows = Rows(5, 1)
    x = rows.accumulated(0, WORD - 1)
    rows.put(x.over(constant(0).power(1 << 16), 15, WORD - 1).floored(30), 0)
    sums = np.array([[0, 5, 1 << 20, -(1 << 15), -(1 << 28)]])
    found = run(rows, [sums[:, :, None]], CONFIGS[0])
    assert found[0].tolist() == [[0, 0, 1, -2, -2]]
