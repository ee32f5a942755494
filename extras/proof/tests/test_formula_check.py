"""Formulas are close to their operators, and not close to operators with other attributes."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from support.op_cases import segment_of, whole

from weft.compiler.backend import compile_segment
from weft.compiler.ir.graph import DeviceOp
from weft.compiler.kernel.operators import LayerNorm
from weft.compiler.kernel.products import RowNorm, RowScale, RowShare
from weft.compiler.kernel.rows import RowLogSoftmax, RowPair, RowPower, RowTotal
from weft.extras.proof.certificate import placement_of
from weft.extras.proof.programs.formula_check import formula_error
from weft.extras.proof.programs.graph import Array, Operator
from weft.extras.proof.programs.proof import prove
from weft.extras.proof.programs.value_device import Unproven
from weft.extras.proof.tests.support.certified import graph_before
from weft.hdl.isa.config import PRESETS

SHAPE = (1, 1, 6, 24)
X, R, Y = whole("x", SHAPE, "input"), whole("r", SHAPE, "input"), whole("y", SHAPE, "output")
NUMBER, ONE = (whole(name, (1, 1, 6, 1), kind) for name, kind in (("number", "input"), ("one", "output")))
WEIGHT, BIAS = (np.random.default_rng(seed).normal(1, 0.3, SHAPE[3]) for seed in range(2))
ZEROS: dict[str, Any] = {"x_zero": 4, "y_zero": -7}
OPERATORS: dict[str, tuple[DeviceOp, str]] = {
    "LayerNorm": (LayerNorm("op", X, Y, WEIGHT, BIAS, 0.3, 25.0, **ZEROS), "epsilon"),
    "root mean square": (LayerNorm("op", X, Y, WEIGHT, BIAS, 0.3, 25.0, centre=False, **ZEROS), "x_zero"),
    "RowTotal": (RowTotal("op", X, ONE, "spread", 0.02, 3.0, "root", 0.0, 5.0, **ZEROS), "factor"),
    "RowScale": (
        RowScale(name="op", src=X, dst=Y, number=NUMBER, by="over", gain=40.0, r_zero=9, **ZEROS),
        "gain",
    ),
    "RowShare": (RowShare(name="op", src=X, dst=Y, gain=900.0, **ZEROS), "scale"),
    "RowNorm": (
        RowNorm(
            name="op", src=X, dst=Y, of=R, total="squares", factor=1e-4, offset=0.1, root="root", **ZEROS
        ),
        "of_zero",
    ),
    "RowPair": (RowPair("op", X, R, Y, "minimum", 0.7, 1.3, 3, -4, 5), "b_scale"),
    "RowLogSoftmax": (RowLogSoftmax("op", X, Y, 0.05, 20.0, 70), "x_scale"),
    "RowPower": (RowPower("op", X, R, Y, 0.01, 0.01, -3, scale=30.0), "b_step"),
}
"""Each with a number that its results depend on."""


def operator(name: str) -> Operator:
    return graph_before(segment_of(OPERATORS[name][0])).operators[0]


@pytest.mark.parametrize("name", OPERATORS)
def test_formulas_are_close(name: str) -> None:
    op, number = operator(name), OPERATORS[name][1]
    assert formula_error(op, np.random.default_rng(1)) == ""
    value = op.numbers[number]
    changed = value * 1.4 if value != int(value) else value + 40
    other = msgspec.structs.replace(op, numbers={**op.numbers, number: changed})
    assert f"the formula of 'op' ({op.kind}) is up to" in formula_error(other, np.random.default_rng(1))


def test_wrong_weight() -> None:
    op = operator("LayerNorm")
    weight = WEIGHT.copy()
    weight[5] += 0.5
    other = msgspec.structs.replace(op, arrays={**op.arrays, "weight": Array.of(weight)})
    assert "steps from the operator's result" in formula_error(other, np.random.default_rng(1))


def test_wrong_formulas_are_not_certified() -> None:
    segment, config = segment_of(OPERATORS["LayerNorm"][0]), PRESETS["small"].replace(kernel=64)
    program, graph = compile_segment(segment, config), graph_before(segment)
    assert prove(graph, config, placement_of(program), 1).compared == np.prod(SHAPE)
    (op,) = graph.operators
    other = msgspec.structs.replace(op, numbers={**op.numbers, "scale": 50.0})
    with pytest.raises(Unproven, match="steps from the operator's result"):
        prove(msgspec.structs.replace(graph, operators=(other,)), config, placement_of(program), 1)
