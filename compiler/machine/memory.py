"""Allocation on chip and in DRAM: rings of slots, constants, buffers."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from weft.compiler.errors import CompileError
from weft.compiler.ir.graph import Add, Conv, DeviceOp
from weft.compiler.ir.views import Buffer, View
from weft.compiler.machine.areas import ALIGN, BASE_OF_KIND, TEMPS, base_of
from weft.compiler.machine.tensors import TensorRef
from weft.hdl.isa import MicroOp, encoding


def in_place(
    ops: Sequence[DeviceOp],
    resident: Collection[str],
    overlapped: Collection[int],
    first: Mapping[str, int],
    last: Mapping[str, int],
) -> dict[str, str]:
    """Return, for each result that reuses an operand's memory, that operand's name; in the order of operators.

    An addition, alone or as a convolution's epilogue, loads each box of the operand once and then stores the result's
    box. So the result may overwrite an operand that is a whole buffer of the same shape and has no later reader.
    `first` and `last` are the indices of the operators between which a buffer is in use. Operators in `overlapped`,
    the operators after them, and buffers in `resident` are left alone.
    """
    replaced: dict[str, str] = {}
    for index, op in enumerate(ops):
        if index in overlapped or index - 1 in overlapped or first.get(op.dst.buffer.name) != index:
            continue
        for view in _elementwise_operands(op):
            name = view.buffer.name
            reads = [source for source in op.sources if source.buffer.name == name]
            if len(reads) == 1 and last.get(name) == index and _alike(view, op.dst) and name not in resident:
                replaced[op.dst.buffer.name] = name
                break
    return replaced


def _elementwise_operands(op: DeviceOp) -> tuple[View, ...]:
    """Return the operands that an addition reads element by element."""
    if isinstance(op, Add):
        return op.sources
    if type(op) is Conv and isinstance(op.epilogue, Add):
        return op.epilogue.sources[1:]
    return ()


def _alike(a: View, b: View) -> bool:
    """Return whether both views are whole temporary buffers of one shape."""
    return (
        a.buffer.kind == b.buffer.kind == "temp"
        and a.shape == b.shape == a.buffer.shape == b.buffer.shape
        and a.step == b.step == (1, 1)
    )


class _Ranges:
    """Set of addresses, as ranges that neither overlap nor touch."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.stops: list[int] = []

    def add(self, start: int, stop: int) -> None:
        first, last = bisect_left(self.stops, start), bisect_right(self.starts, stop)
        if first < last:
            start, stop = min(start, self.starts[first]), max(stop, self.stops[last - 1])
        self.starts[first:last] = [start]
        self.stops[first:last] = [stop]

    def end_of_overlap(self, start: int, size: int) -> int:
        """Return the end of the range that overlaps `size` addresses from `start` on; `start` if no range does."""
        at = bisect_right(self.stops, start)
        meets = at < len(self.starts) and self.starts[at] < start + size
        return self.stops[at] if meets else start


class Packing:
    """First-fit allocator of address ranges over lifetimes, for times 0 to `times` - 1.

    A segment tree over time: node 1 spans all times, nodes 2n and 2n + 1 the halves of node n.
    """

    def __init__(self, times: int) -> None:
        self._leaves = 1 << max(times - 1, 0).bit_length()
        # Ranges by node: in use at all of its times, and in use at it or at a node below.
        self._whole: dict[int, _Ranges] = {}
        self._some: dict[int, _Ranges] = {}

    def place(self, size: int, first: int, last: int) -> int:
        """Allocate the lowest `size` addresses that are free from time `first` to `last`; return their start."""
        # A range conflicts with all ranges noted at or below its nodes, and with whole-interval ranges above them.
        nodes = list(self._nodes(first, last))
        above = {node >> up for node in nodes for up in range(1, node.bit_length())}
        used = [self._some[node] for node in nodes if node in self._some]
        used += [self._whole[node] for node in above if node in self._whole]
        start, before = 0, -1
        # Every conflict moves the start up, so repeat until no range conflicts.
        while start != before:
            before = start
            for ranges in used:
                start = ranges.end_of_overlap(start, size)
        for node in nodes:
            self._whole.setdefault(node, _Ranges()).add(start, start + size)
        for node in above.union(nodes):
            self._some.setdefault(node, _Ranges()).add(start, start + size)
        return start

    def _nodes(self, first: int, last: int) -> Iterator[int]:
        """Yield the nodes that make up an interval of times."""
        low, high = first + self._leaves, last + self._leaves + 1
        while low < high:
            if low & 1:
                yield low
                low += 1
            if high & 1:
                high -= 1
                yield high
            low, high = low >> 1, high >> 1


