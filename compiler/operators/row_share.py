"""Rows divided by the sum of their magnitudes."""

from __future__ import annotations

from weft.compiler.kernel.row_products import RowShare
from weft.compiler.operators.row_wise import operator

OPERATOR = operator(RowShare)
