"""Parameters of Q/DQ pairs between the products of an attention: accepted forms, and values."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from weft.compiler.ir.network import Node
from weft.compiler.onnx.model import Model
from weft.compiler.onnx.row_forms import RANGES, pair_of

ONE = np.array(0.1, np.float64)
TWO = np.array([0.1, 0.2], np.float32)


def find_rounding(
    constants: dict[str, np.ndarray], inputs: tuple[str, ...], dtype: str, **attributes: Any
) -> Any:
    node = Node("QuantizeLinear", inputs, ("y",), attributes, "", "q", 0)
    return pair_of(cast(Model, SimpleNamespace(constants=constants)), node, dtype)


@pytest.mark.parametrize("dtype", RANGES)
@pytest.mark.parametrize("zero", [None, 0, 7])
def test_one_scale_and_zero_point(dtype: str, zero: int | None) -> None:
    bits, signed = int(dtype.removeprefix("u").removeprefix("int")), not dtype.startswith("u")
    constants = {"s": ONE} if zero is None else {"s": ONE, "z": np.array([zero])}
    pair = find_rounding(constants, ("x", "s") if zero is None else ("x", "s", "z"), dtype)
    assert (pair.scale, pair.zero) == (float(np.float32(0.1)), zero or 0)
    assert (pair.lowest, pair.highest) == (
        (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    )


@pytest.mark.parametrize(
    ("constants", "inputs", "dtype", "attributes"),
    [
        ({"s": ONE}, ("x", "s"), "int32", {}),
        ({"s": ONE}, ("x", "s"), "float8e5m2", {}),
        ({}, ("x", "s"), "int8", {}),
        ({"s": TWO}, ("x", "s"), "int8", {}),
        ({"s": ONE}, ("x", "s"), "int8", {"block_size": 2}),
        ({"s": ONE}, ("x", "s", "z"), "int8", {}),
        ({"s": ONE, "z": np.zeros(2, np.int8)}, ("x", "s", "z"), "int8", {}),
    ],
)
def test_other_parameters_are_not_accepted(
    constants: dict[str, np.ndarray], inputs: tuple[str, ...], dtype: str, attributes: dict[str, Any]
) -> None:
    assert find_rounding(constants, inputs, dtype, **attributes) is None
