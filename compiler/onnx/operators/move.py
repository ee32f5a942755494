"""Operators that move no byte: reshapes, and transposes. Who cannot read the order behind them has bytes moved for it
(`weft.compiler.onnx.reorder`)."""

from __future__ import annotations

import dataclasses

import numpy as np

from weft.compiler.ir.layout import natural, packed
from weft.compiler.onnx.context import NodeContext
from weft.compiler.onnx.indices import taken
from weft.compiler.onnx.operator import Operator
from weft.compiler.onnx.qdq import Activation, Constant, Pending, Symbol, Tensor
from weft.compiler.onnx.reorder import row_major


def movable(context: NodeContext) -> str | None:
    """Reshapes and transposes must act on int8 or uint8 activations or on the result of a device operator."""
    good = isinstance(context.symbol(0), Activation | Pending | Tensor | Constant)
    return None if good else f"input {context.node.inputs[0]!r} is not"


def transposable(context: NodeContext) -> str | None:
    """Transpose must lead to an order that the operators behind it take, or that at most 256 copies lead on to."""
    if isinstance(context.symbol(0), Constant) or transposed(context) is not None:
        return None
    return f"perm is {permutation(context)}"


def permutation(context: NodeContext) -> tuple[int, ...]:
    """The order of axes a Transpose node makes."""
    return context.ints("perm", tuple(reversed(range(len(context.shape())))))


def transposed(context: NodeContext) -> Tensor | Pending | None:
    """The transposed value, without moving a byte if that can be: preferably in an order the device computes in."""
    symbol, shape, output, perm = context.symbol(0), context.shape(), context.output, permutation(context)
    if isinstance(symbol, Activation):
        symbol = symbol.tensor
    assert isinstance(symbol, Tensor | Pending)
    back = tuple(np.argsort(perm).tolist())
    for layout in (natural(output), packed(output)):
        before = layout.transposed(output, back)
        assert before is not None
        if isinstance(symbol, Pending):
            if symbol.layout.same(before):
                return dataclasses.replace(symbol, layout=layout)
            continue
        arranged = symbol.arranged(before)
        if arranged is not None:
            return arranged.transposed(shape, perm, layout)
    moved = symbol.layout.transposed(shape, perm)
    if moved is None and isinstance(symbol, Tensor):
        rows = row_major(symbol, shape)
        moved = packed(shape).transposed(shape, perm)
        return None if rows is None or moved is None else rows.transposed(shape, perm, moved)
    if moved is None:
        return None
    if isinstance(symbol, Pending):
        return dataclasses.replace(symbol, layout=moved)
    return symbol.transposed(shape, perm, moved)


def move(context: NodeContext) -> Symbol:
    """Reshape and its kin: the same bytes under another shape."""
    source, index = context.symbol(0), context.node.index
    if isinstance(source, Constant):
        return _move_constant(context, source)
    moved = transposed(context) if context.node.op == "Transpose" else source
    if isinstance(moved, Pending):
        return dataclasses.replace(moved, nodes=(*moved.nodes, index))
    if isinstance(moved, Activation):
        moved = moved.tensor
    assert isinstance(moved, Tensor)
    moved = dataclasses.replace(moved, via=(*moved.via, index))
    return Activation(moved, source.quant) if isinstance(source, Activation) else moved


def _move_constant(context: NodeContext, source: Constant) -> Symbol:
    if context.node.op == "Identity":
        return source
    if context.node.op == "Transpose":
        perm = permutation(context)
        values, scale = source.values.transpose(perm), source.scale.transpose(perm)
    elif source.scale.size == 1:
        values, scale = (
            source.values.reshape(context.output),
            source.scale.reshape((1,) * len(context.output)),
        )
    else:
        return None
    return Constant(values, scale, source.exact, _activation_of(context, source))


def _activation_of(context: NodeContext, source: Constant) -> Activation | None:
    """What a moved constant is as an activation, if it is one."""
    if source.activation is None:
        return None
    moved = move(dataclasses.replace(context, symbols=(source.activation, *context.symbols[1:])))
    return moved if isinstance(moved, Activation) else None


def _takes_all(context: NodeContext) -> bool:
    """Whether a node that takes elements of a float value, which has no bytes yet, takes all of them in order."""
    found = (taken(context) or ()) if isinstance(context.symbol(0), Pending) else ()
    return len(found) == 1 and all(
        np.array_equal(places, np.arange(size))
        for places, size in zip(found[0].indices, found[0].shape, strict=True)
    )


OPERATORS = (
    Operator(
        ("Expand", "Gather", "Slice", "Tile"),
        (movable,),
        move,
        applies=_takes_all,
        title="Expand, Gather, Slice and Tile that take all elements of a float value",
    ),
    Operator(("Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"), (movable,), move),
    Operator(("Transpose",), (movable, transposable), move),
)
