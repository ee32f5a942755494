"""Masks that are known when the model runs: masked keys have no influence at all, and others are as without a mask."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support import attention_models as models
from support import qdq_models
from support.attention_models import Exploded, Sizes
from support.graph_runs import device_ops, on_host, run_graph
from support.integer_nets import run
from support.key_mask_models import SCALE, Case, masked_attention
from support.repeated import repeated

import weft
from weft.compiler.frontend import import_model
from weft.compiler.ir.graph import Attention
from weft.compiler.ir.scales import SCORE_REACH
from weft.compiler.onnx.key_masks import extension, is_mask
from weft.compiler.onnx.qdq import Quant
from weft.hdl.isa.config import PRESETS


def draw_model(rng: np.random.Generator) -> tuple[Case, Sizes, str]:
    sizes = models.random_sizes(rng, grouped=False)
    layout = str(rng.choice(["ishd", "ihsd"]))
    options: dict[str, Any] = {
        "images": int(rng.choice([1, sizes.batch])),
        "causal": sizes.keys >= sizes.queries and bool(rng.integers(2)),
        "unsigned": bool(rng.integers(2)),
        "swapped": bool(rng.integers(2)),
        "join": bool(rng.integers(2)),
        "factor": float(rng.choice([0.02, 0.1, 1.0])) * sizes.size**-0.5,
    }
    return masked_attention(rng, sizes, layout=layout, **options), sizes, layout


def other_masked(case: Case, sizes: Sizes, layout: str, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Replace masked keys and values by the ends of their ranges."""
    feeds = dict(case.feeds)
    names = [name for name in feeds if name != "mask"]
    for name in names[1:]:
        value = feeds[name].copy()
        rows = value if layout == "ishd" else value.swapaxes(1, 2)
        rows[~case.allowed] = rng.choice([-1e6, 1e6], rows[~case.allowed].shape)
        feeds[name] = value
    return feeds


@pytest.mark.parametrize("seed", range(24))
def test_agrees_with_onnx_runtime(seed: int) -> None:
    rng = np.random.default_rng(seed)
    case, _, _ = draw_model(rng)
    graph = import_model(case.model)
    assert set(on_host(graph)) <= {node.name for node in case.model.graph.node if "quantize" in node.name}
    (op,) = (op for op in device_ops(graph) if isinstance(op, Attention))
    (expected,) = (run(case.model, **case.feeds),)
    got = run_graph(graph, case.feeds)[case.model.graph.output[0].name]
    last = case.model.graph.node[-1].input[1]
    step = next(item for item in case.model.graph.initializer if item.name == last)
    assert np.abs(got - expected).max() <= 1.01 * float(onnx.numpy_helper.to_array(step))
    assert op.head_size > 0


@pytest.mark.parametrize("config", ["tiny", "small", "default"])
@pytest.mark.parametrize("seed", range(5))
def test_masked_keys_have_no_influence(seed: int, config: str) -> None:
    rng = np.random.default_rng(100 + seed)
    case, sizes, layout = draw_model(rng)
    program = weft.compile(case.model, PRESETS[config])
    (name,) = program.outputs
    first, second = (
        program.run(feeds).outputs[name] for feeds in (case.feeds, other_masked(case, sizes, layout, rng))
    )
    np.testing.assert_array_equal(first, second)
    everywhere = case.feeds | {"mask": np.zeros_like(case.feeds["mask"])}
    assert case.allowed.all() or (program.run(everywhere).outputs[name] != first).any() or sizes.size == 1


def test_layers_share_the_elements_of_their_mask() -> None:
    """A convolution makes them once for each number of elements."""
    rng = np.random.default_rng(0)
    result = Exploded(rng, Sizes(1, 2, 2, 6, 6, 4, 4), rounded=False)
    builder = result.builder
    builder.inputs.append(helper.make_tensor_value_info("mask", TensorProto.FLOAT, (1, 1, 1, 6)))
    mask = builder.dequantise(builder.quantise("mask", (1, 1, 1, 6), SCALE, 127, False))
    source = builder.input((1, 6, 8))
    value = builder.dequantise(source)
    for _ in range(2):
        split = builder.constant(np.array([1, 6, 2, 4], np.int64))
        heads = builder.node("Transpose", [builder.node("Reshape", [value, split])], perm=[0, 2, 1, 3])
        keys = builder.node("Transpose", [heads], perm=[0, 1, 3, 2])
        scores = builder.node("Add", [result.product(heads, keys), mask])
        value = result.product(builder.node("Softmax", [scores], axis=-1), heads)
        value = builder.node("Transpose", [value], perm=[0, 2, 1, 3])
        whole = builder.constant(np.array([1, 6, 8], np.int64))
        value = builder.dequantise(builder.like(builder.node("Reshape", [value, whole]), (1, 6, 8), source))
    model = builder.finish(builder.like(value, (1, 6, 8), source))
    ops = [type(op).__name__ for op in device_ops(import_model(model))]
    assert (ops.count("Attention"), ops.count("Conv")) == (2, 1)


