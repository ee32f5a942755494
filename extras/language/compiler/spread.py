"""KERNELs whose columns do not depend on each other: rows and columns in the order that takes the fewest cycles."""

from __future__ import annotations

from typing import NamedTuple

from weft.hdl.isa import Kernel, Source
from weft.hdl.isa.config import Config
from weft.hdl.isa.kernel import SOURCES, STRIP_ROWS, TARGETS
from weft.hdl.isa.operands import kernel_min_cycles


class At(NamedTuple):
    """Where an operand is: the first vector, strides from row to row, from group to group and from column to column,
    and the vectors of a column."""

    first: int
    row: int = 0
    group: int = 0
    column: int = 0
    vectors: int = 1


def spread(
    config: Config, source: Source, start: int, counts: tuple[int, int, int], **operands: At
) -> Kernel:
    """A kernel on so many rows, groups of columns, and columns of a group, that does the same to each column.

    Parameters
    ----------
    config : Config
    source : Source
        Where operand `src` is.
    start : int
        The kernel's first micro-operation.
    counts : tuple of (int, int, int)
    operands : At
        By name: `src`, `dst`, and others that the kernel has.
    """
    order = min(((0, 1, 2), (0, 2, 1), (1, 0, 2), (2, 0, 1)), key=lambda each: _cycles(config, counts, each))
    fields: dict[str, int] = dict(zip(("ob", "oy", "ox"), (counts[place] for place in order), strict=True))
    for name, at in operands.items():
        strides = (at.row, at.group, at.column)
        fields |= {name: at.first, f"{name}_vectors": at.vectors}
        for loop, place in zip(("ob", "oy", "ox"), order, strict=True):
            fields[f"{name}_{loop}"] = strides[place] if counts[place] > 1 else 0
        if name not in (SOURCES[0], TARGETS[0]):
            fields[f"with_{name}"] = 1
    return Kernel(source=source, start=start, **fields)


def _cycles(config: Config, counts: tuple[int, int, int], order: tuple[int, int, int]) -> int:
    """Cycles of a micro-operation for all rows and columns, if rows are these loops."""
    blocks, rows, columns = (counts[place] for place in order)
    strips, rest = divmod(rows, STRIP_ROWS)
    least = kernel_min_cycles(config.groups)
    whole = max(least, STRIP_ROWS * config.groups)
    return blocks * columns * (strips * whole + (max(least, rest * config.groups) if rest else 0))
