"""Decoder kernels: the engine against evaluated expressions, and expressions against float64."""

from __future__ import annotations

import numpy as np
import pytest

from weft.compiler.kernel.evaluate import evaluate_targets
from weft.compiler.kernel.expressions import WORD, Rows, constant
from weft.extras.language.compiler import kernels
from weft.extras.language.tests.support.kernel_rows import run_kernel
from weft.hdl.isa.config import Config

_ROOM = {"kernel": 128, "lookup_tables": 4, "accumulator_depth": 512, "scratchpad_depth": 2048}
CONFIGS = [Config.load(name).replace(**_ROOM) for name in ("tiny", "small", "default")]
SIZES = [(1, 1), (1, 5), (3, 16), (8, 33), (9, 96), (17, 40)]
"""Numbers of rows and columns."""


def digits(values: np.ndarray) -> np.ndarray:
    """Split numbers into two digits: int8 (rows, columns, 2)."""
    low = ((values + 128) & 0xFF) - 128
    return np.stack([(values - low) >> 8, low], axis=-1).astype(np.int8)


def residual(values: np.ndarray, shift: np.ndarray | int = 0) -> list[np.ndarray]:
    """Split numbers into three digits, the lowest beside a shift: two tensors int8 (rows, columns, 2)."""
    low = ((values + 128) & 0xFF) - 128
    beside = np.broadcast_to(np.asarray(shift), values.shape)
    return [digits((values - low) >> 8), np.stack([low, beside], axis=-1).astype(np.int8)]


def residual_of(stored: dict[int, np.ndarray]) -> np.ndarray:
    return number(stored, 0) * 256 + stored[1]


def number(stored: dict[int, np.ndarray], target: int) -> np.ndarray:
    return stored[target].astype(int) * 256 + stored[target + 2]


def run(rows: Rows, tensors: list[np.ndarray], config: Config) -> dict[int, np.ndarray]:
    """Run a kernel on the engine and check its stores against the evaluated expressions."""
    result, meant = run_kernel(rows, tensors, config), evaluate_targets(rows, tensors)
    assert result.keys() == meant.keys()
    for target, values in meant.items():
        assert np.array_equal(result[target], values), target
    return result


def values_of(rng: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    """Return rows of very different magnitudes, one of zeros and one saturated."""
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
    actual = run(kernels.quantise(size[1]), [digits(x)], config)
    bits = kernels.MAX_ROW_BITS - actual[1].astype(int)
    assert np.array_equal(bits[:, 0], [int(row.max()).bit_length() for row in np.abs(x)])
    exact = np.rint(x * 2.0 ** (kernels.BYTE_BITS - bits))
    assert np.array_equal(actual[0], np.minimum(exact, 127))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: str(config.n))
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("epsilon", [0.0, 1e-6, 1e-2, 10.0])
@pytest.mark.parametrize("gains", [False, True])
def test_rows_are_normalised(config: Config, size: tuple[int, int], epsilon: float, gains: bool) -> None:
    rng = np.random.default_rng(size)
    x, unit = values_of(rng, *size) * 199, 2.0**-13
    weights = rng.integers(-32639, 32640, size[1])
    tensors = [*residual(x), digits(weights[None])] if gains else residual(x)
    actual = run(kernels.normalise(size[1], epsilon, unit, gains=gains), tensors, config)
    bits = kernels.MAX_ROW_BITS - actual[1].astype(int)
    normalised = actual[0] * 2.0 ** (bits - kernels.BYTE_BITS) * kernels.normal_unit(size[1])
    real = x * unit
    root = np.sqrt(np.mean(real**2, axis=1, keepdims=True) + epsilon)
    exact = real / np.where(root > 0, root, 1) * (weights / 2.0**kernels.GAIN_PLACES if gains else 1)
    step = 2.0 ** (bits - kernels.BYTE_BITS) * kernels.normal_unit(size[1])
    # Half a step, one where the largest element saturates, plus the error of 14-bit roots.
    assert (np.abs(normalised - exact) <= 1.01 * step + 2e-3 * np.abs(exact)).all()
    shown = np.abs(exact).max(axis=1) > 2 * kernels.normal_unit(size[1])
    assert (np.abs(actual[0]).max(axis=1)[shown] >= 63).all()


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: str(config.n))
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("gains", [False, True])
@pytest.mark.parametrize("far", [0, 300, -31000])
def test_rows_are_normalised_about_their_mean(
    config: Config, size: tuple[int, int], gains: bool, far: int
) -> None:
    """Centred rows, and rows whose mean exceeds their spread."""
    rng = np.random.default_rng(size)
    x = (np.clip(values_of(rng, *size), -32639 + abs(far), 32639 - abs(far)) + far) * 199
    unit, epsilon = 2.0**-13, 1e-5
    weights = rng.integers(-32639, 32640, size[1])
    tensors = [*residual(x), digits(weights[None])] if gains else residual(x)
    actual = run(kernels.normalise(size[1], epsilon, unit, gains=gains, centred=True), tensors, config)
    bits = kernels.MAX_ROW_BITS - actual[1].astype(int)
    step = 2.0 ** (bits - kernels.BYTE_BITS) * kernels.normal_unit(size[1])
    real = (x - x.mean(axis=1, keepdims=True)) * unit
    root = np.sqrt(np.mean(real**2, axis=1, keepdims=True) + epsilon)
    gain = weights / 2.0**kernels.GAIN_PLACES if gains else 1
    exact = real / root * gain
    # Error of the mean: a step, plus the relative error of its 17-bit factor.
    mean = (1 + 2.0**-17 * np.abs(x.mean(axis=1, keepdims=True))) * unit / root
    assert (
        np.abs(actual[0] * step - exact) <= 1.01 * step + 2e-3 * np.abs(exact) + mean * np.abs(gain)
    ).all()


