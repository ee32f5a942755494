"""Models of one operator that the device does not take, and the sentence that gives the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import onnx

from support.qdq_models import Builder, Quantised
from weft.compiler.frontend import import_model
from weft.compiler.onnx.operator import Constraint, Operator, sentence
from weft.hdl.isa.config import Config

Case = tuple[Callable[[], onnx.ModelProto], str, Constraint]
"""Returns a model; the operator that runs on the host; and the constraint that gives the reason."""


def builder() -> Builder:
    return Builder(np.random.default_rng(0))


def source(built: Builder, shape: tuple[int, ...] = (1, 4, 6, 6)) -> Quantised:
    return built.input(shape)


def finish_model(built: Builder, value: str, scale: float = 0.1) -> onnx.ModelProto:
    """Quantise a float value and finish the model."""
    return built.finish(built.quantise(value, built.shape_of(value), scale, 0, False))


def one(op: str, shape: tuple[int, ...] = (1, 4, 6, 6), **attributes: object) -> onnx.ModelProto:
    built = builder()
    return finish_model(built, built.node(op, [built.dequantise(source(built, shape))], **attributes))


def dense(op: str = "Gemm", shape: tuple[int, ...] = (2, 4), **attributes: object) -> onnx.ModelProto:
    built = builder()
    weight, _ = built.weight((4, 4), 1, per_channel=False, unsigned=False)
    return finish_model(built, built.node(op, [built.dequantise(source(built, shape)), weight], **attributes))


def two(op: str, first: tuple[int, ...], second: tuple[int, ...], **attributes: object) -> onnx.ModelProto:
    built = builder()
    names = [built.dequantise(source(built, shape)) for shape in (first, second)]
    return finish_model(built, built.node(op, names, **attributes))


def with_constant(
    op: str, shape: tuple[int, ...], constant: tuple[int, ...], value: float = 1.0
) -> onnx.ModelProto:
    built = builder()
    name = built.constant(np.full(constant, value, np.float32))
    return finish_model(built, built.node(op, [built.dequantise(source(built, shape)), name]))


MANY = 289
"""Channels, and pixels, whose permutation would take more copies than a node may become."""


def mixed_axes(
    then: Callable[[Builder, str], str],
    shape: tuple[int, ...] = (1, 1, MANY, MANY),
    given: tuple[int, ...] = (1, MANY, 17, 17),
) -> onnx.ModelProto:
    """Build a flattened convolution, a reshape that mixes axes, and an operator."""
    built = builder()
    flat = built.flatten(built.conv(source(built, given), given[1], (1, 1)))
    value = built.node("Reshape", [built.dequantise(flat), built.constant(np.array(shape, np.int64))])
    return finish_model(built, then(built, value))


def check_fallback(case: Case, **units: int) -> None:
    """Check that the operator runs on the host, with the constraint's sentence and the offending value.

    `units` are fields of the configuration.
    """
    build, op, constraint = case
    graph = import_model(build(), config=Config(**units))
    reasons = [reason for _, kind, place, reason in graph.assignment if kind == op and place == "host"]
    wanted = sentence(constraint)
    assert any(reason.startswith(wanted) for reason in reasons), reasons
    assert units or any(reason[len(wanted) :].startswith(" (") for reason in reasons), "shows the value"


def untested_constraints(operators: Iterable[Operator], cases: Iterable[Case]) -> set[str]:
    """Return the names of constraints that no case covers."""
    known = {constraint for operator in operators for constraint in operator.constraints}
    return {constraint.__name__ for constraint in known - {constraint for _, _, constraint in cases}}
