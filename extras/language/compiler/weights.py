"""Matrices of a model as int8 with a scale for each row, with the norms before them folded in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.extras.language.compiler.form import PRODUCTS, matrices
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
