"""A decoder in integers: what its products, exponents and steps are.

Weights are int8 with a scale for each row; what a norm multiplies by is part of the weights behind it. Steps of rows in
front of products are powers of two of each row (`weft.compiler.language.kernels`). These are fixed, for all tokens, by
the ranges that values had on a text:

- the residual stream, 24 bits;
- queries and keys, int8: the steps of a block follow from the scale of its weights, so that a kernel does for all
  blocks, and the multiplier of the scores makes up for that;
- values, and attention's results, int8;
- what comes out of the gate, 16 bits, and logits, 16 bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from weft.compiler.ir.graph import CompileError
from weft.compiler.kernel.expressions import DIGITS
from weft.compiler.language.kernels import (
    BYTE_BITS,
    GATE_PLACES,
    MOST_BITS,
    RESIDUAL_BITS,
    Scaled,
    normal_unit,
)
from weft.compiler.language.model import LanguageModel, Linear, Norm, dense
from weft.compiler.language.ranges import Ranges

RESIDUAL_ROOM = 4.0
"""How many times more the residual stream has."""
ROOM = 4.0
"""How many times the range of a text values of 16 bits have."""
BYTE_ROOM = 1.5
"""The same of values of 8 bits."""
_UP_BITS = 17
"""Bits of the second factor behind a gate."""


@dataclass(frozen=True, eq=False)
class Weights:
    """int8 (rows, columns), each row times its scale: float64 (rows,)."""

    values: np.ndarray
    scales: np.ndarray

    @classmethod
    def of(cls, weight: np.ndarray, *, together: bool = False) -> Weights:
        """Quantise float32 (rows, columns); `together` gives all rows one scale."""
        largest = np.abs(weight).max(axis=None if together else 1)
        scales = np.broadcast_to(np.maximum(largest, 1e-12) / 127, len(weight)).astype(float)
        return cls(np.rint(weight / scales[:, None]).astype(np.int8), scales)

    @property
    def sums(self) -> np.ndarray:
        """The largest sums of products with int8: float64 (rows,)."""
        return 128.0 * np.abs(self.values.astype(np.int64)).sum(axis=1)


@dataclass(frozen=True, eq=False)
class Layer:
    """The matrices of a block, and the octaves of a step of its scores."""

    query: Weights
    key: Weights
    value: Weights
    output: Weights
    gate: Weights
    up: Weights
    down: Weights
    octaves: float


@dataclass(frozen=True, eq=False)
class Integers:
    """See the module.

    Attributes
    ----------
    unit : float
        Step of the residual stream; `value_unit`, `inner_unit` and `logit_unit` likewise, of values and attention's
        results, of what the last product of a feed-forward network takes, and of logits.
    turn : tuple of (int, int), two
        Mantissa and shift of queries and of keys.
    scaled : dict of str to list of Scaled
        For values, output, gate, up and down: of each block, with one shift for all.
    head : Weights, head_scaled : Scaled
    gate_places : int
        See `weft.compiler.language.kernels.gated`.
    """

    model: LanguageModel
    layers: tuple[Layer, ...]
    unit: float
    value_unit: float
    inner_unit: float
    logit_unit: float
    turn: tuple[tuple[int, int], tuple[int, int]]
    scaled: dict[str, list[Scaled]]
    head: Weights
    head_scaled: Scaled
    gate_places: int


def _power(value: float) -> float:
    """The smallest power of two that is at least so much."""
    return 2.0 ** math.ceil(math.log2(value))


def _folded(linear: Linear, norm: Norm | None) -> np.ndarray:
    weight = dense(linear.weight)
    return weight if norm is None else weight * norm.weight


def _turn(matrices: list[Weights], ranges: list[float], normal: float) -> tuple[tuple[int, int], list[float]]:
    """Mantissa and shift that bring all blocks' queries, or keys, into int8, and the step that each has then."""
    scales = [float(matrix.scales[0]) for matrix in matrices]
    # A sum times so much is a step, where rows have `BYTE_BITS`.
    factor = min(
        127 * scale * normal / (BYTE_ROOM * largest) for scale, largest in zip(scales, ranges, strict=True)
    )
    fraction, exponent = math.frexp(factor)
    mantissa, shift = round(math.ldexp(fraction, 16)), 16 - exponent - (MOST_BITS - BYTE_BITS)
    if shift < 0:
        mantissa, shift = mantissa >> -shift, 0
    exact = math.ldexp(mantissa, -shift - (MOST_BITS - BYTE_BITS))
    return (mantissa, shift), [scale * normal / exact for scale in scales]


