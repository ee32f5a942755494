"""A decoder in integers: what its products, exponents and steps are.

Weights are int8 with a scale for each row; what a norm multiplies by is part of the weights behind it. Steps of rows in
front of products are powers of two of each row (`weft.compiler.language.kernels`). These are fixed, for all tokens, by
the ranges that values had on a text:

- the residual stream, 24 bits;
- queries and keys, int8: the steps of a block follow from the scale of its weights, so that a kernel does for all
  blocks, and the multiplier of the scores makes up for that;
- values, and attention's results, int8;
- what comes out of the gate, 16 bits, and logits, 16 bits.

A model whose file has matrices in blocks of 4 bits may keep them (`weft.hdl.isa.int4`): LOAD then makes int8 of them,
with a scale for each row, by factors of 8 bits. Norms multiply what they make then, as their numbers cannot be part of
such weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from weft.compiler.ir.graph import CompileError
from weft.compiler.kernel.expressions import DIGITS
from weft.compiler.language.kernels import (
    BYTE_BITS,
    GAIN_PLACES,
    GATE_PLACES,
    MOST_BITS,
    RESIDUAL_BITS,
    Scaled,
    normal_unit,
)
from weft.compiler.language.model import BlockTensor, LanguageModel, Linear, Matrix, Norm, dense
from weft.compiler.language.ranges import Ranges
from weft.hdl.isa import int4

RESIDUAL_ROOM = 4.0
"""How many times more the residual stream has."""
ROOM = 4.0
"""How many times the range of a text values of 16 bits have."""
BYTE_ROOM = 1.25
"""The same of values of 8 bits."""
_UP_BITS = 17
"""Bits of the second factor behind a gate."""


@dataclass(frozen=True, eq=False)
class Weights:
    """int8 (rows, columns), each row times its scale: float64 (rows,).

    Where they are in blocks of 4 bits, they come of `nibbles`, int8 (rows, columns) from -8 to 7, times `factors`, int8
    (rows, columns // `weft.hdl.isa.int4.GROUP`).
    """

    values: np.ndarray
    scales: np.ndarray
    nibbles: np.ndarray | None = None
    factors: np.ndarray | None = None

    @classmethod
    def of(cls, weight: Matrix, *, together: bool = False, blocks: bool = False) -> Weights:
        """Quantise a matrix (rows, columns), or keep its `blocks` of 4 bits; `together` gives all rows one scale."""
        exact = dense(weight)
        axis = None if together else 1
        largest = np.abs(exact).max(axis=axis)
        if blocks:
            assert isinstance(weight, BlockTensor)
            # A factor of its own size must do for every block, whatever the largest of its values is.
            steps = np.abs(weight.scales).max(axis=axis) * (1 << int4.FACTOR_PLACES)
            largest = np.maximum(largest, steps)
        scales = np.broadcast_to(np.maximum(largest, 1e-12) / 127, len(exact)).astype(float)
        if not blocks:
            return cls(np.rint(exact / scales[:, None]).astype(np.int8), scales)
        assert isinstance(weight, BlockTensor)
        ratios = np.rint(np.ldexp(weight.scales / scales[:, None], int4.FACTOR_PLACES))
        factors = np.clip(ratios, -127, 127).astype(np.int8)
        values = int4.times(weight.values, factors.repeat(int4.GROUP, axis=1))
        return cls(values, scales, weight.values, factors)

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
        Step of the residual stream; `inner_unit` and `logit_unit` likewise, of what the last product of a feed-forward
        network takes, and of logits.
    smaller : float
        How many times smaller steps of attention's results are than those of values.
    turn : tuple of (int, int), two
        Mantissa and shift of queries and of keys.
    scaled : dict of str to list of Scaled
        For values, output, gate, up and down: of each block, with one shift for all.
    head : Weights, head_scaled : Scaled
    gate_places : int
        See `weft.compiler.language.kernels.gated`.
    gains : list of numpy.ndarray
        What each norm multiplies by, in order, the last one in front of the head: int64 (width,). Empty if that is part
        of the weights.
    """

    model: LanguageModel
    layers: tuple[Layer, ...]
    unit: float
    smaller: float
    inner_unit: float
    logit_unit: float
    turn: tuple[tuple[int, int], tuple[int, int]]
    scaled: dict[str, list[Scaled]]
    head: Weights
    head_scaled: Scaled
    gate_places: int
    gains: list[np.ndarray]


def _power(value: float) -> float:
    """The smallest power of two that is at least so much."""
    return 2.0 ** math.ceil(math.log2(value))


def in_blocks(weight: Matrix) -> bool:
    """Whether a matrix has blocks of values of 4 bits with a scale and nothing else, as GGUF's Q4_0."""
    return (
        isinstance(weight, BlockTensor) and weight.minimums is None and weight.block == int4.GROUP
        and int(weight.values.min()) >= int4.LEAST and int(weight.values.max()) <= int4.MOST
    )  # fmt: skip


def _folded(linear: Linear, norm: Norm | None) -> np.ndarray:
    weight = dense(linear.weight)
    return weight if norm is None else weight * norm.weight


def has_blocks(model: LanguageModel) -> bool:
    """Whether any matrix of a model's blocks, or its head, is `in_blocks`."""
    return any(in_blocks(linear.weight) for linear in (*_linears(model), model.output))


def _linears(model: LanguageModel) -> list[Linear]:
    """The products of all blocks."""
    every = [
        (block.query, block.key, block.value, block.attention_output, block.gate, block.up, block.down)
        for block in model.blocks
    ]
    return [linear for linears in every for linear in linears if linear is not None]


def check(model: LanguageModel) -> None:
    """Raise `CompileError` for a model that is not of architecture llama, or has biases."""
    if model.rotary is None or any(block.gate is None for block in model.blocks):
        raise CompileError(
            f"a decoder of architecture {model.architecture} does not run on the device; those of llama do"
        )
    norms = [norm for block in model.blocks for norm in (block.attention_norm, block.feed_forward_norm)]
    biases = [part.bias for part in (*_linears(model), model.output)] + [norm.bias for norm in norms]
    if any(bias is not None for bias in (*biases, model.output_norm.bias)):
        raise CompileError("language models with biases are not supported")


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


def integers(model: LanguageModel, ranges: Ranges, *, blocks: bool = False) -> Integers:
    """The integers of a model of architecture llama without biases. With `blocks`, matrices in blocks of 4 bits stay in
    them. Raises `CompileError` for any other model."""
    check(model)
    normal, gains = normal_unit(model.sizes.width), []
    if blocks:
        norms = [norm for block in model.blocks for norm in (block.attention_norm, block.feed_forward_norm)]
        every_gain = np.stack([norm.weight.astype(float) for norm in (*norms, model.output_norm)])
        step = float(np.abs(every_gain).max()) / DIGITS
        gains = list(np.rint(every_gain / step).astype(np.int64))
        normal *= math.ldexp(step, GAIN_PLACES)
    unit = _power(ROOM * RESIDUAL_ROOM * ranges.residual / (1 << RESIDUAL_BITS))
    value_units = [BYTE_ROOM * largest / 127 for largest in ranges.value]
    # Attention's results are means, and smaller than values: by how much their steps are, in all blocks.
    smaller = max(1.0, min(a / max(b, 1e-12) for a, b in zip(ranges.value, ranges.mixed, strict=True)))
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
            every.setdefault(name, []).append(
                _weights(linear, None if blocks else norm, together=name in ("query", "key"), blocks=blocks)
            )
    query, query_units = _turn(every["query"], ranges.query, normal)
    key, key_units = _turn(every["key"], ranges.key, normal)
    steps: dict[str, float | list[float]] = {
        "value": [normal / step for step in value_units],
        "output": [step / (smaller * unit) for step in value_units], "gate": normal * 2.0**GATE_PLACES,
        "up": normal / up_unit, "down": inner_unit / unit,
    }  # fmt: skip
    scaled = {name: _together(every[name], factor) for name, factor in steps.items()}
    head = _weights(model.output, None if blocks else model.output_norm, blocks=blocks)
    root = model.sizes.key_length**-0.5 * math.log2(math.e)
    layers = tuple(
        Layer(**{name: every[name][index] for name in every}, octaves=octaves)
        for index, octaves in enumerate(root * a * b for a, b in zip(query_units, key_units, strict=True))
    )
    return Integers(
        model=model, layers=layers, unit=unit, smaller=smaller, inner_unit=inner_unit, logit_unit=logit_unit,
        turn=(query, key), scaled=scaled, head=head,
        head_scaled=Scaled.of(head.scales * normal / logit_unit, head.sums),
        gate_places=round(math.log2(inner_unit / up_unit)), gains=gains,
    )  # fmt: skip


def _weights(linear: Linear, norm: Norm | None, *, together: bool = False, blocks: bool) -> Weights:
    if blocks and in_blocks(linear.weight):
        return Weights.of(linear.weight, together=together, blocks=True)
    return Weights.of(_folded(linear, norm), together=together)


def _together(matrices: list[Weights], factor: float | list[float]) -> list[Scaled]:
    """How the sums of all blocks become steps, by a factor for all blocks or each its own, with one shift."""
    factors = np.broadcast_to(factor, len(matrices))
    scales = np.concatenate([matrix.scales * each for matrix, each in zip(matrices, factors, strict=True)])
    made = Scaled.of(scales, np.concatenate([matrix.sums for matrix in matrices]))
    parts = np.split(made.mantissas, len(matrices))
    return [Scaled(part, made.shift, made.most, made.reach) for part in parts]
