"""KERNEL instructions with independent columns, whose loops are ordered for the fewest cycles."""

from __future__ import annotations

from typing import NamedTuple

from weft.hdl.isa import Kernel, Source
from weft.hdl.isa.config import Config
from weft.hdl.isa.kernel import SOURCES, STRIP_ROWS, TARGETS
from weft.hdl.isa.operands import kernel_min_cycles


class At(NamedTuple):
    """Position of an operand: first vector, strides between rows, groups and columns, and vectors of a column."""

    first: int
    row: int = 0
    group: int = 0
    column: int = 0
    vectors: int = 1


def columnwise_kernel(
    config: Config, source: Source, start: int, counts: tuple[int, int, int], **operands: At
) -> Kernel:
    """Return a KERNEL that treats columns alike, for given numbers of rows, groups of columns, and columns of a group.

    Parameters
    ----------
    config : Config
    source : Source
        Memory of operand `src`.
    start : int
        First micro-operation of the kernel.
    counts : tuple of (int, int, int)
        Rows, groups, and columns of a group.
    operands : At
        By name: `src`, `dst`, and the kernel's other operands.
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
    """Return the cycles of a micro-operation on all rows and columns, with loops in this order."""
    blocks, rows, columns = (counts[place] for place in order)
    strips, rest = divmod(rows, STRIP_ROWS)
    minimum = kernel_min_cycles(config.groups)
    full_strip = max(minimum, STRIP_ROWS * config.groups)
    return blocks * columns * (strips * full_strip + (max(minimum, rest * config.groups) if rest else 0))
