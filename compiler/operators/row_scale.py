"""Rows with a number of their own as factor or divisor."""

from __future__ import annotations

from weft.compiler.kernel.row_products import RowScale
from weft.compiler.operators.row_wise import operator

OPERATOR = operator(RowScale)