@dataclass
class Ring:
    """Ring of `count` slots of `size` addresses from `start` on.

    A key keeps its slot until the ring wraps around to it. The first slot to be used is the next one at or after
    address `after`, if that lies in the ring.
    """

    start: int
    size: int
    count: int
    after: int = 0
    _slots: dict[Hashable, int] = field(default_factory=dict)
    _keys: dict[int, Hashable] = field(default_factory=dict)
    _next: int = 0

    def __post_init__(self) -> None:
        if self.start < self.after < self.start + self.size * self.count:
            # Rounded up: a slot that begins before `after` may still be in use.
            self._next = -((self.start - self.after) // self.size) % self.count

    @property
    def end(self) -> int:
        """End address of the slot that was assigned last."""
        return self.start + self.size * (self._next or self.count)

    def get(self, key: Hashable) -> tuple[int, bool]:
        """Return the address of the slot of `key`, and whether the slot holds it already (if not, fill it)."""
        if key in self._slots:
            return self.start + self.size * self._slots[key], True
        slot, self._next = self._next, (self._next + 1) % self.count
        if slot in self._keys:
            del self._slots[self._keys[slot]]
        self._keys[slot], self._slots[key] = key, slot
        return self.start + self.size * slot, False

    @property
    def state(self) -> tuple[tuple[tuple[Hashable, int], ...], int]:
        """Slot of each key, and the next slot."""
        return tuple(self._slots.items()), self._next

    def restore(self, state: tuple[tuple[tuple[Hashable, int], ...], int]) -> None:
        """Restore a `state`."""
        self._slots, self._next = dict(state[0]), state[1]
        self._keys = {slot: key for key, slot in state[0]}

    @property
    def next_slot_in_use(self) -> bool:
        """True if the next key gets a slot that another key had."""
        return self._next in self._keys

    def would_take(self, key: Hashable, address: int) -> bool:
        """Return whether `key` has no slot, and would get the slot at `address`."""
        return key not in self._slots and self.start + self.size * self._next == address


class Kernels:
    """Kernels in the engine's memory of `size` micro-operations.

    Kernels follow one another; one that does not fit at the end replaces all of them from the start.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._starts: dict[Hashable, int] = {}
        self._next = 0

    def get(self, ops: tuple[MicroOp, ...]) -> tuple[int, bool]:
        """Return the first entry of a kernel, and whether it is in memory already (if not, write it).

        Raises
        ------
        CompileError
            If it has more micro-operations than the memory.
        """
        if ops in self._starts:
            return self._starts[ops], True
        if len(ops) > self.size:
            raise CompileError(
                f"a kernel has {len(ops)} micro-operations, but the configuration has room for {self.size}: set "
                "'kernel' to more"
            )
        if self._next + len(ops) > self.size:
            self._starts, self._next = {}, 0
        start, self._next = self._next, self._next + len(ops)
        self._starts[ops] = start
        return start, False

    @property
    def state(self) -> tuple[tuple[tuple[Hashable, int], ...], int]:
        """First entry of each kernel, and the next free entry."""
        return tuple(self._starts.items()), self._next

    def restore(self, state: tuple[tuple[tuple[Hashable, int], ...], int]) -> None:
        """Restore a `state`."""
        self._starts, self._next = dict(state[0]), state[1]


class Ends(dict[str, int]):
    """End address of the last ring of each name."""

    @property
    def state(self) -> tuple[tuple[str, int], ...]:
        """All names and addresses."""
        return tuple(self.items())

    def restore(self, state: tuple[tuple[str, int], ...]) -> None:
        """Restore a `state`."""
        self.clear()
        self.update(state)


class Constants:
    """The constant area: byte strings at aligned offsets, equal ones stored once."""

    def __init__(self) -> None:
        self._blob = bytearray()
        self._known: dict[bytes, int] = {}
        self._narrow: dict[bytes, int] = {}

    def add(self, payload: bytes) -> int:
        """Store `payload` if it is new; return its offset from the constants' base register."""
        if payload not in self._known:
            self._known[payload] = self._append(payload, ALIGN)
        return self._known[payload]

    def add_narrow(self, payload: bytes, bus_bytes: int) -> int:
        """Store the int8 values of `payload`, all within 4 bits, in half as many bytes; return their offset.

        The offset is a multiple of the bus width.
        """
        if payload not in self._narrow:
            packed = encoding.pack_int4(np.frombuffer(payload, np.int8))
            self._narrow[payload] = self._append(packed, max(ALIGN, bus_bytes))
        return self._narrow[payload]

    def _append(self, payload: bytes, align: int) -> int:
        self._blob += bytes(-len(self._blob) % align)
        offset = len(self._blob)
        self._blob += payload
        return offset

    @property
    def size(self) -> int:
        """Bytes stored so far."""
        return len(self._blob)

    def contains(self, payload: bytes) -> bool:
        """Return whether `payload` is stored."""
        return payload in self._known

    def finish(self) -> bytes:
        return bytes(self._blob) + bytes(-len(self._blob) % ALIGN)


class Allocation:
    """DRAM offsets of buffers by name; temporaries whose lifetimes do not overlap share memory.

    Parameters
    ----------
    resident : mapping of str to int
        Scratchpad addresses of buffers that are never in DRAM.
    overlapped : collection of int
        Operators that run at the same time as their successors (`DeviceSegment.overlapped`). Their buffers are in use
        while any of them runs.
    compact : bool
        Inputs and outputs share memory with temporaries, and sums may overwrite an operand (`in_place`).
    """

    def __init__(
        self,
        ops: Sequence[DeviceOp],
        *,
        reuse: bool = True,
        resident: Mapping[str, int] | None = None,
        overlapped: Collection[int] = (),
        compact: bool = False,
    ) -> None:
        self.resident, self.compact = resident or {}, compact
        buffers: dict[str, Buffer] = {}
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        # Buffers of overlapping operators live as long as the whole group.
        together = {index: run for run in runs(overlapped) for index in run}
        for index, op in enumerate(ops):
            run = together.get(index, range(index, index + 1))
            for view in (*op.sources, op.dst):
                name = view.buffer.name
                if name in self.resident:
                    continue
                buffers.setdefault(name, view.buffer)
                first.setdefault(name, run.start)
                last[name] = run.stop - 1
        # The host writes inputs before the first operator, and reads outputs after the last.
        for name, buffer in buffers.items() if compact else ():
            if buffer.kind == "input":
                first[name] = -1
            elif buffer.kind == "output":
                last[name] = len(ops)
        self.offsets: dict[str, int] = {}
        self.buffers = buffers
        replaced = in_place(ops, self.resident, overlapped, first, last) if compact else {}
        # A chain of sums shares one place, so all its buffers get the first start and the last end.
        for name, source in replaced.items():  # in the order of operators
            first[name] = first[source]
        for name, source in reversed(replaced.items()):
            last[source] = last[name]
        for base in dict.fromkeys(base_of(kind, compact) for kind in BASE_OF_KIND):
            chosen = [
                buffer
                for name, buffer in buffers.items()
                if base_of(buffer.kind, compact) == base and name not in replaced
            ]
            share = reuse and base == TEMPS
            if chosen:
                self._allocate(chosen, first if share else {}, last if share else {})
        for name, source in replaced.items():
            self.offsets[name] = self.offsets[source]

    def _allocate(self, buffers: Sequence[Buffer], first: dict[str, int], last: dict[str, int]) -> None:
        """Place buffers by size, or in `compact` programs in the order that needs least memory."""
        orders: list[Callable[[Buffer], int]] = [lambda buffer: -buffer.size]
        # Also try the order of first use, and of last use from the end.
        if self.compact and first:
            orders += [lambda buffer: first[buffer.name], lambda buffer: -last[buffer.name]]
        packed = [
            _pack(sorted(buffers, key=lambda item: (order(item), -item.size, item.name)), first, last)
            for order in orders
        ]
        sizes = {buffer.name: buffer.size for buffer in buffers}
        # Keep the order that ends lowest.
        ends = [max((at + sizes[name] for name, at in offsets.items()), default=0) for offsets in packed]
        self.offsets |= packed[ends.index(min(ends))]

    def reference(self, view: View) -> TensorRef:
        name, pitches = view.buffer.name, (view.image_pitch, view.row_pitch, view.pixel_pitch)
        if name in self.resident:
            return TensorRef(TEMPS, 0, *view.shape, *pitches, self.resident[name])
        base = base_of(self.buffers[name].kind, self.compact)
        return TensorRef(base, self.offsets[name] + view.offset, *view.shape, *pitches)


def runs(firsts: Iterable[int]) -> list[range]:
    """Return the ranges of operators that run at the same time, from `DeviceSegment.overlapped`."""
    ranges: list[range] = []
    for first in sorted(firsts):
        if ranges and ranges[-1].stop == first + 1:
            ranges[-1] = range(ranges[-1].start, first + 2)
        else:
            ranges.append(range(first, first + 2))
    return ranges


def _pack(buffers: Iterable[Buffer], first: Mapping[str, int], last: Mapping[str, int]) -> dict[str, int]:
    """Return offsets: for each buffer in turn the lowest that is free from operator `first` to `last`.

    Without lifetimes all buffers are in use all the time.
    """
    offsets: dict[str, int] = {}
    if not first:
        at = 0
        for buffer in buffers:
            offsets[buffer.name], at = at, at + -(-buffer.size // ALIGN) * ALIGN
        return offsets
    earliest = min(first.values())
    packing = Packing(max(last.values()) - earliest + 1)
    for buffer in buffers:
        start, stop = first[buffer.name] - earliest, last[buffer.name] - earliest
        offsets[buffer.name] = packing.place(-(-buffer.size // ALIGN), start, stop) * ALIGN
    return offsets
