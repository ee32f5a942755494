"""Removal of copies: readers of a copied part of a buffer read the part itself; and update of states."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterator, Mapping

from weft.compiler.ir.graph import DeviceOp, DeviceSegment, Ops, Rescale, readers
from weft.compiler.ir.views import Buffer, View
from weft.compiler.passes.fuse import keeps_fitting
from weft.compiler.planner import Planner


def read_views(segment: DeviceSegment, planner: Planner) -> DeviceSegment:
    """Remove copies of unchanged bytes: readers read the view that was copied, where that is no slower.

    A copy is removed if all its readers can do that.
    """
    views = _Views(segment.index)
    for at, copy in enumerate(views.ops):
        reading = views.rewritten_readers(copy) if isinstance(copy, Rescale) and _removable(copy) else {}
        changes = [(views.ops[place], op) for place, op in reading.items()]
        if changes and views.is_sole_writer(at) and _no_longer(copy, changes, planner):
            views.remove(at, reading)
    return dataclasses.replace(segment, ops=tuple(views.remaining()))


class _Views:
    """Operators with some copies removed, and the indices of each buffer's readers and writers."""

    def __init__(self, ops: Ops) -> None:
        self.ops: list[DeviceOp] = list(ops)
        self._removed: set[int] = set()
        self._writers = {name: list(places) for name, places in ops.writers.items()}
        self._readers = {name: {at for at, _ in reads} for name, reads in ops.reads.items()}

    def remaining(self) -> Iterator[DeviceOp]:
        """Return the operators that are not removed."""
        return (op for at, op in enumerate(self.ops) if at not in self._removed)

    def is_sole_writer(self, at: int) -> bool:
        """Return whether nothing writes a copy's source afterwards, and nothing else writes its destination."""
        (source,), target = self.ops[at].sources, self.ops[at].dst
        writers = self._writers.get(source.buffer.name, [])
        later = writers[bisect.bisect_left(writers, at) :]
        others = (place for place in self._writers[target.buffer.name] if place != at)
        written = [(source, place) for place in later] + [(target, place) for place in others]
        return not any(_may_share_bytes(self.ops[place].dst, view) for view, place in written)

    def rewritten_readers(self, copy: Rescale) -> dict[int, DeviceOp]:
        """Return the readers of a copy, by index, as they are without it; none if one of them needs it."""
        rewritten: dict[int, DeviceOp] = {}
        for place in sorted(self._readers.get(copy.dst.buffer.name, ())):
            op = self.ops[place]
            if not any(_may_share_bytes(view, copy.dst) for view in op.sources):
                continue
            views = [view for view in op.sources if view.buffer.name == copy.dst.buffer.name]
            # Only some operators may write into a buffer that they read.
            if getattr(op, "epilogue", None) is not None or op.dst.buffer.name == copy.src.buffer.name:
                return {}
            through = {view: _through(copy, view) for view in views}
            if None in through.values():
                return {}
            rewritten[place] = op.map_views(lambda view, through=through: through.get(view) or view)  # type: ignore[misc]
        return rewritten

    def remove(self, at: int, reading: Mapping[int, DeviceOp]) -> None:
        """Remove the copy at an index, and replace its readers."""
        copy = self.ops[at]
        self._removed.add(at)
        self._writers[copy.dst.buffer.name].remove(at)
        self._readers[copy.sources[0].buffer.name].discard(at)
        for place, op in reading.items():
            for view in self.ops[place].sources:
                self._readers[view.buffer.name].discard(place)
            self.ops[place] = op
            for view in op.sources:
                self._readers.setdefault(view.buffer.name, set()).add(place)


def _removable(copy: Rescale) -> bool:
    """Return whether an operator only copies bytes that can be read in place."""
    all_images = all(view.shape[0] == view.buffer.shape[0] for view in (copy.src, copy.dst))
    plain = copy.is_identity and copy.dst.buffer.kind == "temp" and copy.dst.step == (1, 1)
    return plain and all_images and all(copy.src.step)


def _no_longer(copy: DeviceOp, changes: list[tuple[DeviceOp, DeviceOp]], planner: Planner) -> bool:
    """Return whether readers of the view are no slower, by estimate, than the copy and its readers.

    Where a cost is unknown, as for attention, it is enough that they have plans.
    """
    apart = [planner.cost(op) for op in (copy, *(before for before, _ in changes))]
    joined = [planner.cost(after) for _, after in changes]
    if any(cost is None for cost in (*apart, *joined)):
        return all(planner.plan(after) is not None for _, after in changes)
    return sum(cost.cycles for cost in joined if cost) <= sum(cost.cycles for cost in apart if cost)


def _may_share_bytes(view: View, box: View) -> bool:
    """Return whether views of one buffer may share bytes, judged by their bounding boxes."""
    if view.buffer.name != box.buffer.name:
        return False
    if view.buffer.shape != box.buffer.shape:
        return True
    starts, others = (view.image, view.y, view.x, view.c), (box.image, box.y, box.x, box.c)
    return all(
        a < end and b < stop for a, b, end, stop in zip(starts, others, box.ends, view.ends, strict=True)
    )


