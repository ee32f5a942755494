"""Channels normalised by their neighbours."""

from __future__ import annotations

from weft.compiler.kernel.row_response import RowResponse
from weft.compiler.operators.row_wise import operator

OPERATOR = operator(RowResponse)
