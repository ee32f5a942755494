"""Attention whose scores may pass the device's clamp: its results are those of the model, on the device or the host."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from support.attention_models import Rng, additive
from support.graph_runs import device_ops
from support.qdq_models import Builder, Quantised

import weft
from weft.compiler.frontend import import_model
from weft.compiler.ir.graph import Attention
from weft.compiler.ir.scales import SCORE_CLAMP
from weft.compiler.onnx.reader import LARGEST

FORMS = ("operator", "written out", "8 bits", "16 bits", "key mask")
MASK_SCALE = 40.0


@dataclasses.dataclass
class Drawn:
    """A model with inputs whose scores reach `largest`, as a part of the clamp, and the step of its output."""

    model: onnx.ModelProto
    feeds: dict[str, np.ndarray]
    step: float
    largest: float


def draw(rng: Rng, form: str, reach: float, calibrated: bool) -> Drawn:
    """Queries and keys along one direction, so that the largest scores of a row are `reach` times the clamp."""
    builder, feeds = Builder(rng, 23 if form == "operator" else 21), {}
    batch, heads, queries, keys, size = (
        int(value) for value in rng.integers([1, 1, 2, 4, 2], [3, 3, 7, 20, 24])
    )
    direction = rng.choice([-1.0, 1.0], size)
    zeros = rng.integers(-128, 128, 3) if rng.random() < 0.7 else np.zeros(3, np.int64)
    sources, real = [], []
    for name, rows, zero in zip("qkv", (queries, keys, keys), zeros, strict=True):
        shape = (batch, heads, rows, size)
        if name == "v":
            integers = rng.integers(-128, 128, shape) - zero
        else:
            length = rng.uniform(0.7, 1, (*shape[:3], 1)) * (rng.choice([-1, 1]) if name == "q" else 1)
            most = np.where(direction * length < 0, 128 + zero, 127 - zero)
            integers = np.rint(direction * length * np.maximum(most, 30))
        integers = np.clip(integers, -128 - zero, 127 - zero)
        real.append(integers)
        builder.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        sources.append((name, shape, int(zero)))
    products = real[0] @ real[1].swapaxes(-1, -2)
    largest = max(np.abs(products.max(-1)).max(), 1)
    # `factor` is a part of what makes a score of a product.
    nats, factor = reach * SCORE_CLAMP / largest, float(np.float32(rng.choice([1.0, size**-0.5, 20.0])))
    ratio = float(rng.choice([0.1, 1.0, 5.0]))
    scales = [
        float(np.float32(value))
        for value in (ratio * (nats / factor) ** 0.5, (nats / factor) ** 0.5 / ratio, 0.02)
    ]
    quantised: list[Quantised] = []
    for (name, shape, zero), scale, integers in zip(sources, scales, real, strict=True):
        unsigned = bool(rng.integers(2))
        feeds[name] = (integers * np.float32(scale)).astype(np.float32)
        quantised.append(builder.quantise(name, shape, scale, zero + 128 * unsigned, unsigned))
    q, k, v = (builder.dequantise(item) for item in quantised)
    if form == "operator":
        value = builder.node("Attention", [q, k, v], scale=factor)
        named = builder.nodes[-1]
    else:
        scores = builder.node("MatMul", [q, builder.node("Transpose", [k], perm=[0, 1, 3, 2])])
        scores = builder.node("Mul", [scores, builder.constant(np.float32(factor))])
        scores = _adjust_scores(builder, form, scores, (batch, keys), products * nats, feeds)
        probabilities = builder.node("Softmax", [scores], axis=-1)
        named = builder.nodes[-1]
        value = builder.node("MatMul", [probabilities, v])
    output = builder.quantise(
        value, (batch, heads, queries, size), 0.0301, int(quantised[2].zero), quantised[2].unsigned
    )
    model = builder.finish(output)
    if calibrated:
        model.metadata_props.add(key=f"{LARGEST}{named.name}", value=repr(reach * SCORE_CLAMP))
    return Drawn(model, feeds, 0.0301, reach)


def _adjust_scores(
    builder: Builder,
    form: str,
    scores: str,
    keys: tuple[int, int],
    real: np.ndarray,
    feeds: dict[str, np.ndarray],
) -> str:
    """Scores behind what a form has in front of softmax: a pair that holds all of them, or a mask."""
    if form == "key mask":
        images, count = keys
        allowed = builder.rng.random((images, 1, 1, count)) < 0.6
        allowed[..., 0] = True
        builder.inputs.append(helper.make_tensor_value_info("mask", TensorProto.FLOAT, allowed.shape))
        feeds["mask"] = additive(allowed)
        mask = builder.quantise("mask", allowed.shape, MASK_SCALE, 127, False)
        return builder.node("Add", [scores, builder.dequantise(mask)])
    if form == "written out":
        return scores
    kind = np.dtype(np.int8 if form == "8 bits" else np.int16)
    low, high = min(real.min() * 1.01, 0.0), max(real.max() * 1.01, 0.0)
    least, most = np.iinfo(kind).min, np.iinfo(kind).max
    if builder.rng.integers(2):  # nothing can leave it
        low, high = 30 * min(low, -high), 30 * max(high, -low)
    scale = np.float32(((high - low) or 1.0) / (most - least))  # all scores may be 0
    zero = np.array(np.clip(round(least - low / scale), least, most), kind)
    arguments = [builder.constant(scale), builder.constant(zero)]
    return builder.node(
        "DequantizeLinear", [builder.node("QuantizeLinear", [scores, *arguments]), *arguments]
    )


def results(drawn: Drawn) -> Iterator[np.ndarray]:
    """The model's result, and without the pair of scores, as the device may compute them finer."""
    for model in (drawn.model, onnx.ModelProto.FromString(drawn.model.SerializeToString())):
        if model is not drawn.model:
            makers = {node.output[0]: node for node in model.graph.node}
            for node in model.graph.node:
                if node.op_type == "Softmax" and makers[node.input[0]].op_type == "DequantizeLinear":
                    node.input[0] = makers[makers[node.input[0]].input[0]].input[0]
        yield ReferenceEvaluator(model).run(None, drawn.feeds)[0]


def check(seed: int, count: int) -> None:
    rng, places = np.random.default_rng(seed), Counter[tuple[bool, bool]]()
    for case in range(count):
        form = FORMS[case % len(FORMS)]
        reach, calibrated = float(rng.choice([0.05, 0.3, 0.7, 0.95, 1.3, 4.0, 20.0])), bool(rng.integers(2))
        drawn = draw(rng, form, reach, calibrated)
        graph = import_model(drawn.model)
        fused = any(isinstance(op, Attention) for op in device_ops(graph))
        (name,) = (item.name for item in drawn.model.graph.output)
        config = "tiny" if rng.integers(2) else "default"
        got = weft.compile(drawn.model, config).run(drawn.feeds).outputs[name]
        apart = min(np.abs(got - expected).max() / drawn.step for expected in results(drawn))
        assert apart < 2.01, f"{form}, {reach} of the clamp, {calibrated=}, {fused=}: {apart:.1f} steps"
        assert reach > 0.1 or not calibrated or form not in FORMS[:2] or fused
        places[reach > 1, fused] += 1
    assert places[False, True]
    assert places[True, False]


@pytest.mark.drawn(1)
@pytest.mark.parametrize("seed", range(2))
def test_the_largest_of_a_row_is_never_lost(seed: int) -> None:
    check(seed, 40)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10, 40))
def test_the_largest_of_a_row_is_never_lost_more(seed: int) -> None:
    check(seed, 100)