def _through(copy: Rescale, view: View) -> View | None:
    """Return the view of the copied buffer that a view of the copy corresponds to; None if there is none."""
    src, dst = copy.src, copy.dst
    if view.buffer.shape != dst.buffer.shape:
        reshaped = _reshape(src, view.buffer.shape) if dst.contiguous else None
        if reshaped is None:
            return None
        src, dst = reshaped, View(view.buffer, view.buffer.shape)
    # The view's box relative to the copy, then in the source's steps.
    y, x, c = view.y - dst.y, view.x - dst.x, view.c - dst.c
    if min(y, x, c) < 0 or any(end > most for end, most in zip(view.ends, dst.ends, strict=True)):
        return None
    step = (view.step[0] * src.step[0], view.step[1] * src.step[1])
    at = (src.y + y * src.step[0], src.x + x * src.step[1], src.c + c)
    return View(src.buffer, view.shape, *at, step)


def _reshape(src: View, shape: tuple[int, int, int, int]) -> View | None:
    """Return a view in another shape with as many channels; None unless its pixels are evenly spaced."""
    n, h, w, c = src.shape
    # Pixels evenly spaced across rows and images are a single row of pixels.
    even = (h == 1 or src.row_pitch == w * src.pixel_pitch) and (
        n == 1 or src.image_pitch == h * w * src.pixel_pitch
    )
    size, channels = src.buffer.size, src.buffer.shape[3]
    pixels, step = shape[0] * shape[1] * shape[2], src.step[1] if w > 1 else src.row_pitch // channels
    if not even or shape[3] != c or pixels * step * channels != size:
        return None
    buffer = Buffer(src.buffer.name, (shape[0], shape[1], shape[2] * step, channels), src.buffer.kind)
    return View(buffer, shape, x=src.offset // channels, c=src.c, step=(1, step))


def write_views(segment: DeviceSegment, planner: Planner) -> DeviceSegment:
    """Remove copies of unchanged bytes: the only writer of a source that has no other reader writes the copy
    instead."""
    ops: list[DeviceOp | None] = list(segment.ops)
    reads = readers(segment.ops)
    written = {name: set(places) for name, places in segment.index.writers.items()}
    for at, copy in enumerate(segment.ops):
        if not isinstance(copy, Rescale) or not copy.is_identity or copy.src.buffer.kind != "temp":
            continue
        source, target = copy.src.buffer.name, copy.dst.buffer.name
        if len(written.get(source, ())) != 1 or reads[source] != 1:
            continue
        (place,) = written[source]
        writer = ops[place]
        assert writer is not None
        moved = writer.replace(dst=copy.dst)
        plain = writer.dst == copy.src and writer.dst.contiguous and not _reads_destination(writer, copy)
        if plain and keeps_fitting(writer, moved, planner):
            ops[place], ops[at] = moved, None
            del written[source]
            written[target] ^= {at, place}
    return dataclasses.replace(segment, ops=tuple(op for op in ops if op is not None))


def _reads_destination(writer: DeviceOp, copy: Rescale) -> bool:
    """Return whether a writer would write into a buffer that it reads."""
    return any(view.buffer.name == copy.dst.buffer.name for view in writer.sources)


_CHANNELS = 1024
"""Most channels of a copy."""


def store_states(segment: DeviceSegment, planner: Planner) -> DeviceSegment:
    """Store new values of states in place of old ones: at once if the old value is not read later, else by a final
    copy."""
    if not segment.states:
        return segment
    copied: list[tuple[str, str]] = []
    placed: dict[str, str] = {}
    for state, output in segment.states.items():
        if output not in placed and _in_place(segment.index, state, output):
            placed[output] = state
        else:
            copied.append((state, output))
    buffers = {output: (state, "state") for output, state in placed.items()}
    buffers |= {output: (output, "temp") for _, output in copied if output not in placed}
    copies = [_copy(segment.index, state, output) for state, output in copied]
    every = tuple(_rename_buffers(op, buffers) for op in (*segment.ops, *copies))
    scratchpad = (0, planner.config.scratchpad_size)
    regions = segment.regions and (*segment.regions, *(scratchpad for _ in copies))
    return dataclasses.replace(segment, ops=every, regions=regions, states={})


def _in_place(ops: Ops, state: str, output: str) -> bool:
    """Return whether all reads of the old value come before the first write of the new one."""
    return all(at < ops.writers[output][0] for at, _ in ops.reads.get(state, ()))


def _copy(ops: Ops, state: str, output: str) -> Rescale:
    """Return a copy of a state's new value, as pixels of many channels, which move fast."""
    size = ops[ops.writers[output][0]].dst.buffer.size
    channels = max(count for count in range(1, min(size, _CHANNELS) + 1) if size % count == 0)
    shape = (1, 1, size // channels, channels)
    source, target = (
        View(Buffer(name, shape, kind), shape) for name, kind in ((output, "output"), (state, "state"))
    )
    return Rescale(f"{state}:kept", source, target)


def _rename_buffers(op: DeviceOp, buffers: dict[str, tuple[str, str]]) -> DeviceOp:
    """Return an operator with other names and kinds of some buffers."""

    def view(old: View) -> View:
        name, kind = buffers.get(old.buffer.name, (old.buffer.name, old.buffer.kind))
        return dataclasses.replace(old, buffer=Buffer(name, old.buffer.shape, kind))

    epilogue = getattr(op, "epilogue", None)
    return (
        op.map_views(view)
        if epilogue is None
        else op.map_views(view).replace(epilogue=_rename_buffers(epilogue, buffers))
    )
