"""Attention and softmax of quantised values in float64: what the device's results are measured against.

The device computes them in block floating point (`weft.hdl.isa.Softmax`), so its results differ by a few levels of the
output, and depend on N. Arrays have the shapes of the operators' views.
"""

from __future__ import annotations

import numpy as np

from weft.compiler.ir.graph import Attention, Softmax
from weft.compiler.ir.masks import causal


def attention(op: Attention, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """The output (int8, shape of `op.dst`) of attention whose keys and values are not in pages."""
    return quantise(op, means(op, q, k, v))


def means(op: Attention, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """The same before rounding, zero point and clamp: float64, in steps of the output."""
    if op.page:
        raise ValueError(f"{op.name}: pages are only known on the device")
    queries = split_heads(q, op.images, op.heads) - op.q_zero
    group = op.heads // op.kv_heads
    keys, values = (
        np.repeat(split_heads(array, op.images, op.kv_heads) - zero, group, axis=1)
        for array, zero in ((k, op.k_zero), (v, op.v_zero))
    )
    scores = queries @ keys.swapaxes(2, 3)
    if op.rounding is not None:
        to = op.rounding
        scores = np.clip(np.rint(scores * to.scale), to.low - to.zero, to.high - to.zero)
    result = probabilities(scores * op.score_scale, allowed(op)[:, None]) @ values
    if op.dst.shape[0] == op.images and op.dst.shape[3] == op.heads * op.v_size:
        result = result.transpose(0, 2, 1, 3)
    return (result * op.scale).reshape(op.dst.shape)


def softmax(op: Softmax, x: np.ndarray) -> np.ndarray:
    """The output (int8) of softmax over the channels."""
    scores = (x.astype(np.float64) - op.x_zero) * op.score_scale
    return quantise(op, probabilities(scores, np.ones(1, bool)) * op.scale)


def split_heads(array: np.ndarray, images: int, heads: int) -> np.ndarray:
    """float64 (images, heads, rows, size) of an operand whose heads are channels or images."""
    rows = array.shape[2]
    if array.shape[0] == images:
        return array.reshape(images, rows, heads, -1).transpose(0, 2, 1, 3).astype(np.float64)
    return array.reshape(images, heads, rows, -1).astype(np.float64)


def allowed(op: Attention) -> np.ndarray:
    """Which keys every query of every image sees: bool (images, queries, keys)."""
    queries, keys = op.q.shape[2], op.k.shape[2]
    below = np.arange(keys) < np.array(op.lengths)[:, None, None]
    return below & (causal(queries, keys, op.offset) if op.causal else np.ones((queries, 1), bool))


def probabilities(scores: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Softmax over the last axis of what `mask` leaves; zeros where that is nothing."""
    mask = np.broadcast_to(mask, scores.shape)
    most = np.max(scores, axis=-1, keepdims=True, where=mask, initial=-np.inf)
    powers = np.exp(np.where(mask, scores - np.where(np.isfinite(most), most, 0), -np.inf))
    return powers / np.maximum(powers.sum(-1, keepdims=True), np.finfo(np.float64).tiny)


def quantise(op: Attention | Softmax, values: np.ndarray) -> np.ndarray:
    return np.clip(np.rint(values) + op.y_zero, op.low, op.high).astype(np.int8)