@pytest.mark.parametrize("columns", [1, 16, 48, 1000])
def test_means_are_within_a_step(columns: int) -> None:
    """Plus a relative error of 2**-17 where the number of columns is no power of two."""
    rng = np.random.default_rng(columns)
    x = rng.integers(-(1 << 22), 1 << 22, (20, columns)) + rng.integers(-(1 << 22), 1 << 22, (20, 1))
    rows = Rows(columns, 2)
    kernels._put_residual(rows, kernels._mean_of_row(rows, 0, 1))
    actual, exact = residual_of(evaluate_targets(rows, residual(x))), x.mean(axis=1, keepdims=True)
    assert (np.abs(actual - exact) <= 1 + (columns in (48, 1000)) * 2.0**-17 * np.abs(exact)).all()


def rotate(x: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Rotate neighbours by the angle of the first of each pair."""
    even, odd = x[:, ::2], x[:, 1::2]
    turned = np.empty(x.shape)
    c, s = np.cos(angles[:, ::2]), np.sin(angles[:, ::2])
    turned[:, ::2], turned[:, 1::2] = even * c - odd * s, even * s + odd * c
    return turned


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: str(config.n))
@pytest.mark.parametrize("size", [(1, 2), (3, 16), (8, 34), (9, 64)])
def test_heads_with_biases_are_turned(config: Config, size: tuple[int, int]) -> None:
    rng = np.random.default_rng(size)
    x = rng.integers(-12000, 12001, size)
    angles = rng.uniform(-np.pi, np.pi, (size[0], size[1] // 2)).repeat(2, axis=1)
    cosine, sine = (np.rint((1 << kernels.ANGLE_PLACES) * f(angles)).astype(int) for f in (np.cos, np.sin))
    sine[:, ::2] *= -1
    actual = run(kernels.rotate_digits(size[1]), [digits(x), digits(cosine), digits(sine)], config)
    exact = np.clip(rotate(x, angles) / 2**kernels.BIAS_PLACES, -128, 127)
    assert (np.abs(actual[0] - exact) <= 0.53).all()


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
    row = rng.integers(kernels.MAX_ROW_BITS - 16, kernels.MAX_ROW_BITS + 1, (rows, 1))
    tensors = [sums[:, :, None], digits(cosine), digits(sine), row.astype(np.int8)]
    actual = run(kernels.rotate(columns, most, mantissa, shift), tensors, config)
    exact = rotate(sums, angles) * mantissa * 2.0 ** -(shift + row)
    assert (np.abs(actual[0] - np.clip(exact, -128, 127)) <= 0.51 + 1e-4 * np.abs(exact)).all()


def scaled_of(rng: np.random.Generator, columns: int, largest: float, bits: int = 16) -> kernels.Scaled:
    """Return scales whose largest maps the largest sum of a row with all bits to `largest` steps."""
    most = 127 * 127 * 200
    scales = rng.uniform(0.01, 1, columns)
    scales *= largest / (scales.max() * most) * 2.0 ** (kernels.BYTE_BITS - bits)
    return kernels.Scaled.of(scales, np.full(columns, most), bits)


def products(
    rng: np.random.Generator, size: tuple[int, int], scaled: kernels.Scaled
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return sums, the shifts of rows, and the exact sums in steps."""
    sums = rng.integers(-scaled.max_sum, scaled.max_sum + 1, size)
    row = rng.integers(kernels.MAX_ROW_BITS - 16, kernels.MAX_ROW_BITS + 1, (size[0], 1))
    steps = sums * scaled.factors * 2.0 ** (kernels.MAX_ROW_BITS - kernels.BYTE_BITS - row)
    return sums, row, steps


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: str(config.n))
@pytest.mark.parametrize("size", SIZES)
def test_sums_are_added_to_rows(config: Config, size: tuple[int, int]) -> None:
    rng = np.random.default_rng(size)
    scaled = scaled_of(rng, size[1], 20000)
    x, (sums, row, steps) = values_of(rng, *size) * 199, products(rng, size, scaled)
    tensors = [sums[:, :, None], digits(scaled.mantissas[None].astype(int)), *residual(x, row)]
    actual = run(kernels.add(size[1], scaled), tensors, config)
    assert np.array_equal(residual_of(actual), x + np.rint(steps))
    assert np.array_equal(actual[3], np.broadcast_to(row, size))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: str(config.n))
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("factor", [1.0, 0.37, 211.0])
def test_rows_begin(config: Config, size: tuple[int, int], factor: float) -> None:
    x = values_of(np.random.default_rng(size), *size)
    actual = run(kernels.begin(size[1], factor), [digits(x)], config)
    assert (np.abs(residual_of(actual) - x * factor) <= 0.51 + 1e-5 * np.abs(x * factor)).all()


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: str(config.n))
def test_shifts_are_stored_beside_rows(config: Config) -> None:
    row = np.arange(7)[:, None].astype(np.int8)
    actual = run(kernels.prepare(40), [row], config)
    assert np.array_equal(actual[0], np.broadcast_to(row, (7, 40)))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: str(config.n))
