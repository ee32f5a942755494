"""Attention and softmax from ONNX to the device's operators, against runtimes and against the definition."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from support import attention_models as models
from support import qdq_models
from support.attention_models import Exploded, Sizes
from support.graph_runs import device_ops, on_host, run_graph
from support.qdq_models import Builder
from support.repeated import repeated

import weft
from weft.compiler.frontend import import_model
from weft.compiler.ir.graph import Attention, Conv, DeviceSegment, Rescale, Softmax
from weft.compiler.ir.model import dump
from weft.compiler.ir.products import Product
from weft.compiler.onnx.attention import Mask, mask_of, recognise
from weft.compiler.onnx.operators.attention import ROUNDING
from weft.compiler.onnx.reader import LARGEST
from weft.compiler.verify import is_exact
from weft.hdl.isa.config import Config


def ops_of(model: onnx.ModelProto) -> list[Any]:
    return device_ops(import_model(model))


def steps(model: onnx.ModelProto, values: dict[str, np.ndarray]) -> np.ndarray:
    """Differences from the ONNX reference evaluator in steps of the output."""
    given = run_graph(import_model(model), values)[model.graph.output[0].name]
    expected = ReferenceEvaluator(model).run(None, values)[0]
    assert given.shape == expected.shape
    name = model.graph.node[-1].input[1]
    scale = next(item for item in model.graph.initializer if item.name == name)
    return np.rint((given - expected) / numpy_helper.to_array(scale))


@repeated("seed", range(40))
@pytest.mark.parametrize("kind", [models.random_operator, models.random_written_out])
def test_agrees_with_the_reference(kind: Any, seed: int) -> None:
    rng = np.random.default_rng(seed)
    model = kind(rng)
    values = qdq_models.feeds(model, rng)
    models.calibrate_scores(model, values)
    graph = import_model(model)
    assert not on_host(graph)
    assert {type(op).__name__ for op in device_ops(graph)} <= {"Attention", "Rescale"}
    difference = steps(model, values)
    assert np.abs(difference).max() <= 1
    assert (difference != 0).mean() < 0.03


@pytest.mark.parametrize("seed", range(10))
def test_written_out_and_rounded_is_one_operator(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = models.random_sizes(rng, grouped=False)
    allowed = np.arange(sizes.keys) < rng.integers(1, sizes.keys + 1, (sizes.batch, 1, 1, 1))
    mask = models.additive(allowed) if seed % 2 else None
    model = models.written_out(rng, sizes, mask=mask, scale=["Mul", "Div", "q", "both"][seed % 4])
    graph = import_model(model)
    assert not on_host(graph)
    (op,) = device_ops(graph)
    assert (op.images, op.heads, op.dst.shape[3]) == (sizes.batch, sizes.heads, sizes.heads * sizes.v_size)
    scales = [float(item) for item in (op.score_scale, op.scale)]
    assert all(np.isfinite(scales))
    if mask is not None:
        assert list(op.lengths) == np.broadcast_to(allowed.sum(-1)[:, 0, 0], sizes.batch).tolist()
    notes = [note for name, _, _, note in graph.assignment if note]
    (note,) = [note for note in notes if note.startswith("scores are rounded and clamped to [-1")]
    assert note.endswith("its other roundings within attention are omitted")
    assert not is_exact(next(item for item in graph.segments if isinstance(item, DeviceSegment)))


def test_pairs_beyond_all_scores_only_round() -> None:
    """Scores of a range that no int8 queries and keys leave are those of the product, and `check` says so."""
    rng = np.random.default_rng(0)
    result = Exploded(rng, Sizes(1, 2, 2, 5, 5, 4, 4))
    q, q_source = result.heads(2, 5, 4)
    k, k_source = result.heads(2, 5, 4)
    v, v_source = result.heads(2, 5, 4)
    most = 4 * 255 * 255 * q_source.scale * k_source.scale
    scores = result.pair(result.product(q, result.keys_transposed(k, k_source)), most / 127)
    value = result.product(result.weights(scores, most / 127), v)
    graph = import_model(models.quantise_result(result.builder, value, v_source))
    (op,) = device_ops(graph)
    assert op.rounding is None
    assert ROUNDING in {note for _, _, _, note in graph.assignment}


@pytest.mark.parametrize(("scale", "note"), [
    (0.002, ""), (2.0, "scores beyond 166 are clamped, and a calibration found them up to 30"),
])  # fmt: skip
def test_possible_clamping_is_reported(scale: float, note: str) -> None:
    """By `check`, by what `compile` makes, also once it was saved, and in the report of each run."""
    rng = np.random.default_rng(4)
    model = models.operator(rng, Sizes(1, 1, 1, 4, 4, 8, 8), scale=scale)
    attention = next(node for node in model.graph.node if node.op_type == "Attention")
    model.metadata_props.add(key=f"{LARGEST}{attention.name}", value="30.0")
    (arguments,) = [item[3] for item in import_model(model).assignment if item[1] == "Attention"]
    assert arguments.startswith(note)
    assert bool(arguments) == bool(note)
    checked, program = weft.check(model, "tiny"), weft.compile(model, "tiny")
    assert [text.partition("): ")[2] for text in checked.warnings] == ([arguments] if note else [])
    assert checked.warnings == program.warnings
    result = program.run(qdq_models.feeds(model, rng))
    assert result.report["warnings"] == list(program.warnings)


def test_rounded_scores_cost_the_model_but_not_the_device() -> None:
    """The fused form must be closer to the float model than the model's own rounding is."""
    rng = np.random.default_rng(3)
    sizes = Sizes(1, 2, 2, 12, 12, 16, 16)
    rounded, plain = (
        models.written_out(np.random.default_rng(3), sizes, rounded=value) for value in (True, False)
    )
    values = qdq_models.feeds(plain, rng)
    name = rounded.graph.input[0].name
    assert [item.name for item in rounded.graph.input][:1] == [name]
    given = run_graph(import_model(plain), values)[plain.graph.output[0].name]
    expected = ReferenceEvaluator(plain).run(None, values)[0]
    scale = np.abs(expected).max() / 64
    assert np.abs(given - expected).max() < scale
    named = dict(zip((item.name for item in rounded.graph.input), values.values(), strict=True))
    model = ReferenceEvaluator(rounded).run(None, named)[0]
    device = run_graph(import_model(rounded), named)[rounded.graph.output[0].name]
    assert np.abs(device - expected).mean() < np.abs(model - expected).mean()


