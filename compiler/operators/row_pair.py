"""Minima, maxima and quotients of two tensors."""

from __future__ import annotations

from weft.compiler.kernel.row_operators import RowPair
from weft.compiler.operators.row_wise import operator

OPERATOR = operator(RowPair)