@pytest.mark.parametrize("size", SIZES)
def test_sums_become_bytes_and_digits(config: Config, size: tuple[int, int]) -> None:
    rng = np.random.default_rng(size)
    scaled = scaled_of(rng, size[1], 400)
    sums, row, steps = products(rng, size, scaled)
    tensors = [sums[:, :, None], digits(scaled.mantissas[None].astype(int)), row.astype(np.int8)]
    actual = run(kernels.requantise(size[1], scaled), tensors, config)
    assert np.array_equal(actual[0], np.clip(np.rint(steps), -128, 127))
    actual = run(kernels.widen(size[1], scaled), tensors, config)
    assert np.array_equal(number(actual, 0), np.rint(steps))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: str(config.n))
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("shift", [0, 3])
def test_biases_are_added_before_sums_are_rounded(config: Config, size: tuple[int, int], shift: int) -> None:
    rng = np.random.default_rng(size)
    scaled = scaled_of(rng, size[1], 9000)
    sums, row, steps = products(rng, size, scaled)
    biases = rng.integers(-900, 901, size[1])
    operands = [digits(scaled.mantissas[None].astype(int)), row.astype(np.int8), digits(biases[None])]
    actual = run(kernels.widen(size[1], scaled, shift), [sums[:, :, None], *operands], config)
    wide = np.rint(steps) + (biases << shift)
    assert np.array_equal(number(actual, 0), wide)
    actual = run(kernels.requantise(size[1], scaled, shift), [sums[:, :, None], *operands], config)
    assert np.array_equal(actual[0], np.clip(np.rint(wide / 2**kernels.BIAS_PLACES), -128, 127))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: str(config.n))
@pytest.mark.parametrize("size", SIZES)
def test_biases_of_three_digits_are_added_to_rows(config: Config, size: tuple[int, int]) -> None:
    rng = np.random.default_rng(size)
    x, biases = values_of(rng, *size) * 128, rng.integers(-(1 << 21), 1 << 21, (1, size[1]))
    upper, lowest = residual(biases)
    sums = run(kernels.offset(size[1]), [*(part[..., :count] for part, count in zip(residual(x), (2, 1), strict=True)),
                                          upper, lowest[..., :1]], config)  # fmt: skip
    assert np.array_equal(residual_of(sums), x + biases)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: str(config.n))
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("factors", [(1.0, 0.01), (211.0, 37.0)])
def test_rows_begin_with_positions(
    config: Config, size: tuple[int, int], factors: tuple[float, float]
) -> None:
    rng = np.random.default_rng(size)
    token, position = values_of(rng, *size), values_of(rng, *size)
    actual = run(kernels.begin(size[1], *factors), [digits(token), digits(position)], config)
    exact = token * factors[0] + position * factors[1]
    assert (np.abs(residual_of(actual) - exact) <= 1.01 + 1e-5 * np.abs(exact)).all()