def test_heads_stay_where_neighbouring_products_put_them() -> None:
    """Three projections, attention and a product of its result: five operators, no copy between them."""
    rng = np.random.default_rng(0)
    result = Exploded(rng, Sizes(2, 4, 4, 6, 6, 8, 8))
    builder = result.builder
    source = builder.input((2, 6, 24))
    parts = [builder.dense(source, 32, op="MatMul", bias=False) for _ in range(3)]
    q = result.split(parts[0], 4)
    k = result.split(parts[1], 4, (0, 2, 3, 1))
    v = result.split(parts[2], 4)
    value = result.product(result.weights(result.scale_by(result.pair(result.product(q, k), 0.4), 0.35)), v)
    joined = builder.like(result.join_heads(value, parts[2]), (2, 6, 32), parts[2])
    graph = import_model(builder.finish(builder.dense(joined, 5, op="MatMul", bias=False)))
    assert not on_host(graph)
    kinds = [type(op) for op in device_ops(graph)]
    assert kinds == [Conv, Conv, Conv, Attention, Conv]
    op = device_ops(graph)[3]
    assert [view.shape for view in (op.q, op.k, op.v, op.dst)] == [(2, 1, 6, 32)] * 4
    assert "heads(4 on 4) lengths(6, 6)" in dump(graph)


