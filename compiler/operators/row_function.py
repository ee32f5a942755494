"""Kernels of somebody's own."""

from __future__ import annotations

from weft.compiler.kernel.operators import RowFunction
from weft.compiler.operators.row_wise import operator

OPERATOR = operator(RowFunction)
