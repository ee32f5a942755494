"""Costs of the parts in which two segments differ."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from weft.compiler.errors import CompileError, IrError
from weft.compiler.ir.graph import DeviceOp, DeviceSegment, View
from weft.compiler.planner import part_of
from weft.compiler.verify import verify_segment
from weft.extras.search.substitution.places import touched

_NEIGHBOURS = 2
"""Number of operators before and after the changed ones that belong to a part."""
_MAX_USERS = 12
"""Limit for operators that access a buffer; a part does not include all users of a buffer with more."""
_MAX_OPERATORS = 30
"""Limit for operators of a part; larger parts are not tried."""

HOST_BUFFERS = ("pages", "table")
"""Kinds of buffers whose contents the host determines; parts cannot have them."""

Cost = Callable[[DeviceSegment], int]
"""Returns the cycles of a segment's program by the cycle model."""


class PartCosts:
    """Cache of costs, by the shape of parts.

    Attributes
    ----------
    measured : int
        Number of parts that were measured.
    frozen : bool
        Whether nothing is measured any more; parts with unknown cost then count as not compilable.
    """

    def __init__(self, cost: Cost) -> None:
        self._cost, self.measured, self.frozen = cost, 0, False
        self._costs: dict[str, int | None] = {}

    def cost(self, part: DeviceSegment) -> int | None:
        """Return the cycles of a part; None if it cannot be compiled."""
        key = shape_digest(part)
        if key not in self._costs:
            if self.frozen:
                return None
            self.measured += 1
            try:
                self._costs[key] = self._cost(part)
            except (CompileError, IrError):
                self._costs[key] = None
        return self._costs[key]

    def compare(self, before: DeviceSegment, after: DeviceSegment) -> tuple[int, int] | None:
        """Return the cycles, before and after, of the part in which two segments differ; None if one cannot be
        compiled.
        """
        parts = differing_parts(before, after)
        if parts is None:
            return None
        cost_before, cost_after = map(self.cost, parts)
        return None if cost_before is None or cost_after is None else (cost_before, cost_after)


def differing_parts(
    before: DeviceSegment, after: DeviceSegment
) -> tuple[DeviceSegment, DeviceSegment] | None:
    """Return the operators in which two segments differ, with their neighbours, as segments with the same interface.

    Return None if they are too many. Buffers that are written outside are inputs, and those that are read outside are
    outputs. If only one segment has a buffer, the part includes all its users. The same holds for buffers that changed
    operators write, unless they have too many users, as a concatenation may.
    """
    segments = before, after
    # Both segments share unchanged operators as objects.
    common = set(map(id, before.ops)) & set(map(id, after.ops))
    changed = [[index for index, op in enumerate(item.ops) if id(op) not in common] for item in segments]
    written = {
        op.dst.buffer.name
        for item in segments
        for op in item.ops
        if id(op) not in common and op.dst.buffer.kind == "temp"
    }
    uses = Counter(name for item in segments for op in item.ops for name in touched((op,)) & written)
    own = touched(before.ops) ^ touched(after.ops) | {name for name in written if uses[name] <= _MAX_USERS}
    near_ids: set[int] = set()
    for item, indices in zip(segments, changed, strict=True):
        inside = [at for at, op in enumerate(item.ops) if own & touched((op,))] + indices
        if inside:
            near = range(max(min(inside) - _NEIGHBOURS, 0), min(max(inside) + 1 + _NEIGHBOURS, len(item.ops)))
            near_ids |= {id(item.ops[at]) for at in near}
    selected = [[op for op in item.ops if id(op) in near_ids or id(op) not in common] for item in segments]
    if max(map(len, selected)) > _MAX_OPERATORS:
        return None
    if any(view.buffer.kind in HOST_BUFFERS for ops in selected for op in ops for view in op.sources):
        return None
    parts = [part_with(item, ops) for item, ops in zip(segments, selected, strict=True)]
    try:
        for item in parts:
            verify_segment(item)
    except IrError:
        return None  # it reads a value that only operators outside the part write
    return parts[0], parts[1]


def part_with(segment: DeviceSegment, ops: Sequence[DeviceOp]) -> DeviceSegment:
    """Return operators as a segment whose missing values are inputs."""
    part = part_of(ops, segment)
    written = {op.dst.buffer.name for op in ops}

    def as_input(view: View) -> View:
        if view.buffer.name in written:
            return view
        return dataclasses.replace(view, buffer=dataclasses.replace(view.buffer, kind="input"))

    return dataclasses.replace(part, ops=tuple(op.map_views(as_input) for op in part.ops))


def shape_digest(segment: DeviceSegment) -> str:
    """Return a hash of everything that a segment's cost depends on: all but names and values of weights."""
    names: dict[str, int] = {}
    text = [
        repr(
            (
                type(op).__name__,
                [_view_signature(view, names) for view in (*op.sources, op.dst)],
                operator_parameters(op, False),
            )
        )
        for op in segment.ops
    ]
    return hashlib.sha256("\n".join(text).encode()).hexdigest()


def _view_signature(view: View, names: dict[str, int]) -> tuple[object, ...]:
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


def operator_parameters(op: DeviceOp, values: bool) -> list[tuple[str, str]]:
    """Return an operator's parameters by name.

    Arrays are represented by their shapes. A hash of the contents is added for arrays other than weights, and with
    `values` for all; for weights also whether they fit int8.
    """
    parameters = []
    for item in dataclasses.fields(op):
        value = getattr(op, item.name)
        if item.name == "name" or isinstance(value, View):
            continue
        if isinstance(value, np.ndarray):
            weights = item.name in ("weight", "bias", "scale")
            content = hash(value.tobytes()) if values or not weights else None
            value = value.shape, content, item.name == "weight" and bool(np.abs(value).max(initial=0) <= 127)
        parameters.append((item.name, str(value)))
    return parameters
