"""numpy versions of ONNX Runtime's operators, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support.ort_sessions import plain_session

from weft.compiler.errors import CompileError
from weft.compiler.ir.network import Node
from weft.extras.language.onnx.natives import find_native

MICROSOFT = "com.microsoft"
Rng = np.random.Generator
Given = tuple[dict[str, np.ndarray], dict[str, Any]]
"""Inputs by name ("" for none) and attributes."""


def floats(rng: Rng, *shape: int) -> np.ndarray:
    return rng.normal(0, 2, shape).astype(np.float32)


def rotation(rng: Rng, shape: tuple[int, ...], tokens: int, **attributes: Any) -> Given:
    angles = rng.uniform(-3, 3, (50, 8))
    inputs = {"x": floats(rng, *shape), "p": rng.integers(0, 50, (shape[0], tokens))}
    return inputs | {
        "c": np.cos(angles).astype(np.float32),
        "s": np.sin(angles).astype(np.float32),
    }, attributes


def block_case(rng: Rng, dtype: str, *, zeros: bool, **attributes: Any) -> Given:
    """Return rows of 64 4-bit numbers in blocks of 16."""
    low, high = (-8, 8) if dtype == "int4" else (0, 16)
    inputs = {"d": rng.integers(low, high, (3, 64)), "i": rng.integers(0, 3, (2, 5)), "s": floats(rng, 3, 4)}
    if zeros:
        inputs["z"] = rng.integers(low, high, (3, 4))
    return inputs, {"block_size": 16, "quantize_axis": 1, "gather_axis": 0, **attributes}


CASES: dict[str, tuple[str, Callable[[Rng], Given]]] = {
    "gelu": ("FastGelu", lambda rng: ({"x": floats(rng, 3, 8)}, {})),
    "gelu with a bias": ("FastGelu", lambda rng: ({"x": floats(rng, 3, 8), "b": floats(rng, 8)}, {})),
    "sigmoid": ("QuickGelu", lambda rng: ({"x": floats(rng, 3, 8)}, {})),
    "steeper sigmoid": ("QuickGelu", lambda rng: ({"x": 50 * floats(rng, 3, 8)}, {"alpha": 3.0})),
    "rotation": ("RotaryEmbedding", lambda rng: rotation(rng, (1, 5, 48), 5)),
    "rotation of neighbours": ("RotaryEmbedding", lambda rng: rotation(rng, (1, 5, 48), 5, interleaved=1)),
    "rotation of heads": ("RotaryEmbedding", lambda rng: rotation(rng, (1, 3, 5, 16), 5)),
    "rotation of a part": (
        "RotaryEmbedding",
        lambda rng: rotation(rng, (1, 5, 60), 5, num_heads=3, rotary_embedding_dim=16),
    ),
}


def build_model(op: str, inputs: dict[str, np.ndarray], attributes: dict[str, Any]) -> onnx.ModelProto:
    node = helper.make_node(op, list(inputs), ["y"], name="n", domain=MICROSOFT, **attributes)
    values = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in inputs.items()
    ]
    graph = helper.make_graph(
        [node], "g", values, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def run_native(op: str, inputs: dict[str, np.ndarray], attributes: dict[str, Any]) -> np.ndarray:
    node = Node(op, tuple(inputs), ("y",), attributes, MICROSOFT, "n", 0)
    function = find_native(node)
    assert function is not None
    (result,) = function(node, list(inputs.values()))
    return result


@pytest.mark.parametrize("name", CASES)
def test_matches_onnx_runtime(name: str) -> None:
    op, build = CASES[name]
    inputs, attributes = build(np.random.default_rng(0))
    (wanted,) = plain_session(build_model(op, inputs, attributes)).run(None, inputs)
    np.testing.assert_allclose(run_native(op, inputs, attributes), wanted, rtol=2e-4, atol=2e-5)


def test_norms_without_an_epsilon_have_that_of_onnx_runtime() -> None:
    """1e-5, which dominates where squares are small."""
    rng = np.random.default_rng(0)
    x, weight = (1e-3 * floats(rng, 3, 8)), floats(rng, 8)
    node = Node("SimplifiedLayerNormalization", ("x", "w"), ("y",), {}, MICROSOFT, "n", 0)
    function = find_native(node)
    assert function is not None
    (actual,) = function(node, [x, weight])
    wanted = x / np.sqrt(np.mean(x.astype(np.float64) ** 2, axis=-1, keepdims=True) + 1e-5) * weight
    np.testing.assert_allclose(actual, wanted, rtol=1e-5)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("dtype", ["int4", "uint4"])
def test_rows_in_blocks(dtype: str, zeros: bool) -> None:
    """Each block of a row has a scale and a zero point; the default is 0, or the middle of an unsigned type."""
    inputs, attributes = block_case(np.random.default_rng(0), dtype, zeros=zeros)
    middle = inputs["z"].repeat(16, axis=1) if zeros else (8 if dtype == "uint4" else 0)
    wanted = ((inputs["d"] - middle) * inputs["s"].repeat(16, axis=1))[inputs["i"]]
    kinds = {"d": dtype, "z": dtype}
    typed = {
        name: value.astype(onnx_type(kinds[name])) if name in kinds else value
        for name, value in inputs.items()
    }
    np.testing.assert_allclose(run_native("GatherBlockQuantized", typed, attributes), wanted, rtol=1e-6)
    if dtype == "uint4":  # two in a byte, the first of them in its lower half
        for name in kinds.keys() & typed.keys():
            typed[name] = (inputs[name][:, ::2] | inputs[name][:, 1::2] << 4).astype(np.uint8)
        np.testing.assert_allclose(run_native("GatherBlockQuantized", typed, attributes), wanted, rtol=1e-6)


def onnx_type(name: str) -> np.dtype:
    return helper.tensor_dtype_to_np_dtype(getattr(TensorProto, name.upper()))


@pytest.mark.parametrize(("attribute", "value"), [("gather_axis", 1), ("quantize_axis", 0)])
def test_blocks_along_other_axes(attribute: str, value: int) -> None:
    inputs, attributes = block_case(np.random.default_rng(0), "uint4", zeros=False, **{attribute: value})
    with pytest.raises(
        CompileError, match=r"^node 'n' .* has blocks along another axis than rows of its last one$"
    ):
        run_native("GatherBlockQuantized", inputs, attributes)


@pytest.mark.parametrize(
    ("attribute", "value", "words"),
    [("is_packed_batching", 1, "packs texts of a batch"), ("scale", 0.5, "has scale 0.5")],
)
def test_unsupported_rotations(attribute: str, value: float, words: str) -> None:
    inputs, attributes = rotation(np.random.default_rng(0), (1, 5, 48), 5, **{attribute: value})
    with pytest.raises(CompileError, match=words):
        run_native("RotaryEmbedding", inputs, attributes)


def test_standard_operators_are_not_natives() -> None:
    assert find_native(Node("FastGelu", ("x",), ("y",), {}, "", "n", 0)) is None
    assert find_native(Node("Relu", ("x",), ("y",), {}, MICROSOFT, "n", 0)) is None
