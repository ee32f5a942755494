"""Kernels with one operation on each column: every element once, in the fastest order."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from weft.extras.language.compiler.kernel_set import At, columnwise_kernel
from weft.hdl.isa import Kernel, Source
from weft.hdl.isa.config import Config

_SMALL = st.integers(1, 20)


def _places(kernel: Kernel, name: str) -> set[int]:
    loops = itertools.product(range(kernel.ob), range(kernel.oy), range(kernel.ox))
    strides = [getattr(kernel, f"{name}_{loop}") for loop in ("ob", "oy", "ox")]
    return {getattr(kernel, name) + sum(a * b for a, b in zip(each, strides, strict=True)) for each in loops}


@given(_SMALL, st.integers(1, 8), _SMALL, st.sampled_from(["tiny", "small", "default", "large"]))
def test_every_column_of_every_row(rows: int, groups: int, columns: int, preset: str) -> None:
    config = Config.load(preset)
    dst = At(7, 1000, 100, 3, 2)
    kernel = columnwise_kernel(
        config, Source.ACCUMULATOR, 5, (rows, groups, columns), src=At(1, 500, 40, 2), dst=dst, d=At(3, 1)
    )
    assert kernel.start == 5
    assert (kernel.with_d, kernel.with_b, kernel.dst_vectors) == (1, 0, 2)
    assert kernel.ob * kernel.oy * kernel.ox == rows * groups * columns
    wanted = {
        7 + 1000 * row + 100 * group + 3 * column
        for row in range(rows)
        for group in range(groups)
        for column in range(columns)
    }
    assert _places(kernel, "dst") == wanted
    assert _places(kernel, "d") == {3 + row for row in range(rows)}
    # The first column reads the operands that a row shares, so the inner loop must stay in the row.
    assert rows == 1 or kernel.d_ox == 0


def test_many_rows_are_interleaved() -> None:
    """Up to 8 interleaved rows hide the latency of a micro-operation."""
    config = Config.load("default")
    one = columnwise_kernel(config, Source.ACCUMULATOR, 0, (1, 1, 24), src=At(0, 0, 0, 1), dst=At(0, 0, 0, 1))
    assert (one.ob, one.oy, one.ox) == (1, 24, 1)
    many = columnwise_kernel(
        config, Source.ACCUMULATOR, 0, (16, 1, 3), src=At(0, 3, 0, 1), dst=At(0, 3, 0, 1)
    )
    assert (many.oy, many.ox) == (16, 3)
    heads = columnwise_kernel(
        config, Source.ACCUMULATOR, 0, (1, 6, 3), src=At(0, 0, 3, 1), dst=At(0, 0, 3, 1)
    )
    assert (heads.oy, heads.ox) == (6, 3)
