"""Matrices of a model as int8 with a scale for each row, and what norms in front of them add to that."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from weft.extras.language.compiler.form import PRODUCTS, matrices
from weft.extras.language.compiler.model import BlockTensor, LanguageModel, Linear, Matrix, Norm, dense
from weft.hdl.isa import encoding


@dataclass(frozen=True, eq=False)
class Weights:
    """int8 (rows, columns), each row times its scale: float64 (rows,).

    Where they are in blocks of 4 bits, they come of `nibbles`, int8 (rows, columns) from -8 to 7, times `factors`, int8
    (rows, columns // `weft.hdl.isa.encoding.GROUP_WORDS`).
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
            steps = np.abs(weight.scales).max(axis=axis) * (1 << encoding.FACTOR_FRACTION_BITS)
            largest = np.maximum(largest, steps)
        scales = np.broadcast_to(np.maximum(largest, 1e-12) / 127, len(exact)).astype(float)
        if not blocks:
            return cls(np.rint(exact / scales[:, None]).astype(np.int8), scales)
        assert isinstance(weight, BlockTensor)
        ratios = np.rint(np.ldexp(weight.scales / scales[:, None], encoding.FACTOR_FRACTION_BITS))
        factors = np.clip(ratios, -127, 127).astype(np.int8)
        values = encoding.multiply_factors(weight.values, factors.repeat(encoding.GROUP_WORDS, axis=1))
        return cls(values, scales, weight.values, factors)

    @classmethod
    def behind(
        cls, linear: Linear, norm: Norm | None, *, together: bool = False, gains: bool = False
    ) -> Weights:
        """A matrix with what the norm in front of it multiplies by; with `gains` norms do that themselves, and matrices
        in blocks of 4 bits stay in them."""
        if gains:
            return cls.of(linear.weight, together=together, blocks=in_blocks(linear.weight))
        weight = dense(linear.weight)
        return cls.of(weight if norm is None else weight * norm.weight, together=together)

    @property
    def sums(self) -> np.ndarray:
        """The largest sums of products with int8: float64 (rows,)."""
        return 128.0 * np.abs(self.values.astype(np.int64)).sum(axis=1)


def bias_behind(linear: Linear, norm: Norm | None) -> np.ndarray:
    """A bias, with the product of what the norm in front of it adds: float64 (outputs,)."""
    bias = np.zeros(linear.weight.shape[0]) if linear.bias is None else linear.bias.astype(float)
    if norm is None or norm.bias is None:
        return bias
    added: np.ndarray = dense(linear.weight).astype(float) @ norm.bias.astype(float)
    return bias + added


def in_blocks(weight: Matrix) -> bool:
    """Whether a matrix has blocks of values of 4 bits with a scale and nothing else, as GGUF's Q4_0."""
    return (
        isinstance(weight, BlockTensor) and weight.minimums is None and weight.block == encoding.GROUP_WORDS
        and int(weight.values.min()) >= encoding.INT4_MIN and int(weight.values.max()) <= encoding.INT4_MAX
    )  # fmt: skip


def has_blocks(model: LanguageModel) -> bool:
    """Whether any matrix of a model's blocks, or its head, is `in_blocks`."""
    products = [found for block in model.blocks for name in PRODUCTS for found in matrices(block, name)]
    return any(in_blocks(linear.weight) for linear in (*(found[1] for found in products), model.output))
