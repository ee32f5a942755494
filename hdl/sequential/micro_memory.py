"""The microprogram of LOAD, STORE and MM."""

from __future__ import annotations

from weft.hdl.isa import Load, Mm, Store
from weft.hdl.sequential.assembler import (
    Condition,
    Function,
    Index,
    MemoryOut,
    Micro,
    Out,
    Port,
    implements,
    loops_of,
)


@implements(Load)
def load(m: Micro) -> None:
    """Write `weft.hdl.isa.Load`: gather each vector from memory and fill bytes, then write it."""
    m.base("f.base")
    m.add("f.offset")
    m.st("row")
    if m.config.softmax:
        _page(m)
    if m.config.int4:
        m.ld("f.int4")
        m.memory(MemoryOut.NARROW)
    m.ld("f.fill")
    m.memory(MemoryOut.FILL)
    m.copy("dst.row", "f.dst")
    m.copy("line", "f.line")
    if m.config.softmax:
        m.copy("member", 0)
    _choose(m)
    # ``row``: address of the row in memory. ``dst.row``: its first vector. ``line``: remaining rows of the line.
    m.loop("f.rows", lambda: _row(m))
    if m.config.softmax:
        # The remaining pixels of the last group have no bytes from memory.
        m.ld(0)
        m.memory(MemoryOut.REMAIN)
        m.label("load.fill")
        m.ld("member")
        m.jump("load.done", Condition.ZERO)
        m.ld("f.length")
        m.memory(MemoryOut.LENGTH)
        m.memory(MemoryOut.GATHER)
        m.call("load.scatter")
        m.jump("load.fill")
        m.label("load.done")
    m.call("rest")
    if m.config.int4:
        m.ld(0)
        m.memory(MemoryOut.NARROW)
    m.jump("next")
    _open(m)
    if m.config.softmax:
        _scatter(m)


def _choose(m: Micro) -> None:
    """Set ``long`` to non-zero if `_short` cannot be used."""
    m.ld("f.length")
    m.sub(m.config.n)
    m.maximum(0)
    m.st("long")
    m.ld("f.pitch")
    m.sub("f.length")
    skip = m.new_label()
    m.jump(skip, Condition.ZERO)
    m.ld(1)
    m.label(skip)
    m.add("long")
    if m.config.softmax:
        m.add("f.transpose")
    m.st("long")


def _row(m: Micro) -> None:
    long = m.new_label()
    m.copy("at", 0)
    m.ld("long")
    m.jump(long, Condition.ZERO, unless=True)
    m.call("open")
    _short(m)
    m.label(long)
    m.loop("f.pixels", lambda: _pixel(m), [("dst.pixel", "dst.row", "f.dst_pixel")])
    # Move to the next row, or to the first row of the next line.
    m.label("load.row")
    m.advance("row", "f.row_pitch")
    within = m.new_label()
    m.advance("line", -1)
    m.jump(within, Condition.ZERO, unless=True)
    m.copy("line", "f.line")
    m.advance("row", "f.skip")
    m.label(within)
    if m.config.softmax:
        skip = m.new_label()
        m.ld("f.transpose")
        m.jump(skip, Condition.ZERO, unless=True)
        m.advance("dst.row", "f.dst_row")
        m.label(skip)
    else:
        m.advance("dst.row", "f.dst_row")


def _short(m: Micro) -> None:
    """Write the loop over contiguous pixels of one vector each; the next pixel is gathered while one is written."""
    again, last = m.new_label(), m.new_label()
    m.copy("dst.pixel", "dst.row")
    m.copy("f.pixels.left", "f.pixels")
    m.ld("f.length")
    m.memory(MemoryOut.LENGTH)
    m.memory(MemoryOut.GATHER)
    m.label(again)
    m.advance("f.pixels.left", -1)
    m.jump(last, Condition.ZERO)
    m.wait(Condition.MOVED)
    m.ld("dst.pixel", Out.SCRATCHPAD_WRITE)
    m.ld("f.length")
    m.memory(MemoryOut.LENGTH)
    m.memory(MemoryOut.GATHER)
    m.advance("dst.pixel", "f.dst_pixel")
    m.jump(again)
    m.label(last)
    m.wait(Condition.MOVED)
    m.ld("dst.pixel", Out.SCRATCHPAD_WRITE)
    m.jump("load.row")


