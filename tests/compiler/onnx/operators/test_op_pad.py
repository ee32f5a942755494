"""Pad: every constraint violated once, values that are filled in, and padding that convolutions take over."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support.fallbacks import (
    Case,
    builder,
    check_fallback,
    finish_model,
    mixed_axes,
    source,
    untested_constraints,
)
from support.graph_runs import device_ops
from support.movement import integers
from support.qdq_models import Builder

from weft.compiler.frontend import import_model
from weft.compiler.ir.graph import Conv, DeviceSegment
from weft.compiler.machine.target import Target
from weft.compiler.onnx.operators.move import bytes_given, rows_order
from weft.compiler.onnx.operators.windows import PAD_OPERATORS, pad_axes, pad_boxes, pad_value, pads_constant
from weft.compiler.pipeline import PIPELINE, run_passes
from weft.compiler.planner import Planner
from weft.hdl.isa.config import PRESETS

AROUND = (0, 0, 1, 2, 0, 0, 2, 1)


def pad(
    built: Builder,
    value: str,
    pads: tuple[int, ...] = AROUND,
    fill: float | None = None,
    mode: str = "constant",
) -> str:
    constants = [] if fill is None else [built.constant(np.float32(fill))]
    return built.node("Pad", [value, integers(built, *pads), *constants], mode=mode)


def of(pads: tuple[int, ...] = AROUND, fill: float | None = None, *, mode: str = "constant", before: str = "",
       same: bool = False, shape: tuple[int, ...] = (1, 4, 6, 6)) -> onnx.ModelProto:  # fmt: skip
    built = builder()
    entering = source(built, shape)
    value = built.dequantise(entering)
    result = pad(built, built.node(before, [value]) if before else value, pads, fill, mode)
    return (
        built.finish(built.like(result, built.shape_of(result), entering))
        if same
        else finish_model(built, result)
    )


def pads_as_input(fill: bool) -> onnx.ModelProto:
    """Pads or what is filled in are inputs of the model."""
    built = builder()
    name = built.name("given")
    built.inputs.append(
        helper.make_tensor_value_info(
            name, TensorProto.FLOAT if fill else TensorProto.INT64, [] if fill else [8]
        )
    )
    value = built.dequantise(source(built))
    if fill:
        return finish_model(built, built.node("Pad", [value, integers(built, *AROUND), name]))
    result = built.node("Pad", [value, name])
    return finish_model(built, built.node("Reshape", [result, integers(built, 1, 4, 9, 9)]))


CASES: dict[str, Case] = {
    "floats": (lambda: of(before="Erf"), "Pad", bytes_given),
    "wide": (lambda: of((0, 0, 4096, 0, 0, 0, 0, 0)), "Pad", pads_constant),
    "less of what is reflected": (lambda: of((0, 0, -1, 0, 0, 0, 2, 0), mode="reflect"), "Pad", pads_constant),
    "a given value": (lambda: pads_as_input(True), "Pad", pad_value),
    "a value between two levels": (lambda: of(fill=0.1234), "Pad", pad_value),
    "not a number": (lambda: of(fill=float("nan"), same=True), "Pad", pad_value),
    "mixed axes": (lambda: mixed_axes(pad), "Pad", rows_order),
    "rows and channels": (lambda: of((0, 1, 1, 0, 0, 0, 0, 0)), "Pad", pad_axes),
    "many channels": (lambda: of((0, 1, 0, 0, 0, 0, 0, 0), shape=(1, 1100, 2, 2)), "Pad", pad_boxes),
    "far reflections": (lambda: of((0, 0, 70, 0, 0, 0, 0, 0), mode="reflect", shape=(1, 2, 90, 2)), "Pad", pad_boxes),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_fallback(name: str) -> None:
    check_fallback(CASES[name])


def test_every_constraint_has_a_case() -> None:
    assert untested_constraints(PAD_OPERATORS, CASES.values()) == set()


@pytest.mark.parametrize("fill", [None, 0.1234, -1e9, 1e9, -np.inf])
def test_values_quantised_next_are_filled_with_any_value(fill: float | None) -> None:
    (op,) = device_ops(import_model(of(fill=fill, same=True)))
    built = builder()
    entering = source(built)
    zero = entering.zero - 128 * entering.unsigned
    level = (
        zero
        if fill is None
        else np.clip(np.rint(np.float32(fill) / np.float32(entering.scale)) + zero, -128, 127)
    )
    assert (type(op).__name__, op.fill) == ("Pad", level)


def test_padding_is_fused_into_the_next_convolution() -> None:
    """TensorFlow's exporters pad more after than before, with or without other parameters."""
    for quantised in (False, True):
        built = builder()
        entering = source(built)
        value = pad(built, built.dequantise(entering), (0, 0, 0, 0, 0, 0, 1, 1))
        if quantised:
            value = built.dequantise(built.like(value, (1, 4, 7, 7), entering))
        weight, _ = built.weight((5, 4, 3, 3), 0, per_channel=True, unsigned=False)
        graph = import_model(finish_model(built, built.node("Conv", [value, weight], strides=[2, 2])))
        (segment,) = (item for item in graph.segments if isinstance(item, DeviceSegment))
        (op,) = run_passes(PIPELINE, segment, Planner(Target(PRESETS["small"]))).ops
        assert isinstance(op, Conv)
        assert op.window.pad == (0, 0, 1, 1)
