"""ONNX Runtime's operators that decoder exporters use, in numpy, following its documentation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from weft.compiler.errors import CompileError
from weft.compiler.ir.network import Node

Inputs = Sequence[np.ndarray | None]


def find_native(node: Node) -> Callable[[Node, Inputs], list[np.ndarray]] | None:
    """Return the implementation of a node's operator; None for ONNX's own operators."""
    return NATIVES.get(node.operator) if node.domain == "com.microsoft" else None


def _require_input(values: Inputs, index: int) -> np.ndarray:
    value = values[index]
    assert value is not None
    return value


def _simplified_norm(node: Node, values: Inputs) -> list[np.ndarray]:
    x, weight = _require_input(values, 0), _require_input(values, 1)
    square = np.mean(np.square(x), axis=-1, keepdims=True)
    return [x / np.sqrt(square + np.float32(node.attributes.get("epsilon", 1e-5))) * weight]


def _quick_gelu(node: Node, values: Inputs) -> list[np.ndarray]:
    x = _require_input(values, 0)
    with np.errstate(over="ignore"):
        return [x / (1 + np.exp(np.float32(-node.attributes.get("alpha", 1.702)) * x))]


def _fast_gelu(node: Node, values: Inputs) -> list[np.ndarray]:
    x = _require_input(values, 0)
    if len(values) > 1 and values[1] is not None:
        x = x + values[1]
    inner = np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x)
    return [np.float32(0.5) * x * (1 + np.tanh(inner))]


def _gather_blocks(node: Node, values: Inputs) -> list[np.ndarray]:
    """Return dequantised rows of a matrix in blocks of 4 or 8 bits."""
    data, indices, scales = _require_input(values, 0), _require_input(values, 1), _require_input(values, 2)
    zeros = values[3] if len(values) > 3 else None
    bits, block = int(node.attributes.get("bits", 4)), int(node.attributes.get("block_size", 128))
    last = data.ndim - 1
    if node.attributes.get("gather_axis", 0) != 0 or node.attributes.get("quantize_axis", 1) not in (
        -1,
        last,
    ):
        raise CompileError(f"{node.label} has blocks along another axis than rows of its last one")
    rows = _integers(data[indices], bits, scales.shape[-1] * block)
    # Unsigned integers without zero points are centred.
    middle = 0 if data.dtype.kind == "i" or data.dtype.name == "int4" else 1 << bits - 1
    blocks = rows.reshape(*rows.shape[:-1], -1, block)
    if zeros is None:
        blocks = blocks - np.float32(middle)
    else:
        blocks = blocks - _integers(zeros[indices], bits, scales.shape[-1])[..., None]
    dequantised = blocks.astype(np.float32) * scales[indices][..., None]
    return [dequantised.reshape(*rows.shape)]


def _integers(packed: np.ndarray, bits: int, count: int) -> np.ndarray:
    """Return integers as float32; 4-bit integers in plain bytes are packed two to a byte."""
    if bits == 8 or packed.dtype.name in ("int4", "uint4"):
        return packed.astype(np.float32)[..., :count]
    return (
        np.stack([packed & 15, packed >> 4], axis=-1)
        .reshape(*packed.shape[:-1], -1)[..., :count]
        .astype(np.float32)
    )


def rotate(x: np.ndarray, cosine: np.ndarray, sine: np.ndarray, *, interleaved: bool) -> np.ndarray:
    """Rotate heads `x` (..., tokens, length) by the cosines and sines (tokens, pairs) of each token."""
    count = 2 * cosine.shape[-1]
    rotated = x.copy()
    first = slice(0, count, 2) if interleaved else slice(0, count // 2)
    second = slice(1, count, 2) if interleaved else slice(count // 2, count)
    rotated[..., first] = x[..., first] * cosine - x[..., second] * sine
    rotated[..., second] = x[..., first] * sine + x[..., second] * cosine
    return rotated


def _rotary_embedding(node: Node, values: Inputs) -> list[np.ndarray]:
    x, position_ids, cosine, sine = (_require_input(values, at) for at in range(4))
    attributes = node.attributes
    if attributes.get("is_packed_batching", 0):
        raise CompileError(f"{node.label} packs texts of a batch; weft reads graphs without")
    if attributes.get("scale", 1.0) != 1.0:
        raise CompileError(
            f"{node.label} has scale {attributes['scale']:g}; weft reads rotations without a scale"
        )
    # Either (batch, tokens, heads * length) or (batch, heads, tokens, length).
    flat = x.ndim == 3
    heads = int(attributes.get("num_heads", 0))
    if flat:
        count, tokens, width = x.shape
        heads = heads or width // (2 * cosine.shape[-1])
        x = x.reshape(count, tokens, heads, -1).swapaxes(1, 2)
    tokens = x.shape[2]
    positions = (
        int(position_ids.reshape(-1)[0]) + np.arange(tokens)
        if position_ids.size == 1
        else position_ids.reshape(-1)[:tokens]
    )
    _check_places(node, positions, cosine)
    rotated = rotate(
        x, cosine[positions], sine[positions], interleaved=bool(attributes.get("interleaved", 0))
    )
    return [rotated.swapaxes(1, 2).reshape(x.shape[0], tokens, -1) if flat else rotated]


def _check_places(node: Node, positions: np.ndarray, cosine: np.ndarray) -> None:
    if positions.size and int(positions.max()) >= len(cosine):
        raise CompileError(
            f"{node.label} has cosines of {len(cosine):,} positions, and position {int(positions.max()):,} is used"
        )


_NEUTRAL_VALUES = {
    "local_window_size": (-1,),
    "softcap": (0.0,),
    "smooth_softmax": (0, -1),
    "qk_output": (0,),
}
_FEATURE_NAMES = {
    "local_window_size": "attention through a sliding window", "softcap": "capped scores",
    "smooth_softmax": "a softmax with one more share", "qk_output": "scores as an output",
}  # fmt: skip
_UNSUPPORTED_INPUTS = {
    10: "attention_bias",
    11: "head_sink",
    12: "k_scale",
    13: "v_scale",
    14: "norms of queries",
    15: "norms of keys",
}


def check_grouped(node: Node) -> None:
    """Raise `CompileError` if a GroupQueryAttention uses a feature that weft does not support."""
    for name, neutral in _NEUTRAL_VALUES.items():
        value = node.attributes.get(name, neutral[0])
        if value not in neutral:
            raise CompileError(
                f"{node.label} has {_FEATURE_NAMES[name]} ({name} {value:g}), which weft does not support"
            )
    for index, feature in _UNSUPPORTED_INPUTS.items():
        if node.input(index):
            raise CompileError(f"{node.label} has {feature}, which weft does not support")
    for name in ("k_quant_type", "v_quant_type"):
        if node.attributes.get(name, "NONE") != "NONE":
            raise CompileError(
                f"{node.label} quantises keys or values in its cache, which weft does not support"
            )


def _group_query_attention(node: Node, values: Inputs) -> list[np.ndarray]:
    """Return GroupQueryAttention's output, and keys and values including the past ones."""
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
    # Input 5 (seqlens_k) is the number of keys less one.
    before = int(_require_input(values, 5).reshape(-1)[0]) + 1 - tokens
    if attributes.get("do_rotary", 0):
        cosine, sine = _require_input(values, 7), _require_input(values, 8)
        position_ids = values[9] if len(values) > 9 else None
        positions = before + np.arange(tokens) if position_ids is None else position_ids.reshape(-1)[:tokens]
        _check_places(node, positions, cosine)
        style = bool(attributes.get("rotary_interleaved", 0))
        query, key = (rotate(x, cosine[positions], sine[positions], interleaved=style) for x in (query, key))
    if values[3] is not None and values[4] is not None:
        # The cache may have room for more keys than it holds.
        key = np.concatenate([values[3][:, :, :before], key], axis=2)
        value = np.concatenate([values[4][:, :, :before], value], axis=2)
    scale = attributes.get("scale", 0.0) or query.shape[-1] ** -0.5
    grouped_query = query.reshape(query.shape[0], groups, -1, query.shape[-1])
    scores = (grouped_query @ key.swapaxes(2, 3)).reshape(query.shape[0], heads, tokens, -1) * np.float32(
        scale
    )
    masked = np.arange(key.shape[2]) > before + np.arange(tokens)[:, None]
    scores[:, :, masked] = -np.inf
    probabilities = np.exp(scores - scores.max(axis=-1, keepdims=True))
    probabilities /= probabilities.sum(axis=-1, keepdims=True)
    result = probabilities.reshape(query.shape[0], groups, -1, key.shape[2]) @ value
    result = result.reshape(query.shape[0], heads, tokens, -1).swapaxes(1, 2)
    return [result.reshape(result.shape[0], tokens, -1), key, value]


NATIVES: dict[str, Callable[[Node, Inputs], list[Any]]] = {
    "SimplifiedLayerNormalization": _simplified_norm,
    "QuickGelu": _quick_gelu,
    "FastGelu": _fast_gelu,
    "GatherBlockQuantized": _gather_blocks,
    "RotaryEmbedding": _rotary_embedding,
    "GroupQueryAttention": _group_query_attention,
}
"""Implementations by name, all of the domain com.microsoft."""
