"""Chains of convolutions in strips of rows: each strip of the last one's output with all that it needs of the others.

An operator ahead of the last computes, of its result, the rows that the others need for the strip. Where their windows
overlap, rows are computed again for the next strip.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from weft.compiler.ir.graph import Buffer, Conv, View, Window

Rows = tuple[int, int]
"""The first row, and the one behind the last."""


class _Part(NamedTuple):
    """Rows of an operator's output: `read` are those of its input, `window` and `pool` its windows there."""

    read: Rows
    window: Window
    pool: Window | None


def in_strips(chain: Sequence[Conv], height: int) -> list[tuple[Conv, ...]] | None:
    """The chain for every `height` rows of its last output; None if a strip would need nothing but padding.

    Results but the last must be temporaries that are written by one operator of the chain and read by later ones of it
    alone, whole.
    """
    made = []
    for index, first in enumerate(range(0, chain[-1].dst.shape[1], height)):
        last = min(first + height, chain[-1].dst.shape[1])
        strip = strip_of(chain, (first, last), index)
        if strip is None:
            return None
        made.append(strip)
    return made


def strip_of(chain: Sequence[Conv], rows: Rows, index: int) -> tuple[Conv, ...] | None:
    """The chain for some rows of its last output, as strip number `index`; None as `in_strips`."""
    inner = {op.dst.buffer.name for op in chain[:-1]}
    needed = {chain[-1].dst.buffer.name: rows}
    parts: list[_Part] = []
    for op in reversed(chain):
        wanted = needed[op.dst.buffer.name]
        part = _part(op, wanted)
        if part is None:
            return None
        parts.append(part)
        for view, rows in zip(op.sources, (part.read, wanted), strict=False):
            name = view.buffer.name
            if name in inner:
                first, last = needed.get(name, rows)
                needed[name] = min(first, rows[0]), max(last, rows[1])
    return tuple(
        _cut(op, part, needed, inner, index) for op, part in zip(chain, reversed(parts), strict=True)
    )


def _part(op: Conv, wanted: Rows) -> _Part | None:
    """What an operator reads for some rows of its output; None if that is nothing but padding."""
    height = op.src.shape[1]
    pool = op.pool
    if pool is not None:
        found = _behind(pool, wanted, op.window.output(*op.src.shape[1:3])[0])
        if found is None:
            return None
        wanted, pool = found
    behind = _behind(op.window, wanted, height)
    return None if behind is None else _Part(*behind, pool)


def _behind(window: Window, wanted: Rows, height: int) -> tuple[Rows, Window] | None:
    """The rows that a window reads for some outputs, and the window there: what it lacks of them is padding."""
    first = wanted[0] * window.stride[0] - window.pad[0]
    last = (wanted[1] - 1) * window.stride[0] - window.pad[0] + (window.kernel[0] - 1) * window.dilation[0] + 1
    if first >= height or last <= 0:
        return None
    _, left, _, right = window.pad
    pad = (max(0, -first), left, max(0, last - height), right)
    return (max(first, 0), min(last, height)), dataclasses.replace(window, pad=pad)


def _cut(op: Conv, part: _Part, needed: dict[str, Rows], inner: Iterable[str], index: int) -> Conv:
    """An operator for the rows that are needed of its output; what is between operators of the chain has no other."""
    wanted = needed[op.dst.buffer.name]

    def view(old: View, rows: Rows) -> View:
        name = old.buffer.name
        n, _, w, c = old.shape
        shape = (n, rows[1] - rows[0], w, c)
        if name not in inner:
            return dataclasses.replace(old, shape=shape, y=old.y + rows[0] * old.step[0])
        first, last = needed[name]
        buffer = Buffer(f"{name}/{index}", (n, last - first, w, c))
        return View(buffer, shape, y=rows[0] - first)

    dst, epilogue = view(op.dst, wanted), op.epilogue
    if epilogue is not None:
        own = epilogue.sources[0]
        n, _, w, c = own.shape
        shape = (n, wanted[1] - wanted[0], w, c)
        place = View(Buffer(f"{own.buffer.name}/{index}", shape), shape)
        epilogue = epilogue.on(
            lambda old: place if old == own else dst if old == op.dst else view(old, wanted)
        )
    return op.replace(src=view(op.src, part.read), window=part.window, pool=part.pool, dst=dst, epilogue=epilogue)
