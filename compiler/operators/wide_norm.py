"""Normalisation of the channels of pixels whose elements have 16 bits."""

from __future__ import annotations

from weft.compiler.kernel.wide_norm import WideLayerNorm
from weft.compiler.operators.row_wise import operator

OPERATOR = operator(WideLayerNorm)
