"""BatchNormalization: every constraint violated once, with the reason."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support.fallbacks import Case, builder, check_fallback, finish_model, source, untested_constraints

from weft.compiler.onnx.operators.norms import (
    BATCH_NORMALIZATION_OPERATORS,
    batch_norm_inference,
    batch_norm_operands,
)


def normalise(
    variance: float = 1.0, shape: tuple[int, ...] = (1, 4, 6, 6), mean: str = "constant", **attributes: int
) -> onnx.ModelProto:
    built = builder()
    value = built.dequantise(source(built, shape))
    ones = np.ones(shape[1], np.float32)
    middle = built.constant(ones) if mean == "constant" else built.dequantise(source(built, (shape[1],)))
    constants = [built.constant(ones), built.constant(ones), middle, built.constant(variance * ones)]
    return finish_model(built, built.node("BatchNormalization", [value, *constants], **attributes))


def mean(axes: list[int], shape: tuple[int, ...] = (1, 4, 6, 6)) -> onnx.ModelProto:
    built = builder()
    axis = built.constant(np.array(axes, np.int64))
    return finish_model(built, built.node("ReduceMean", [built.dequantise(source(built, shape)), axis]))


CASES: dict[str, Case] = {
    "normalisation of six dimensions": (
        lambda: normalise(shape=(1, 4, 2, 3, 4, 5)),
        "BatchNormalization",
        batch_norm_operands,
    ),
    "normalisation by an input": (
        lambda: normalise(mean="input"),
        "BatchNormalization",
        batch_norm_operands,
    ),
    "normalisation by a negative variance": (
        lambda: normalise(-1.0),
        "BatchNormalization",
        batch_norm_inference,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_fallback(name: str) -> None:
    check_fallback(CASES[name])


def test_every_constraint_has_a_case() -> None:
    # These are tried with another operator, or implied in any model that ONNX accepts.
    assert untested_constraints(BATCH_NORMALIZATION_OPERATORS, CASES.values()) == {"same_order"}
