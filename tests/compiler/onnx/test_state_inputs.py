"""Inputs of ONNX models that outputs become: as if the user gave the one the other, and where they are kept."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support import qdq_models
from support.graph_runs import on_host, run_graph, run_kept
from support.ort_sessions import plain_session
from support.qdq_models import Builder, finished

from weft.compiler.errors import CompileError
from weft.compiler.frontend import import_model
from weft.compiler.ir.model import Graph


def cell(seed: int, batch: int, size: int) -> onnx.ModelProto:
    """y0 = W s + b of the state s = U x + V h, not below 0, which is y1; h is its value before."""
    builder = Builder(np.random.default_rng(seed))
    x, before = builder.input((batch, 7)), builder.input((batch, size))
    state = builder.add(builder.dense(x, size), builder.dense(before, size), relu=size > 1)
    return finished(builder, builder.dense(state, 3), state)


def image(seed: int) -> onnx.ModelProto:
    """The sum of an image and the one before, convolved; the image before is what the sum was."""
    builder = Builder(np.random.default_rng(seed))
    x, before = builder.input((1, 3, 5, 4)), builder.input((1, 3, 5, 4))
    total = builder.add(x, before)
    return finished(builder, builder.conv(total, 4, (3, 3)), total)


MODELS = {
    "cell": cell(0, 1, 6), "cell of a batch": cell(1, 3, 20), "cell of one": cell(5, 1, 1), "image": image(3),
}  # fmt: skip


def ends(model: onnx.ModelProto) -> tuple[str, str]:
    return model.graph.input[0].name, model.graph.input[1].name


def kinds(graph: Graph) -> set[str]:
    return {item.buffer.kind for item in (*graph.to_device, *graph.from_device)}


@pytest.mark.parametrize("name", MODELS)
def test_as_if_the_user_gave_it_back(name: str) -> None:
    """Byte for byte; and at most a step from ONNX Runtime, which is given the same states."""
    model, rng = MODELS[name], np.random.default_rng(5)
    x, before = ends(model)
    kept, plain = import_model(model, states={before: "y1"}), import_model(model)
    assert (list(kept.inputs), list(kept.outputs)) == ([x], ["y0"])
    assert not on_host(kept)
    assert "state" in kinds(kept)
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
        wanted = run_graph(plain, {x: feed, before: given})
        theirs = dict(
            zip(("y0", "y1"), plain_session(model).run(None, {x: feed, before: given}), strict=True)
        )
        found = run_kept(kept, {x: feed}, states)
        assert np.array_equal(found["y0"], wanted["y0"])
        for key, value in wanted.items():
            assert np.rint(np.abs(value - theirs[key]) / steps[key]).max() <= 1
        given = wanted["y1"]
    assert given.any()


def plain_model(source: int = TensorProto.FLOAT, shape: tuple[int, ...] = (2, 3)) -> onnx.ModelProto:
    """A product in Q/DQ form, and a state that is only added to, in float or in integers."""
    builder = Builder(np.random.default_rng(0))
    x = builder.input((2, 3))
    y = builder.dense(x, 3)
    model = finished(builder, y)
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
    assert "state" not in kinds(graph)
    states = {state.source: state.initial for state in graph.states}
    for count in range(3):
        run_kept(graph, {model.graph.input[0].name: np.zeros((2, 3), np.float32)}, states)
        assert (states["h"] == count + 1).all()
    assert states["h"].dtype == helper.tensor_dtype_to_np_dtype(dtype)


def test_an_input_and_an_output_of_which_one_is_the_other() -> None:
    """Two states that change places in every run."""
    builder = Builder(np.random.default_rng(0))
    x = builder.input((2, 3))
    model = finished(builder, builder.dense(x, 3))
    for source, target in (("a", "next_b"), ("b", "next_a")):
        model.graph.input.append(helper.make_tensor_value_info(source, TensorProto.INT8, (2, 3)))
        model.graph.node.append(helper.make_node("Identity", [source], [target]))
        model.graph.output.append(helper.make_tensor_value_info(target, TensorProto.INT8, (2, 3)))
    graph = import_model(model, states={"a": "next_a", "b": "next_b"})
    states = {"a": np.full((2, 3), 1, np.int8), "b": np.full((2, 3), 2, np.int8)}
    for one, other in ((2, 1), (1, 2)):
        run_kept(graph, {model.graph.input[0].name: np.zeros((2, 3), np.float32)}, states)
        assert ((states["a"] == one) & (states["b"] == other)).all()


@pytest.mark.parametrize(
    ("states", "said"),
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
def test_names_that_are_refused(states: dict[str, str], said: str) -> None:
    with pytest.raises(CompileError) as caught:
        import_model(plain_model(), states=states)
    assert str(caught.value) == said


def test_types_that_only_inference_tells() -> None:
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
