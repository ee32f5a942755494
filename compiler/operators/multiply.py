"""The product of two tensors, element by element."""

from __future__ import annotations

import numpy as np

from weft.compiler.ir.graph import Multiply
from weft.compiler.ir.microops import Value, elementwise, looked_up, requantise
from weft.compiler.operators import pairwise
from weft.compiler.operators.record import Operator
from weft.hdl.isa.config import Config


def _evaluate(op: Multiply, given: tuple[np.ndarray, ...], bits: int) -> np.ndarray:
    """The product of the operands less their zero points, requantised."""
    product = elementwise(lambda p, q: (p - op.a_zero) * (q - op.b_zero), *map(Value.image, given))
    return looked_up(requantise(product, op.scale, "", op, bits), op).int8()


def _unsupported(op: Multiply, config: Config) -> str | None:
    return pairwise.no_products(config)


OPERATOR = Operator(
    Multiply,
    pairwise.shape,
    _evaluate,
    pairwise.plan,
    pairwise.lower,
    pairwise.cost,
    _unsupported,
    beside=pairwise.beside,
    resident=True,
)
