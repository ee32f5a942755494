"""Sums that are written to where one of their operands was."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from weft.compiler.ir.graph import Add, Conv, DeviceOp, View


def in_place(
    ops: Sequence[DeviceOp],
    resident: Collection[str],
    overlapped: Collection[int],
    first: Mapping[str, int],
    last: Mapping[str, int],
) -> dict[str, str]:
    """By the name of each such result the operand whose memory it takes, in the order of operators.

    Additions, by themselves or behind a convolution, load a box of the operand, and store the same box of the result
    when they have read it, each box once. So a result may take the place of an operand that is a whole buffer of the
    same shape, if nobody reads that later. `first` and `last` have the operators between which buffers are in use, by
    their indices; those in `overlapped` and the ones behind them are left alone, as are buffers in `resident`.
    """
    found: dict[str, str] = {}
    for index, op in enumerate(ops):
        if index in overlapped or index - 1 in overlapped or first.get(op.dst.buffer.name) != index:
            continue
        for view in _added(op):
            name = view.buffer.name
            read = [source for source in op.sources if source.buffer.name == name]
            if len(read) == 1 and last.get(name) == index and _alike(view, op.dst) and name not in resident:
                found[op.dst.buffer.name] = name
                break
    return found


def _added(op: DeviceOp) -> tuple[View, ...]:
    """The operands of an addition that are read element by element."""
    if isinstance(op, Add):
        return op.sources
    if type(op) is Conv and isinstance(op.epilogue, Add):
        return op.epilogue.sources[1:]
    return ()


def _alike(a: View, b: View) -> bool:
    """Whether both are whole buffers, of the same shape, between operators."""
    return (
        a.buffer.kind == b.buffer.kind == "temp"
        and a.shape == b.shape == a.buffer.shape == b.buffer.shape
        and a.step == b.step == (1, 1)
    )
