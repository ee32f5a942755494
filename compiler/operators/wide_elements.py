"""Sums, products, minima and maxima of elements of 16 bits, and their requantisation."""

from __future__ import annotations

from weft.compiler.kernel.int16 import WideElements
from weft.compiler.operators.row_wise import operator

OPERATOR = operator(WideElements)