def _pixel(m: Micro) -> None:
    """Write the code of a pixel of any length; a contiguous pixel continues without a new address."""
    m.copy("dst.vector", "dst.pixel")
    same = m.new_label()
    m.ld("at")
    m.jump("load.open", Condition.ZERO)
    m.ld("f.pitch")
    m.sub("f.length")
    m.jump(same, Condition.ZERO)
    m.label("load.open")
    m.call("open")
    m.label(same)
    m.ld("f.length")
    m.memory(MemoryOut.LENGTH)
    _vectors(m)
    m.advance("at", "f.pitch")


def _vectors(m: Micro) -> None:
    """Write the loop over the vectors of a pixel; the next vector is gathered while one is written."""
    again, last, transposed = m.new_label(), m.new_label(), m.new_label()
    # The gather of each vector overlaps the write of the previous vector.
    m.memory(MemoryOut.GATHER)
    if m.config.softmax:
        m.ld("f.transpose")
        m.jump(transposed, Condition.ZERO, unless=True)
    m.label(again)
    m.wait(Condition.MOVED)
    m.jump(last, Condition.LENGTH_ZERO)
    m.ld("dst.vector", Out.SCRATCHPAD_WRITE)
    m.memory(MemoryOut.GATHER)
    m.advance("dst.vector", "f.dst_vector")
    m.jump(again)
    if m.config.softmax:
        m.label(transposed)
        m.call("load.scatter")
        m.jump("load.pixel")
    m.label(last)
    m.ld("dst.vector", Out.SCRATCHPAD_WRITE)
    m.label("load.pixel")


def _page(m: Micro) -> None:
    """Add the entry of the page table to the address."""
    skip = m.new_label()
    m.ld("f.paged")
    m.jump(skip, Condition.ZERO)
    m.base("f.table")
    for _ in range(4):  # bytes of an entry
        m.add("f.page")
    m.memory(MemoryOut.ADDRESS)
    m.ld(4)
    m.memory(MemoryOut.REMAIN)
    m.ld(Port.WORD)
    m.add("row")
    m.st("row")
    m.call("rest")
    m.label(skip)


def _open(m: Micro) -> None:
    """Write the routine that starts reading at byte ``at`` of the row."""
    m.label("open")
    m.ld(0)
    m.memory(MemoryOut.REMAIN)
    m.ld("at")
    m.sub("f.before")
    m.maximum(0)
    m.st("into")
    if m.config.int4:
        m.jump("open.whole", Condition.ZERO)
        m.ld("f.int4")
        m.jump("open.narrow", Condition.ZERO, unless=True)
        m.label("open.whole")
        m.ld("into")
    m.add("row")
    m.wait(Condition.MEMORY_IDLE)
    m.memory(MemoryOut.ADDRESS)
    m.ld("f.run")
    m.sub("into")
    m.maximum(0)
    m.memory(MemoryOut.REMAIN)
    m.ld("f.before")
    m.sub("at")
    m.maximum(0)
    m.memory(MemoryOut.SKIP)
    m.back()
    if m.config.int4:
        _open_narrow(m)


def _open_narrow(m: Micro) -> None:
    """Write the variant of `_open` for values of 4 bits: gather and discard the first ``into`` values."""
    m.label("open.narrow")
    m.ld("row")
    m.wait(Condition.MEMORY_IDLE)
    m.memory(MemoryOut.ADDRESS)
    m.ld("f.run")
    m.memory(MemoryOut.REMAIN)
    m.ld(0)
    m.memory(MemoryOut.SKIP)
    again = m.label()
    m.ld("into")
    m.minimum(m.config.n)
    m.memory(MemoryOut.LENGTH)
    m.memory(MemoryOut.GATHER)
    # The accumulator has the number of gathered values: subtract it from ``into``.
    m.sub("into")
    m.st("into")
    m.ld(0)
    m.sub("into")
    m.st("into")
    m.wait(Condition.MOVED)
    m.ld("into")
    m.jump(again, Condition.ZERO, unless=True)
    m.back()


def _scatter(m: Micro) -> None:
    """Write the routine that stores the vectors of a pixel as a column of its group; the first is being gathered."""
    m.label("load.scatter")
    m.copy("dst.pixel", "dst.row")
    vector, member = m.label(), m.new_label()
    m.wait(Condition.MOVED)
    m.ld("member", Out.COLUMN)
    m.copy("bytes", m.config.n)
    m.copy("dst.vector", "dst.pixel")
    again = m.label()
    m.ld("dst.vector", Out.BYTE_WRITE)
    m.advance("dst.vector", "f.dst_vector")
    m.advance("bytes", -1)
    m.jump(again, Condition.ZERO, unless=True)
    m.jump(member, Condition.LENGTH_ZERO)
    m.memory(MemoryOut.GATHER)
    m.advance("dst.pixel", "f.dst_pixel")
    m.jump(vector)
    more = m.new_label()
    m.label(member)
    m.advance("member", 1)
    m.sub(m.config.n)
    m.jump(more, Condition.ZERO, unless=True)
    m.st("member")
    m.advance("dst.row", "f.dst_row")
    m.label(more)
    m.back()


