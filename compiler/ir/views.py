"""Views of buffers: of all of one, of some channels, and whether two may have bytes in common."""

from __future__ import annotations

import dataclasses

from weft.compiler.ir.graph import Buffer, View


def whole(buffer: Buffer) -> View:
    """All of a buffer."""
    return View(buffer, buffer.shape)


def channels(view: View, first: int, count: int) -> View:
    """Some channels of a view."""
    return dataclasses.replace(view, c=view.c + first, shape=(*view.shape[:3], count))


def overlapping(one: View, other: View) -> bool:
    """Whether two views may have bytes in common: they are of one buffer, and have no channels of their own."""
    if one.buffer.name != other.buffer.name or one.buffer.shape != other.buffer.shape:
        return one.buffer.name == other.buffer.name
    return one.c < other.c + other.shape[3] and other.c < one.c + one.shape[3]
