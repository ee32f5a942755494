"""Operators of ONNX Runtime that exporters of decoders use, in numpy, as its documentation defines them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.compiler.ir.graph import CompileError
from weft.compiler.ir.network import Node

Inputs = Sequence[np.ndarray | None]


def native(node: Node) -> Callable[[Node, Inputs], list[np.ndarray]] | None:
    """What computes a node here; None for an operator of ONNX itself."""
    return NATIVES.get(node.operator) if node.domain == "com.microsoft" else None


def _given(values: Inputs, index: int) -> np.ndarray:
    value = values[index]
    assert value is not None
    return value


def _simplified(node: Node, values: Inputs) -> list[np.ndarray]:
    x, weight = _given(values, 0), _given(values, 1)
    square = np.mean(np.square(x), axis=-1, keepdims=True)
    return [x / np.sqrt(square + np.float32(node.attributes.get("epsilon", 1e-5))) * weight]


def _quick_gelu(node: Node, values: Inputs) -> list[np.ndarray]:
    x = _given(values, 0)
    with np.errstate(over="ignore"):
        return [x / (1 + np.exp(np.float32(-node.attributes.get("alpha", 1.702)) * x))]


def _fast_gelu(node: Node, values: Inputs) -> list[np.ndarray]:
    x = _given(values, 0)
    if len(values) > 1 and values[1] is not None:
        x = x + values[1]
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
    return [np.float32(0.5) * x * (1 + np.tanh(inner))]


def _gathered(node: Node, values: Inputs) -> list[np.ndarray]:
    """Rows of a matrix in blocks of 4 or 8 bits."""
    data, indices, scales = _given(values, 0), _given(values, 1), _given(values, 2)
    zeros = values[3] if len(values) > 3 else None
    bits, block = int(node.attributes.get("bits", 4)), int(node.attributes.get("block_size", 128))
    last = data.ndim - 1
    if node.attributes.get("gather_axis", 0) != 0 or node.attributes.get("quantize_axis", 1) not in (
        -1,
        last,
    ):
        raise CompileError(f"{node.label} has blocks along another axis than rows of its last one")
    rows = _integers(data[indices], bits, scales.shape[-1] * block)
    middle = 0 if data.dtype.kind == "i" or data.dtype.name == "int4" else 1 << bits - 1
    blocks = rows.reshape(*rows.shape[:-1], -1, block)
    if zeros is None:
        blocks = blocks - np.float32(middle)
    else:
        blocks = blocks - _integers(zeros[indices], bits, scales.shape[-1])[..., None]
    made = blocks.astype(np.float32) * scales[indices][..., None]
    return [made.reshape(*rows.shape)]


def _integers(packed: np.ndarray, bits: int, count: int) -> np.ndarray:
    """float32 of whole numbers, two in a byte if `packed` are bytes and numbers have 4 bits."""
    if bits == 8 or packed.dtype.name in ("int4", "uint4"):
        return packed.astype(np.float32)[..., :count]
    return (
        np.stack([packed & 15, packed >> 4], axis=-1)
        .reshape(*packed.shape[:-1], -1)[..., :count]
        .astype(np.float32)
    )


def turned(x: np.ndarray, cosine: np.ndarray, sine: np.ndarray, *, interleaved: bool) -> np.ndarray:
    """Heads turned by angles: `x` (..., tokens, length), and of each token cosines and sines (tokens, pairs)."""
    count = 2 * cosine.shape[-1]
    made = x.copy()
    first = slice(0, count, 2) if interleaved else slice(0, count // 2)
    second = slice(1, count, 2) if interleaved else slice(count // 2, count)
    made[..., first] = x[..., first] * cosine - x[..., second] * sine
    made[..., second] = x[..., first] * sine + x[..., second] * cosine
    return made


def _rotary(node: Node, values: Inputs) -> list[np.ndarray]:
    x, places, cosine, sine = (_given(values, at) for at in range(4))
    attributes = node.attributes
    if attributes.get("is_packed_batching", 0):
        raise CompileError(f"{node.label} packs texts of a batch; weft reads graphs without")
    if attributes.get("scale", 1.0) != 1.0:
        raise CompileError(
            f"{node.label} has scale {attributes['scale']:g}; weft reads rotations without a scale"
        )
    flat = x.ndim == 3
    heads = int(attributes.get("num_heads", 0))
    if flat:
        count, tokens, width = x.shape
        heads = heads or width // (2 * cosine.shape[-1])
        x = x.reshape(count, tokens, heads, -1).swapaxes(1, 2)
    tokens = x.shape[2]
    at = int(places.reshape(-1)[0]) + np.arange(tokens) if places.size == 1 else places.reshape(-1)[:tokens]
    _check_places(node, at, cosine)
    made = turned(x, cosine[at], sine[at], interleaved=bool(attributes.get("interleaved", 0)))
    return [made.swapaxes(1, 2).reshape(x.shape[0], tokens, -1) if flat else made]


def _check_places(node: Node, at: np.ndarray, cosine: np.ndarray) -> None:
    if at.size and int(at.max()) >= len(cosine):
        raise CompileError(
            f"{node.label} has cosines of {len(cosine):,} positions, and position {int(at.max()):,} is asked for"
        )


_PLAIN = {"local_window_size": (-1,), "softcap": (0.0,), "smooth_softmax": (0, -1), "qk_output": (0,)}
_WORDS = {
    "local_window_size": "attention through a sliding window", "softcap": "capped scores",
    "smooth_softmax": "a softmax with one more share", "qk_output": "scores as an output",
}  # fmt: skip
_LATER = {
    10: "attention_bias",
    11: "head_sink",
    12: "k_scale",
    13: "v_scale",
    14: "norms of queries",
    15: "norms of keys",
}


def check_grouped(node: Node) -> None:
    """Raise `CompileError` for a GroupQueryAttention with something that weft does not support."""
    for name, plain in _PLAIN.items():
        value = node.attributes.get(name, plain[0])
        if value not in plain:
            raise CompileError(
                f"{node.label} has {_WORDS[name]} ({name} {value:g}), which weft does not support"
            )
    for index, words in _LATER.items():
        if node.input(index):
            raise CompileError(f"{node.label} has {words}, which weft does not support")
    for name in ("k_quant_type", "v_quant_type"):
        if node.attributes.get(name, "NONE") != "NONE":
            raise CompileError(
                f"{node.label} quantises keys or values in its cache, which weft does not support"
            )


def _grouped(node: Node, values: Inputs) -> list[np.ndarray]:
    """GroupQueryAttention of one text: what attends, and keys and values with those before."""
    check_grouped(node)
    attributes = node.attributes
    heads, groups = int(attributes["num_heads"]), int(attributes["kv_num_heads"])
    query, key, value = (values[at] for at in range(3))
    assert query is not None
    if key is None or value is None:
        length = query.shape[-1] // (heads + 2 * groups)
        query, key, value = np.split(query, [heads * length, (heads + groups) * length], axis=-1)
    tokens = query.shape[1]
    query, key, value = (
        x.reshape(x.shape[0], tokens, count, -1).swapaxes(1, 2)
        for x, count in ((query, heads), (key, groups), (value, groups))
    )
    before = int(_given(values, 5).reshape(-1)[0]) + 1 - tokens
    if attributes.get("do_rotary", 0):
        cosine, sine = _given(values, 7), _given(values, 8)
        places = values[9] if len(values) > 9 else None
        at = before + np.arange(tokens) if places is None else places.reshape(-1)[:tokens]
        _check_places(node, at, cosine)
        style = bool(attributes.get("rotary_interleaved", 0))
        query, key = (turned(x, cosine[at], sine[at], interleaved=style) for x in (query, key))
    if values[3] is not None and values[4] is not None:
        key = np.concatenate([values[3][:, :, :before], key], axis=2)
        value = np.concatenate([values[4][:, :, :before], value], axis=2)
    scale = attributes.get("scale", 0.0) or query.shape[-1] ** -0.5
    shared = query.reshape(query.shape[0], groups, -1, query.shape[-1])
    scores = (shared @ key.swapaxes(2, 3)).reshape(query.shape[0], heads, tokens, -1) * np.float32(scale)
    later = np.arange(key.shape[2]) > before + np.arange(tokens)[:, None]
    scores[:, :, later] = -np.inf
    shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares /= shares.sum(axis=-1, keepdims=True)
    made = shares.reshape(query.shape[0], groups, -1, key.shape[2]) @ value
    made = made.reshape(query.shape[0], heads, tokens, -1).swapaxes(1, 2)
    return [made.reshape(made.shape[0], tokens, -1), key, value]


NATIVES: dict[str, Callable[[Node, Inputs], list[Any]]] = {
    "SimplifiedLayerNormalization": _simplified,
    "QuickGelu": _quick_gelu,
    "FastGelu": _fast_gelu,
    "GatherBlockQuantized": _gathered,
    "RotaryEmbedding": _rotary,
    "GroupQueryAttention": _grouped,
}
"""By name, all of the domain com.microsoft."""