@implements(Store)
def store(m: Micro) -> None:
    """Write `weft.hdl.isa.Store`: read each vector, then send its bytes to memory; each pixel sets a new address."""
    m.base("f.base")
    m.add("f.offset")
    m.st("row")
    m.copy("src.row", "f.src")

    def pixel() -> None:
        m.ld("at")
        m.memory(MemoryOut.ADDRESS)
        m.ld("f.length")
        m.memory(MemoryOut.LENGTH)
        m.copy("src.vector", "src.pixel")
        again = m.label()
        m.ld("src.vector", Out.SCRATCHPAD_READ)
        m.memory(MemoryOut.SCATTER)
        m.advance("src.vector", "f.src_vector")
        m.wait(Condition.MOVED)
        m.jump(again, Condition.LENGTH_ZERO, unless=True)
        m.memory(MemoryOut.FLUSH)
        m.advance("at", "f.pitch")
        m.wait(Condition.MEMORY_IDLE)

    def row() -> None:
        m.copy("at", "row")
        m.loop("f.pixels", pixel, [("src.pixel", "src.row", "f.src_pixel")])
        m.advance("row", "f.row_pitch")
        m.advance("src.row", "f.src_row")

    m.loop("f.rows", row)


_WEIGHTS = 8
"""Columns of weights that are loaded between two tests for the end."""


@implements(Mm)
def mm(m: Micro) -> None:
    """Write `weft.hdl.isa.Mm`: load the weights of each tile, then start runs of rows; with ``align`` single rows."""
    operands = loops_of(Mm, "a", "b", "c")
    _mode(m)
    m.ld("f.x_ox", Out.X_STEP)
    m.ld("f.a_ox", Out.A_STEP)
    m.ld("f.c_ox", Out.C_STEP)

    def tile() -> None:
        # Weights and rows share the address register `A` and its step.
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
        # All steps of the contraction after the first add to the accumulator.
        m.wait(Condition.ROWS_DONE)
        m.ld("mode", Out.MODE)

    def rows() -> None:
        # The code after a start of rows runs while the rows do.
        m.wait(Condition.ROWS_DONE)
        m.ld("y.oy", Out.X)
        m.ld("f.h", Out.BOUND)
        m.ld("c.oy", Out.C)
        m.out(Out.ROW_VALID)
        m.ld("x.kx", Out.X)
        m.ld("f.w", Out.BOUND)
        m.ld("a.oy", Out.A)
        if m.config.softmax:
            m.back()  # to `mm.rows` by way of the word after the call, or to `mm.align`
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
    """Set ``mode`` for all steps of the contraction, and ``mode.first`` for the first step of a tile."""
    m.ld("f.zero" if m.config.wide_activations else 0)
    m.op(Function.AND, 255)
    _next_byte(m)
    m.st("mode")
    m.ld("f.pad")
    m.op(Function.AND, 255)
    m.add("mode")
    _next_byte(m)
    if m.config.softmax:
        m.add("f.align")  # bit 0: the rows do not write their sums, `_align` does
    m.st("mode")
    m.ld(1)
    m.sub("f.accumulate")
    m.add(Port.ACCUMULATOR)  # bit 1: overwrite
    m.add("mode")
    m.st("mode.first")


def _next_byte(m: Micro) -> None:
    """Shift the accumulator left by 8."""
    m.ld(Port.APPEND)
    m.op(Function.AND, -256)


def _align(m: Micro) -> None:
    """Write the loop over single rows, which shifts either their sums or the accumulator, and adds."""
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
    # `C` has already moved to the next row.
    m.ld("c.row", Out.C)
    m.ld(0, Out.COLUMN)
    m.out(Out.ACCUMULATOR_READ)
    m.ld(0, Out.SOURCE)
    column = m.label()
    negative, write = m.new_label(), m.new_label()
    # A positive alignment shifts the accumulator, a negative alignment shifts the sum.
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
