"""On-chip and DRAM bookkeeping: slot rings, constants, allocation of buffers."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from weft.compiler.ir.graph import Add, Buffer, CompileError, Conv, DeviceOp, View
from weft.compiler.machine.target import PIXELS_MAX
from weft.hdl.isa import MicroOp, encoding


def in_place(
    ops: Sequence[DeviceOp],
    resident: Collection[str],
    overlapped: Collection[int],
    first: Mapping[str, int],
    last: Mapping[str, int],
) -> dict[str, str]:
    """By the name of each such result the operand whose memory it takes, in the order of operators.

    Additions, by themselves or behind a convolution, load a box of the operand, and store the same box of the result
    when they have read it, each box once. So a result may take the place of an operand that is a whole buffer of the
    same shape, if nobody reads that later. `first` and `last` have the operators between which buffers are in use, by
    their indices; those in `overlapped` and the ones behind them are left alone, as are buffers in `resident`.
    """
    found: dict[str, str] = {}
    for index, op in enumerate(ops):
        if index in overlapped or index - 1 in overlapped or first.get(op.dst.buffer.name) != index:
            continue
        for view in _added(op):
            name = view.buffer.name
            read = [source for source in op.sources if source.buffer.name == name]
            if len(read) == 1 and last.get(name) == index and _alike(view, op.dst) and name not in resident:
                found[op.dst.buffer.name] = name
                break
    return found


def _added(op: DeviceOp) -> tuple[View, ...]:
    """The operands of an addition that are read element by element."""
    if isinstance(op, Add):
        return op.sources
    if type(op) is Conv and isinstance(op.epilogue, Add):
        return op.epilogue.sources[1:]
    return ()


def _alike(a: View, b: View) -> bool:
    """Whether both are whole buffers, of the same shape, between operators."""
    return (
        a.buffer.kind == b.buffer.kind == "temp"
        and a.shape == b.shape == a.buffer.shape == b.buffer.shape
        and a.step == b.step == (1, 1)
    )


class _Ranges:
    """A set of addresses, as ranges that neither meet nor touch."""

    def __init__(self) -> None:
        self.starts: list[int] = []
        self.stops: list[int] = []

    def add(self, start: int, stop: int) -> None:
        first, last = bisect_left(self.stops, start), bisect_right(self.starts, stop)
        if first < last:
            start, stop = min(start, self.starts[first]), max(stop, self.stops[last - 1])
        self.starts[first:last] = [start]
        self.stops[first:last] = [stop]

    def behind(self, start: int, size: int) -> int:
        """The end of the range that meets `size` addresses from `start` on; `start` if none does."""
        at = bisect_right(self.stops, start)
        meets = at < len(self.starts) and self.starts[at] < start + size
        return self.stops[at] if meets else start


class Packing:
    """Ranges of addresses that are in use from one time to another, of times from 0 to `times` - 1."""

    def __init__(self, times: int) -> None:
        self._leaves = 1 << max(times - 1, 0).bit_length()
        self._whole: dict[int, _Ranges] = {}
        """By node, the ranges that are in use at all of its times."""
        self._some: dict[int, _Ranges] = {}
        """By node, the ranges that are noted there or at a node below."""

    def place(self, size: int, first: int, last: int) -> int:
        """Use `size` addresses from time `first` to `last`: the lowest that are free then, whose start is returned."""
        nodes = list(self._nodes(first, last))
        above = {node >> up for node in nodes for up in range(1, node.bit_length())}
        used = [self._some[node] for node in nodes if node in self._some]
        used += [self._whole[node] for node in above if node in self._whole]
        start, before = 0, -1
        while start != before:
            before = start
            for ranges in used:
                start = ranges.behind(start, size)
        for node in nodes:
            self._whole.setdefault(node, _Ranges()).add(start, start + size)
        for node in above.union(nodes):
            self._some.setdefault(node, _Ranges()).add(start, start + size)
        return start

    def _nodes(self, first: int, last: int) -> Iterator[int]:
        """The nodes that make up an interval; node 1 has all times, and 2n and 2n + 1 are the halves of n."""
        low, high = first + self._leaves, last + self._leaves + 1
        while low < high:
            if low & 1:
                yield low
                low += 1
            if high & 1:
                high -= 1
                yield high
            low, high = low >> 1, high >> 1


CONSTANTS = 0
"""Base register of weights and parameters (and, before them, of the instructions)."""
TEMPS = 1
"""Base register of buffers between operators."""
INPUTS = 2
"""Base register of what the host writes before a program."""
OUTPUTS = 3
"""Base register of what the host reads after it."""

PAGES = 4
"""Base register of pages of keys and values that the host keeps."""
TABLES = 5
"""Base register of page tables."""
LENGTH = 6
"""Base register that holds no address, but the number of keys in the pages."""

STATES = 7
"""Base register of what is kept from run to run."""

BASE_OF_KIND = {
    "temp": TEMPS, "input": INPUTS, "output": OUTPUTS, "pages": PAGES, "table": TABLES, "state": STATES,
}  # fmt: skip
COMPACT_KINDS = ("temp", "input", "output")
"""Buffers that share the area of `TEMPS` in compact programs: inputs are there until they are read, outputs once they
are written."""


def base_of(kind: str, compact: bool) -> int:
    """The base register of buffers of a kind."""
    return TEMPS if compact and kind in COMPACT_KINDS else BASE_OF_KIND[kind]


ALIGN = 64
"""Alignment of everything in DRAM, in bytes: a multiple of no more than the widest bus the presets use."""


@dataclass
class Ring:
    """`count` slots of `size` addresses from `start` on; a key keeps its slot until the ring comes round to it.

    The first slot that is taken is the next one behind the address `behind`, where that lies in the ring.
    """

    start: int
    size: int
    count: int
    behind: int = 0
    _slots: dict[Hashable, int] = field(default_factory=dict)
    _keys: dict[int, Hashable] = field(default_factory=dict)
    _next: int = 0

    def __post_init__(self) -> None:
        if self.start < self.behind < self.start + self.size * self.count:
            self._next = -((self.start - self.behind) // self.size) % self.count

    @property
    def end(self) -> int:
        """The address behind the slot that was taken last."""
        return self.start + self.size * (self._next or self.count)

    def get(self, key: Hashable) -> tuple[int, bool]:
        """Address of the slot that holds `key`, and whether it held it already (if not, fill it)."""
        if key in self._slots:
            return self.start + self.size * self._slots[key], True
        slot, self._next = self._next, (self._next + 1) % self.count
        if slot in self._keys:
            del self._slots[self._keys[slot]]
        self._keys[slot], self._slots[key] = key, slot
        return self.start + self.size * slot, False

    @property
    def state(self) -> tuple[tuple[tuple[Hashable, int], ...], int]:
        """Which slot each key has, and the next one."""
        return tuple(self._slots.items()), self._next

    def restore(self, state: tuple[tuple[tuple[Hashable, int], ...], int]) -> None:
        """Have the keys and slots of a `state`."""
        self._slots, self._next = dict(state[0]), state[1]
        self._keys = {slot: key for key, slot in state[0]}

    @property
    def came_round(self) -> bool:
        """Whether the next key gets a slot that another had."""
        return self._next in self._keys

    def follows(self, key: Hashable, address: int) -> bool:
        """Whether `key` is not held, and would get the slot at `address`."""
        return key not in self._slots and self.start + self.size * self._next == address


class Kernels:
    """The kernels in the memory of the kernel engine, `size` micro-operations: one behind the other, from the start
    again where the next one does not fit."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._starts: dict[Hashable, int] = {}
        self._next = 0

    def get(self, ops: tuple[MicroOp, ...]) -> tuple[int, bool]:
        """The first entry of a kernel, and whether it is there already (if not, write it).

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
        """Where each kernel begins, and the next one."""
        return tuple(self._starts.items()), self._next

    def restore(self, state: tuple[tuple[tuple[Hashable, int], ...], int]) -> None:
        """Have the kernels of a `state`."""
        self._starts, self._next = dict(state[0]), state[1]


class Ends(dict[str, int]):
    """Where the last ring of each name ended."""

    @property
    def state(self) -> tuple[tuple[str, int], ...]:
        """All of them."""
        return tuple(self.items())

    def restore(self, state: tuple[tuple[str, int], ...]) -> None:
        """Have the ends of a `state`."""
        self.clear()
        self.update(state)


class Constants:
    """The constant area: byte strings at aligned offsets, equal ones stored once."""

    def __init__(self) -> None:
        self._blob = bytearray()
        self._known: dict[bytes, int] = {}
        self._narrow: dict[bytes, int] = {}

    def add(self, payload: bytes) -> int:
        """Offset of `payload` from the constants' base register."""
        if payload not in self._known:
            self._known[payload] = self._append(payload, ALIGN)
        return self._known[payload]

    def add_narrow(self, payload: bytes, bus_bytes: int) -> int:
        """The same of the int8 values of `payload`, all within 4 bits, packed into half as many bytes; the offset is a
        multiple of the width of the bus."""
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
        """Bytes that there are so far."""
        return len(self._blob)

    def known(self, payload: bytes) -> bool:
        """Whether `payload` was added before."""
        return payload in self._known

    def finish(self) -> bytes:
        return bytes(self._blob) + bytes(-len(self._blob) % ALIGN)


