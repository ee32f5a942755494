"""Operators that only move elements, one by one and in rows, against ONNX Runtime and on the golden interpreter."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from support import movement, qdq_models
from support.graph_runs import on_host, run_graph
from support.one_step import on_golden

from weft.compiler.frontend import import_model
from weft.compiler.ir.graph import DeviceSegment
from weft.compiler.ir.model import Graph


def import_checked(model: onnx.ModelProto, rng: np.random.Generator) -> Graph:
    """The graph of a model, whose outputs are those of ONNX Runtime."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    feeds, graph = qdq_models.feeds(model, rng), import_model(model)
    (expected,) = session.run(None, feeds)
    outputs = run_graph(graph, feeds)[model.graph.output[0].name]
    assert outputs.dtype == expected.dtype
    np.testing.assert_array_equal(outputs, expected)
    return graph


@pytest.mark.drawn(12)
@pytest.mark.parametrize("kind", movement.MOVES)
@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_one_by_one(kind: str, rank: int) -> None:
    for seed in range(8):
        rng = np.random.default_rng([seed, rank])
        built = qdq_models.Builder(rng)
        value = movement.append_move(built, built.input(movement.random_shape(rng, rank)), kind)
        graph = import_checked(built.finish(value), rng)
        assert not on_host(graph)
        on_golden(graph, "tiny", rng)


@pytest.mark.drawn(5)
@pytest.mark.parametrize("preset", ["tiny", "small", "default"])
@pytest.mark.parametrize("seed", range(6))
def test_in_rows(preset: str, seed: int) -> None:
    for case in range(3):
        rng = np.random.default_rng([seed, case, len(preset)])
        kinds = [str(kind) for kind in rng.choice(list(movement.MOVES), int(rng.integers(2, 5)))]
        graph = import_checked(movement.random_model(rng, kinds, 4 if rng.random() < 0.7 else 3), rng)
        on_golden(graph, preset, rng)


@pytest.mark.parametrize("unsigned", [False, True])
def test_bytes_that_the_host_passes_on(unsigned: bool) -> None:
    """A part of a value that the host reads in float, and a later program of the device as bytes."""
    rng = np.random.default_rng(3)
    built = qdq_models.Builder(rng)
    value = built.conv(built.input((1, 4, 6, 6), unsigned), 4, (1, 1))
    places = [movement.integers(built, at) for at in (1, 5, 2, 2)]
    part = built.node("Slice", [built.dequantise(value), *places])
    rows = built.constant(np.tile(np.array([1, 0]).reshape(1, 1, 2, 1), (1, 4, 1, 6)))
    swapped = built.like(built.node("GatherElements", [part, rows], axis=2), (1, 4, 2, 6), value)
    last = built.dequantise(built.conv(swapped, 4, (1, 1)))
    model = built.finish(built.like(built.node("Concat", [part, last], axis=1), (1, 8, 2, 6), value))
    graph = import_checked(model, rng)
    assert f"{part}/bytes" in [transfer.value for transfer in graph.from_device]
    assert "GatherElements" in {op for _, op, place, _ in graph.assignment if place == "host"}
    assert len([segment for segment in graph.segments if isinstance(segment, DeviceSegment)]) == 2