def test_heads_as_images_stay_images() -> None:
    rng = np.random.default_rng(0)
    builder = Builder(rng)
    parts = [builder.dense(builder.input((1, 3, 5, 4)), 4, op="MatMul", bias=False) for _ in range(3)]
    result = Exploded(rng, Sizes(1, 3, 3, 5, 5, 4, 4))
    result.builder = builder
    q, k, v = (builder.dequantise(part) for part in parts)
    value = result.product(result.weights(result.product(q, result.keys_transposed(k, parts[1]))), v)
    model = models.quantise_result(builder, value, parts[2])
    graph = import_model(model)
    assert not on_host(graph)
    op = device_ops(graph)[-1]
    assert [view.shape for view in (op.q, op.k, op.v, op.dst)] == [(3, 1, 5, 4)] * 4


@pytest.mark.parametrize("rank", [2, 3])
def test_other_ranks(rank: int) -> None:
    rng = np.random.default_rng(rank)
    builder = Builder(rng)
    shape = (6, 8) if rank == 2 else (4, 6, 8)
    q, k, v = (builder.input(shape) for _ in range(3))
    perm = [*range(rank - 2), rank - 1, rank - 2]
    keys = builder.node("Transpose", [builder.dequantise(k)], perm=perm)
    scores = builder.node("MatMul", [builder.dequantise(q), keys])
    scores = builder.node("Mul", [scores, builder.constant(np.float32(0.3))])
    value = builder.node("MatMul", [builder.node("Softmax", [scores], axis=-1), builder.dequantise(v)])
    model = models.quantise_result(builder, value, v)
    assert not on_host(import_model(model))
    assert np.abs(steps(model, qdq_models.feeds(model, rng))).max() <= 1


@pytest.mark.parametrize("swapped", [False, True])
def test_mask_chosen_by_where(swapped: bool) -> None:
    rng = np.random.default_rng(0)
    result = Exploded(rng, Sizes(1, 2, 2, 5, 5, 4, 4), rounded=False)
    builder = result.builder
    q, _ = result.heads(2, 5, 4)
    k, k_source = result.heads(2, 5, 4)
    v, v_source = result.heads(2, 5, 4)
    scores = result.product(q, result.keys_transposed(k, k_source))
    seen = np.tril(np.ones((5, 5), bool))
    low = builder.constant(np.float32(np.finfo(np.float32).min))
    chosen = [builder.constant(~seen), low, scores] if swapped else [builder.constant(seen), scores, low]
    value = result.product(result.weights(builder.node("Where", chosen)), v)
    model = models.quantise_result(builder, value, v_source)
    (op,) = ops_of(model)
    assert (op.causal, op.offset, op.lengths) == (True, 0, (5,))
    assert np.abs(steps(model, qdq_models.feeds(model, rng))).max() <= 1


def test_scores_scaled_twice() -> None:
    rng = np.random.default_rng(0)
    result = Exploded(rng, Sizes(1, 2, 2, 5, 5, 4, 4), rounded=False)
    q, _ = result.heads(2, 5, 4)
    k, k_source = result.heads(2, 5, 4)
    v, v_source = result.heads(2, 5, 4)
    scores = result.scale_by(result.product(q, result.keys_transposed(k, k_source)), 0.125)
    value = result.product(result.weights(result.scale_by(scores, 0.5, "Div")), v)
    model = models.quantise_result(result.builder, value, v_source)
    (op,) = ops_of(model)
    assert isinstance(op, Attention)
    assert np.abs(steps(model, qdq_models.feeds(model, rng))).max() <= 1


def add_guard(made: Exploded, value: str, zero: float) -> str:
    """Add torch's guard after a softmax of masked scores."""
    builder = made.builder
    guard = builder.node("IsNaN", [value])
    return builder.node("Where", [guard, builder.constant(np.float32(zero)), value])


