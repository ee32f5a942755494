"""Linear Resize: every constraint violated once, and random ones against ONNX Runtime and on the golden interpreter."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from support import one_step
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
from support.qdq_models import Builder, Quantised, Rng

from weft.compiler.frontend import import_model
from weft.compiler.ir.graph import Conv
from weft.compiler.onnx import selections
from weft.compiler.onnx.operators.resize import (
    OPERATORS,
    _runs_with_ends,
    between_elements,
    fractions_small,
    image_ranks,
    linear_order,
)

Shape = tuple[int, ...]


def resize(built: Builder, value: str, factors: Shape | list[float], **how: object) -> str:
    scales = built.constant(np.array(factors, np.float32))
    return built.node("Resize", [value, "", scales], mode="linear", **how)


def resize_to(built: Builder, value: str, sizes: Shape, **how: object) -> str:
    return built.node(
        "Resize", [value, "", "", built.constant(np.array(sizes, np.int64))], mode="linear", **how
    )


def requantise(built: Builder, value: str, given: Quantised) -> onnx.ModelProto:
    """With a scale by which few results are half a level."""
    _, zero, unsigned = built.parameters()
    scale = float(np.float32(given.scale * 0.7183))
    return built.finish(built.quantise(value, built.shape_of(value), scale, zero, unsigned))


MODES = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners", "half_pixel_symmetric")


def random_model(rng: Rng, mode: str) -> onnx.ModelProto:
    """Up and down by whole factors, or to sizes that are no multiple."""
    built = Builder(rng)
    rank = int(rng.choice([1, 2, 2, 2, 3]))
    inputs = built.input(
        (
            int(rng.integers(1, 3)),
            int(rng.choice([1, 3, 5, 17])),
            *(int(rng.integers(1, 7)) for _ in range(rank)),
        )
    )
    along = range(max(2, rank), rank + 2)
    value = built.dequantise(inputs)
    if rng.random() < 0.25:
        sizes = list(inputs.shape)
        for axis in along:
            sizes[axis] = int(rng.integers(1, 8))
        return requantise(
            built, resize_to(built, value, tuple(sizes), coordinate_transformation_mode=mode), inputs
        )
    factors = [1.0] * (rank + 2)
    for axis in along:
        down = [1 / factor for factor in (2, 3) if inputs.shape[axis] % factor == 0]
        factors[axis] = float(rng.choice([1, 2, 2, 3, 4, *down]))
    return requantise(built, resize(built, value, factors, coordinate_transformation_mode=mode), inputs)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("mode", MODES)
def test_random(mode: str) -> None:
    tally = one_step.Tally()
    for seed in range(14):
        rng = np.random.default_rng([seed, len(mode)])
        one_step.check(random_model(rng, mode), rng, tally, "tiny" if seed % 2 else "small")
    assert tally.wrong < 1e-2 * tally.elements


@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("factors", [(0.6, 0.6), (1.5, 1.5), (2.7, 1.0)])
def test_corners_use_the_size_of_the_result(factors: tuple[float, float], mode: str) -> None:
    """The last element of the result, whose size is rounded down, is that of the input."""
    rng = np.random.default_rng(5)
    built = Builder(rng)
    arguments, how = (
        built.input((1, 3, 5, 7)),
        {"coordinate_transformation_mode": "align_corners", "mode": mode},
    )
    scales = built.constant(np.array([1, 1, *factors], np.float32))
    value = built.node("Resize", [built.dequantise(arguments), "", scales], **how)
    one_step.check(requantise(built, value, arguments), rng, one_step.Tally())


def test_twice_as_large() -> None:
    """Four convolutions inside, with weights of 1 and 3 along each axis, and copies at the corners."""
    built = builder()
    given = source(built, (1, 8, 6, 6))
    graph = import_model(requantise(built, resize(built, built.dequantise(given), [1, 1, 2, 2]), given))
    convs = [op for op in device_ops(graph) if isinstance(op, Conv) and op.weight[0].size == 4]
    assert [op.dst.shape for op in convs] == [(1, 5, 5, 8)] * 4
    assert sorted(op.weight[0].ravel().tolist() for op in convs) == [
        [1, 3, 3, 9],
        [3, 1, 9, 3],
        [3, 9, 1, 3],
        [9, 3, 3, 1],
    ]
    assert len(device_ops(graph)) == 16


@pytest.mark.parametrize("factor", [4, 8])
def test_large_factors(factor: int) -> None:
    rng = np.random.default_rng(3)
    built = Builder(rng)
    given = built.input((1, 5, 4, 4))
    value = resize(built, built.dequantise(given), [1, 1, factor, factor])
    graph = one_step.check(requantise(built, value, given), rng, one_step.Tally())
    assert len(device_ops(graph)) == (factor + 2) ** 2


def of(factors: list[float], shape: Shape = (1, 4, 6, 6), **how: object) -> onnx.ModelProto:
    built = builder()
    return finish_model(built, resize(built, built.dequantise(source(built, shape)), factors, **how))


CASES: dict[str, Case] = {
    "no image": (lambda: of([1, 2], (4, 6)), "Resize", image_ranks),
    "channels": (lambda: of([1, 2, 2, 2]), "Resize", between_elements),
    "antialiased": (lambda: of([1, 1, 0.5, 0.5], antialias=1), "Resize", between_elements),
    "large factors": (lambda: of([1, 1, 10, 10]), "Resize", fractions_small),
    "many places": (lambda: of([1, 1, 1.7, 1.7], (1, 4, 60, 60)), "Resize", fractions_small),
    "mixed axes": (lambda: mixed_axes(lambda built, x: resize(built, x, [1, 1, 2, 2])), "Resize", linear_order),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_fallback(name: str) -> None:
    check_fallback(CASES[name])


@pytest.mark.parametrize("most", [4 * 12 * 12, 4 * 12 * 12 - 1])
def test_places_of_large_images_are_not_looked_for(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selections, "MAX_ELEMENTS", most)
    for factors, shape in (([1, 1, 2, 2], (1, 4, 6, 6)), ([1, 1, 0.5, 0.5], (1, 4, 12, 12))):
        model = of([float(factor) for factor in factors], shape)
        if most < 4 * 12 * 12:
            check_fallback((lambda model=model: model, "Resize", between_elements))
        else:
            assert not on_host(import_model(model))


def test_every_constraint_has_a_case() -> None:
    assert untested_constraints(OPERATORS, CASES.values()) == {"input_quantised"}


@pytest.mark.parametrize(
    ("numerators", "unit", "between"),
    [
        ([0, 0, 1, 3, 5, 8, 8], 2, 1),  # places a whole element apart
        ([0, 1, 2, 2, 4, 4], 2, 2),  # one of them and another one
        ([1, 2, 4, 6, 8], 2, None),  # the first place is between elements,
        ([0, 2, 4, 6, 9], 2, None),  # and the last one
        ([4, 4, 6, 6], 2, None),  # nothing but these two
        ([0, *(at * at % 97 * 2 + 1 for at in range(1, 400)), 200], 2, None),  # more than there may be
    ],
)
def test_first_and_last_places_by_themselves(numerators: list[int], unit: int, between: int | None) -> None:
    """Edge places are repeated, so they must be elements."""
    given = np.array(numerators)
    actual = _runs_with_ends(given, unit)
    assert (None if actual is None else len(actual) - 2) == between
    if actual is not None:
        result = np.full(len(given), -1)
        for run in actual:
            result[run.target : run.target + run.length * run.target_step : run.target_step] = (
                run.source + run.step * np.arange(run.length)
            )
        assert result.tolist() == numerators
