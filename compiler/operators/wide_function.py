"""Functions of elements of 16 bits."""

from __future__ import annotations

from weft.compiler.kernel.wide_function import WideFunction
from weft.compiler.operators.row_wise import operator

OPERATOR = operator(WideFunction)