@pytest.mark.parametrize("zero", [0.0, 1.0])
def test_probabilities_that_are_not_a_number(zero: float) -> None:
    rng = np.random.default_rng(0)
    result = Exploded(rng, Sizes(1, 2, 2, 5, 5, 4, 4), rounded=False)
    q, _ = result.heads(2, 5, 4)
    k, k_source = result.heads(2, 5, 4)
    v, v_source = result.heads(2, 5, 4)
    scores = result.add_mask(
        result.product(q, result.keys_transposed(k, k_source)), models.additive(np.arange(5) < 3)
    )
    value = result.product(add_guard(result, result.weights(scores), zero), v)
    model = models.quantise_result(result.builder, value, v_source)
    graph = import_model(model)
    assert bool(on_host(graph)) == bool(zero)
    assert [isinstance(op, Attention) for op in device_ops(graph)] == ([] if zero else [True])
    assert np.abs(steps(model, qdq_models.feeds(model, rng))).max() <= 1


def test_heads_with_lengths_of_their_own_are_images() -> None:
    rng = np.random.default_rng(0)
    lengths = np.array([[2, 3], [5, 1]]).reshape(2, 2, 1, 1)
    mask = models.additive(np.arange(5) < lengths)
    model = models.written_out(rng, Sizes(2, 2, 2, 4, 5, 4, 4), rounded=False, mask=mask, join=False)
    (op,) = ops_of(model)
    assert (op.images, op.heads, op.lengths) == (4, 1, (2, 3, 5, 1))
    assert np.abs(steps(model, qdq_models.feeds(model, rng))).max() <= 1


def test_image_without_keys() -> None:
    """Rows without keys are zero, which only ONNX's operator defines."""
    rng = np.random.default_rng(0)
    sizes = Sizes(2, 1, 1, 4, 6, 4, 4)
    model = models.operator(rng, sizes, lengths=[0, 3])
    (op,) = ops_of(model)
    assert op.lengths == (0, 3)
    assert np.abs(steps(model, qdq_models.feeds(model, rng))).max() <= 1


def test_causal_and_lengths() -> None:
    rng = np.random.default_rng(0)
    model = models.operator(rng, Sizes(2, 1, 1, 4, 9, 4, 4), lengths=[7, 7], is_causal=1)
    (op,) = ops_of(model)
    assert (op.lengths, op.causal, op.offset) == ((7, 7), True, 3)
    assert np.abs(steps(model, qdq_models.feeds(model, rng))).max() <= 1


def test_short_mask_excludes_the_rest() -> None:
    rng = np.random.default_rng(0)
    mask = np.ones((4, 5), bool)
    (op,) = ops_of(models.operator(rng, Sizes(1, 1, 1, 4, 9, 4, 4), mask=mask))
    assert (op.lengths, op.causal) == ((5,), False)


@pytest.mark.parametrize("mask", [
    Mask((5,), False, 0), Mask((0, 7), False, 0), Mask((5, 3), True, 0), Mask((7,), True, -2), Mask((7, 4), True, 3),
    Mask((1,), True, -3), Mask((7,), True, 5),
])  # fmt: skip
def test_recognises_its_own_masks(mask: Mask) -> None:
    allowed = mask.allowed_keys(5, 7)
    actual = recognise(allowed)
    assert actual is not None
    assert np.array_equal(actual.allowed_keys(5, 7), allowed)


def test_recognises_exactly_masks_of_lengths_and_diagonals() -> None:
    """All masks of two images, two queries and two keys."""
    result = {
        Mask(lengths, causal, offset).allowed_keys(2, 2).tobytes()
        for lengths in np.ndindex(3, 3) for causal in (False, True) for offset in range(-3, 3)
    }  # fmt: skip
    for bits in range(256):
        allowed = np.array([bits >> position & 1 for position in range(8)], bool).reshape(2, 2, 2)
        assert (recognise(allowed) is not None) == (allowed.tobytes() in result), allowed


def test_additive_masks() -> None:
    assert mask_of(np.array([0.0, -10000.0, -np.inf])).tolist() == [True, False, False]
    for other in (-1.0, 1.0, np.nan, -9000.0):
        assert mask_of(np.array([0.0, other])) is None


