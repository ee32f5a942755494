"""Which states are memory of the device, and which pass the host; in every run both are what a user would give back."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper
from support import qdq_models
from support.graph_runs import run_graph, run_kept
from support.qdq_models import Builder, Quantised, finished

from weft.compiler.frontend import import_model
from weft.compiler.ir.graph import DeviceSegment
from weft.compiler.ir.model import Graph


def kinds(graph: Graph) -> set[str]:
    """The kinds of the buffers of states."""
    names = {name for state in graph.states for name in (state.source, state.target)}
    return {item.buffer.kind for item in (*graph.to_device, *graph.from_device) if item.value in names}


def same_as_given_back(model: onnx.ModelProto, graph: Graph, states: dict[str, str]) -> None:
    """Three runs, with states in float and given back by hand."""
    rng, plain = np.random.default_rng(1), import_model(model)
    kept = {state.source: state.initial for state in graph.states}
    every = qdq_models.feeds(model, rng)
    given = {name: np.zeros_like(every[name]) for name in states}
    for _ in range(3):
        every = qdq_models.feeds(model, rng) | given
        wanted = run_graph(plain, every)
        found = run_kept(graph, {name: every[name] for name in graph.inputs}, kept)
        assert all(np.array_equal(found[name], wanted[name]) for name in graph.outputs)
        given = {source: wanted[target] for source, target in states.items()}


def two(builder: Builder, shape: tuple[int, ...]) -> tuple[Quantised, Quantised, dict[str, str]]:
    """An input and a state of a shape, which becomes output "y1"."""
    x, before = builder.input(shape), builder.input(shape)
    return x, before, {builder.inputs[1].name: "y1"}


def transposed(builder: Builder, value: Quantised) -> Quantised:
    made = builder.node("Transpose", [builder.dequantise(value)], perm=[0, 1, 3, 2])
    n, c, h, w = value.shape
    return builder.like(made, (n, c, w, h), value)


def on_device() -> tuple[onnx.ModelProto, dict[str, str]]:
    builder = Builder(np.random.default_rng(0))
    x, before, states = two(builder, (1, 4, 3, 5))
    total = builder.add(x, before)
    return finished(builder, builder.conv(total, 4, (1, 1)), total), states


def in_another_order() -> tuple[onnx.ModelProto, dict[str, str]]:
    """What the state becomes has rows and columns the other way round."""
    builder = Builder(np.random.default_rng(1))
    x, before, states = two(builder, (1, 4, 5, 5))
    total = transposed(builder, builder.add(x, before))
    return finished(builder, builder.conv(total, 4, (1, 1)), total), states


def read_on_the_host() -> tuple[onnx.ModelProto, dict[str, str]]:
    """The state is read by Hardmax, too, which the device has not."""
    builder = Builder(np.random.default_rng(2))
    x, before, states = two(builder, (2, 6))
    chosen = builder.node("Hardmax", [builder.inputs[1].name])
    other = builder.quantise(chosen, (2, 6), 1 / 128, 0, False)
    total = builder.add(x, before)
    return finished(builder, builder.add(total, other), total), states


def made_on_the_host() -> tuple[onnx.ModelProto, dict[str, str]]:
    builder = Builder(np.random.default_rng(3))
    x, before, states = two(builder, (2, 6))
    total = builder.add(x, before)
    chosen = builder.node("Hardmax", [builder.dequantise(total)])
    return finished(
        builder, builder.dense(total, 3), builder.quantise(chosen, (2, 6), 1 / 128, 0, False)
    ), states


def in_two_segments() -> tuple[onnx.ModelProto, dict[str, str]]:
    """The host computes between where the state is read and where it is made."""
    builder = Builder(np.random.default_rng(4))
    x, before, states = two(builder, (2, 6))
    total = builder.add(x, before)
    chosen = builder.quantise(builder.node("Hardmax", [builder.dequantise(total)]), (2, 6), 1 / 128, 0, False)
    after = builder.add(total, chosen)
    return finished(builder, builder.dense(after, 3), after), states


def read_in_two_segments() -> tuple[onnx.ModelProto, dict[str, str]]:
    """What is made ahead of the host's part must not be where the other part still reads the old one."""
    builder = Builder(np.random.default_rng(5))
    x, before, states = two(builder, (2, 6))
    total = builder.add(x, before)
    chosen = builder.quantise(builder.node("Hardmax", [builder.dequantise(total)]), (2, 6), 1 / 128, 0, False)
    late = builder.node("Add", [builder.inputs[1].name, builder.dequantise(chosen)])
    return finished(builder, builder.like(late, (2, 6), total), total), states


CASES = {
    on_device: {"state"}, in_another_order: {"input", "output"}, read_on_the_host: {"input", "output"},
    made_on_the_host: {"input"}, in_two_segments: {"input", "output"}, read_in_two_segments: {"input", "output"},
}  # fmt: skip


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_where_states_are(make: object) -> None:
    model, states = make()  # type: ignore[operator]
    graph = import_model(model, states=states)
    assert kinds(graph) == CASES[make]  # type: ignore[index]
    same_as_given_back(model, graph, states)


def test_a_value_that_two_states_become_is_in_both() -> None:
    """And in one place for the host."""
    builder = Builder(np.random.default_rng(6))
    x, first, second = (builder.input((2, 6)) for _ in range(3))
    total = builder.add(builder.add(x, first), second)
    model = finished(builder, builder.dense(total, 3), total, total)
    graph = import_model(model, states={builder.inputs[1].name: "y1", builder.inputs[2].name: "y2"})
    (segment,) = (item for item in graph.segments if isinstance(item, DeviceSegment))
    assert len(segment.states) == 2
    assert len(set(segment.states.values())) == 1
    same_as_given_back(model, graph, {builder.inputs[1].name: "y1", builder.inputs[2].name: "y2"})


def test_an_output_in_the_same_memory_is_read_where_the_state_is() -> None:
    builder = Builder(np.random.default_rng(7))
    x, before, states = two(builder, (2, 6))
    total = builder.add(x, before)
    model = finished(builder, builder.dense(total, 3), total)
    model.graph.node.append(helper.make_node("Identity", [total.name], ["bytes"]))
    kind = onnx.TensorProto.UINT8 if total.unsigned else onnx.TensorProto.INT8
    model.graph.output.append(helper.make_tensor_value_info("bytes", kind, (2, 6)))
    graph = import_model(model, states=states)
    places = {item.value: item.buffer.kind for item in graph.from_device}
    assert places["bytes"] == "state"
    same_as_given_back(model, graph, states)
