"""Attention of quantised models on every configuration, against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from support import attention_bounds as bounds
from support import configurations
from support.attention_drawn import Drawn, draw
from support.graph_runs import device_ops

import weft
from weft.compiler.frontend import import_model
from weft.compiler.ir.graph import Attention
from weft.hdl.isa.config import Config

CONFIGS = {name: config for name, config in configurations.every().items() if config.softmax}


def onnxruntime_runs(model: onnx.ModelProto, values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    return dict(zip((item.name for item in model.graph.output), session.run(None, values), strict=True))


def allowance(drawn: Drawn, given: dict[str, np.ndarray], config: Config, op: Attention | None) -> np.ndarray:
    """Allowed difference between device and ONNX Runtime, in steps of the output; `op` is the fused operator."""
    scale = drawn.values.scale / drawn.output.scale
    zero = drawn.values.zero - 128 * drawn.values.unsigned
    logits, values = given[drawn.logits].astype(float), given[drawn.values_float] / drawn.values.scale
    query = given[drawn.query_float] / drawn.query.scale
    actual = np.zeros(drawn.output.shape)
    for index in np.ndindex(*drawn.output.shape[:2]):
        z, v = logits[index], values[index]
        seen = z > z.max(axis=1, keepdims=True) - 11
        device = z if op is None else z + bounds.score_shift(op, query[index])
        p, off, unit = bounds.powers(device, seen, config, drawn.nats)
        off = np.where(seen, off, np.exp(z - z.max(axis=1, keepdims=True)))
        actual[index] = bounds.means((p, off, unit), v, zero, config) + drawn.weights * np.abs(v).sum(0)
    return actual * scale


def worst(drawn: Drawn, config: Config) -> tuple[list[Attention], float] | None:
    """Return the fused operators, and the largest difference from ONNX Runtime as a share of the allowance."""
    outputs = onnxruntime_runs(drawn.outputs(), drawn.feeds)
    ops = device_ops(import_model(drawn.model))
    fused = [op for op in ops if isinstance(op, Attention)]
    reach = np.abs(outputs[drawn.products]).max() * drawn.factor
    if fused and fused[0].rounding is None and reach > 0.75 * bounds.SCORE_CLAMP:
        return None
    name = drawn.model.graph.output[0].name
    got = weft.compile(drawn.model, config).run(drawn.feeds).outputs[name] / drawn.output.scale
    low = -drawn.output.zero if drawn.output.unsigned else -128 - drawn.output.zero
    exact = np.clip(outputs[drawn.result] / drawn.output.scale, low, low + 255)
    allowed = allowance(drawn, outputs, config, fused[0] if fused else None) if ops else 0.01
    return fused, float((np.abs(got - exact) / (allowed + 0.5)).max())


def check(name: str, seeds: range) -> None:
    """Compare random models on one configuration; most are fused, and some follow a pair that clips."""
    fused = []
    for seed in seeds:
        actual = worst(draw(np.random.default_rng(seed)), CONFIGS[name])
        if actual is not None:
            assert actual[1] <= 1, f"seed {seed}: {actual[1]:.2f} times what is allowed"
            fused += actual[0]
    assert len(fused) >= len(seeds) / 3
    assert any(op.rounding is not None for op in fused)


@pytest.mark.drawn(6)
@pytest.mark.parametrize("index", range(len(CONFIGS)))
def test_random_models(index: int) -> None:
    check(list(CONFIGS)[index], range(12 * index, 12 * index + 12))


@pytest.mark.parametrize("name", ["icebreaker", "tiny, 7 bits"])
def test_exponents_use_scores_as_rounded_by_the_device(name: str) -> None:
    """Scores may differ from the formula by their zero point: the unit rounds up to twice."""
    actual = worst(draw(np.random.default_rng(5517)), CONFIGS[name])
    assert actual is not None
    assert actual[0][0].rounding is not None
    assert actual[1] <= 1


@pytest.mark.long
@pytest.mark.parametrize("block", range(20))
@pytest.mark.parametrize("name", CONFIGS)
def test_random_models_more(name: str, block: int) -> None:
    check(name, range(1000 + 50 * block, 1050 + 50 * block))
