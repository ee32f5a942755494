"""Where the values of a segment lie, as rules see them: which operator makes a view, and which parts it consists of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

from weft.compiler.ir.graph import DeviceOp, DeviceSegment, Rescale, View
from weft.compiler.ir.network import Names
from weft.compiler.ir.views import overlapping


class Places:
    """The operators of a segment by the buffers that they write and read.

    A buffer is *plain* if all see it in one shape, those that write it write whole images, rows and columns of
    channels of their own, and nothing but operators of the segment writes it, or nothing in the segment does.
    """

    def __init__(self, segment: DeviceSegment) -> None:
        self.writers: dict[str, list[DeviceOp]] = defaultdict(list)
        self.readers: dict[str, list[DeviceOp]] = defaultdict(list)
        self._views: dict[str, list[View]] = defaultdict(list)
        for op in segment.ops:
            self.writers[op.dst.buffer.name].append(op)
            self._views[op.dst.buffer.name].append(op.dst)
            for view in op.sources:
                self._views[view.buffer.name].append(view)
                self.readers[view.buffer.name].append(op)
        self._states = {*segment.states, *segment.states.values()}
        self._plain: dict[str, bool] = {}
        self._makes = {op.dst: op for op in segment.ops}

    def plain(self, name: str) -> bool:
        """Whether a buffer is plain."""
        if name not in self._plain:
            self._plain[name] = self._is_plain(name)
        return self._plain[name]

    def _is_plain(self, name: str) -> bool:
        views = self._views[name]
        first = views[0].buffer
        if name in self._states or any(view.buffer != first for view in views):
            return False
        if any(view.image or view.shape[0] != first.shape[0] for view in views):
            return False
        written = sorted((op.dst for op in self.writers[name]), key=lambda view: view.c)
        if any(
            (view.y, view.x, view.step) != (0, 0, (1, 1)) or view.shape[:3] != first.shape[:3]
            for view in written
        ):
            return False
        return all(one.c + one.shape[3] <= other.c for one, other in pairwise(written))

    def free(self, name: str) -> bool:
        """Whether a buffer is plain, and only the segment knows it."""
        return self.plain(name) and self._views[name][0].buffer.kind == "temp" and bool(self.writers[name])

    def resolved(self, view: View) -> View:
        """Where the same bytes were before they were copied."""
        seen = view
        while (writer := self.writer(seen)) is not None and isinstance(writer, Rescale) and writer.unchanged:
            seen = writer.src
            if not self.plain(seen.buffer.name):
                break
        return seen

    def writer(self, view: View) -> DeviceOp | None:
        """The operator whose output a view is; None if it is part of one, or several."""
        found = self._makes.get(view)
        return found if found is not None and self.plain(view.buffer.name) else None

    def parts(self, view: View) -> list[View]:
        """The outputs that a view of whole pixels consists of, in the order of channels; none if they do not fill
        it."""
        if not self.plain(view.buffer.name) or view.step != (1, 1) or view.shape[:3] != view.buffer.shape[:3]:
            return []
        written = sorted((op.dst for op in self.writers[view.buffer.name]), key=lambda item: item.c)
        inside = [
            item for item in written if item.c >= view.c and item.c + item.shape[3] <= view.c + view.shape[3]
        ]
        return inside if sum(item.shape[3] for item in inside) == view.shape[3] else []


def touched(ops: Iterable[DeviceOp]) -> set[str]:
    """The names of the buffers that operators read or write."""
    return {view.buffer.name for op in ops for view in (*op.sources, op.dst)}


def namer(segment: DeviceSegment) -> Callable[[str], str]:
    """Gives names of operators and buffers that are not taken in a segment."""
    names = Names()
    for taken in (*touched(segment.ops), *(op.name for op in segment.ops)):
        names.unique(taken)
    return names.unique


def without_dead(ops: Sequence[DeviceOp], states: Mapping[str, str]) -> tuple[DeviceOp, ...]:
    """The operators without those whose results nobody reads, whole or in part."""
    kept, kept_names = list(ops), set(states.values())
    while True:
        read: dict[str, list[View]] = defaultdict(list)
        for op in kept:
            for view in op.sources:
                read[view.buffer.name].append(view)
        alive = [
            op
            for op in kept
            if op.dst.buffer.kind != "temp"
            or op.dst.buffer.name in kept_names
            or any(overlapping(op.dst, view) for view in read[op.dst.buffer.name])
        ]
        if len(alive) == len(kept):
            return tuple(kept)
        kept = alive


def placed(ops: Sequence[DeviceOp], added: Iterable[DeviceOp]) -> tuple[DeviceOp, ...]:
    """The operators with others, each right behind the last one that makes what it reads."""
    order = list(ops)
    for op in added:
        read = {view.buffer.name for view in op.sources}
        at = max((index for index, item in enumerate(order) if item.dst.buffer.name in read), default=-1)
        order.insert(at + 1, op)
    return tuple(order)