class Place(NamedTuple):
    """Where the vectors of a box are on chip: the first, and how far it is from pixel to pixel and from row to row."""

    start: int
    pixel: int
    row: int

    def tile(self, index: int) -> Place:
        """The same for vectors that lie `index` further."""
        return Place(self.start + index, self.pixel, self.row)


@dataclass(frozen=True)
class TensorRef:
    """A view as the lowering sees it: in DRAM, with base register, byte offset, and pitches in bytes; or `resident` in
    the scratchpad from that address on, pixel after pixel, each in whole vectors.
    """

    base: int
    offset: int
    n: int
    h: int
    w: int
    c: int
    image_pitch: int
    row_pitch: int
    pixel_pitch: int
    resident: int | None = None

    @property
    def kind(self) -> TensorRef:
        """The same wherever it lies: in DRAM, or on chip."""
        return TensorRef(
            0, 0, self.n, self.h, self.w, self.c, self.image_pitch, self.row_pitch, self.pixel_pitch,
            None if self.resident is None else 0,
        )  # fmt: skip

    @property
    def rows_join(self) -> bool:
        """Whether the end of a row is followed at once by the next row."""
        return self.w * self.pixel_pitch == self.row_pitch

    def address(self, image: int, y: int, x: int) -> int:
        """Byte offset of a pixel's first channel."""
        return self.offset + image * self.image_pitch + y * self.row_pitch + x * self.pixel_pitch

    def on_chip(self, image: int, y: int, x: int, n: int) -> Place:
        """Where the pixels from (y, x) on are, of a tensor that is `resident` in vectors of `n` bytes."""
        assert self.resident is not None
        vectors = -(-self.c // n)
        return Place(self.resident + ((image * self.h + y) * self.w + x) * vectors, vectors, self.w * vectors)

    def moved(self, size: int) -> TensorRef:
        """The same so many bytes further."""
        return replace(self, offset=self.offset + size)

    def joined(self, rows: int, pixels: int) -> tuple[int, int]:
        """Rows and pixels of a row of a box, as one row where rows of full width follow one another."""
        whole = pixels == self.w and self.rows_join and rows * pixels <= PIXELS_MAX
        return (1, rows * pixels) if whole else (rows, pixels)

    def flattened(self) -> TensorRef:
        """The same bytes as one row of pixels; only if rows and images join."""
        pixels = self.n * self.h * self.w
        span = pixels * self.pixel_pitch
        return replace(self, n=1, h=1, w=pixels, image_pitch=span, row_pitch=span)

    def matrix(self, image: int, head: int, counts: tuple[int, int]) -> TensorRef:
        """One of `counts` (images, heads of an image) matrices, its rows as the pixels of one row of an image.

        Heads lie beside each other in the channels, or one after the other as images.
        """
        images, heads = counts
        if self.n == images:
            size, at = self.c // heads, self.address(image, 0, 0)
            at += head * size
        else:
            size, at = self.c, self.address(image * heads + head, 0, 0)
        pitch = self.pixel_pitch
        return TensorRef(self.base, at, 1, 1, self.w, size, self.w * pitch, self.w * pitch, pitch)

    def lying(self) -> TensorRef:
        """The pixels of images of one column as a row each."""
        assert self.w == 1
        pitch = self.row_pitch
        return replace(self, h=1, w=self.h, row_pitch=self.h * pitch, pixel_pitch=pitch)

    @property
    def flattens(self) -> bool:
        return self.rows_join and (self.n == 1 or self.h * self.row_pitch == self.image_pitch)

    def subsampled(self, stride: tuple[int, int], h: int, w: int) -> TensorRef:
        """Every `stride`-th row and column."""
        return TensorRef(
            self.base, self.offset, self.n, h, w, self.c,
            self.image_pitch, self.row_pitch * stride[0], self.pixel_pitch * stride[1],
        )  # fmt: skip


class Allocation:
    """DRAM offsets of buffers by name; temporaries whose lifetimes do not meet share space.

    Those that are `resident` have none: they are in the scratchpad, at these addresses. What operators use that run at
    the same time, as `overlapped` has them, is in use as long as any of them runs. In `compact` programs inputs and
    outputs share space with temporaries, and sums take the place of what they are the last to read, as
    `weft.compiler.machine.memory` has it.
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
        for name, buffer in buffers.items() if compact else ():
            if buffer.kind == "input":
                first[name] = -1
            elif buffer.kind == "output":
                last[name] = len(ops)
        self.offsets: dict[str, int] = {}
        self.buffers = buffers
        replaced = in_place(ops, self.resident, overlapped, first, last) if compact else {}
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
        """By size, or in `compact` programs in the order that takes least."""
        orders: list[Callable[[Buffer], int]] = [lambda buffer: -buffer.size]
        if self.compact and first:
            orders += [lambda buffer: first[buffer.name], lambda buffer: -last[buffer.name]]
        packed = [
            _packed(sorted(buffers, key=lambda item: (order(item), -item.size, item.name)), first, last)
            for order in orders
        ]
        sizes = {buffer.name: buffer.size for buffer in buffers}
        ends = [max((at + sizes[name] for name, at in offsets.items()), default=0) for offsets in packed]
        self.offsets |= packed[ends.index(min(ends))]

    def reference(self, view: View) -> TensorRef:
        name, pitches = view.buffer.name, (view.image_pitch, view.row_pitch, view.pixel_pitch)
        if name in self.resident:
            return TensorRef(TEMPS, 0, *view.shape, *pitches, self.resident[name])
        base = base_of(self.buffers[name].kind, self.compact)
        return TensorRef(base, self.offsets[name] + view.offset, *view.shape, *pitches)


def runs(firsts: Iterable[int]) -> list[range]:
    """Indices of the operators that run at the same time, as `DeviceSegment.overlapped` has them."""
    found: list[range] = []
    for first in sorted(firsts):
        if found and found[-1].stop == first + 1:
            found[-1] = range(found[-1].start, first + 2)
        else:
            found.append(range(first, first + 2))
    return found


def _packed(buffers: Iterable[Buffer], first: Mapping[str, int], last: Mapping[str, int]) -> dict[str, int]:
    """Offsets: of each buffer in turn the lowest that is free over its lifetime, from operator `first` to `last`; in
    use all the time if these are empty."""
    found: dict[str, int] = {}
    if not first:
        at = 0
        for buffer in buffers:
            found[buffer.name], at = at, at + -(-buffer.size // ALIGN) * ALIGN
        return found
    earliest = min(first.values())
    packing = Packing(max(last.values()) - earliest + 1)
    for buffer in buffers:
        start, stop = first[buffer.name] - earliest, last[buffer.name] - earliest
        found[buffer.name] = packing.place(-(-buffer.size // ALIGN), start, stop) * ALIGN
    return found
