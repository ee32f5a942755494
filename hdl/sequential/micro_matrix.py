"""The microprogram of MM."""

from __future__ import annotations

from weft.hdl.isa import Mm
from weft.hdl.sequential.assembler import Micro, carries_out, moved
from weft.hdl.sequential.micro import Condition, Function, Index, Out, Port

_WEIGHTS = 8
"""Columns of weights that are taken without asking whether there are more."""


@carries_out(Mm)
def mm(m: Micro) -> None:
    """`weft.hdl.isa.Mm`: for every tile its weights, then runs of rows; with ``align`` a row at a time."""
    operands = moved(Mm, "a", "b", "c")
    _mode(m)
    m.ld("f.x_ox", Out.X_STEP)
    m.ld("f.a_ox", Out.A_STEP)
    m.ld("f.c_ox", Out.C_STEP)

    def tile() -> None:
        m.ld("f.b_row", Out.A_STEP)
        m.ld("b.kc", Out.A)
        m.ld(0, Out.COLUMN)
        again = m.label()
        for _ in range(min(m.config.n, _WEIGHTS)):
            m.out(Out.READ_A)
            m.out(Out.WEIGHT)
        if m.config.n > _WEIGHTS:
            m.jump(again, Condition.COLUMN_ZERO, unless=True)
        m.ld("f.a_ox", Out.A_STEP)
        m.walk("oy", rows, operands)
        # The next steps of the contraction add up.
        m.wait(Condition.ROWS_DONE)
        m.ld("mode", Out.MODE)

    def rows() -> None:
        # What comes behind a start goes on while rows do.
        m.wait(Condition.ROWS_DONE)
        m.ld("y.oy", Out.X)
        m.ld("f.h", Out.BOUND)
        m.ld("c.oy", Out.C)
        m.out(Out.ROW_VALID)
        m.ld("x.kx", Out.X)
        m.ld("f.w", Out.BOUND)
        m.ld("a.oy", Out.A)
        if m.config.softmax:
            m.back()  # to the next word but one, or to `mm.align`
            m.label("mm.plain")
            m.call("mm.tiles")
        m.ld("f.ox", Out.ROWS)
        m.label("mm.rows")

    def nt() -> None:
        m.ld("mode.first", Out.MODE)
        if m.config.softmax:
            m.copy("alignment", "f.alignment")
        m.walk("ky", lambda: m.walk("kx", kx, operands), operands)

    def kx() -> None:
        m.walk("kc", tile, operands)

    if m.config.softmax:
        m.ld("f.align")
        m.jump("mm.aligned", Condition.ZERO, unless=True)
        m.jump("mm.plain")
        m.label("mm.tiles")
    m.walk("nt", nt, operands)
    m.ld(0, Out.MODE)
    if m.config.softmax:
        m.jump("next")
        _align(m)


def _mode(m: Micro) -> None:
    """``mode`` for steps of the contraction, ``mode.first`` for the first one of a tile."""
    m.ld("f.zero" if m.config.wide_activations else 0)
    m.op(Function.AND, 255)
    _next_byte(m)
    m.st("mode")
    m.ld("f.pad")
    m.op(Function.AND, 255)
    m.add("mode")
    _next_byte(m)
    if m.config.softmax:
        m.add("f.align")  # `_QUIET`
    m.st("mode")
    m.ld(1)
    m.sub("f.accumulate")
    m.add(Port.ACCUMULATOR)  # `_OVERWRITE`
    m.add("mode")
    m.st("mode.first")


def _next_byte(m: Micro) -> None:
    """Shift the accumulator left by 8."""
    m.ld(Port.APPEND)
    m.op(Function.AND, -256)


def _align(m: Micro) -> None:
    """Rows one by one: their sums and what is in the accumulator, shifted."""
    m.label("mm.aligned")
    m.call("mm.tiles")
    m.jump("mm.align")
    m.label("mm.next")
    m.call("mm.rows")
    m.label("mm.align")
    m.copy("ox.left", "f.ox")
    m.copy("c.row", "c.oy")
    again = m.label()
    m.ld(1, Out.ROWS)
    m.ld("alignment")
    m.index("alignments")
    m.ld(Index())
    m.st("shift")
    m.wait(Condition.ROWS_DONE)
    # It stands on the next one already.
    m.ld("c.row", Out.C)
    m.ld(0, Out.COLUMN)
    m.out(Out.ACCUMULATOR_READ)
    m.ld(0, Out.SOURCE)
    column = m.label()
    negative, write = m.fresh(), m.fresh()
    m.ld("shift")
    m.jump(negative, Condition.NEGATIVE)
    m.st("places")
    m.ld(Port.ELEMENT)
    m.call("halve")
    m.add(Port.SUM)
    m.jump(write)
    m.label(negative)
    m.ld(0)
    m.sub("shift")
    m.st("places")
    m.ld(Port.SUM)
    m.call("halve")
    m.add(Port.ELEMENT)
    m.label(write)
    m.out(Out.ACCUMULATOR_WRITE)
    m.jump(column, Condition.COLUMN_ZERO, unless=True)
    m.advance("alignment", 1)
    m.advance("c.row", "f.c_ox")
    m.out(Out.C)
    m.advance("ox.left", -1)
    m.jump(again, Condition.ZERO, unless=True)
    m.jump("mm.next")
