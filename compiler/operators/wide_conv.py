"""Convolution with inputs or results of 16 bits."""

from __future__ import annotations

import numpy as np

from weft.compiler.ir.graph import IrError
from weft.compiler.ir.microops import Value
from weft.compiler.kernel.evaluate import evaluate
from weft.compiler.kernel.wide_conv import WideConv
from weft.compiler.operators.conv import cost, lower, plan, sums
from weft.compiler.operators.record import Operator, Shape4
from weft.compiler.operators.row_wise import lacking, stacked


def _shape(op: WideConv) -> Shape4:
    n, h, w, c = op.src.shape
    out, kh, kw, cin = op.weight.shape
    fits = cin * op.groups == c and out % op.groups == 0 and (kh, kw) == op.window.kernel
    if not fits or op.bias.shape != (out,) or op.scale.shape != (out,):
        raise IrError(f"{op.name}: weight {op.weight.shape} with {op.groups} groups on input {op.src.shape}")
    return (n, *op.window.output(h, w), out)


def _evaluate(op: WideConv, given: tuple[np.ndarray, ...], bits: int) -> np.ndarray:
    """Sums of products of each byte of the inputs, and what the kernel makes of them."""
    totals = op.weight.astype(np.int64).sum(axis=(1, 2, 3))
    found = [
        sums(op, Value.image(plane.astype(np.int64) - fill)).spread("nhwc") + fill * totals
        for plane, fill in zip(given, op.fills, strict=True)
    ]
    tensors = [np.stack(found, axis=-1).reshape(-1, len(totals), len(found))]
    made = evaluate(op.kernel, [*tensors, *(vector[None] for vector in op.vectors)])
    return stacked(made, op.dst.shape, wide=op.wide)


OPERATOR = Operator(WideConv, _shape, _evaluate, plan, lower, cost, lacking, looked_up=False)
