"""Producers and consumers of a segment's values, as rules see them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise

from weft.compiler.ir.graph import DeviceOp, DeviceSegment, Rescale, View
from weft.compiler.ir.network import Names
from weft.compiler.ir.views import may_overlap


class Places:
    """Operators of a segment by the buffers that they write and read.

    A buffer is *plain* if all views of it have one shape, all writes cover whole images, rows and columns of disjoint
    channels, and either only operators of the segment write it or none does.
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
        self._op_by_view = {op.dst: op for op in segment.ops}

    def is_plain(self, name: str) -> bool:
        """Return whether a buffer is plain."""
        if name not in self._plain:
            self._plain[name] = self._check_plain(name)
        return self._plain[name]

    def _check_plain(self, name: str) -> bool:
        views = self._views[name]
        first = views[0].buffer
        if name in self._states or any(view.buffer != first for view in views):
            return False
        if any(view.image or view.shape[0] != first.shape[0] for view in views):
            return False
        outputs = sorted((op.dst for op in self.writers[name]), key=lambda view: view.c)
        if any(
            (view.y, view.x, view.step) != (0, 0, (1, 1)) or view.shape[:3] != first.shape[:3]
            for view in outputs
        ):
            return False
        return all(one.c + one.shape[3] <= other.c for one, other in pairwise(outputs))

    def is_private(self, name: str) -> bool:
        """Return whether a buffer is plain, and local to the segment."""
        return self.is_plain(name) and self._views[name][0].buffer.kind == "temp" and bool(self.writers[name])

    def resolve(self, view: View) -> View:
        """Return the view from which a view's bytes were copied, or the view itself."""
        source = view
        while (
            (writer := self.writer(source)) is not None and isinstance(writer, Rescale) and writer.is_identity
        ):
            source = writer.src
            if not self.is_plain(source.buffer.name):
                break
        return source

    def writer(self, view: View) -> DeviceOp | None:
        """Return the operator whose whole output a view is, else None."""
        op = self._op_by_view.get(view)
        return op if op is not None and self.is_plain(view.buffer.name) else None

    def parts(self, view: View) -> list[View]:
        """Return the outputs that make up a view of whole pixels, in the order of channels; none if they leave gaps."""
        if (
            not self.is_plain(view.buffer.name)
            or view.step != (1, 1)
            or view.shape[:3] != view.buffer.shape[:3]
        ):
            return []
        outputs = sorted((op.dst for op in self.writers[view.buffer.name]), key=lambda item: item.c)
        inside = [
            item for item in outputs if item.c >= view.c and item.c + item.shape[3] <= view.c + view.shape[3]
        ]
        return inside if sum(item.shape[3] for item in inside) == view.shape[3] else []


def touched(ops: Iterable[DeviceOp]) -> set[str]:
    """Return the names of the buffers that operators read or write."""
    return {view.buffer.name for op in ops for view in (*op.sources, op.dst)}


def namer(segment: DeviceSegment) -> Callable[[str], str]:
    """Return a function for names of operators and buffers that are unused in a segment."""
    names = Names()
    for taken in (*touched(segment.ops), *(op.name for op in segment.ops)):
        names.unique(taken)
    return names.unique


def remove_dead(ops: Sequence[DeviceOp], states: Mapping[str, str]) -> tuple[DeviceOp, ...]:
    """Return the operators without those whose results are never read."""
    live, state_names = list(ops), set(states.values())
    while True:
        read: dict[str, list[View]] = defaultdict(list)
        for op in live:
            for view in op.sources:
                read[view.buffer.name].append(view)
        alive = [
            op
            for op in live
            if op.dst.buffer.kind != "temp"
            or op.dst.buffer.name in state_names
            or any(may_overlap(op.dst, view) for view in read[op.dst.buffer.name])
        ]
        if len(alive) == len(live):
            return tuple(live)
        live = alive


def insert_ops(ops: Sequence[DeviceOp], new_ops: Iterable[DeviceOp]) -> tuple[DeviceOp, ...]:
    """Insert operators, each directly after the last producer of its inputs."""
    order = list(ops)
    for op in new_ops:
        read = {view.buffer.name for view in op.sources}
        at = max((index for index, item in enumerate(order) if item.dst.buffer.name in read), default=-1)
        order.insert(at + 1, op)
    return tuple(order)
