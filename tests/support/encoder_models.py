"""Encoders of text as exporters write them: BERT and MiniLM, from token ids to the states of tokens or their mean.

Weights are random. Activations have the size of trained encoders', and a few channels of each normalisation are several
times larger than the others, as in trained encoders.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from support.float_nets import FloatNet

LEAST = float(np.finfo(np.float32).min)


@dataclass(frozen=True)
class Shape:
    """Options of an encoder.

    `mask` is how scores are masked: "none"; "added", (1 - mask) * -10000 as in BERT's older exports; "least", (1 -
    mask) times the least float32; "where", scores of 0 or minus infinity by Where, expanded to all queries; "scores",
    Where on the scores themselves; "hidden", Where with the inverted condition. `pool` is "none", "mean" (over unmasked
    tokens) or "first" (with tanh).
    """

    tokens: int = 16
    width: int = 64
    heads: int = 2
    wide: int = 128
    layers: int = 2
    words: int = 50
    batch: int = 1
    opset: int = 17
    mask: str = "added"
    pool: str = "none"
    seed: int = 0
    gelu: str = "erf"


MINILM = Shape(tokens=128, width=384, heads=12, wide=1536, layers=6, words=1000)


def encoder(shape: Shape) -> onnx.ModelProto:
    """Build the float model: inputs `ids`, `types` and, where there is one, `mask`, all int64; the output `y`."""
    net = FloatNet(shape.seed)
    x = _embed(net, shape)
    scores = _mask(net, shape)
    for _ in range(shape.layers):
        x = _layer(net, x, scores, shape)
    y = _pool(net, x, shape)
    names = ["ids", "types"] + ["mask"] * _needs_mask(shape)
    sizes = [shape.batch, shape.tokens]
    net.nodes.append(helper.make_node("Identity", [y], ["y"], "end"))
    graph = helper.make_graph(
        net.nodes,
        "encoder",
        [helper.make_tensor_value_info(name, TensorProto.INT64, sizes) for name in names],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        net.weights,
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", shape.opset)], ir_version=8)
    made = onnx.shape_inference.infer_shapes(made)
    onnx.checker.check_model(made)
    return made


def _needs_mask(shape: Shape) -> bool:
    return shape.mask != "none" or shape.pool == "mean"


def samples(shape: Shape, count: int = 4, seed: int = 1) -> dict[str, np.ndarray]:
    """Draw texts of different lengths."""
    rng = np.random.default_rng(seed)
    sizes = (count, shape.batch, shape.tokens)
    lengths = rng.integers(max(1, shape.tokens // 3), shape.tokens + 1, sizes[:2])
    here = np.arange(shape.tokens) < lengths[..., None]
    given = {
        "ids": rng.integers(1, shape.words, sizes) * here,
        "types": rng.integers(0, 2, sizes) * here,
        "mask": here.astype(np.int64),
    }
    return given if _needs_mask(shape) else {name: given[name] for name in ("ids", "types")}


def _embed(net: FloatNet, shape: Shape) -> str:
    """Add word, type and position embeddings, and normalise."""
    words = net.add("Gather", net.weight(shape.words, shape.width, scale=0.05), "ids", axis=0)
    kinds = net.add("Gather", net.weight(2, shape.width, scale=0.02), "types", axis=0)
    places = net.weight(1, shape.tokens, shape.width, scale=0.02)
    return _normalise(net, net.add("Add", net.add("Add", words, kinds), places), shape)


def _normalise(net: FloatNet, x: str, shape: Shape) -> str:
    scale = net.rng.uniform(0.7, 1.1, shape.width).astype(np.float32)
    bias = net.rng.normal(0, 0.1, shape.width).astype(np.float32)
    loud = net.rng.choice(shape.width, max(1, shape.width // 128), replace=False)
    scale[loud] *= 4
    bias[loud] += net.rng.choice([-1, 1], len(loud)) * 2
    gain, shift = net.constant(scale), net.constant(bias)
    if shape.opset >= 17:
        return net.add("LayerNormalization", x, gain, shift, axis=-1, epsilon=1e-12)
    centred = net.add("Sub", x, net.add("ReduceMean", x, axes=[-1]))
    squares = net.add("Pow", centred, net.constant(np.float32(2)))
    variance = net.add("Add", net.add("ReduceMean", squares, axes=[-1]), net.constant(np.float32(1e-12)))
    made = net.add("Mul", net.add("Div", centred, net.add("Sqrt", variance)), gain)
    return net.add("Add", made, shift)


def _mask(net: FloatNet, shape: Shape) -> str:
    """Return the value that is added to scores or is Where's condition; "" for none."""
    if shape.mask == "none":
        return ""
    axes = net.constant(np.array([1, 2], np.int64))
    whole = net.add("Unsqueeze", "mask", axes)
    if shape.mask in ("added", "least"):
        lowest = -10000.0 if shape.mask == "added" else LEAST
        floats = net.add("Cast", whole, to=TensorProto.FLOAT)
        return net.add(
            "Mul", net.add("Sub", net.constant(np.float32(1)), floats), net.constant(np.float32(lowest))
        )
    if shape.mask == "hidden":
        here = net.add("Equal", whole, net.constant(np.array(0, np.int64)))
    else:
        here = net.add("Cast", whole, to=TensorProto.BOOL)
    sizes = net.constant(np.array([shape.batch, 1, shape.tokens, shape.tokens], np.int64))
    here = net.add("Expand", here, sizes)
    if shape.mask in ("scores", "hidden"):
        return here
    return net.add("Where", here, net.constant(np.float32(0)), net.constant(np.float32(-np.inf)))


