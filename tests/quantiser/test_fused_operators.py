"""Operators that ONNX Runtime's optimiser fuses, decomposed: results equal ONNX Runtime's."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType
from support import encoder_models, integer_nets
from support.encoder_models import Shape
from support.graph_runs import device_ops

import weft
from weft.compiler.frontend import import_model
from weft.compiler.ir.graph import Attention
from weft.quantiser import float_model, fused_operators

DOMAIN = "com.microsoft"
Inputs = dict[str, np.ndarray]


def build(
    operator: str,
    inputs: list[str],
    given: Inputs,
    constants: Inputs,
    opset: int = 20,
    outputs: tuple[str, ...] = ("y",),
    **attributes: Any,
) -> onnx.ModelProto:
    """Build a model of one node; its outputs are the model's, "" omits an output."""
    node = helper.make_node(operator, inputs, list(outputs), "fused", domain=DOMAIN, **attributes)
    kinds = {"i": TensorProto.INT32}
    graph = helper.make_graph(
        [node],
        "net",
        [
            helper.make_tensor_value_info(name, kinds.get(value.dtype.kind, TensorProto.FLOAT), value.shape)
            for name, value in given.items()
        ],
        [
            helper.make_tensor_value_info(
                name, TensorProto.INT32 if name == "counts" else TensorProto.FLOAT, None
            )
            for name in outputs
            if name
        ],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def results(model: onnx.ModelProto, given: Inputs) -> list[np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    data = model.SerializeToString()
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run(None, given)


def check(model: onnx.ModelProto, given: Inputs) -> onnx.ModelProto:
    """Check that no fused operator is left and that results agree within float32 rounding."""
    assert fused_operators.has_any(model)
    result = fused_operators.expand(float_model.infer_types(model))
    assert not any(node.domain for node in result.graph.node)
    for expected, got in zip(results(model, given), results(result, given), strict=True):
        assert got.dtype == expected.dtype
        np.testing.assert_allclose(got, expected, rtol=2e-4, atol=2e-5)
    return result


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    return rng.normal(0, scale, shape).astype(np.float32)


@pytest.mark.drawn(5)
@pytest.mark.parametrize("opset", [13, 17, 20])
@pytest.mark.parametrize("operator", ["Gelu", "BiasGelu", "FastGelu", "FastGelu with bias", "QuickGelu"])
def test_functions(operator: str, opset: int) -> None:
    rng = np.random.default_rng(opset)
    inputs = {"x": normal(rng, 2, 3, 8, scale=2)}
    bias = ["b"] if "ias" in operator else []
    name = operator.removesuffix(" with bias")
    attributes = {"alpha": 1.3} if name == "QuickGelu" else {}
    model = build(name, ["x", *bias], inputs, {"b": normal(rng, 8)} if bias else {}, opset, **attributes)
    check(model, inputs)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("seed", range(6))
def test_skip_normalisation(seed: int) -> None:
    rng = np.random.default_rng(seed)
    inputs = {"x": normal(rng, 2, 3, 8), "s": normal(rng, *((2, 3, 8), (1, 3, 8), (3, 8))[seed % 3])}
    constants = {"g": normal(rng, 8), "b": normal(rng, 8)}
    names = ["x", "s", "g", "b" if seed % 2 else ""]
    if seed & 2:
        names.append("more")
        constants["more"] = normal(rng, 8)
    outputs = ("y", "", "", "sum") if seed & 4 else ("y",)
    model = build("SkipLayerNormalization", names, inputs, constants, 17, outputs, epsilon=1e-5)
    check(model, inputs)


def test_operators_without_a_form_stay() -> None:
    """Normalisation needs opset 17; products of batches across each other have no ONNX form."""
    rng = np.random.default_rng(0)
    inputs = {"x": normal(rng, 2, 3, 8), "s": normal(rng, 2, 3, 8)}
    names, constants = ["x", "s", "g", "b"], {"g": normal(rng, 8), "b": normal(rng, 8)}
    models = [
        build("SkipLayerNormalization", names, inputs, constants, 13),
        build("FusedMatMul", ["x", "x"], {"x": normal(rng, 2, 3, 2, 3)}, {}, transBatchA=1, transB=1),
    ]
    for model in models:
        result = fused_operators.expand(model)
        assert [node.op_type for node in result.graph.node] == [model.graph.node[0].op_type]


@pytest.mark.drawn(3)
@pytest.mark.parametrize("seed", range(8))
def test_products(seed: int) -> None:
    rng = np.random.default_rng(seed)
    first, second = bool(seed & 1), bool(seed & 2)
    a, b = normal(rng, 2, 3, 5), normal(rng, 2, 5, 4)
    arguments = {"a": a.swapaxes(1, 2).copy() if first else a, "b": b.swapaxes(1, 2).copy() if second else b}
    model = build(
        "FusedMatMul",
        ["a", "b"],
        arguments,
        {},
        transA=int(first),
        transB=int(second),
        alpha=0.3 if seed & 4 else 1.0,
    )
    check(model, arguments)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("seed", range(4))
def test_embeddings(seed: int) -> None:
    rng = np.random.default_rng(seed)
    inputs = {name: rng.integers(0, 2, (2, 5)).astype(np.int32) for name in ("ids", "kinds", "mask", "at")}
    tables = {"words": 9, "places": 7, "table": 2}
    constants = {name: normal(rng, rows, 8) for name, rows in tables.items()}
    constants |= {"g": normal(rng, 8), "b": normal(rng, 8)}
    kinds = ["kinds", "table"] if seed % 2 else ["", ""]
    names = ["ids", kinds[0], "words", "places", kinds[1], "g", "b", "mask", *(["at"] if seed & 2 else [])]
    outputs = ("y", "counts", "sum") if seed % 2 else ("y", "counts")
    inputs = {name: value for name, value in inputs.items() if name in names}
    model = build("EmbedLayerNormalization", names, inputs, constants, 17, outputs, epsilon=1e-6)
    check(model, inputs)


@pytest.mark.drawn(5)
@pytest.mark.parametrize("mask", ["", "by key", "by query", "lengths", "added"])
@pytest.mark.parametrize("seed", range(3))
def test_attention(mask: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    heads, tokens = 2, 6
    widths = [8, 8, 12] if seed == 1 else [8, 8, 8]
    inputs = {"x": normal(rng, 2, tokens, 10)}
    constants = {"w": normal(rng, 10, sum(widths), scale=0.5), "b": normal(rng, sum(widths))}
    names = ["x", "w", "b"]
    attributes: dict[str, Any] = {"num_heads": heads, "unidirectional": int(seed == 2 and mask != "added")}
    if seed == 1:
        attributes |= {"qkv_hidden_sizes": widths, "scale": 0.2}
    lengths = np.array([3, 6], np.int32)
    allowed = (np.arange(tokens) < lengths[:, None]).astype(np.int32)
    masks = {
        "by key": allowed,
        "by query": np.repeat(allowed[:, None], tokens, axis=1),
        "lengths": lengths,
    }
    if mask in masks:
        inputs["m"] = masks[mask]
        names.append("m")
    elif mask:
        inputs["m"] = normal(rng, 2, heads, tokens, tokens)
        names += ["", "", "m"]
    model = build("Attention", names, inputs, constants, **attributes)
    check(model, inputs)


def optimise(model: onnx.ModelProto) -> onnx.ModelProto:
    """Apply ONNX Runtime's device-independent optimisations."""
    with tempfile.TemporaryDirectory() as folder:
        path, options = Path(folder, "optimised.onnx"), onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = str(path)
        options.log_severity_level = 3
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return onnx.load(path)


@pytest.mark.parametrize("dynamic", [False, True])
def test_optimised_encoders_run_whole_on_the_device(dynamic: bool) -> None:
    shape = Shape(tokens=8, width=32, wide=64, mask="added")
    model, samples = encoder_models.encoder(shape), encoder_models.samples(shape, 6)
    source = integer_nets.dynamic(model, weight_type=QuantType.QInt8) if dynamic else model
    fused = optimise(source)
    assert {"SkipLayerNormalization", "Gelu"} <= {node.op_type for node in fused.graph.node if node.domain}
    quantised = weft.quantise(fused, samples)
    assert all(item.kept for item in quantised.weights)
    assert len(quantised.weights) == (6 * shape.layers + 2) * dynamic
    assert not any(node.domain for node in quantised.model.graph.node)
    assert [type(op) for op in device_ops(import_model(quantised.model))].count(Attention) == shape.layers
    program = weft.compile(quantised.model)
    run = {name: value[0] for name, value in samples.items()}
    here = run["mask"].astype(bool)
    expected, got = integer_nets.run(model, **run)[here], program.run(run).outputs["y"][here]
    assert (expected * got).sum() / np.linalg.norm(expected) / np.linalg.norm(got) > 0.995
