"""Rows divided by the root of a total of other rows."""

from __future__ import annotations

from weft.compiler.kernel.row_products import RowNorm
from weft.compiler.operators.row_wise import operator

OPERATOR = operator(RowNorm)
