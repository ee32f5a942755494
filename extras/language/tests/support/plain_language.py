"""A language model in scalar float64 arithmetic, each token with all tokens before it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from weft.extras.language.compiler.model import Block, LanguageModel, Linear, Norm, dense

Vector = list[float]


def logits(model: LanguageModel, tokens: Sequence[int]) -> np.ndarray:
    """Return logits after each token: float64 (tokens, vocabulary)."""
    streams = [_embed(model, token, at) for at, token in enumerate(tokens)]
    for block in model.blocks:
        streams = _block(model, block, streams)
    return np.array([_product(model.output, _norm(model, model.output_norm, x)) for x in streams])


def _embed(model: LanguageModel, token: int, at: int) -> Vector:
    x = [float(value) for value in dense(model.token_embedding)[token]]
    if model.positions is not None:
        x = [value + float(more) for value, more in zip(x, dense(model.positions)[at], strict=True)]
    return x


def _block(model: LanguageModel, block: Block, streams: list[Vector]) -> list[Vector]:
    normed = [_norm(model, block.attention_norm, x) for x in streams]
    queries = [_heads(model, block.query, x, model.sizes.heads, at) for at, x in enumerate(normed)]
    keys = [_heads(model, block.key, x, model.sizes.key_value_heads, at) for at, x in enumerate(normed)]
    values = [_split(_product(block.value, x), model.sizes.key_value_heads) for x in normed]
    rows = []
    for at, x in enumerate(streams):
        attended: Vector = []
        for head, query in enumerate(queries[at]):
            group = head // (model.sizes.heads // model.sizes.key_value_heads)
            scores = [_dot(query, keys[other][group]) / math.sqrt(len(query)) for other in range(at + 1)]
            largest = max(scores)
            shares = [math.exp(score - largest) for score in scores]
            for element in range(model.sizes.value_length):
                column = [values[other][group][element] for other in range(at + 1)]
                attended.append(_dot(shares, column) / sum(shares))
        x = _sum(x, _product(block.attention_output, attended))
        rows.append(_sum(x, _feed_forward(block, _norm(model, block.feed_forward_norm, x))))
    return rows


def _heads(model: LanguageModel, linear: Linear, x: Vector, heads: int, at: int) -> list[Vector]:
    return [_rotate(model, head, at) for head in _split(_product(linear, x), heads)]


def _rotate(model: LanguageModel, head: Vector, at: int) -> Vector:
    rotary, turned = model.rotary, list(head)
    if rotary is None:
        return turned
    for pair in range(rotary.dimensions // 2):
        factor = 1.0 if rotary.factors is None else float(rotary.factors[pair])
        angle = at / rotary.scale * rotary.base ** (-2 * pair / rotary.dimensions) / factor
        turn = complex(head[2 * pair], head[2 * pair + 1]) * complex(math.cos(angle), math.sin(angle))
        turned[2 * pair], turned[2 * pair + 1] = turn.real, turn.imag
    return turned


def _feed_forward(block: Block, x: Vector) -> Vector:
    up = _product(block.up, x)
    if block.gate is None:
        inner = [
            value / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (value + 0.044715 * value**3)))
            for value in up
        ]
    else:
        gate = [value / (1 + math.exp(-value)) for value in _product(block.gate, x)]
        inner = [value * other for value, other in zip(gate, up, strict=True)]
    return _product(block.down, inner)


def _norm(model: LanguageModel, norm: Norm, x: Vector) -> Vector:
    mean = 0.0 if norm.bias is None else sum(x) / len(x)
    shifted = [value - mean for value in x]
    scale = 1 / math.sqrt(_dot(shifted, shifted) / len(x) + model.epsilon)
    biases = [0.0] * len(x) if norm.bias is None else norm.bias
    rows = zip(shifted, norm.weight, biases, strict=True)
    return [value * scale * float(weight) + float(bias) for value, weight, bias in rows]


def _product(linear: Linear, x: Vector) -> Vector:
    weights = dense(linear.weight).astype(np.float64)
    biases = np.zeros(len(weights)) if linear.bias is None else linear.bias
    return [float(np.dot(row, x)) + float(bias) for row, bias in zip(weights, biases, strict=True)]


def _split(x: Vector, heads: int) -> list[Vector]:
    length = len(x) // heads
    return [x[at * length : (at + 1) * length] for at in range(heads)]


def _dot(first: Vector, second: Vector) -> float:
    return sum(a * b for a, b in zip(first, second, strict=True))


def _sum(first: Vector, second: Vector) -> Vector:
    return [a + b for a, b in zip(first, second, strict=True)]
