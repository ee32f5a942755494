"""A language model with block products in integers, as CPU programs compute them from GGUF's files.

Input rows of products are split into blocks of 32 elements. Each block becomes int8 with a scale of half precision: its
largest magnitude divided by 127. The products of a block are summed as integers; these sums, times both scales, are
summed in float32. All else is float32. This follows from the types ``Q8_0`` and ``Q4_0``; programs that add in another
order have other last bits.
"""

from __future__ import annotations

import numpy as np

from weft.extras.language.compiler.model import BlockTensor, Linear
from weft.extras.language.compiler.reference import Reference

BLOCK = 32
"""Elements per scale."""


def quantise_blocks(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quantise float32 rows (rows, columns) to integers and scales: (rows, blocks, `BLOCK`) and (rows, blocks)."""
    blocks = x.reshape(len(x), -1, BLOCK)
    exact = np.abs(blocks).max(axis=2) / np.float32(127)
    with np.errstate(divide="ignore"):
        inverse = np.where(exact > 0, 1 / exact, 0)
    values = blocks * inverse[..., None]
    # Round half away from zero.
    return np.trunc(values + np.copysign(np.float32(0.5), values)), exact.astype(np.float16).astype(
        np.float32
    )


def product(weight: BlockTensor, x: np.ndarray) -> np.ndarray:
    """Return ``x @ weight.T`` in blocks: float32 (rows of `x`, rows of `weight`).

    Raises
    ------
    ValueError
        If the weights are in other blocks, or have minimums.
    """
    if weight.block != BLOCK or weight.minimums is not None:
        raise ValueError(f"weights must be in blocks of {BLOCK} without minimums")
    values, scales = quantise_blocks(x)
    integers = weight.values.reshape(len(weight.values), -1, BLOCK).astype(np.float32)
    result = np.zeros((len(x), len(integers)), np.float32)
    for block in range(values.shape[1]):  # sums of 32 products are exact in float32
        sums = values[:, block] @ integers[:, block].T
        result += sums * scales[:, block, None] * weight.scales[:, block]
    return result


class BlockArithmetic(Reference):
    """`Reference` with `product` in place of all products of weights."""

    def _linear(self, linear: Linear, x: np.ndarray) -> np.ndarray:
        if not isinstance(linear.weight, BlockTensor):
            return super()._linear(linear, x)
        result = product(linear.weight, x)
        return result if linear.bias is None else result + linear.bias
