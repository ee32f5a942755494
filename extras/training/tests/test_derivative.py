"""Expressions of operators against ONNX Runtime, and their gradients against differences and PyTorch."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import numpy as np
import pytest
from support.ort_sessions import plain_session

from weft.extras.training.gradient.derivative import _find_tiles, gradients
from weft.extras.training.gradient.expression import (
    Axis,
    Expression,
    Reduce,
    Reindex,
    Source,
    apply,
    broadcast_to,
    evaluate,
    sum_over,
)
from weft.extras.training.tests.support.gradient_cases import CASES, Case, expressions_of, gradients_of


def _differences(
    outputs: list[Expression], arrays: dict[str, np.ndarray], seeds: list[np.ndarray], name: str
) -> np.ndarray:
    """Return central differences of the sum of products of outputs and seeds."""
    gradient, step = np.zeros(arrays[name].shape), 1e-6
    for at in np.ndindex(gradient.shape):
        ends = []
        for side in (step, -step):
            moved = arrays[name].copy()
            moved[at] += side
            values = evaluate(outputs, {**arrays, name: moved})
            ends.append(sum(float((value * seed).sum()) for value, seed in zip(values, seeds, strict=True)))
        gradient[at] = (ends[0] - ends[1]) / (2 * step)
    return gradient


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_gradients_match_differences(case: Case) -> None:
    rng = np.random.default_rng(1)
    _, outputs = expressions_of(case)
    arrays, seeds, actual = gradients_of(case, rng)
    for name, gradient in zip(arrays, actual, strict=True):
        np.testing.assert_allclose(
            gradient, _differences(outputs, arrays, seeds, name), rtol=1e-5, atol=2e-6, err_msg=name
        )


@pytest.mark.parametrize("case", CASES, ids=repr)
def test_meanings_match_onnx_runtime(case: Case) -> None:
    arrays = case.inputs(np.random.default_rng(2))
    _, outputs = expressions_of(case)
    session = plain_session(case.model())
    expected = session.run(None, {name: array.astype(np.float32) for name, array in arrays.items()})
    for value, wanted in zip(evaluate(outputs, arrays), expected, strict=True):
        np.testing.assert_allclose(value, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
@pytest.mark.parametrize("case", CASES, ids=repr)
def test_gradients_match_pytorch(case: Case) -> None:
    import torch

    arrays, seeds, actual = gradients_of(case, np.random.default_rng(3))
    tensors = [torch.tensor(array, requires_grad=True) for array in arrays.values()]
    result = case.torch(*tensors)
    results = result if isinstance(result, tuple) else (result,)
    expected = torch.autograd.grad(results, tensors, [torch.tensor(seed) for seed in seeds])
    for gradient, wanted in zip(actual, expected, strict=True):
        np.testing.assert_allclose(gradient, wanted.numpy(), rtol=1e-7, atol=1e-9)


def test_gradients_count_repetitions() -> None:
    """A gradient that repeats along an axis counts once per element of the axis."""
    a, b = Axis(3), Axis(4)
    x, bias = Source("x", (a, b)), Source("b", (b,))
    reduce_over = sum_over(apply("add", x, bias), (a, b))
    seed = Source("seed", ())
    actual = gradients([(reduce_over, seed)], [x, bias])
    arrays = {"x": np.zeros((3, 4)), "b": np.zeros(4), "seed": np.array(5.0)}
    assert [item is not None for item in actual] == [True, True]
    parts = [
        broadcast_to(item, source.axes)
        for item, source in zip(actual, (x, bias), strict=True)
        if item is not None
    ]
    by_x, by_bias = evaluate(parts, arrays)
    np.testing.assert_array_equal(by_x, np.full((3, 4), 5.0))
    np.testing.assert_array_equal(by_bias, np.full(4, 15.0))


POOLS = [case for case in CASES if case.op in ("MaxPool", "AveragePool")]


@pytest.mark.parametrize("case", POOLS, ids=repr)
def test_adjacent_windows_are_found(case: Case) -> None:
    """In adjacent windows each element has one window; elsewhere it has several or none."""
    tiles = case.attributes.get("strides") == [2, 2] == case.attributes["kernel_shape"]
    tiles &= case.shapes == ((2, 3, 6, 4),)
    _, (value,) = expressions_of(case)
    reduced = next(
        item for item in _parts(value) if isinstance(item, Reduce) and isinstance(item.operand, Reindex)
    )
    actual = _find_tiles(reduced.operand, reduced.over)
    assert (actual is not None) == tiles
    if actual is not None:
        assert [(outer.size, inner.size) for outer, inner in actual.values()] == [(3, 2), (2, 2)]


def _parts(value: Expression) -> Iterator[Expression]:
    yield value
    for item in (*getattr(value, "operands", ()), *([value.operand] if hasattr(value, "operand") else [])):
        yield from _parts(item)