@pytest.mark.parametrize(("shape", "axis", "opset"), [
    ((3, 7), 1, 21), ((3, 7), 0, 21), ((2, 3, 7), -1, 21), ((2, 5, 3, 4), 1, 21), ((2, 5, 3, 4), 3, 21),
    ((2, 5, 1, 1), 1, 11), ((2, 5), 1, 11),
])  # fmt: skip
def test_softmax(shape: tuple[int, ...], axis: int, opset: int) -> None:
    rng = np.random.default_rng(axis + 10)
    builder = Builder(rng, opset)
    source = builder.input(shape)
    value = builder.node("Softmax", [builder.dequantise(source)], axis=axis)
    model = builder.finish(builder.quantise(value, shape, 1 / 256, 0, True))
    graph = import_model(model)
    assert not on_host(graph)
    (op,) = device_ops(graph)
    assert isinstance(op, Softmax)
    assert (op.src.shape[3], op.scale, op.score_scale) == (shape[axis], 256.0, source.scale)
    if opset >= 19:  # the evaluator knows no older DequantizeLinear
        assert np.abs(steps(model, qdq_models.feeds(model, rng))).max() <= 1


def test_softmax_of_several_axes_is_of_long_rows() -> None:
    builder = Builder(np.random.default_rng(0), 11)
    source = builder.input((2, 5, 3))
    value = builder.node("Softmax", [builder.dequantise(source)])
    graph = import_model(builder.finish(builder.quantise(value, (2, 5, 3), 1 / 256, 0, True)))
    assert not on_host(graph)
    (op,) = device_ops(graph)
    assert op.src.shape == (1, 1, 2, 15)


@pytest.mark.parametrize("scale", [1.39, 1774.9])
def test_softmax_of_too_wide_logits_is_left_to_the_host(scale: float) -> None:
    reasons = on_host(import_model(qdq_models.softmax((20, 9), scale, 5, False)))
    assert any("scale of Softmax's input must be at most 1.386" in reason for reason in reasons.values())


def test_softmax_of_convolution_over_channels() -> None:
    rng = np.random.default_rng(0)
    builder = Builder(rng)
    value = builder.conv(builder.input((1, 3, 4, 4)), 6)
    name = builder.node("Softmax", [builder.dequantise(value)], axis=1)
    graph = import_model(builder.finish(builder.quantise(name, value.shape, 1 / 256, 0, True)))
    assert [type(op) for op in device_ops(graph)] == [Conv, Softmax]


def test_device_without_softmax_unit() -> None:
    model = models.operator(np.random.default_rng(0), Sizes())
    graph = import_model(model, config=Config(probability_bits=0))
    assert not device_ops(graph)
    assert "The configuration must have a softmax unit ('probability_bits' 7 or 8)" in on_host(graph).values()
    graph = import_model(
        models.written_out(np.random.default_rng(0), Sizes()), config=Config(probability_bits=0)
    )
    assert not [op for op in device_ops(graph) if isinstance(op, Attention | Softmax)]


def test_scores_that_end_elsewhere_leave_softmax_to_the_device() -> None:
    """A product by itself, and its softmax."""
    rng = np.random.default_rng(0)
    result = Exploded(rng, Sizes(1, 1, 1, 4, 4, 4, 4))
    builder = result.builder
    q, k = (builder.dequantise(builder.input((4, 4))) for _ in range(2))
    value = result.weights(result.product(q, k))
    model = builder.finish(builder.quantise(value, (4, 4), 1 / 256, 0, True))
    graph = import_model(model)
    assert [type(op) for op in device_ops(graph)] == [Product, Softmax]
    assert np.abs(steps(model, qdq_models.feeds(model, rng))).max() <= 1


def test_position_embedding_is_an_operand_of_the_sum() -> None:
    rng = np.random.default_rng(0)
    builder = Builder(rng)
    source = builder.input((1, 6, 5), unsigned=False)
    values = rng.integers(-128, 128, (6, 5)).astype(np.int8)
    constant = builder.dequantise(
        qdq_models.Quantised(builder.constant(values, "position"), (6, 5), source.scale, 3, False)
    )
    value = builder.node("Add", [builder.dequantise(source), constant])
    model = builder.finish(builder.quantise(value, (1, 6, 5), source.scale * 2, 0, False))
    graph = import_model(model)
    assert not on_host(graph)
    assert [type(op).__name__ for op in device_ops(graph)] == ["Add"]
    assert np.abs(steps(model, qdq_models.feeds(model, rng))).max() <= 1