@pytest.mark.parametrize("images", [1, 2])
def test_keys_that_lie_head_by_head(images: int) -> None:
    """Attention in front leaves them so: each head of each image has its mask."""
    rng = np.random.default_rng(images)
    result = Exploded(rng, Sizes(2, 2, 2, 6, 6, 4, 4), rounded=False)
    builder = result.builder
    builder.inputs.append(helper.make_tensor_value_info("mask", TensorProto.FLOAT, (images, 1, 1, 6)))
    mask = builder.dequantise(builder.quantise("mask", (images, 1, 1, 6), SCALE, 127, False))
    source = builder.input((2, 6, 8))
    split = builder.constant(np.array([2, 6, 2, 4], np.int64))
    parted = builder.node("Reshape", [builder.dequantise(source), split])
    heads = builder.node("Transpose", [parted], perm=[0, 2, 1, 3])

    def attend(keys: str, *masks: str) -> str:
        turned = builder.node("Transpose", [keys], perm=[0, 1, 3, 2])
        scores = result.scale_by(result.product(heads, turned), 0.1)
        for given in masks:
            scores = builder.node("Add", [scores, given])
        return result.product(builder.node("Softmax", [scores], axis=-1), heads)

    first = builder.dequantise(builder.like(attend(heads), (2, 2, 6, 4), source))
    model = builder.finish(builder.like(attend(first, mask), (2, 2, 6, 4), source))
    graph = import_model(model)
    second = [op for op in device_ops(graph) if isinstance(op, Attention)][-1]
    assert second.k.shape[0] == 4  # images times heads
    feeds = qdq_models.feeds(model, rng)
    allowed = np.array([[True, False, True, True, False, True], [True, True, False, True, False, False]])[
        :images
    ]
    feeds["mask"] = models.additive(allowed).reshape(images, 1, 1, 6)
    expected = run(model, **feeds)
    got = run_graph(graph, feeds)[model.graph.output[0].name]
    last = next(item for item in model.graph.initializer if item.name == model.graph.node[-1].input[1])
    assert np.abs(got - expected).max() <= 1.01 * float(onnx.numpy_helper.to_array(last))
    assert np.abs(got - run(model, **feeds | {"mask": np.zeros_like(feeds["mask"])})).max() > 0.1


@repeated("seed", range(200))
def test_masked_scores_are_below_all_others(seed: int) -> None:
    rng = np.random.default_rng(seed)
    q, k = (Quant(1.0, int(rng.integers(-128, 128)), False) for _ in range(2))
    size, nats = int(rng.integers(1, 200)), float(10 ** rng.uniform(-6, 1))
    actual = extension(q, k, size, nats)
    ends = [(a - q.zero) * (b - k.zero) for a in (-128, 127) for b in (-128, 127)]
    low, high = min(ends) * size * nats, max(ends) * size * nats
    if actual is None:
        best = max((127 - q.zero) * (k.zero + 128), (q.zero + 128) * (127 - k.zero))
        assert best * nats * 1024 < high - low + SCORE_REACH
        return
    lowered = actual.size * (actual.query - q.zero) * (actual.key - k.zero) * nats
    slack = 1e-9 * (high - low + SCORE_REACH)
    assert lowered + high - low <= slack - SCORE_REACH
    assert (actual.size - 1) * lowered / actual.size + high - low > -slack - SCORE_REACH


def test_forms_of_masks() -> None:
    assert is_mask(Quant(SCALE, 127, False))
    assert is_mask(Quant(1e36, 127, True))
    assert not is_mask(Quant(SCALE, 126, False))  # some scores would be raised
    assert not is_mask(Quant(11.0, 127, False))
    assert not is_mask(Quant(SCALE, 127, False, 16))


@pytest.mark.parametrize(
    "options", [{"zero": 100}, {"scale": 5.0}, {"images": 1, "scale": 0.1}], ids=["raised", "fine", "biased"]
)
def test_other_addends_are_no_masks(options: dict[str, Any]) -> None:
    case = masked_attention(np.random.default_rng(0), Sizes(2, 2, 2, 5, 5, 4, 4), **options)
    assert not any(isinstance(op, Attention) for op in device_ops(import_model(case.model)))


def test_masks_by_query_are_not_key_masks() -> None:
    """Of (images, 1, queries, keys)."""
    rng = np.random.default_rng(0)
    case = masked_attention(rng, Sizes(1, 2, 2, 5, 5, 4, 4))
    given = next(value for value in case.model.graph.input if value.name == "mask")
    given.type.tensor_type.shape.dim[2].dim_value = 5
    assert not any(isinstance(op, Attention) for op in device_ops(import_model(case.model)))
