"""States between runs, in device memory or on the host: results equal those of a user who passes outputs back."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support import qdq_models
from support.graph_runs import on_host, run_graph, run_with_states
from support.ort_sessions import plain_session
from support.qdq_models import Builder, Quantised, finish_all

from weft.compiler.errors import CompileError
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
    arguments = {name: np.zeros_like(every[name]) for name in states}
    for _ in range(3):
        every = qdq_models.feeds(model, rng) | arguments
        expected = run_graph(plain, every)
        actual = run_with_states(graph, {name: every[name] for name in graph.inputs}, kept)
        assert all(np.array_equal(actual[name], expected[name]) for name in graph.outputs)
        arguments = {source: expected[target] for source, target in states.items()}


def two(builder: Builder, shape: tuple[int, ...]) -> tuple[Quantised, Quantised, dict[str, str]]:
    """An input and a state of a shape, which becomes output "y1"."""
    x, before = builder.input(shape), builder.input(shape)
    return x, before, {builder.inputs[1].name: "y1"}


def transpose(builder: Builder, value: Quantised) -> Quantised:
    result = builder.node("Transpose", [builder.dequantise(value)], perm=[0, 1, 3, 2])
    n, c, h, w = value.shape
    return builder.like(result, (n, c, w, h), value)


def on_device() -> tuple[onnx.ModelProto, dict[str, str]]:
    builder = Builder(np.random.default_rng(0))
    x, before, states = two(builder, (1, 4, 3, 5))
    total = builder.add(x, before)
    return finish_all(builder, builder.conv(total, 4, (1, 1)), total), states


def in_another_order() -> tuple[onnx.ModelProto, dict[str, str]]:
    """The next state has rows and columns exchanged."""
    builder = Builder(np.random.default_rng(1))
    x, before, states = two(builder, (1, 4, 5, 5))
    total = transpose(builder, builder.add(x, before))
    return finish_all(builder, builder.conv(total, 4, (1, 1)), total), states


def read_on_the_host() -> tuple[onnx.ModelProto, dict[str, str]]:
    """The state is read by Hardmax, too, which the device has not."""
    builder = Builder(np.random.default_rng(2))
    x, before, states = two(builder, (2, 6))
    chosen = builder.node("Hardmax", [builder.inputs[1].name])
    other = builder.quantise(chosen, (2, 6), 1 / 128, 0, False)
    total = builder.add(x, before)
    return finish_all(builder, builder.add(total, other), total), states


def made_on_the_host() -> tuple[onnx.ModelProto, dict[str, str]]:
    """The host computes the next state."""
    builder = Builder(np.random.default_rng(3))
    x, before, states = two(builder, (2, 6))
    total = builder.add(x, before)
    chosen = builder.node("Hardmax", [builder.dequantise(total)])
    return finish_all(
        builder, builder.dense(total, 3), builder.quantise(chosen, (2, 6), 1 / 128, 0, False)
    ), states


def in_two_segments() -> tuple[onnx.ModelProto, dict[str, str]]:
    """The host computes between where the state is read and where it is made."""
    builder = Builder(np.random.default_rng(4))
    x, before, states = two(builder, (2, 6))
    total = builder.add(x, before)
    chosen = builder.quantise(builder.node("Hardmax", [builder.dequantise(total)]), (2, 6), 1 / 128, 0, False)
    after = builder.add(total, chosen)
    return finish_all(builder, builder.dense(after, 3), after), states


def read_in_two_segments() -> tuple[onnx.ModelProto, dict[str, str]]:
    """The next state, computed before the host's part, must not overwrite the old one, which the second segment
    reads."""
    builder = Builder(np.random.default_rng(5))
    x, before, states = two(builder, (2, 6))
    total = builder.add(x, before)
    chosen = builder.quantise(builder.node("Hardmax", [builder.dequantise(total)]), (2, 6), 1 / 128, 0, False)
    late = builder.node("Add", [builder.inputs[1].name, builder.dequantise(chosen)])
    return finish_all(builder, builder.like(late, (2, 6), total), total), states


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


def test_value_of_two_states_is_stored_in_both() -> None:
    builder = Builder(np.random.default_rng(6))
    x, first, second = (builder.input((2, 6)) for _ in range(3))
    total = builder.add(builder.add(x, first), second)
    model = finish_all(builder, builder.dense(total, 3), total, total)
    graph = import_model(model, states={builder.inputs[1].name: "y1", builder.inputs[2].name: "y2"})
    (segment,) = (item for item in graph.segments if isinstance(item, DeviceSegment))
    assert len(segment.states) == 2
    assert len(set(segment.states.values())) == 1
    same_as_given_back(model, graph, {builder.inputs[1].name: "y1", builder.inputs[2].name: "y2"})


def test_an_output_in_the_same_memory_is_read_where_the_state_is() -> None:
    builder = Builder(np.random.default_rng(7))
    x, before, states = two(builder, (2, 6))
    total = builder.add(x, before)
    model = finish_all(builder, builder.dense(total, 3), total)
    model.graph.node.append(helper.make_node("Identity", [total.name], ["bytes"]))
    kind = onnx.TensorProto.UINT8 if total.unsigned else onnx.TensorProto.INT8
    model.graph.output.append(helper.make_tensor_value_info("bytes", kind, (2, 6)))
    graph = import_model(model, states=states)
    places = {item.value: item.buffer.kind for item in graph.from_device}
    assert places["bytes"] == "state"
    same_as_given_back(model, graph, states)


def cell(seed: int, batch: int, size: int) -> onnx.ModelProto:
    """y0 = W s + b of the state s = U x + V h, not below 0, which is y1; h is its value before."""
    builder = Builder(np.random.default_rng(seed))
    x, before = builder.input((batch, 7)), builder.input((batch, size))
    state = builder.add(builder.dense(x, size), builder.dense(before, size), relu=size > 1)
    return finish_all(builder, builder.dense(state, 3), state)


def image(seed: int) -> onnx.ModelProto:
    """The sum of an image and the one before, convolved; the image before is what the sum was."""
    builder = Builder(np.random.default_rng(seed))
    x, before = builder.input((1, 3, 5, 4)), builder.input((1, 3, 5, 4))
    total = builder.add(x, before)
    return finish_all(builder, builder.conv(total, 4, (3, 3)), total)


MODELS = {
    "cell": cell(0, 1, 6), "cell of a batch": cell(1, 3, 20), "cell of one": cell(5, 1, 1), "image": image(3),
}  # fmt: skip


def ends(model: onnx.ModelProto) -> tuple[str, str]:
    return model.graph.input[0].name, model.graph.input[1].name


def kinds_of_state_inputs(graph: Graph) -> set[str]:
    return {item.buffer.kind for item in (*graph.to_device, *graph.from_device)}


@pytest.mark.parametrize("name", MODELS)
def test_states_equal_outputs_passed_back(name: str) -> None:
    """Results are equal byte by byte, and at most a step from ONNX Runtime with equal states."""
    model, rng = MODELS[name], np.random.default_rng(5)
    x, before = ends(model)
    kept, plain = import_model(model, states={before: "y1"}), import_model(model)
    assert (list(kept.inputs), list(kept.outputs)) == ([x], ["y0"])
    assert not on_host(kept)
    assert "state" in kinds_of_state_inputs(kept)
    (state,) = kept.states
    assert state.initial.dtype in (np.int8, np.uint8)
    states = {state.source: state.initial}
    constants = {item.name: onnx.numpy_helper.to_array(item) for item in model.graph.initializer}
    steps = {
        node.output[0]: constants[node.input[1]]
        for node in model.graph.node
        if node.output[0] in ("y0", "y1")
    }
    given = np.zeros([size.dim_value for size in model.graph.input[1].type.tensor_type.shape.dim], np.float32)
    for _ in range(4):
        feed = qdq_models.feeds(model, rng)[x]
        expected = run_graph(plain, {x: feed, before: given})
        theirs = dict(
            zip(("y0", "y1"), plain_session(model).run(None, {x: feed, before: given}), strict=True)
        )
        actual = run_with_states(kept, {x: feed}, states)
        assert np.array_equal(actual["y0"], expected["y0"])
        for key, value in expected.items():
            assert np.rint(np.abs(value - theirs[key]) / steps[key]).max() <= 1
        given = expected["y1"]
    assert given.any()


def plain_model(source: int = TensorProto.FLOAT, shape: tuple[int, ...] = (2, 3)) -> onnx.ModelProto:
    """A product in Q/DQ form, and a state that is only added to, in float or in integers."""
    builder = Builder(np.random.default_rng(0))
    x = builder.input((2, 3))
    y = builder.dense(x, 3)
    model = finish_all(builder, y)
    kind = helper.tensor_dtype_to_np_dtype(source)
    model.graph.input.append(helper.make_tensor_value_info("h", source, shape))
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(shape, kind), "one"))
    model.graph.node.append(helper.make_node("Add", ["h", "one"], ["n"]))
    model.graph.output.append(helper.make_tensor_value_info("n", source, shape))
    return model


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT, TensorProto.INT64])
def test_states_that_are_not_quantised_are_the_hosts(dtype: int) -> None:
    model = plain_model(dtype)
    graph = import_model(model, states={"h": "n"})
    assert "state" not in kinds_of_state_inputs(graph)
    states = {state.source: state.initial for state in graph.states}
    for count in range(3):
        run_with_states(graph, {model.graph.input[0].name: np.zeros((2, 3), np.float32)}, states)
        assert (states["h"] == count + 1).all()
    assert states["h"].dtype == helper.tensor_dtype_to_np_dtype(dtype)


def test_exchanged_states() -> None:
    """Two states that change places in every run."""
    builder = Builder(np.random.default_rng(0))
    x = builder.input((2, 3))
    model = finish_all(builder, builder.dense(x, 3))
    for source, target in (("a", "next_b"), ("b", "next_a")):
        model.graph.input.append(helper.make_tensor_value_info(source, TensorProto.INT8, (2, 3)))
        model.graph.node.append(helper.make_node("Identity", [source], [target]))
        model.graph.output.append(helper.make_tensor_value_info(target, TensorProto.INT8, (2, 3)))
    graph = import_model(model, states={"a": "next_a", "b": "next_b"})
    states = {"a": np.full((2, 3), 1, np.int8), "b": np.full((2, 3), 2, np.int8)}
    for one, other in ((2, 1), (1, 2)):
        run_with_states(graph, {model.graph.input[0].name: np.zeros((2, 3), np.float32)}, states)
        assert ((states["a"] == one) & (states["b"] == other)).all()


@pytest.mark.parametrize(
    ("states", "message"),
    [
        ({"k": "n"}, "the model has no input 'k' for a state; it has 'input_1', 'h'"),
        ({"h": "k"}, "the model has no output 'k' for a state; it has 'y0', 'n'"),
        ({"h": "y0", "input_1": "y0"}, "output 'y0' is the next value of two states; name it for one state only"),
        (
            {"h": "y0", "input_1": "n"},
            "all outputs are states ('y0', 'n'), so there is nothing to compute; leave one output",
        ),
    ],
)  # fmt: skip
def test_names_that_are_refused(states: dict[str, str], message: str) -> None:
    with pytest.raises(CompileError) as caught:
        import_model(plain_model(), states=states)
    assert str(caught.value) == message


def test_types_known_by_inference_only() -> None:
    model = plain_model(shape=(4, 1))
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    with pytest.raises(
        CompileError, match=r"^state 'h/kept' is u?int8 of shape 4x1, but its next value 'y0/kept' is .*2x3"
    ):
        import_model(model, states={"h": "y0"})


def test_types_and_shapes_that_are_refused() -> None:
    with pytest.raises(CompileError) as caught:
        import_model(plain_model(TensorProto.INT64), states={"input_1": "n"})
    assert str(caught.value) == (
        "state 'input_1' is float32 of shape 2x3, but its next value 'n' is int64 of shape 2x3; both must have "
        "one type and shape"
    )
    with pytest.raises(
        CompileError, match=r"^state 'h' is float32 of shape 4x1, but its next value 'y0' is .*2x3"
    ):
        import_model(plain_model(shape=(4, 1)), states={"h": "y0"})
