"""Weights of a model in integers: int8 matrices with a scale for each row, and the scaling of products' sums to steps.

Norms are folded into the matrices after them. Sums have a mantissa and a bias for each column, and a shift for each
row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from weft.compiler.kernel.expressions import DIGITS
from weft.extras.language.compiler.layout import PRODUCTS, matrices
from weft.extras.language.compiler.model import BlockTensor, LanguageModel, Linear, Matrix, Norm, dense
from weft.hdl.isa import encoding


@dataclass(frozen=True, eq=False)
class Weights:
    """Matrix as int8 (rows, columns), with float64 scales (rows,).

    The values of a matrix in blocks of 4 bits are `nibbles`, int8 (rows, columns) from -8 to 7, times `factors`, int8
    (rows, columns // `weft.hdl.isa.encoding.GROUP_WORDS`).
    """

    values: np.ndarray
    scales: np.ndarray
    nibbles: np.ndarray | None = None
    factors: np.ndarray | None = None

    @classmethod
    def quantise(cls, weight: Matrix, *, shared_scale: bool = False, blocks: bool = False) -> Weights:
        """Quantise a matrix (rows, columns), or keep its `blocks` of 4 bits; `shared_scale` gives all rows one
        scale.
        """
        exact = dense(weight)
        axis = None if shared_scale else 1
        largest = np.abs(exact).max(axis=axis)
        if blocks:
            assert isinstance(weight, BlockTensor)
            # The factor of every block must fit 8 bits, however small the values of its block are.
            steps = np.abs(weight.scales).max(axis=axis) * (1 << encoding.FACTOR_FRACTION_BITS)
            largest = np.maximum(largest, steps)
        # The lower bound avoids a division by zero for rows of zeros.
        scales = np.broadcast_to(np.maximum(largest, 1e-12) / 127, len(exact)).astype(float)
        if not blocks:
            return cls(np.rint(exact / scales[:, None]).astype(np.int8), scales)
        assert isinstance(weight, BlockTensor)
        ratios = np.rint(np.ldexp(weight.scales / scales[:, None], encoding.FACTOR_FRACTION_BITS))
        factors = np.clip(ratios, -127, 127).astype(np.int8)
        values = encoding.multiply_factors(weight.values, factors.repeat(encoding.GROUP_WORDS, axis=1))
        return cls(values, scales, weight.values, factors)

    @classmethod
    def after_norm(
        cls, linear: Linear, norm: Norm | None, *, shared_scale: bool = False, gains: bool = False
    ) -> Weights:
        """Quantise a matrix, with the weight of the norm before it folded in.

        With `gains`, norms multiply by their weights themselves, and matrices in blocks of 4 bits stay so.
        """
        if gains:
            return cls.quantise(linear.weight, shared_scale=shared_scale, blocks=is_in_blocks(linear.weight))
        weight = dense(linear.weight)
        return cls.quantise(weight if norm is None else weight * norm.weight, shared_scale=shared_scale)

    @property
    def sums(self) -> np.ndarray:
        """Largest possible sums of products with int8: float64 (rows,)."""
        return 128.0 * np.abs(self.values.astype(np.int64)).sum(axis=1)


def bias_after_norm(linear: Linear, norm: Norm | None) -> np.ndarray:
    """Return a bias plus the matrix times the bias of the norm before it: float64 (outputs,)."""
    bias = np.zeros(linear.weight.shape[0]) if linear.bias is None else linear.bias.astype(float)
    if norm is None or norm.bias is None:
        return bias
    norm_bias: np.ndarray = dense(linear.weight).astype(float) @ norm.bias.astype(float)
    return bias + norm_bias


def is_in_blocks(weight: Matrix) -> bool:
    """Return whether a matrix has blocks of 4-bit values with only a scale, like GGUF's Q4_0."""
    return (
        isinstance(weight, BlockTensor) and weight.minimums is None and weight.block == encoding.GROUP_WORDS
        and int(weight.values.min()) >= encoding.INT4_MIN and int(weight.values.max()) <= encoding.INT4_MAX
    )  # fmt: skip


def has_blocks(model: LanguageModel) -> bool:
    """Return whether any matrix of a model's blocks, or its head, satisfies `is_in_blocks`."""
    products = [linear for block in model.blocks for name in PRODUCTS for linear in matrices(block, name)]
    return any(is_in_blocks(linear.weight) for linear in (*(linear[1] for linear in products), model.output))


MAX_ROW_BITS = 16
"""Minuend of a row's shift, which is this minus the row's bits: always a shift to the right."""
BYTE_BITS = 7
"""Bits of the largest element of a row after its conversion to int8."""
BIAS_PLACES = 6
"""Extra fractional bits of int8 results while a bias is added, so that the bias is not rounded to their steps."""


@dataclass(frozen=True)
class Scaled:
    """Scaling of sums to steps: ``sum * mantissa / 2**(shift + row)``, rounded half to even.

    Attributes
    ----------
    mantissas : numpy.ndarray of int16, shape (columns,)
        1 to `DIGITS`.
    shift : int
        0 to 32; the row's shift, at most `MAX_ROW_BITS`, is added to it.
    max_sum, max_result : int
        Upper bounds of the magnitudes of sums and of results.
    """

    mantissas: np.ndarray
    shift: int
    max_sum: int
    max_result: int

    @classmethod
    def of(cls, scales: np.ndarray, sums: np.ndarray, bits: int = 16) -> Scaled:
        """Return the scaling by float64 factors (columns,), for rows whose largest element has `BYTE_BITS`.

        `sums` are the largest possible sums; rows have at most `bits` bits.
        """
        max_result = math.ceil(math.ldexp(float((scales * sums).max()), bits - BYTE_BITS)) + 1
        max_result = min(max_result, 1 << 30)  # far above 24 bits; no sum of a real text comes near
        places = 15 - math.frexp(float(scales.max()))[1]
        # Rounding up would exceed two signed digits.
        if round(math.ldexp(float(scales.max()), places)) > DIGITS:
            places -= 1
        mantissas = np.maximum(np.rint(np.ldexp(scales, places)), 1).astype(np.int16)
        return cls(mantissas, places - (MAX_ROW_BITS - BYTE_BITS), int(sums.max()), max_result)

    @property
    def factors(self) -> np.ndarray:
        """Factors of sums for rows with `BYTE_BITS`: float64 (columns,)."""
        return np.ldexp(self.mantissas.astype(float), -self.shift - (MAX_ROW_BITS - BYTE_BITS))


@dataclass(frozen=True)
class Biases:
    """Biases of all blocks in steps: integers times ``2**shift``.

    Attributes
    ----------
    numbers : list of numpy.ndarray of int64, shape (columns,)
        For each block, within the requested number of digits.
    shift : int
        Common to all blocks.
    """

    numbers: list[np.ndarray]
    shift: int

    @classmethod
    def of(cls, biases: Sequence[np.ndarray], digits: int = 2) -> Biases:
        """Round the biases of each block, float64 (columns,) in steps, to integers of `digits` digits.

        The shift is 0 if the largest bias fits. Rounding is half to even.
        """
        largest = max(float(np.abs(bias).max()) for bias in biases)
        largest_number = DIGITS << 8 * (digits - 2)
        shift = max(0, math.ceil(math.log2(largest / largest_number))) if largest > largest_number else 0
        return cls([np.rint(np.ldexp(bias, -shift)).astype(np.int64) for bias in biases], shift)


def power_of_two(value: float) -> float:
    """Return the smallest power of two that is at least `value`."""
    return 2.0 ** math.ceil(math.log2(value))


def scale_blocks(matrices: Sequence[Weights], factors: Sequence[float]) -> list[Scaled]:
    """Return the scaling of each block, its scales times its factor, with one shift for all blocks."""
    products = [matrix.scales * factor for matrix, factor in zip(matrices, factors, strict=True)]
    scaled = Scaled.of(np.concatenate(products), np.concatenate([matrix.sums for matrix in matrices]))
    parts = np.split(scaled.mantissas, len(products))
    return [Scaled(part, scaled.shift, scaled.max_sum, scaled.max_result) for part in parts]
