"""Where the largest or smallest channel of each pixel is."""

from __future__ import annotations

from weft.compiler.kernel.row_operators import RowPlace
from weft.compiler.operators.row_wise import operator

OPERATOR = operator(RowPlace)