def check(model: LanguageModel) -> None:
    """Raise `CompileError` for a model that is not of architecture llama, or has biases."""
    for block in model.blocks:
        if block.gate is None or model.rotary is None:
            raise CompileError(
                f"a decoder of architecture {model.architecture} does not run on the device; those of llama do"
            )
        linears = (
            block.query,
            block.key,
            block.value,
            block.attention_output,
            block.gate,
            block.up,
            block.down,
        )
        if any(linear.bias is not None for linear in linears):
            raise CompileError("language models with biases are not supported")


def integers(model: LanguageModel, ranges: Ranges) -> Integers:
    """The integers of a model of architecture llama without biases. Raises `CompileError` for any other one."""
    check(model)
    width = model.sizes.width
    normal = normal_unit(width)
    unit = _power(ROOM * RESIDUAL_ROOM * ranges.residual / (1 << RESIDUAL_BITS))
    value_unit = _power(BYTE_ROOM * max(ranges.value) / 127)
    up_unit = _power(ROOM * ranges.up / ((1 << _UP_BITS) - 1))
    inner_unit = max(_power(ROOM * ranges.inner / DIGITS), up_unit)
    logit_unit = _power(2 * ranges.logits / DIGITS)
    every: dict[str, list[Weights]] = {}
    for block in model.blocks:
        first, second = block.attention_norm, block.feed_forward_norm
        assert block.gate is not None
        parts = {
            "query": (block.query, first), "key": (block.key, first), "value": (block.value, first),
            "output": (block.attention_output, None), "gate": (block.gate, second), "up": (block.up, second),
            "down": (block.down, None),
        }  # fmt: skip
        for name, (linear, norm) in parts.items():
            made = Weights.of(_folded(linear, norm), together=name in ("query", "key"))
            every.setdefault(name, []).append(made)
    query, query_units = _turn(every["query"], ranges.query, normal)
    key, key_units = _turn(every["key"], ranges.key, normal)
    steps = {
        "value": normal / value_unit, "output": value_unit / unit, "gate": normal * 2.0**GATE_PLACES,
        "up": normal / up_unit, "down": inner_unit / unit,
    }  # fmt: skip
    scaled = {name: _together(every[name], factor) for name, factor in steps.items()}
    head = Weights.of(_folded(model.output, model.output_norm))
    root = model.sizes.key_length**-0.5 * math.log2(math.e)
    layers = tuple(
        Layer(**{name: every[name][index] for name in every}, octaves=octaves)
        for index, octaves in enumerate(root * a * b for a, b in zip(query_units, key_units, strict=True))
    )
    return Integers(
        model=model, layers=layers, unit=unit, value_unit=value_unit, inner_unit=inner_unit, logit_unit=logit_unit,
        turn=(query, key), scaled=scaled, head=head,
        head_scaled=Scaled.of(head.scales * normal / logit_unit, head.sums),
        gate_places=round(math.log2(inner_unit / up_unit)),
    )  # fmt: skip


def _together(matrices: list[Weights], factor: float) -> list[Scaled]:
    """How the sums of all blocks become steps, with one shift."""
    scales = np.concatenate([matrix.scales for matrix in matrices]) * factor
    made = Scaled.of(scales, np.concatenate([matrix.sums for matrix in matrices]))
    parts = np.split(made.mantissas, len(matrices))
    return [Scaled(part, made.shift, made.most, made.reach) for part in parts]
