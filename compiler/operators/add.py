"""Addition and subtraction of two tensors."""

from __future__ import annotations

import numpy as np

from weft.compiler.ir.graph import Add
from weft.compiler.ir.microops import Value, clamp, divide_half_even, elementwise, looked_up, scalar
from weft.compiler.ir.scales import quantise_pair
from weft.compiler.operators import pairwise
from weft.compiler.operators.record import Operator
from weft.hdl.isa.config import Config


def _evaluate(op: Add, given: tuple[np.ndarray, ...], bits: int) -> np.ndarray:
    """Both operands times their mantissas at a common shift."""
    a_mantissa, b_mantissa, shift = quantise_pair(op.a_scale, abs(op.b_scale), bits)
    sign = -1 if op.b_scale < 0 else 1
    total = elementwise(
        lambda p, q: (p - op.a_zero) * a_mantissa + sign * (q - op.b_zero) * b_mantissa,
        *map(Value.image, given),
    )
    return looked_up(clamp(divide_half_even(total, scalar(shift)), op), op).int8()


def _unsupported(op: Add, config: Config) -> str | None:
    return pairwise.no_products(config) if op.b_scale < 0 else None


OPERATOR = Operator(
    Add, pairwise.shape, _evaluate, pairwise.plan, pairwise.lower, pairwise.cost, _unsupported,
    beside=pairwise.beside, resident=True,
)  # fmt: skip
