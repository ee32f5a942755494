"""Rows side by side: the layout against its definition, and convolutions of it against those of the plain input."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from support.op_cases import random_conv, random_inputs, segment_of
from support.repeated import repeated

from weft.compiler.ir.layout import Rows
from weft.compiler.passes.rows import gather_kernel_rows
from weft.compiler.verify import run_ops, verify_op


def by_definition(rows: Rows, array: np.ndarray) -> np.ndarray:
    n, h, w, c = array.shape
    out = np.full((n, rows.count, w, rows.kernel * c), rows.fill, array.dtype)
    for y in range(rows.count):
        for k in range(rows.kernel):
            row = y * rows.stride - rows.pad + k * rows.dilation
            if 0 <= row < h:
                out[:, y, :, k * c : (k + 1) * c] = array[:, row]
    return out


@given(
    rows=st.builds(Rows, st.integers(1, 9), st.integers(1, 8), st.integers(1, 4), st.integers(1, 3), st.integers(0, 9),
                   st.integers(1, 6), st.integers(-128, 127)),
    shape=st.tuples(st.integers(1, 2), st.integers(1, 4), st.integers(1, 3)),
)  # fmt: skip
def test_layout(rows: Rows, shape: tuple[int, int, int]) -> None:
    n, w, c = shape
    array = np.random.default_rng(0).integers(-128, 128, (n, rows.height, w, c)).astype(np.int8)
    laid = rows.gather(array)
    assert laid.dtype == np.int8
    assert np.array_equal(laid, by_definition(rows, array))


@repeated("seed", range(40))
def test_convolutions_of_it_are_the_same(seed: int) -> None:
    rng = np.random.default_rng([seed, 7])
    op = random_conv(rng)
    while op.groups > 1 or not op.src.contiguous:
        op = random_conv(rng)
    inputs = random_inputs(rng, op)
    other, rows = gather_kernel_rows(op)
    verify_op(other)
    assert other.macs == op.macs
    assert other.window.kernel[0] == 1
    laid = {"x": rows.gather(inputs["x"])}
    expected, got = run_ops(segment_of(op), inputs), run_ops(segment_of(other), laid)
    assert np.array_equal(got["y"], expected["y"])
