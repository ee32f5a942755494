"""One number for the channels of each pixel."""

from __future__ import annotations

from weft.compiler.kernel.row_operators import RowTotal
from weft.compiler.operators.row_wise import operator

OPERATOR = operator(RowTotal)
