"""Reshapes and transposes: every constraint violated once, with the reason."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support import one_step
from support.fallbacks import (
    MANY,
    Case,
    builder,
    check_fallback,
    finish_model,
    mixed_axes,
    source,
    untested_constraints,
)
from support.qdq_models import Builder

from weft.compiler.onnx.operators.move import MOVE_OPERATORS, transposable


def convolution(
    weight: np.ndarray | str, shape: tuple[int, ...] = (1, 4, 6, 6), **attributes: object
) -> onnx.ModelProto:
    """Conv with given float weights, or int8 ones quantised as `weight` says."""
    built = builder()
    value = built.dequantise(source(built, shape))
    if isinstance(weight, str):
        name = {
            "input": lambda: built.dequantise(source(built, (2, 4, 1, 1))),
            "other axis": lambda: built.weight((2, 4, 1, 1), 1, per_channel=True, unsigned=False)[0],
        }[weight]()
    else:
        name = built.constant(weight.astype(np.float32))
    return finish_model(built, built.node("Conv", [value, name], **attributes))


def swap_axes() -> onnx.ModelProto:
    """A transpose that no convolution reads, of too many rows and columns to copy them one by one."""
    built = builder()
    value = built.conv(source(built, (1, 1, MANY, MANY)), 1, (1, 1))
    moved = built.node("Transpose", [built.dequantise(value)], perm=[0, 1, 3, 2])
    return built.finish(built.conv(built.like(moved, value.shape, value), 1, (1, 1)))


def mixed_transpose() -> onnx.ModelProto:
    shape, arguments = (1, 2, MANY * MANY), (1, MANY, 34, 17)
    return mixed_axes(lambda built, value: built.node("Transpose", [value], perm=[0, 2, 1]), shape, arguments)


CASES: dict[str, Case] = {
    "transpose": (swap_axes, "Transpose", transposable),
    "transpose of mixed axes": (mixed_transpose, "Transpose", transposable),
}


@pytest.mark.parametrize("name", CASES)
def test_fallback(name: str) -> None:
    check_fallback(CASES[name])


def test_copies_that_only_the_host_reads() -> None:
    """An output is brought into another order, and nothing is computed from it."""
    rng = np.random.default_rng(0)
    built = Builder(rng)
    value = built.conv(built.input((1, 3, 5, 4)), 6, (1, 1))
    moved = built.node("Reshape", [built.dequantise(value), built.constant(np.array([8, 15]))])
    moved = built.node("Transpose", [moved], perm=[1, 0])
    one_step.check(built.finish(built.like(moved, (15, 8), value)), rng, one_step.Tally())


def test_every_constraint_has_a_case() -> None:
    # These are tried with another operator, or implied in any model that ONNX accepts.
    assert untested_constraints(MOVE_OPERATORS, CASES.values()) == {"movable"}
