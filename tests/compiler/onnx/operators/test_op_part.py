"""Parts and repetitions of values: every constraint violated once, and which operators they become."""

from __future__ import annotations

from collections.abc import Callable

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
from support.graph_runs import device_ops, on_host
from support.movement import integers
from support.qdq_models import Builder

from weft.compiler.frontend import import_model
from weft.compiler.machine.target import Target
from weft.compiler.onnx.operators.move import (
    PART_OPERATORS,
    boxes_few,
    bytes_given,
    places_constant,
    resized_nearest,
    rows_order,
)
from weft.compiler.pipeline import PIPELINE, run_passes
from weft.compiler.planner import Planner
from weft.hdl.isa.config import PRESETS

Then = Callable[[Builder, str], str]


def of(then: Then, shape: tuple[int, ...] = (1, 4, 6, 6), before: str = "") -> onnx.ModelProto:
    built = builder()
    value = built.dequantise(source(built, shape))
    return finish_model(built, then(built, built.node(before, [value]) if before else value))


def rows(built: Builder, value: str) -> str:
    return built.node("Slice", [value, *(integers(built, at) for at in (1, 5, 2, 2))])


def corner(built: Builder, value: str) -> str:
    return built.node("Slice", [value, *(integers(built, *at) for at in ((0, 0, 0), (1, 2, 3), (0, 1, 2)))])


def indices_as_input(built: Builder, value: str) -> str:
    """Elements that an input of the model tells."""
    name = built.name("places")
    built.inputs.append(helper.make_tensor_value_info(name, TensorProto.INT64, [2]))
    return built.node("Gather", [value, name], axis=1)


def scatter(built: Builder, value: str) -> str:
    places = np.random.default_rng(0).permutation(200)
    return built.node("Gather", [value, built.constant(places)], axis=2)


def resize(built: Builder, value: str, mode: str = "linear", **how: str) -> str:
    scales = built.constant(np.array([1, 1, 2, 2], np.float32))
    return built.node("Resize", [value, "", scales], mode=mode, **how)


def crop(built: Builder, value: str) -> str:
    region = built.constant(np.array([0, 0, -0.5, 0, 1, 1, 1.5, 1], np.float32))
    scales = built.constant(np.array([1, 1, 2, 2], np.float32))
    mode = {"mode": "nearest", "coordinate_transformation_mode": "tf_crop_and_resize"}
    return built.node("Resize", [value, region, scales], **mode)


CASES: dict[str, Case] = {
    "floats": (lambda: of(rows, before="Erf"), "Slice", bytes_given),
    "given": (lambda: of(indices_as_input), "Gather", places_constant),
    "cubic": (lambda: of(lambda built, value: resize(built, value, "cubic")), "Resize", resized_nearest),
    "filled": (lambda: of(crop), "Resize", resized_nearest),
    "mixed axes": (lambda: mixed_axes(rows), "Slice", rows_order),
    "six axes": (lambda: of(corner, (2, 3, 4, 5, 6, 2)), "Slice", rows_order),
    "scattered rows": (lambda: of(scatter, (1, 4, 200, 2)), "Gather", boxes_few),
    "scattered channels": (lambda: of(lambda built, value: built.node(
        "Gather", [value, built.constant(np.arange(1400)[::-1])], axis=1), (1, 1400, 2, 2)), "Gather", boxes_few),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_fallback(name: str) -> None:
    check_fallback(CASES[name])


def test_every_constraint_has_a_case() -> None:
    assert untested_constraints(PART_OPERATORS, CASES.values()) == set()


def five(built: Builder, value: str) -> str:
    return built.node("Slice", [value, *(integers(built, at) for at in (0, 2, 1))])


BECOMES: dict[str, tuple[Then, tuple[int, ...], list[str]]] = {
    "every other row": (rows, (1, 4, 6, 6), ["Rescale"]),
    "one axis of five": (five, (2, 3, 4, 5, 6), ["Rescale"]),
    "twice as large": (lambda built, value: resize(built, value, "nearest"), (1, 4, 6, 6), ["Rescale"] * 4),
    "pixels as large as the image": (
        lambda built, value: built.node("Expand", [value, integers(built, 1, 4, 90, 90)]), (1, 4, 1, 1), ["Rescale"]),
    "a few ranges of channels": (
        lambda built, value: built.node("Gather", [value, integers(built, 4, 5, 6, 0, 1)], axis=1), (1, 8, 3, 3),
        ["Rescale"] * 2),
    "channels backwards": (
        lambda built, value: built.node("Gather", [value, integers(built, *range(7, -1, -1))], axis=1), (1, 8, 3, 3),
        ["Conv"]),
}  # fmt: skip


@pytest.mark.parametrize("what", BECOMES)
def test_becomes(what: str) -> None:
    then, shape, kinds = BECOMES[what]
    graph = import_model(of(then, shape))
    assert not on_host(graph)
    ops = device_ops(graph)
    assert [type(op).__name__ for op in ops[: len(kinds)]] == kinds


def test_parts_cost_nothing() -> None:
    """Two halves of what a convolution makes, each read by another one."""
    built = builder()
    value = built.conv(source(built), 8, (1, 1))
    names = [built.name("half") for _ in range(2)]
    floats = built.dequantise(value)
    built.nodes.append(helper.make_node("Split", [floats], names, name="split", axis=1, num_outputs=2))
    halves = [built.like(name, (1, 4, 6, 6), value) for name in names]
    sums = [built.conv(half, 4, (1, 1)) for half in halves]
    graph = import_model(built.finish(built.concat(sums, 1)))
    (segment,) = (item for item in graph.segments if hasattr(item, "ops"))
    ops = run_passes(PIPELINE, segment, Planner(Target(PRESETS["small"]))).ops
    assert [op.name.split("_")[0] for op in ops] == ["conv", "conv", "conv"]
    assert [view.c for op in ops[1:] for view in op.sources[:1]] == [0, 4]
