"""Random attention operators for tests, inputs that also tie and saturate, and float64 references."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from weft.compiler.ir.graph import Attention, Rounding, Softmax
from weft.compiler.ir.views import Buffer, View
from weft.hdl.isa.config import Config

WORK = 1_000_000
"""Multiplications of a case at most, times 16 / N, so that tests of small arrays stay short."""


def view(name: str, shape: tuple[int, int, int, int], kind: str = "input") -> View:
    return View(Buffer(name, shape, kind), shape)


def attention(
    rows: int, keys: int, size: int, *, images: int = 1, heads: int = 1, kv_heads: int = 1, v_size: int | None = None,
    beside: bool = True, lengths: tuple[int, ...] | None = None, causal: bool = False, offset: int = 0,
    score_scale: float = 1e-3, scale: float = 1.0, rounding: Rounding | None = None, **zeros: Any,
) -> Attention:  # fmt: skip
    """Return an attention of inputs q, k and v, with the output y."""
    v_size = size if v_size is None else v_size

    def operand(name: str, count: int, length: int, width: int, kind: str = "input") -> View:
        shape = (images, 1, length, count * width) if beside else (images * count, 1, length, width)
        return view(name, shape, kind)

    return Attention(
        "attention", operand("q", heads, rows, size), operand("k", kv_heads, keys, size),
        operand("v", kv_heads, keys, v_size), operand("y", heads, rows, v_size, "output"),
        images, heads, kv_heads, score_scale, lengths or (keys,) * images, scale, causal, offset,
        rounding=rounding, **zeros,
    )  # fmt: skip


def random_attention(rng: np.random.Generator, config: Config) -> Attention:
    """Draw head sizes 16 to 128, lengths 1 to 300, masks, grouped heads and zero points."""
    size = int(rng.choice([16, 20, 32, 48, 64, 80, 128], p=[0.25, 0.1, 0.25, 0.1, 0.15, 0.05, 0.1]))
    v_size = size if rng.random() < 0.8 else int(rng.choice([16, 24, 64]))
    kv_heads = int(rng.choice([1, 1, 1, 2]))
    heads = kv_heads * int(rng.choice([1, 1, 2, 4]))
    images = int(rng.choice([1, 1, 1, 2]))
    rows, keys = (int(rng.choice(np.array([1, rng.integers(1, 40), rng.integers(1, 301)]))) for _ in range(2))
    while images * heads * rows * keys * (size + v_size) > WORK * config.n / 16:
        rows, keys = (rows, (keys + 1) // 2) if keys > rows else ((rows + 1) // 2, keys)
    lengths = tuple(int(rng.integers(0, keys + 1)) if rng.random() < 0.4 else keys for _ in range(images))
    causal = bool(rng.random() < 0.4)
    offset = int(rng.choice(np.array([0, keys - rows, rng.integers(-rows, keys + 1)]))) if causal else 0
    names = ("q_zero", "k_zero", "v_zero", "y_zero")
    share = float(rng.choice([0.0, 0.3, 1.0]))  # of zero points that are not 0
    zeros = {name: random_zero(rng) if rng.random() < share else 0 for name in names}
    nats = float(rng.choice([0.01, 0.5, 2.0, 8.0, 30.0, 300.0]))  # what a typical score is
    low = -128 if rng.random() < 0.8 else int(rng.integers(-100, 0))
    rounding = random_rounding(rng, size) if rng.random() < 0.3 else None
    score_scale = nats / (40 * 40 * math.sqrt(size))
    if rounding is not None:  # the scale is that of 8 bits
        score_scale = float(rng.choice([0.01, 0.1, 1.3]))
    return attention(
        rows, keys, size, images=images, heads=heads, kv_heads=kv_heads, v_size=v_size,
        beside=bool(rng.random() < 0.5), lengths=lengths, causal=causal, offset=offset,
        score_scale=score_scale, scale=float(rng.choice([1.0, 0.5, 1.7])), low=low, rounding=rounding, **zeros,
    )  # fmt: skip


def random_rounding(rng: np.random.Generator, size: int) -> Rounding:
    """Draw scores whose typical size is 10 to 500 steps, of which some remain after rounding."""
    low, zero, high = sorted(int(value) for value in rng.integers(-128, 128, 3))
    step = 40 * 40 * math.sqrt(size) / float(rng.uniform(10, 500))
    return Rounding(1 / step, zero, low, high)


def random_zero(rng: np.random.Generator) -> int:
    return int(rng.choice(np.array([-128, 127, rng.integers(-128, 128)])))


def random_softmax(rng: np.random.Generator) -> Softmax:
    """Draw 1 to 700 elements a row, alone or as the channels of images."""
    length = int(rng.choice(np.array([1, rng.integers(1, 40), rng.integers(1, 701)])))
    shape = (
        int(rng.choice([1, 2])),
        int(rng.choice([1, 3])),
        int(rng.integers(1, 1 + max(1, 2000 // length))),
        length,
    )
    return Softmax(
        "softmax", view("x", shape), view("y", shape, "output"), float(rng.choice([0.01, 0.05, 0.3, 20.0])),
        float(rng.choice([255.0, 256.0, 127.0, 1000.0])), int(rng.integers(-128, 128)), -128,
    )  # fmt: skip


def random_inputs(rng: np.random.Generator, op: Attention | Softmax) -> dict[str, np.ndarray]:
    """Draw Gaussian int8 around 0 or zero points; sometimes equal scores, few values (ties), or extremes."""
    views = {"q": op.q, "k": op.k, "v": op.v} if isinstance(op, Attention) else {"x": op.src}
    centred, inputs = rng.random() < 0.5, {}
    for name, item in views.items():
        zero = getattr(op, f"{name}_zero") if centred else 0
        array = np.clip(np.rint(rng.normal(zero, 40, item.shape)), -128, 127)
        kind = rng.random()
        if kind < 0.1:
            array[:] = array.ravel()[0]
        elif kind < 0.2:
            array = rng.choice([-1, 0, 1], item.shape)
        elif kind < 0.3:
            array = rng.choice([-128, 127], item.shape)
        inputs[item.buffer.name] = array.astype(np.int8)
    return inputs


def head(array: np.ndarray, op: Attention, image: int, index: int, heads: int) -> np.ndarray:
    """Return the rows of one head of an operand, int64 of shape (rows, size)."""
    if array.shape[0] == op.images and heads * op.images != array.shape[0]:
        return array[image, 0].reshape(array.shape[2], heads, -1)[:, index].astype(np.int64)
    return array[image * heads + index, 0].astype(np.int64)


def valid(op: Attention, image: int) -> np.ndarray:
    """Return the mask, bool of shape (rows, keys)."""
    rows, keys = np.arange(op.q.shape[2])[:, None], np.arange(op.keys)
    mask = np.broadcast_to(keys < op.lengths[image], (rows.size, keys.size))
    return mask & (keys <= rows + op.offset) if op.causal else mask


def operands(
    op: Attention, inputs: dict[str, np.ndarray], image: int, index: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return queries, keys and values of one query head less their zero points, int64 (rows, size)."""
    kv = index // (op.heads // op.kv_heads)
    return (
        head(inputs["q"], op, image, index, op.heads) - op.q_zero,
        head(inputs["k"], op, image, kv, op.kv_heads) - op.k_zero,
        head(inputs["v"], op, image, kv, op.kv_heads) - op.v_zero,
    )


