"""Normalisation of the channels of pixels."""

from __future__ import annotations

from weft.compiler.kernel.operators import LayerNorm
from weft.compiler.operators.row_wise import operator

OPERATOR = operator(LayerNorm)
