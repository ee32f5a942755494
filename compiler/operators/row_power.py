"""Powers of two tensors."""

from __future__ import annotations

from weft.compiler.kernel.row_power import RowPower
from weft.compiler.operators.row_wise import operator

OPERATOR = operator(RowPower)
