"""Helpers for views of buffers."""

from __future__ import annotations

import dataclasses

from weft.compiler.ir.graph import Buffer, View


def whole_view(buffer: Buffer) -> View:
    """Return a view of the whole buffer."""
    return View(buffer, buffer.shape)


def channels(view: View, first: int, count: int) -> View:
    """Return a view of some channels of a view."""
    return dataclasses.replace(view, c=view.c + first, shape=(*view.shape[:3], count))


def may_overlap(one: View, other: View) -> bool:
    """Return whether two views may share bytes: they are of one buffer, and their channels intersect."""
    if one.buffer.name != other.buffer.name or one.buffer.shape != other.buffer.shape:
        return one.buffer.name == other.buffer.name
    return one.c < other.c + other.shape[3] and other.c < one.c + one.shape[3]
