"""Rows divided by the root of a total of other rows."""

from __future__ import annotations

from weft.compiler.kernel.row_operators import RowNorm
from weft.compiler.operators.row_wise import operator

OPERATOR = operator(RowNorm)
