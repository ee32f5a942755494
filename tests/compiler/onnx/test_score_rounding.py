"""Parameters of Q/DQ pairs between the products of an attention: accepted forms, and values."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from weft.compiler.ir.quantisation import Quantisation
from weft.compiler.onnx.row_forms import RANGES, pair_of


@pytest.mark.parametrize("dtype", RANGES)
@pytest.mark.parametrize("zero", [0, 7])
def test_one_scale_and_zero_point(dtype: str, zero: int) -> None:
    bits, signed = int(dtype.removeprefix("u").removeprefix("int")), not dtype.startswith("u")
    stored = np.dtype(getattr(ml_dtypes, dtype, dtype))
    pair = pair_of(Quantisation(np.array(0.1, np.float32), np.array(zero, stored)))
    assert pair is not None
    assert (pair.scale, pair.zero) == (float(np.float32(0.1)), zero)
    assert (pair.lowest, pair.highest) == (
        (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    )


@pytest.mark.parametrize(
    ("scales", "zeros", "block"),
    [
        (np.float32(0.1), np.int32(0), 0),
        (np.array([0.1, 0.2], np.float32), np.zeros(2, np.int8), 0),
        (np.array([0.1, 0.2], np.float32), np.zeros(2, np.int8), 2),
    ],
)
def test_other_parameters_are_not_accepted(scales: np.ndarray, zeros: np.ndarray, block: int) -> None:
    assert pair_of(Quantisation(np.asarray(scales), np.asarray(zeros), 0, block)) is None


def test_no_parameters() -> None:
    assert pair_of(None) is None