def _layer(net: FloatNet, x: str, mask: str, shape: Shape) -> str:
    width, size = shape.width, shape.width // shape.heads
    heads = net.constant(np.array([shape.batch, shape.tokens, shape.heads, size], np.int64))
    q, k, v = (
        net.add("Transpose", net.add("Reshape", net.dense(x, width, width), heads), perm=perm)
        for perm in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3))
    )
    scores = net.add("Div", net.add("MatMul", q, k), net.constant(np.float32(np.sqrt(size))))
    if shape.mask == "scores":
        scores = net.add("Where", mask, scores, net.constant(np.float32(LEAST)))
    elif shape.mask == "hidden":
        scores = net.add("Where", mask, net.constant(np.float32(LEAST)), scores)
    elif mask:
        scores = net.add("Add", scores, mask)
    mixed = net.add("Transpose", net.add("MatMul", net.add("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
    flat = net.constant(np.array([shape.batch, shape.tokens, width], np.int64))
    x = _normalise(net, net.add("Add", net.dense(net.add("Reshape", mixed, flat), width, width), x), shape)
    inner = net.dense(x, width, shape.wide)
    return _normalise(net, net.add("Add", net.dense(_gelu(net, inner), shape.wide, width), x), shape)


def _gelu(net: FloatNet, x: str) -> str:
    root, one, half = (net.constant(np.float32(value)) for value in (np.sqrt(2), 1, 0.5))
    inside = net.add("Add", net.add("Erf", net.add("Div", x, root)), one)
    return net.add("Mul", net.add("Mul", x, inside), half)


def _pool(net: FloatNet, x: str, shape: Shape) -> str:
    if shape.pool == "first":
        first = net.add("Gather", x, net.constant(np.array(0, np.int64)), axis=1)
        return net.add("Tanh", net.dense(first, shape.width, shape.width))
    if shape.pool == "none":
        return x
    axes = net.constant(np.array([2], np.int64))
    here = net.add("Cast", net.add("Unsqueeze", "mask", axes), to=TensorProto.FLOAT)
    sums = net.add("ReduceSum", net.add("Mul", x, here), net.constant(np.array([1], np.int64)), keepdims=0)
    count = net.add("ReduceSum", here, net.constant(np.array([1], np.int64)), keepdims=0)
    return net.add("Div", sums, net.add("Clip", count, net.constant(np.float32(1e-9))))