def test_scaling_is_a_view() -> None:
    """Mul and Div by one number change no byte, however their result is quantised."""
    rng = np.random.default_rng(0)
    builder = Builder(rng)
    value = builder.conv(builder.input((1, 3, 4, 4)), 4)
    name = builder.node("Mul", [builder.constant(np.float32(0.25)), builder.dequantise(value)])
    scaled = builder.quantise(name, value.shape, value.scale * 0.250001, value.zero, value.unsigned)
    name = builder.node("Div", [builder.dequantise(scaled), builder.constant(np.full(1, 8, np.float32))])
    last = builder.conv(builder.quantise(name, value.shape, value.scale / 50, 3, False), 4, (1, 1))
    model = builder.finish(last)
    graph = import_model(model)
    assert not on_host(graph)
    assert [type(op) for op in device_ops(graph)] == [Conv, Rescale, Conv]
    assert np.abs(steps(model, qdq_models.feeds(model, rng))).max() <= 1


def test_division_of_channels() -> None:
    rng = np.random.default_rng(0)
    builder = Builder(rng)
    source = builder.input((1, 3, 4, 4))
    divisor = builder.constant(np.array([0.5, -2, 3], np.float32).reshape(3, 1, 1))
    name = builder.node("Div", [builder.dequantise(source), divisor])
    model = builder.finish(builder.quantise(name, source.shape, 0.1, 3, False))
    assert [type(op) for op in ops_of(model)] == [Conv]
    assert np.abs(steps(model, qdq_models.feeds(model, rng))).max() <= 1


def test_scores_as_an_output_keep_their_values() -> None:
    """Someone looks at the scores: all of the attention is on the host, and nothing changes."""
    rng = np.random.default_rng(0)
    model = models.written_out(rng, Sizes())
    scores = next(node for node in model.graph.node if node.op_type == "MatMul").output[0]
    model.graph.output.append(helper.make_tensor_value_info(scores, TensorProto.FLOAT, (1, 2, 5, 5)))
    values = qdq_models.feeds(model, rng)
    given = run_graph(import_model(model), values)
    for item, expected in zip(model.graph.output, ReferenceEvaluator(model).run(None, values), strict=True):
        assert np.allclose(given[item.name], expected, atol=0.02 * np.abs(expected).max())


@pytest.mark.parametrize("name", ["tiny", "default"])
def test_attention_without_look_up_tables(name: str) -> None:
    """It takes the table of powers alone; a function behind it runs on the host, with that as the reason."""
    rng = np.random.default_rng(0)
    result = Exploded(rng, Sizes(1, 1, 1, 4, 4, 8, 8), rounded=False)
    (q, _), (k, k_source), (v, v_source) = (result.heads(1, 4, 8) for _ in range(3))
    scores = result.scale_by(result.product(q, result.keys_transposed(k, k_source)), 0.1)
    value = result.product(result.weights(scores), v)
    like = result.builder.like(value, result.builder.shape_of(value), v_source)
    model = models.quantise_result(
        result.builder, result.builder.node("Tanh", [result.builder.dequantise(like)]), v_source
    )
    program = weft.compile(model, Config.load(name).replace(kernel=64, lookup_tables=0))
    placed = {op: (place, why) for _, op, place, why in program.assignment}
    assert placed["MatMul"][0] == "device"
    assert placed["Tanh"] == ("host", "The configuration must have look-up tables ('lookup_tables' above 0)")
    (outputs,) = program.run(inputs := qdq_models.feeds(model, rng)).outputs.values()
    (expected,) = ReferenceEvaluator(model).run(None, inputs)
    # A step of the means, and one of the results.
    assert np.abs(outputs - expected).max() <= 1.01 * (1 + 0.7) * v_source.scale
