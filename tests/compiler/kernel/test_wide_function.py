"""16-bit functions: accuracy of linear interpolation, ranges of kernels, and programs on golden and RTL."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from support import wide_cases
from support.golden_compare import compare, compare_on_rtl
from support.op_cases import draw
from support.wide_cases import CONFIGS, Rng

from weft.compiler.backend import compile_segment
from weft.compiler.ir.graph import DeviceSegment
from weft.compiler.kernel.code import generate
from weft.compiler.kernel.expressions import DIGITS
from weft.compiler.kernel.wide import WIDE_FUNCTION_TABLES, WideFunction, fit_lines
from weft.compiler.operators.record import operator_of

X = np.arange(-32768, 32768)
NEAR = {False: 1, True: 8}
"""Error that `lines_near` accepts, in steps of 8 and of 16 bits."""


def sigmoid(x: np.ndarray) -> np.ndarray:
    return np.asarray(1 / (1 + np.exp(-x)))


SMOOTH: dict[str, tuple[Callable[[np.ndarray], np.ndarray], float, float, int]] = {
    "sigmoid": (sigmoid, 8, 1, 0),
    "sigmoid of a wide range": (sigmoid, 40, 1, 0),
    "unsigned sigmoid": (sigmoid, 8, 0.5, -32768),
    "tanh": (np.tanh, 4, 1, 0),
    "gelu": (lambda x: x * sigmoid(1.702 * x), 8, 8, 0),
    "silu": (lambda x: x * sigmoid(x), 12, 6.2, -31000),
    "exp": (np.exp, 6, 400, -3),
    "log": (lambda x: np.log(x + 9), 8, 3, 5),
    "negative": (lambda x: -x, 1, 1, 17),
    "as it is": (lambda x: x, 1, 1, 0),
    "a constant": (lambda x: 0 * x + 0.3, 1, 1, 0),
    "beyond": (lambda x: 0 * x + 7, 1, 1, 0),
    "saturated": (lambda x: 40 * x, 1, 1, -32768),
    "sign": (np.sign, 1, 3, 0),
    "least at one": (lambda x: np.where(x < 0.99999, x, -1), 1, 100, 4),
}
"""Functions with ranges of values and results, and zero points, in steps of 16 bits."""
SHARP: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "stairs": lambda x: np.floor(7 * x) / 7, "root": lambda x: np.sqrt(np.abs(x)), "waves": lambda x: np.sin(100 * x),
    "inverse": lambda x: 0.01 / x,
}  # fmt: skip
"""Functions that lines between 256 points do not approximate."""


def values_of(name: str, wide: bool) -> np.ndarray:
    function, most, largest, zero = SMOOTH[name]
    unit = 1 if wide else 256
    with np.errstate(over="ignore"):
        return np.asarray(function(X / 32768 * most) / (largest / 32768 * unit) + round(zero / unit))


def operator(name: str, wide: bool) -> WideFunction:
    return compile_function(values_of(name, wide), wide)


def compile_function(values: np.ndarray, wide: bool) -> WideFunction:
    shape = (1, 1, 2, 3)
    src = wide_cases.plain("x", shape, "input", wide=True)
    dst = wide_cases.plain("y", shape, "output", wide=wide)
    actual = fit_lines(values, wide_cases.LIMITS[wide])
    return WideFunction(name="function", src=src, dst=dst, wide=wide, **actual._asdict())


def expected_of(values: np.ndarray, wide: bool) -> np.ndarray:
    return np.clip(np.rint(values), *wide_cases.LIMITS[wide])


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("name", SMOOTH)
def test_lines_are_near(name: str, wide: bool) -> None:
    apart = np.abs(operator(name, wide).results - expected_of(values_of(name, wide), wide))
    if name != "least at one":
        assert apart.max() <= NEAR[wide]
    else:
        assert np.flatnonzero(apart > NEAR[wide]).size <= 1


@pytest.mark.parametrize("name", SHARP)
def test_lines_are_not_near(name: str) -> None:
    with np.errstate(divide="ignore"):
        values = np.nan_to_num(SHARP[name](X / 32768) * 32767)
    assert np.abs(compile_function(values, True).results - expected_of(values, True)).max() > NEAR[True]


def test_lines_with_ends() -> None:
    """Entries lie where the function changes; constant parts use none."""
    narrow = np.tanh(300 * X / 32768) * 32767
    actual = fit_lines(narrow, wide_cases.LIMITS[True])
    assert actual.spacing < 20
    assert np.abs(compile_function(narrow, True).results - expected_of(narrow, True)).max() <= NEAR[True]
    assert fit_lines(np.full(65536, 12.0), wide_cases.LIMITS[True]).spacing == 1


def test_random_lines() -> None:
    """Tables have any lines that a 16-bit function can have; results are under a step from float64."""
    for case in range(20):
        rng = np.random.default_rng(case)
        op = random_function(rng, 4)
        place = (X - op.first) / op.spacing
        line = np.interp(place, np.arange(256), op.table.astype(np.float64))
        exact = wide_cases.saturate(line * op.scale, 0, op.clamp, wide=op.wide)
        slope = np.abs(np.diff(op.table.astype(int))).max() * op.scale
        # A place has 14 bits and a spacing 16, which bounds the error of slope and entry.
        allowed = 1 + slope * (2.0**-14 + 256 * 2.0**-16) + op.scale / 2
        assert np.abs(op.results - exact).max() <= allowed, case


def random_function(rng: Rng, channels: int) -> WideFunction:
    """Draw any table, starting anywhere."""
    shape = (draw(rng, 1, 2), draw(rng, 1, 4), draw(rng, 1, 20), channels)
    wide, spacing = bool(rng.integers(2)), int(rng.choice([1, 2, 3, 100, 257, 300]))
    table = np.clip(np.cumsum(rng.normal(0, 900, 256)), -DIGITS, DIGITS).astype(np.int16)
    if rng.random() < 0.3:
        table = rng.integers(-DIGITS, DIGITS + 1, 256).astype(np.int16)
    return WideFunction(
        name="function", src=wide_cases.source(rng, "x", shape, wide=True),
        dst=wide_cases.target(rng, shape, wide=wide), table=table, spacing=spacing, wide=wide,
        first=int(rng.choice([-32768, 0, 32000, draw(rng, -32768, 32767)])),
        scale=float(10 ** rng.uniform(-2, 0.3)) / (1 if wide else 256),
        clamp=(-100, 110) if rng.random() < 0.3 else wide_cases.LIMITS[True],
    )  # fmt: skip


def test_ranges() -> None:
    """Every expression stays in its range, for every value."""
    ops = [operator(name, len(name) % 2 == 0) for name in SMOOTH]
    ops += [random_function(np.random.default_rng(case), 4) for case in range(10)]
    for op in ops:
        one = wide_cases.plain("x", (1, 1, 1, 1), "input", wide=True)
        planes = [plane[:, None].astype(np.int8) for plane in np.split(wide_cases.planes(X), 2)]
        wide_cases.check_ranges(op.replace(src=one).rows(), planes)


@pytest.mark.parametrize("name", CONFIGS)
def test_golden(name: str) -> None:
    config, rng = CONFIGS[name], np.random.default_rng(len(name))
    for channels in (1, 9, 40):
        op = random_function(rng, channels)
        segment = wide_cases.segment(op)
        compare(compile_segment(segment, config), segment, wide_cases.buffers(rng, op), config)
        assert len(generate(op.rows(), config.n)) <= 32


@pytest.mark.parametrize("tables", [2, 4])
def test_two_functions_in_a_row(tables: int) -> None:
    """The second function's tables replace the first's, or follow them."""
    rng, config = np.random.default_rng(1), CONFIGS["tiny"].replace(lookup_tables=tables)
    middle = wide_cases.plain("m", (1, 1, 2, 3), "temp", wide=True)
    first, second = operator("tanh", True).replace(dst=middle), operator("gelu", True).replace(src=middle)
    segment = DeviceSegment("both", (first, second))
    compare(compile_segment(segment, config), segment, wide_cases.buffers(rng, first), config)


def test_on_rtl() -> None:
    rng = np.random.default_rng(4)
    for case in range(2):
        op = random_function(rng, 9)
        compare_on_rtl(wide_cases.segment(op), wide_cases.buffers(rng, op), CONFIGS["tiny"], case)


@pytest.mark.long
@pytest.mark.parametrize("name", ["tiny", "small"])
def test_many_on_rtl(name: str) -> None:
    rng = np.random.default_rng(4)
    for case in range(12):
        op = random_function(rng, draw(rng, 1, 30))
        compare_on_rtl(wide_cases.segment(op), wide_cases.buffers(rng, op), CONFIGS[name], case)


@pytest.mark.parametrize("count", [0, 1])
def test_takes_two_tables(count: int) -> None:
    op = operator("tanh", True)
    assert WIDE_FUNCTION_TABLES == 2
    assert operator_of(op).unsupported(op, CONFIGS["tiny"].replace(lookup_tables=count)) == (
        f"the kernel reads 2 look-up tables, but the configuration has {count}: set 'lookup_tables' to more"
    )
    assert operator_of(op).unsupported(op, CONFIGS["tiny"].replace(lookup_tables=2)) is None
