"""User-written kernels: examples against numpy and on the RTL, and refusals."""

from __future__ import annotations

import doctest
from collections.abc import Callable

import numpy as np
import pytest

import weft
import weft.run.kernel
from weft import CompileError, InputError
from weft.compiler.errors import KernelError
from weft.hdl.isa.config import PRESETS
from weft.run.kernel import Rows

TINY = PRESETS["tiny"].replace(kernel=64)


def test_docstring() -> None:
    result = doctest.testmod(weft.run.kernel)
    assert result.attempted > 3
    assert not result.failed


def spread(rows: Rows) -> None:
    """Elements less the smallest of their row, between 0 and 127."""
    x = rows.read(0)
    lowest = 0 - rows.largest(0 - x)
    rows.store((x - lowest).scale(127 / 255))


def mixed(rows: Rows) -> None:
    """The larger of two tensors times a constant, plus a third of the mean."""
    a, b = rows.read(0), rows.read(1)
    mean = rows.sum(a).scale(1 / 3 / rows.columns)
    rows.store(a.maximum(b).times(rows.wide(2), 14) + mean)


def ratio(rows: Rows) -> None:
    """32 times a quotient; division by zero saturates."""
    rows.store((rows.read(0) << 5).over(rows.read(1).reciprocal(), 0, 1 << 22))


PLACES = 128 * np.sin(np.arange(256) / 40)
NEAR, FINE = np.clip(np.rint(PLACES), -128, 127).astype(np.int8), np.rint(PLACES * 250).astype(np.int16)


def curves(rows: Rows) -> None:
    """Sine of elements, and a finer sine of products."""
    x = rows.read(0)
    fine = x.times(rows.read(1)).interpolate(FINE, 7)
    rows.store(x.look_up(NEAR).times(3, 2) + fine.times(1, 9))


@pytest.mark.drawn(6)
@pytest.mark.parametrize("function", [spread, mixed, ratio, curves])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (9, 7), (30, 16), (3, 150)])
def test_examples(function: Callable[[Rows], object], rows: int, columns: int) -> None:
    rng = np.random.default_rng([rows, columns])
    count = 1 if function is spread else 2
    constants = [rng.integers(-32768, 32768, columns).astype(np.int16)] if function is mixed else []
    kernel = weft.run.kernel.compile(
        function, rows=rows, columns=columns, tensors=count, constants=constants, config=TINY
    )
    tensors = [rng.integers(-128, 128, (rows, columns)).astype(np.int8) for _ in range(count)]
    expected = kernel.evaluate(*tensors)
    assert np.array_equal(kernel.run(*tensors), expected)
    assert kernel.cycles is None
    if (rows, columns) == (9, 7):
        assert np.array_equal(kernel.run(*tensors, on="rtl", stall_seed=5), expected)
        assert kernel.cycles
        cycles = kernel.cycles
        kernel.run(*tensors, on="rtl")
        assert 0 < kernel.cycles < cycles


def test_results_equal_closed_forms() -> None:
    rng = np.random.default_rng(1)
    x, y = (rng.integers(-128, 128, (20, 30)).astype(np.int8) for _ in range(2))
    kernel = weft.run.kernel.compile(spread, rows=20, columns=30, config=TINY)
    exact = (x - x.min(axis=1, keepdims=True).astype(int)) * (127 / 255)
    assert np.abs(kernel.run(x) - exact).max() <= 0.5 + 1e-3
    kernel = weft.run.kernel.compile(ratio, rows=20, columns=30, tensors=2, config=TINY)
    kernel = weft.run.kernel.compile(curves, rows=20, columns=30, tensors=2, config=TINY)
    product = x.astype(float) * y
    fine = np.interp(product / 128, np.arange(-128, 128), FINE) / 512
    assert (
        np.abs(kernel.run(x, y) - np.clip(NEAR[x.astype(int) + 128] * 0.75 + fine, -128, 127)).max() <= 1.01
    )
    kernel = weft.run.kernel.compile(ratio, rows=20, columns=30, tensors=2, config=TINY)
    where = y != 0
    quotient = np.clip(32.0 * x[where] / y[where], -128, 127)
    assert np.abs(kernel.run(x, y)[where] - quotient).max() <= 0.6


def below(rows: Rows) -> None:
    """Elements less the largest of their row."""
    x = rows.read(0)
    rows.store(x - rows.largest(x))


def test_rows_that_end_within_a_vector() -> None:
    """Padding after a row is no element, even where all elements are negative."""
    x = np.random.default_rng(2).integers(-128, -60, (9, 7)).astype(np.int8)
    kernel = weft.run.kernel.compile(below, rows=9, columns=7, config=TINY)
    assert np.array_equal(kernel.run(x), x - x.max(axis=1, keepdims=True))


def overflowing(rows: Rows) -> None:
    x = rows.read(0)
    wide = x << 20
    rows.store(wide.times(100))


def test_invalid_kernels_are_refused() -> None:
    def compile_kernel(function: Callable[[Rows], object], **given: object) -> object:
        arguments: dict[str, object] = {"rows": 2, "columns": 5, "config": TINY}
        return weft.run.kernel.compile(function, **(arguments | given))  # type: ignore[arg-type]

    line = overflowing.__code__.co_firstlineno + 3
    with pytest.raises(
        KernelError,
        match=rf"test_weft_kernel\.py, line {line}: the result may be -13421772800, which has more",
    ):
        compile_kernel(overflowing)
    with pytest.raises(KernelError, match="there is no tensor 1: there are 1"):
        compile_kernel(mixed)
    with pytest.raises(KernelError, match="the kernel '<lambda>' stores no result"):
        compile_kernel(lambda rows: None)
    with pytest.raises(CompileError, match="no kernel engine; set 'kernel' to 64"):
        compile_kernel(spread, config="tiny")
    with pytest.raises(
        CompileError, match="reads 3 look-up tables, but the configuration has 2: set 'lookup_"
    ):
        compile_kernel(curves, tensors=2, config=TINY.replace(lookup_tables=2))
    with pytest.raises(KernelError, match=r"table is int8 of shape \(256,\), not int64 of shape \(2,\)"):
        compile_kernel(lambda rows: rows.store(rows.read(0).look_up(np.zeros(2, np.int64))))
    with pytest.raises(InputError, match="'columns'"):
        compile_kernel(spread, columns=0)
    with pytest.raises(InputError, match="'tensors'"):
        compile_kernel(spread, tensors=5)
    with pytest.raises(InputError, match=r"constant 0 must be int16 of shape \(5,\)"):
        compile_kernel(spread, constants=[np.zeros(4, np.int16)])
    kernel = weft.run.kernel.compile(spread, rows=2, columns=5, config=TINY)
    with pytest.raises(InputError, match="reads 1 tensors, not 0"):
        kernel.run()
    with pytest.raises(
        InputError, match=r"tensor 0 is int64 of shape \(2, 5\); the kernel reads int8 of shape \(2, 5\)"
    ):
        kernel.run(np.zeros((2, 5), np.int64))
