"""Tasks from geometry: the forms of LOAD, STORE and parameter blocks that every lowering uses."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Generator, Hashable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from weft.compiler.errors import CompileError
from weft.compiler.machine.areas import CONSTANTS
from weft.compiler.machine.memory import Constants, Kernels, Ring
from weft.compiler.machine.target import COUNT_MAX, PITCH_MAX, RUN_MAX, Target
from weft.compiler.machine.tasks import Task
from weft.compiler.machine.tensors import TensorRef
from weft.hdl.isa import WORD_BYTES, Load, Lookup, Microcode, MicroOp, Store
from weft.hdl.isa.config import LOOKUP_ENTRIES, Config, Feature
from weft.hdl.isa.kernel import MICRO_OPS


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def row_reads(config: Config, pixels: int, pitch: int, length: int) -> int:
    """Return how often LOAD reads a row: once, or once per vector of a pixel if pixels overlap."""
    return ceil_div(length, config.n) if pixels > 1 and pitch < length else 1


def loop_stride(stride: int, count: int) -> int:
    """Return `stride`, or 0 for a loop that runs once, whose stride then need not fit its field."""
    return stride if count > 1 else 0


def wrapped_stride(stride: int, count: int) -> int:
    """Return `loop_stride`, wrapped to 16 bits: addresses on chip are modulo 2**16."""
    # Fields of strides are signed: a step of 2**15 or more is the negative step to the same address.
    return (stride + (1 << 15)) % (1 << 16) - (1 << 15) if count > 1 else 0


class Box(NamedTuple):
    """Pixels of one image: rows `y` to `y + h`, columns `x` to `x + w`."""

    y: int
    x: int
    h: int
    w: int


_CACHE_SIZE = 1 << 12
# Instructions without addresses, cached because `Tasks.of` encodes each object once (see `Task`).


@lru_cache(_CACHE_SIZE)
def _microcode(entry: int, ops: tuple[MicroOp, ...]) -> Microcode:
    fields = {f"op{index}": op.encode() for index, op in enumerate(ops)}
    return Microcode(entry=entry, count=len(ops), **fields)


@lru_cache(_CACHE_SIZE)
def _vectors(count: int, n: int) -> Load:
    return Load(base=CONSTANTS, pixels=count, pitch=n, length=n, run=count * n, dst_vector=1, dst_pixel=1)


@lru_cache(_CACHE_SIZE)
def _narrow_vectors(count: int, n: int) -> Load:
    """Return a LOAD of vectors of 4-bit values."""
    return dataclasses.replace(_vectors(count, n), run=count * n // 2, int4=1)


@lru_cache(_CACHE_SIZE)
def _pixels(
    base: int, lines: int, line_pitch: int, pixels: int, pitch: int, length: int, fill: int, vectors: int
) -> Load:
    """Return a LOAD that reads `length` bytes of each pixel as a row of its own."""
    pitch = loop_stride(pitch, pixels)
    return Load(
        base=base,
        rows=lines * pixels,
        row_pitch=pitch,
        line=pixels if lines > 1 else 1,
        skip=loop_stride(line_pitch - pixels * pitch, lines),
        length=length,
        run=length,
        fill=fill,
        dst_vector=1,
        dst_row=loop_stride(vectors, lines * pixels),
    )


@lru_cache(_CACHE_SIZE)
def _rows(
    base: int,
    rows: int,
    row_pitch: int,
    pixels: int,
    pitch: int,
    length: int,
    before: int,
    run: int,
    fill: int,
    vectors: int,
) -> Load:
    return Load(
        base=base, rows=rows, row_pitch=row_pitch, pixels=pixels, pitch=pitch, length=length, before=before, run=run,
        fill=fill, dst_vector=1, dst_pixel=vectors, dst_row=wrapped_stride(pixels * vectors, rows),
    )  # fmt: skip


@lru_cache(_CACHE_SIZE)
def _store_form(
    base: int, rows: int, row_pitch: int, pixels: int, pitch: int, length: int, vectors: int
) -> Store:
    return Store(
        base=base,
        rows=rows,
        row_pitch=row_pitch,
        pixels=pixels,
        pitch=pitch,
        length=length,
        src_vector=1,
        src_pixel=vectors,
        src_row=wrapped_stride(pixels * vectors, rows),
    )


class Emitter:
    """Builder of one operator's LOAD and STORE tasks, and of the tasks that fill look-up tables.

    Attributes
    ----------
    constants, tables, kernels
        Constants, look-up tables by content, and kernels of the whole program.
    ends : dict of str to int
        End address of the last ring of each name. The next ring of that name starts there, so that its first slots
        can be filled while the previous operator still uses its last ones.
    used : set of str
        Names among "tables", "kernels" and "ends" of the state that tasks so far depend on.
    shared : dict
        Results that are reused if the operator is lowered more than once.
    """

    def __init__(
        self,
        target: Target,
        constants: Constants,
        layer: int,
        tables: Ring | None = None,
        kernels: Kernels | None = None,
        ends: dict[str, int] | None = None,
    ) -> None:
        self.target, self.config = target, target.config
        self.kernels = Kernels(self.config.kernel) if kernels is None else kernels
        self.constants = constants
        self.layer = layer
        self.ends = {} if ends is None else ends
        self.used: set[str] = set()
        self.shared: dict[Hashable, Any] = {}
        self.tables = Ring(0, 1, self.config.lookup_tables) if tables is None else tables

    def ring(self, name: str, start: int, size: int, count: int) -> Ring:
        """Return a ring of slots that continues at the previous ring's end, if that lies within it."""
        self.used.add("ends")
        return Ring(start, size, count, self.ends.get(name, 0))

    def _bus_cycles(self, runs: int, size: int) -> int:
        return math.ceil(runs * self.target.run(size))

    def load_constant(
        self, payload: bytes, dst: int, part: tuple[int, int] | None = None, *, narrow: bool = False
    ) -> Task:
        """LOAD vectors of constants to consecutive addresses from `dst` on.

        With `part` (first, count) only these vectors are loaded, to the addresses that they have in the whole. With
        `narrow` memory holds 4-bit values; a part must then start at a bus word (see `narrow_part`).
        """
        n = self.config.n
        first, vectors = part or (0, len(payload) // n)
        if narrow:
            offset = self.constants.add_narrow(payload, self.config.bus_bytes) + first * n // 2
            size = vectors * n // 2
            # LOAD writes at most one vector a cycle, but the bus may bring two vectors of 4-bit values.
            cycles = max(self._bus_cycles(1, size), vectors)
            load = _narrow_vectors(vectors, n)
            return Task(load, self.layer, cycles, size, addresses=(offset, dst + first))
        offset = self.constants.add(payload) + first * n
        return Task(
            _vectors(vectors, n),
            self.layer,
            self._bus_cycles(1, vectors * n),
            vectors * n,
            addresses=(offset, dst + first),
        )

    def narrow_part(self, first: int) -> bool:
        """Return whether 4-bit vectors from number `first` on start at a bus word."""
        return first * self.config.n % (2 * self.config.bus_bytes) == 0

    def lookup(self, lookup: np.ndarray | None, blocks: Ring) -> Generator[Task, None, dict[str, int]]:
        """Fill a look-up table with int8 (256,), unless a table has this content.

        The bytes pass through slots of `blocks`, none of which may be in use. Returns the fields of the `Vec` that
        uses the table; none without a table.
        """
        if lookup is None:
            return {}
        content = lookup.tobytes()
        table, is_loaded = self._table(content)
        if not is_loaded:
            yield from self._fill(table, content, blocks)
        return {"lookup": 1, "table": table}

    def _table(self, content: bytes) -> tuple[int, bool]:
        """Return the number of a look-up table for `content`, and whether it has that content already."""
        if reason := Feature.LOOKUP.missing(self.config):
            raise CompileError(f"values go through a look-up table, and {reason}")
        self.used.add("tables")
        return self.tables.get(content)

    def lookups(self, contents: tuple[bytes, ...], blocks: Ring) -> Generator[Task, None, tuple[int, ...]]:
        """Fill all look-up tables of a kernel, which it needs at the same time, and return their numbers."""
        filled: set[bytes] = set()
        while True:
            tables = [self._table(content) for content in contents]
            missing = {
                content for content, (_, is_loaded) in zip(contents, tables, strict=True) if not is_loaded
            }
            if not missing:
                break
            filled |= missing  # a new table may have replaced one of the others: look again
        for content, (table, _) in zip(contents, tables, strict=True):
            if content in filled:
                yield from self._fill(table, content, blocks)
        return tuple(table for table, _ in tables)

    def _fill(self, table: int, content: bytes, blocks: Ring) -> Iterator[Task]:
        size = min(blocks.size * self.config.n, LOOKUP_ENTRIES)
        # The table passes through a slot of parameters, a part at a time.
        for entry in range(0, LOOKUP_ENTRIES, size):
            block, _ = blocks.get((content, entry))
            part = content[entry : entry + size]
            yield self.load_constant(part, block)
            filling = Lookup(src=block, vectors=len(part) // self.config.n, table=table, entry=entry)
            yield Task(filling, self.layer, len(part))

    def kernel(self, ops: tuple[MicroOp, ...]) -> Generator[Task, None, int]:
        """Write a kernel to the engine's memory, unless it is there, and return its first entry."""
        self.used.add("kernels")
        start, is_loaded = self.kernels.get(ops)
        for at in [] if is_loaded else range(0, len(ops), MICRO_OPS):
            code = _microcode(start + at, ops[at : at + MICRO_OPS])
            yield Task(code, self.layer, code.count)
        return start

    def load_box(
        self,
        src: TensorRef,
        image: int,
        box: Box,
        channels: tuple[int, int],
        dst: int,
        vectors: int,
        fill: int,
    ) -> Iterator[Task]:
        """LOAD channels ``[first, first + count)`` of a box; pixels take `vectors` addresses each, without gaps.

        `dst` is the address of the first vector of these channels in the first pixel. Bytes between the channels are
        skipped where that is faster, or where pixels are too long for a run.
        """
        first, count = channels
        rows, pixels = src.merge_rows(box.h, box.w)
        run = (pixels - 1) * src.pixel_pitch + count
        # Bus cycles of further instructions: a LOAD of single pixels has at most `COUNT_MAX` rows.
        more = self.target.transfer_cycles((ceil_div(rows * pixels, COUNT_MAX) - 1) * WORD_BYTES)
        each = self.target.run(count) * rows * pixels + more
        legal = (pixels == 1 or 0 < src.pixel_pitch <= PITCH_MAX) and run <= RUN_MAX
        if not (legal and rows * self.target.span(run) <= each):
            for y, x, h, w in _parts(box.h, box.w):
                offset, at = src.address(image, box.y + y, box.x + x) + first, dst + (y * box.w + x) * vectors
                yield self._load_each(src, offset, (h, w), count, at, vectors, fill)
            return
        # One run per row that spans all pixels is legal and no slower.
        offset, pitch = src.address(image, box.y, box.x) + first, src.pixel_pitch if pixels > 1 else count
        yield self._load(
            src, offset, rows, pixels, pitch, count, 0, run, dst, vectors, fill, box.h * box.w * vectors
        )

    def load_windows(
        self,
        src: TensorRef,
        image: int,
        rows: tuple[int, int],
        first: int,
        step: int,
        count: int,
        length: int,
        dst: int,
        vectors: int,
        fill: int,
    ) -> Task:
        """LOAD windows of `length` bytes of every row ``[y, y + h)``: `count` windows, `step` bytes apart.

        `first` is the byte of the row at which the first window starts, negative in the left padding.
        """
        y, h = rows
        start, span = max(first, 0), (count - 1) * step + length
        stop, before = min((src.w - 1) * src.pixel_pitch + src.c, first + span), start - first
        if stop <= start:  # All in the padding: LOAD must read a byte, so read one after the windows.
            start, stop, before = 0, 1, span
        offset = src.address(image, y, 0) + start
        return self._load(
            src, offset, h, count, step, length, before, stop - start, dst, vectors, fill, h * count * vectors
        )

    def load_rows(
        self,
        src: TensorRef,
        rows: tuple[int, int],
        channels: tuple[int, int],
        dst: int,
        vectors: int,
        fill: int,
        page: tuple[TensorRef, int] | None = None,
    ) -> Task:
        """LOAD channels of pixels ``[first, first + count)`` of a row, and no bytes between them.

        Pixels take `vectors` addresses each. `page` is (page table, index): offsets are then within that page.
        """
        (pixel, count), (first, length) = rows, channels
        offset = src.address(0, 0, pixel) + first
        if length == src.pixel_pitch:
            load = Load(
                base=src.base,
                pixels=count,
                pitch=length,
                length=length,
                run=count * length,
                fill=fill,
                dst_vector=1,
                dst_pixel=vectors,
            )
            return self._task(
                load, page, count * vectors, count * ceil_div(length, self.config.n), (offset, dst)
            )
        return self._load_each(src, offset, (1, count), length, dst, vectors, fill, page)

    def _load_each(
        self,
        src: TensorRef,
        offset: int,
        box: tuple[int, int],
        length: int,
        dst: int,
        vectors: int,
        fill: int,
        page: tuple[TensorRef, int] | None = None,
    ) -> Task:
        load = _pixels(src.base, box[0], src.row_pitch, box[1], src.pixel_pitch, length, fill, vectors)
        pixels = load.rows
        return self._task(
            load, page, pixels * vectors, pixels * ceil_div(length, self.config.n), (offset, dst)
        )

    def load_transposed(
        self,
        src: TensorRef,
        rows: tuple[int, int],
        channels: tuple[int, int],
        dst: int,
        panel: int,
        page: tuple[TensorRef, int] | None = None,
        *,
        block: int = 0,
        fill: int = 0,
    ) -> Iterator[Task]:
        """LOAD channels of pixels of a row, transposed: vector i of each N pixels holds their channel i.

        Panels of N channels are `panel` addresses apart; those of the next N pixels follow after `block` addresses
        (default N). `fill` stands for missing pixels. Each LOAD reads as many channels as the hardware transposes at
        a time, and all pixels at once where they are adjacent in memory.
        """
        (pixel, count), (first, length) = rows, channels
        n = self.config.n
        size, most = ceil_div(count, n) * n, self.config.transposed_vectors * n
        for at in range(0, length, most):
            part = min(most, length - at)
            panels = ceil_div(part, n)
            pixels = count if part == src.pixel_pitch else 1
            load = Load(
                base=src.base, rows=count // pixels, row_pitch=loop_stride(src.pixel_pitch, count // pixels),
                pixels=pixels, pitch=part, length=part, run=pixels * part, fill=fill, transpose=1, dst_vector=1,
                dst_pixel=wrapped_stride(panel, panels), dst_row=loop_stride(block or n, ceil_div(count, n)),
            )  # fmt: skip
            addresses = src.address(0, 0, pixel) + first + at, dst + at // n * panel
            yield self._task(load, page, size * panels, size * panels, addresses)

    def _task(
        self,
        load: Load,
        page: tuple[TensorRef, int] | None,
        size: int,
        cycles: int,
        addresses: tuple[int, int],
    ) -> Task:
        """Return the task of a LOAD that fills `size` vectors."""
        if page is not None:  # Nothing on the device writes pages, so paged LOADs need no ordering.
            table, index = page
            entry = table.offset // 4 + index
            load = dataclasses.replace(load, paged=1, table=table.base, page=entry)
        bus = self._bus_cycles(load.rows, load.run)
        return Task(load, self.layer, max(bus, cycles), load.rows * load.run, addresses=addresses)

    def _load(
        self,
        src: TensorRef,
        offset: int,
        rows: int,
        pixels: int,
        pitch: int,
        length: int,
        before: int,
        run: int,
        dst: int,
        vectors: int,
        fill: int,
        size: int,
    ) -> Task:
        row_pitch = src.row_pitch if rows > 1 else 0
        reads = rows * row_reads(self.config, pixels, pitch, length)
        return Task(
            _rows(src.base, rows, row_pitch, pixels, pitch, length, before, run, fill, vectors),
            self.layer,
            # Limited by the bus, or by the one vector a cycle that LOAD writes.
            max(self._bus_cycles(reads, run), rows * pixels * ceil_div(length, self.config.n)),
            reads * run,
            addresses=(offset, dst),
        )

    def store_box(
        self, dst: TensorRef, image: int, box: Box, channels: tuple[int, int], src: int, vectors: int
    ) -> Iterator[Task]:
        """STORE a box of channels ``[first, first + count)`` from consecutive pixels of `vectors` vectors at `src`."""
        rows, pixels = dst.merge_rows(box.h, box.w)
        if pixels == 1 or dst.pixel_pitch <= PITCH_MAX:
            yield self._store(
                dst,
                dst.address(image, box.y, box.x),
                rows,
                pixels,
                dst.pixel_pitch,
                dst.row_pitch,
                channels,
                src,
                vectors,
            )
            return
        # The distance between pixels does not fit the pitch's field, so each pixel is a row.
        for row in range(rows):
            for _, x, _, count in _parts(1, pixels):  # pixels as rows
                offset = dst.address(image, box.y + row, box.x + x)
                at = src + (row * pixels + x) * vectors
                yield self._store(dst, offset, count, 1, 0, dst.pixel_pitch, channels, at, vectors)

    def _store(
        self,
        dst: TensorRef,
        offset: int,
        rows: int,
        pixels: int,
        pitch: int,
        row_pitch: int,
        channels: tuple[int, int],
        src: int,
        vectors: int,
    ) -> Task:
        first, count = channels
        offset += first
        row_pitch = loop_stride(row_pitch, rows)
        pitch = pitch if pixels > 1 else max(count, 1)
        # Pixels without gaps are one run per row.
        runs, size = (rows, pixels * count) if count == pitch else (rows * pixels, count)
        return Task(
            _store_form(dst.base, rows, row_pitch, pixels, pitch, count, vectors),
            self.layer,
            self._bus_cycles(runs, size),
            rows * pixels * count,
            addresses=(offset, src),
        )


def _parts(h: int, w: int) -> Iterator[Box]:
    """Split a box of h x w pixels into parts of at most `COUNT_MAX` pixels, each without gaps in row-major order."""
    tall, wide = max(1, COUNT_MAX // w), min(w, COUNT_MAX)
    for y in range(0, h, tall):
        for x in range(0, w, wide):
            yield Box(y, x, min(tall, h - y), min(wide, w - x))