def gelu_of(x: np.ndarray) -> np.ndarray:
    exact: np.ndarray = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    return exact


@pytest.mark.parametrize("config", CONFIGS[1:], ids=lambda config: str(config.n))
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("bias", [None, 0, 2])
def test_gelu(config: Config, size: tuple[int, int], bias: int | None) -> None:
    rng, places = np.random.default_rng(size), 3
    scaled = scaled_of(rng, size[1], 12 * 4096)
    sums, row, steps = products(rng, size, scaled)
    biases = rng.integers(-9000, 9001, size[1])
    tensors = [sums[:, :, None], digits(scaled.mantissas[None].astype(int)), row.astype(np.int8)]
    tensors += [] if bias is None else [digits(biases[None])]
    actual = run(kernels.gelu(size[1], scaled, places, bias), tensors, config)
    x = (steps + (0 if bias is None else biases << bias)) / 2**kernels.GATE_PLACES
    step = 2.0 ** (places - kernels.GATE_PLACES)
    exact = np.clip(gelu_of(x) / step, -32639, 32639)
    # The factor interpolates linearly between entries 1/16 apart, with 14 bits.
    error = np.abs(number(actual, 0) - exact) * step
    assert (error <= step + np.abs(x) * (2e-4 * (np.abs(x) < 5) + 2.0**-14) + 2e-4).all()


@pytest.mark.parametrize("config", CONFIGS[1:], ids=lambda config: str(config.n))
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("gate_places", [12, 9, 5])
def test_gates_of_two_digits_open(config: Config, size: tuple[int, int], gate_places: int) -> None:
    rng = np.random.default_rng(size)
    gate, up = values_of(rng, *size), values_of(rng, *size)
    actual = run(kernels.gated_digits(size[1], gate_places, 3), [digits(gate), digits(up)], config)
    x, y = gate / 2**gate_places, up / 4096
    exact = x / (1 + np.exp(-np.maximum(x, -80))) * y * 512
    # The sigmoid is linear between entries 1/16 apart, has 14 bits, and stays as it is from -8 on. Of what leaves two
    # digits only the upper one is saturated.
    beyond = np.abs(exact) > 32000
    error = np.abs(number(actual, 0) - np.clip(exact, -32639, 32639))
    assert (error <= 1 + 512 * np.abs(x * y) * 4e-4 * ~beyond + 0.1 * np.abs(y) + 640 * beyond).all()


@pytest.mark.parametrize("config", CONFIGS[1:], ids=lambda config: str(config.n))
@pytest.mark.parametrize("size", SIZES)
def test_gates_open(config: Config, size: tuple[int, int]) -> None:
    rng = np.random.default_rng(size)
    gate, up = (scaled_of(rng, size[1], 12 * 4096) for _ in range(2))
    (first, row, x), (second, _, _) = products(rng, size, gate), products(rng, size, up)
    y = second * up.factors * 2.0 ** (kernels.MAX_ROW_BITS - kernels.BYTE_BITS - row)
    tensors = [
        np.stack([first, second], axis=-1),
        digits(gate.mantissas[None].astype(int)),
        digits(up.mantissas[None].astype(int)),
        row.astype(np.int8),
    ]
    actual = run(kernels.gate_and_multiply(size[1], gate, up, 3), tensors, config)
    x, y = x / 4096, y / 4096
    exact = x / (1 + np.exp(-x)) * y * 512
    error = np.abs(number(actual, 0) - np.clip(exact, -32639, 32639))
    # The sigmoid interpolates linearly between entries 1/16 apart.
    assert (error <= 1 + 512 * np.abs(x * y) * 3e-4 + 0.1 * np.abs(y)).all()


def test_products_saturate() -> None:
    """Results beyond 32 bits saturate, in the engine and in evaluated expressions."""
    rows = Rows(5, 1)
    x = rows.accumulator(0, WORD - 1)
    rows.put(x.over(constant(0).power(1 << 16), 15, WORD - 1).shift_right(30), 0)
    sums = np.array([[0, 5, 1 << 20, -(1 << 15), -(1 << 28)]])
    actual = run(rows, [sums[:, :, None]], CONFIGS[0])
    assert actual[0].tolist() == [[0, 0, 1, -2, -2]]
