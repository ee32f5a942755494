"""What parts of a segment cost in which it differs from another one."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from weft.compiler.ir.graph import CompileError, DeviceOp, DeviceSegment, IrError, View
from weft.compiler.passes.trial import part_of
from weft.compiler.verify import verify_segment
from weft.extras.search.substitution.places import touched

_AROUND = 2
"""Operators before and behind those that change that are looked at, too."""
_SHARED = 12
"""Operators of both segments that write or read a buffer: those of one with more are not all looked at."""
_MOST = 30
"""Operators of a part, at most: what reaches further is not tried."""

OF_THE_HOST = ("pages", "table")
"""Kinds of buffers of which the host says what lies there: no part can have them."""

Cost = Callable[[DeviceSegment], int]
"""The cycles of a segment: those of the cycle model for its program."""


class PartCosts:
    """The cost of parts, each asked for once: parts of one shape cost the same.

    Attributes
    ----------
    asked : int
        Parts whose cost was asked for.
    closed : bool
        Whether no others are asked for: parts whose cost is not known are none that can be compiled.
    """

    def __init__(self, cost: Cost) -> None:
        self._cost, self.asked, self.closed = cost, 0, False
        self._known: dict[str, int | None] = {}

    def of(self, part: DeviceSegment) -> int | None:
        """The cycles of a part; None if it cannot be compiled."""
        key = shape_digest(part)
        if key not in self._known:
            if self.closed:
                return None
            self.asked += 1
            try:
                self._known[key] = self._cost(part)
            except (CompileError, IrError):
                self._known[key] = None
        return self._known[key]

    def compared(self, before: DeviceSegment, behind: DeviceSegment) -> tuple[int, int] | None:
        """The cycles of the part in which two segments differ, of each; None if one cannot be compiled."""
        parts = parts_of(before, behind)
        if parts is None:
            return None
        one, other = map(self.of, parts)
        return None if one is None or other is None else (one, other)


def parts_of(before: DeviceSegment, behind: DeviceSegment) -> tuple[DeviceSegment, DeviceSegment] | None:
    """The operators in which two segments differ, with their neighbours, as segments of their own, with the same inputs
    and outputs; None if they are too many.

    Buffers that are written outside are inputs, and those that are read outside outputs. With a buffer that only one of
    both has, all that write and read it are in the part, and so they are with what operators that differ write, unless
    many others do: of such a concatenation the part makes what it makes.
    """
    both = before, behind
    same = set(map(id, before.ops)) & set(map(id, behind.ops))
    changed = [[index for index, op in enumerate(item.ops) if id(op) not in same] for item in both]
    written = {
        op.dst.buffer.name
        for item in both
        for op in item.ops
        if id(op) not in same and op.dst.buffer.kind == "temp"
    }
    uses = Counter(name for item in both for op in item.ops for name in touched((op,)) & written)
    own = touched(before.ops) ^ touched(behind.ops) | {name for name in written if uses[name] <= _SHARED}
    wanted: set[int] = set()
    for item, indices in zip(both, changed, strict=True):
        inside = [at for at, op in enumerate(item.ops) if own & touched((op,))] + indices
        if inside:
            near = range(max(min(inside) - _AROUND, 0), min(max(inside) + 1 + _AROUND, len(item.ops)))
            wanted |= {id(item.ops[at]) for at in near}
    chosen = [[op for op in item.ops if id(op) in wanted or id(op) not in same] for item in both]
    if max(map(len, chosen)) > _MOST:
        return None
    if any(view.buffer.kind in OF_THE_HOST for ops in chosen for op in ops for view in op.sources):
        return None
    made = [part_with(item, ops) for item, ops in zip(both, chosen, strict=True)]
    try:
        for item in made:
            verify_segment(item)
    except IrError:
        return None  # it reads what only others write
    return made[0], made[1]


def part_with(segment: DeviceSegment, ops: Sequence[DeviceOp]) -> DeviceSegment:
    """Operators as a segment of their own, for which the host writes what they do not."""
    part = part_of(ops, segment)
    written = {op.dst.buffer.name for op in ops}

    def given(view: View) -> View:
        if view.buffer.name in written:
            return view
        return dataclasses.replace(view, buffer=dataclasses.replace(view.buffer, kind="input"))

    return dataclasses.replace(part, ops=tuple(op.on(given) for op in part.ops))


def shape_digest(segment: DeviceSegment) -> str:
    """What the cost of a segment depends on: everything but names and the values of weights."""
    names: dict[str, int] = {}
    text = [
        repr(
            (
                type(op).__name__,
                [_seen(view, names) for view in (*op.sources, op.dst)],
                parameters_of(op, False),
            )
        )
        for op in segment.ops
    ]
    return hashlib.sha256("\n".join(text).encode()).hexdigest()


def _seen(view: View, names: dict[str, int]) -> tuple[object, ...]:
    number = names.setdefault(view.buffer.name, len(names))
    return (
        number,
        view.buffer.kind,
        view.buffer.shape,
        view.shape,
        view.y,
        view.x,
        view.c,
        view.step,
        view.image,
    )


def parameters_of(op: DeviceOp, values: bool) -> list[tuple[str, str]]:
    """The parameters of an operator by their names; arrays by their shapes and, if they are no weights or `values` are
    wanted, a hash of what is in them, weights also by whether they fit int8."""
    found = []
    for item in dataclasses.fields(op):
        value = getattr(op, item.name)
        if item.name == "name" or isinstance(value, View):
            continue
        if isinstance(value, np.ndarray):
            weights = item.name in ("weight", "bias", "scale")
            known = hash(value.tobytes()) if values or not weights else None
            value = value.shape, known, item.name == "weight" and bool(np.abs(value).max(initial=0) <= 127)
        found.append((item.name, str(value)))
    return found
