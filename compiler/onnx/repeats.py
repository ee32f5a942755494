"""Two activations of which one may have to be repeated: how the device sees them."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from itertools import groupby
from math import prod

from weft.compiler.ir.graph import View
from weft.compiler.ir.layout import Layout, Shape4, natural, packed
from weft.compiler.onnx.channels import paired
from weft.compiler.onnx.context import NodeContext
from weft.compiler.onnx.qdq import Activation, Quant, Tensor
from weft.compiler.onnx.reorder import placed

_OUTER = 3
"""Loops around channels: images, rows, columns."""


@dataclass(frozen=True)
class Operands:
    """Two operands: the first has the result's shape, the second may have one image, row or column for all of it.

    `layout` is that of the result, which the device sees as `shape`. `swapped` tells that the first is the node's
    second input.
    """

    tensors: tuple[Tensor, Tensor]
    quants: tuple[Quant, Quant]
    views: tuple[View, View]
    layout: Layout
    shape: Shape4
    swapped: bool


def operands(context: NodeContext) -> Operands | str:
    """The operands of a node with two activations, or what is not as the device takes it."""
    symbols = paired(context)
    context = dataclasses.replace(context, symbols=symbols)
    if len(symbols) != 2 or not all(isinstance(symbol, Activation) for symbol in symbols):
        return f"inputs are {context.inputs}"
    output, shapes = context.output, (context.shape(0), context.shape(1))
    if prod(shapes[0]) == prod(shapes[1]) == prod(output):
        return _alike(context)
    whole = [index for index, shape in enumerate(shapes) if prod(shape) == prod(output)]
    if not whole:
        return f"shapes are {shapes[0]} and {shapes[1]}: both would have to be repeated"
    at = whole[0]
    return _repeated(context, at, (1,) * (len(output) - len(shapes[1 - at])) + shapes[1 - at])


def _alike(context: NodeContext) -> Operands | str:
    """Operands of the result's shape, in any order of elements that both can have."""
    a, b = (symbol for symbol in context.symbols if isinstance(symbol, Activation))
    layouts = natural(context.output), a.tensor.layout, b.tensor.layout
    for find, layout in itertools.product((Tensor.arranged, placed), layouts):
        first, second = find(a.tensor, layout), find(b.tensor, layout)
        if first is not None and second is not None:
            views = first.view(), second.view(first.layout.nhwc)
            return Operands(
                (first, second), (a.quant, b.quant), views, first.layout, first.layout.nhwc, swapped=False
            )
    return f"inputs {context.inputs} have their elements in different orders"


def _repeated(context: NodeContext, at: int, shape: tuple[int, ...]) -> Operands | str:
    """Operand `at` has the result's shape, and the other one `shape`, of as many axes."""
    whole, other = context.symbols[at], context.symbols[1 - at]
    assert isinstance(whole, Activation)
    assert isinstance(other, Activation)
    reason = ""
    for find, kind in itertools.product((Tensor.arranged, placed), (natural, packed)):
        layout = kind(context.output)
        first, second = find(whole.tensor, layout), find(other.tensor, kind(shape))
        if first is None or second is None:
            wrong = context.node.inputs[at if first is None else 1 - at]
            reason = reason or f"input {wrong!r} has its elements in another order"
            continue
        seen = _loops(*(tuple(sizes[axis] for axis in layout.perm) for sizes in (context.output, shape)))
        if not isinstance(seen, str):
            return Operands(
                (first, second), (whole.quant, other.quant), (first.view(seen[0]), second.view(seen[1])), layout,
                seen[0], swapped=at == 1,
            )  # fmt: skip
        reason = seen
    return reason


def _loops(full: tuple[int, ...], part: tuple[int, ...]) -> tuple[Shape4, Shape4] | str:
    """Both shapes as images of rows of columns of channels, where the second has all or one of each; channels come
    last in both."""
    if part[-1] != full[-1]:
        return f"one of {full[-1]} channels would have to be repeated"
    pairs = [(most, size) for most, size in zip(full[:-1], part[:-1], strict=True) if most > 1]
    groups = [list(group) for _, group in groupby(pairs, key=lambda pair: pair[0] == pair[1])]
    if len(groups) > _OUTER:
        return f"shapes {full} and {part} repeat along too many axes"
    loops = [(1, 1)] * (_OUTER - len(groups))
    loops += [(prod(most for most, _ in group), prod(size for _, size in group)) for group in groups]
    (n, m), (h, k), (w, x) = loops
    return (n, h, w, full[-1]), (m, k, x, part[-1])