def store(out: np.ndarray, op: Attention, image: int, index: int, values: np.ndarray) -> None:
    """Put the (rows, size) of one query head into an array of the output's shape."""
    if op.dst.shape[0] == op.images and op.heads > 1 and op.dst.shape[3] == op.heads * op.v_size:
        out[image, 0].reshape(len(values), op.heads, -1)[:, index] = values
    else:
        out[image * op.heads + index, 0] = values


def scores(op: Attention, products: np.ndarray) -> np.ndarray:
    """Return float64 scores in nats: of the exact products, or as rounded and clamped by the device."""
    if op.rounding is None:
        return products * op.score_scale
    to = op.rounding
    return (np.clip(np.rint(products * to.scale) + to.zero, to.low, to.high) - to.zero) * op.score_scale


def real(op: Attention, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """Return float64 attention of the same integers, unrounded and unclamped, in the output's shape."""
    out = np.zeros(op.dst.shape)
    for image in range(op.images):
        mask = valid(op, image)
        for index in range(op.heads):
            q, k, v = operands(op, inputs, image, index)
            z = np.where(mask, scores(op, q @ k.T), -np.inf)
            most = z.max(axis=1, initial=-np.inf, keepdims=True)
            p = np.exp(z - np.where(np.isfinite(most), most, 0))
            total = p.sum(axis=1, keepdims=True)
            y = np.divide(p @ v, total, out=np.zeros((q.shape[0], v.shape[1])), where=total > 0)
            store(out, op, image, index, y * op.scale + op.y_zero)
    return out


def largest_score(op: Attention, inputs: dict[str, np.ndarray], k_zero: int | None = None) -> float:
    """Return the largest magnitude of a score in nats, optionally with another zero point of K.

    Beyond 177 (256 octaves) the device clamps scores, unless they are rounded to 8 bits.
    """
    if op.rounding is not None:
        return 0.0
    most, k_zero = 0.0, op.k_zero if k_zero is None else k_zero
    for image in range(op.images):
        for index in range(op.heads):
            q = head(inputs["q"], op, image, index, op.heads) - op.q_zero
            k = head(inputs["k"], op, image, index // (op.heads // op.kv_heads), op.kv_heads) - k_zero
            most = max(most, float(np.abs(q @ k.T).max()) * op.score_scale)
    return most
