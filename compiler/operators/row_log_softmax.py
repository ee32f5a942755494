"""Logarithms of probabilities of the channels of pixels."""

from __future__ import annotations

from weft.compiler.kernel.row_logarithms import RowLogSoftmax
from weft.compiler.operators.row_wise import operator

OPERATOR = operator(RowLogSoftmax)
