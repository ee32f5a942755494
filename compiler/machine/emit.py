"""Tasks from geometry: the few shapes of LOAD, STORE and parameter blocks that every lowering uses."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Generator, Hashable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from weft.compiler.ir.graph import CompileError
from weft.compiler.machine.memory import CONSTANTS, Constants, Kernels, Ring, TensorRef
from weft.compiler.machine.target import COUNT_MAX, PITCH_MAX, RUN_MAX, Target
from weft.compiler.machine.tasks import Task
from weft.hdl.isa import WORD_BYTES, Load, Lookup, Microcode, MicroOp, Store
from weft.hdl.isa.config import LOOKUP_ENTRIES, Config, Feature
from weft.hdl.isa.kernel import MICRO_OPS


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def row_reads(config: Config, pixels: int, pitch: int, length: int) -> int:
    """How often LOAD reads a row: once for each vector of a pixel, if there are several and pixels overlap."""
    return ceil_div(length, config.n) if pixels > 1 and pitch < length else 1


class Place(NamedTuple):
    """Where the vectors of a box are on chip: the first, and how far it is from pixel to pixel and from row to row."""

    start: int
    pixel: int
    row: int

    @classmethod
    def held(cls, at: TensorRef, image: int, box: Box, n: int) -> Place:
        """Where a box of a tensor is that stays on chip, in vectors of `n` bytes."""
        assert at.resident is not None
        vectors = ceil_div(at.c, n)
        pixel = (image * at.h + box.y) * at.w + box.x
        return cls(at.resident + pixel * vectors, vectors, at.w * vectors)

    def tile(self, index: int) -> Place:
        """The same for vectors that lie `index` further."""
        return Place(self.start + index, self.pixel, self.row)


def taken(stride: int, count: int) -> int:
    """A stride of a loop that runs `count` times; 0 where it is never taken, so that it need not fit the field."""
    return stride if count > 1 else 0


def wrapped(stride: int, count: int) -> int:
    """The same, and as large as it is: addresses on chip are modulo 2**16."""
    return _wrap(stride) if count > 1 else 0


class Box(NamedTuple):
    """A box of pixels of one image: rows `y` to `y + h`, columns `x` to `x + w`."""

    y: int
    x: int
    h: int
    w: int


_KEPT = 1 << 12
# Instructions without their addresses: the same objects again and again, as `Task` tells.


@lru_cache(_KEPT)
def _microcode(entry: int, ops: tuple[MicroOp, ...]) -> Microcode:
    fields = {f"op{index}": op.encode() for index, op in enumerate(ops)}
    return Microcode(entry=entry, count=len(ops), **fields)


@lru_cache(_KEPT)
def _vectors(count: int, n: int) -> Load:
    return Load(base=CONSTANTS, pixels=count, pitch=n, length=n, run=count * n, dst_vector=1, dst_pixel=1)


@lru_cache(_KEPT)
def _narrow_vectors(count: int, n: int) -> Load:
    """The same of values of 4 bits."""
    return dataclasses.replace(_vectors(count, n), run=count * n // 2, int4=1)


@lru_cache(_KEPT)
def _pixels(
    base: int, lines: int, line_pitch: int, pixels: int, pitch: int, length: int, fill: int, vectors: int
) -> Load:
    """`length` bytes of each of `pixels` pixels in each of `lines` lines as a row of its own."""
    pitch = taken(pitch, pixels)
    return Load(
        base=base, rows=lines * pixels, row_pitch=pitch, line=pixels if lines > 1 else 1,
        skip=taken(line_pitch - pixels * pitch, lines), length=length, run=length, fill=fill, dst_vector=1,
        dst_row=taken(vectors, lines * pixels),
    )  # fmt: skip


@lru_cache(_KEPT)
def _rows(
    base: int, rows: int, row_pitch: int, pixels: int, pitch: int, length: int, before: int, run: int, fill: int,
    vectors: int,
) -> Load:  # fmt: skip
    return Load(
        base=base, rows=rows, row_pitch=row_pitch, pixels=pixels, pitch=pitch, length=length, before=before, run=run,
        fill=fill, dst_vector=1, dst_pixel=vectors, dst_row=_wrap(pixels * vectors) if rows > 1 else 0,
    )  # fmt: skip


@lru_cache(_KEPT)
def _stored(
    base: int, rows: int, row_pitch: int, pixels: int, pitch: int, length: int, vectors: int
) -> Store:
    return Store(
        base=base, rows=rows, row_pitch=row_pitch, pixels=pixels, pitch=pitch, length=length, src_vector=1,
        src_pixel=vectors, src_row=_wrap(pixels * vectors) if rows > 1 else 0,
    )  # fmt: skip


class Emitter:
    """Builds LOAD and STORE tasks of one layer for one configuration, and those that fill look-up tables.

    `constants`, `tables` (the hardware's look-up tables by their content) and `kernels` are those of the whole program,
    and so is `ends`: by names of rings, where the last one of that name ended. The next one goes on behind it, so that
    its first slots can be filled while the last ones of the operator before are in use. `used` names those of `tables`,
    `kernels` and `ends` that tasks so far depend on. `shared` has what is known of the operator if it is lowered more
    than once.
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
        """A ring that goes on where the last one of that name ended, if that lies in it."""
        self.used.add("ends")
        return Ring(start, size, count, self.ends.get(name, 0))

    def _bus_cycles(self, runs: int, size: int) -> int:
        return math.ceil(runs * self.target.run(size))

    def load_constant(
        self, payload: bytes, dst: int, part: tuple[int, int] | None = None, *, narrow: bool = False
    ) -> Task:
        """LOAD whole vectors of constants to consecutive addresses from `dst` on; of a `part` (first, count) only those
        vectors, to where they are in all of it. `narrow` ones are in memory in 4 bits; a part of them begins with a
        word of the bus, as `narrow_part` tells."""
        n = self.config.n
        first, vectors = part or (0, len(payload) // n)
        if narrow:
            offset = self.constants.add_narrow(payload, self.config.bus_bytes) + first * n // 2
            size = vectors * n // 2
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
        """Whether vectors from `first` on of values of 4 bits begin with a word of the bus."""
        return first * self.config.n % (2 * self.config.bus_bytes) == 0

    def lookup(self, lookup: np.ndarray | None, blocks: Ring) -> Generator[Task, None, dict[str, int]]:
        """Fill a look-up table with int8 (256,), unless one has this content; returns the fields of the `Vec` that
        uses it, none for None. The bytes pass slots of `blocks`, those of parameter
        blocks, of which none may be in use.
        """
        if lookup is None:
            return {}
        content = lookup.tobytes()
        table, held = self._table(content)
        if not held:
            yield from self._filled(table, content, blocks)
        return {"lookup": 1, "table": table}

    def _table(self, content: bytes) -> tuple[int, bool]:
        """The number of a look-up table, and whether it has this content already. Raises `CompileError` if there are
        none."""
        if reason := Feature.LOOKUP.missing(self.config):
            raise CompileError(f"values go through a look-up table, and {reason}")
        self.used.add("tables")
        return self.tables.get(content)

    def lookups(self, contents: tuple[bytes, ...], blocks: Ring) -> Generator[Task, None, tuple[int, ...]]:
        """The same of the tables of a kernel, all of which must be there at a time; returns their numbers."""
        filled: set[bytes] = set()
        while True:
            found = [self._table(content) for content in contents]
            missing = {content for content, (_, held) in zip(contents, found, strict=True) if not held}
            if not missing:
                break
            filled |= missing  # which may have taken the place of one before it
        for content, (table, _) in zip(contents, found, strict=True):
            if content in filled:
                yield from self._filled(table, content, blocks)
        return tuple(table for table, _ in found)

    def _filled(self, table: int, content: bytes, blocks: Ring) -> Iterator[Task]:
        """Tasks that fill a look-up table."""
        size = min(blocks.size * self.config.n, LOOKUP_ENTRIES)
        for entry in range(0, LOOKUP_ENTRIES, size):
            block, _ = blocks.get((content, entry))
            part = content[entry : entry + size]
            yield self.load_constant(part, block)
            filling = Lookup(src=block, vectors=len(part) // self.config.n, table=table, entry=entry)
            yield Task(filling, self.layer, len(part))

    def kernel(self, ops: tuple[MicroOp, ...]) -> Generator[Task, None, int]:
        """Put a kernel into the engine's memory, unless it is there; returns its first entry."""
        self.used.add("kernels")
        start, held = self.kernels.get(ops)
        for at in [] if held else range(0, len(ops), MICRO_OPS):
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

        `dst` is the address of the first vector of these channels in the first pixel. Pixels are read without what lies
        between these channels where that is quicker or pixels are too long.
        """
        first, count = channels
        rows, pixels = src.joined(box.h, box.w)
        run = (pixels - 1) * src.pixel_pitch + count
        more = self.target.moved((ceil_div(rows * pixels, COUNT_MAX) - 1) * WORD_BYTES)
        each = self.target.run(count) * rows * pixels + more
        legal = (pixels == 1 or 0 < src.pixel_pitch <= PITCH_MAX) and run <= RUN_MAX
        if not (legal and rows * self.target.span(run) <= each):
            for y, x, h, w in _parts(box.h, box.w):
                offset, at = src.address(image, box.y + y, box.x + x) + first, dst + (y * box.w + x) * vectors
                yield self._load_each(src, offset, (h, w), count, at, vectors, fill)
            return
        offset, pitch = src.address(image, box.y, box.x) + first, src.pixel_pitch if pixels > 1 else count
        yield self._load(src, offset, rows, pixels, pitch, count, 0, run, dst, vectors, fill,
                         box.h * box.w * vectors)  # fmt: skip

    def load_windows(
        self, src: TensorRef, image: int, rows: tuple[int, int], first: int, step: int, count: int, length: int,
        dst: int, vectors: int, fill: int,
    ) -> Task:  # fmt: skip
        """LOAD windows of `length` bytes of every row ``[y, y + h)``: `count` windows, `step` bytes apart.

        `first` is the byte of the row at which the first window starts, negative in the left padding.
        """
        y, h = rows
        start, span = max(first, 0), (count - 1) * step + length
        stop, before = min((src.w - 1) * src.pixel_pitch + src.c, first + span), start - first
        if stop <= start:  # all in the padding: a byte has to be read, which lies behind the windows
            start, stop, before = 0, 1, span
        offset = src.address(image, y, 0) + start
        return self._load(src, offset, h, count, step, length, before, stop - start, dst, vectors, fill,
                          h * count * vectors)  # fmt: skip

    def load_rows(
        self, src: TensorRef, rows: tuple[int, int], channels: tuple[int, int], dst: int, vectors: int, fill: int,
        page: tuple[TensorRef, int] | None = None,
    ) -> Task:  # fmt: skip
        """LOAD channels of pixels ``[first, first + count)`` of a row, and nothing between them.

        Pixels take `vectors` addresses each. `page` is (page table, index): offsets are then within that page.
        """
        (pixel, count), (first, length) = rows, channels
        offset = src.address(0, 0, pixel) + first
        if length == src.pixel_pitch:
            load = Load(base=src.base, pixels=count, pitch=length, length=length, run=count * length, fill=fill,
                        dst_vector=1, dst_pixel=vectors)  # fmt: skip
            return self._task(
                load, page, count * vectors, count * ceil_div(length, self.config.n), (offset, dst)
            )
        return self._load_each(src, offset, (1, count), length, dst, vectors, fill, page)

    def _load_each(
        self, src: TensorRef, offset: int, box: tuple[int, int], length: int, dst: int, vectors: int, fill: int,
        page: tuple[TensorRef, int] | None = None,
    ) -> Task:  # fmt: skip
        """LOAD `length` bytes of each pixel of a box (rows, pixels of a row) as a row of its own."""
        load = _pixels(src.base, box[0], src.row_pitch, box[1], src.pixel_pitch, length, fill, vectors)
        pixels = load.rows
        return self._task(
            load, page, pixels * vectors, pixels * ceil_div(length, self.config.n), (offset, dst)
        )

    def load_transposed(
        self, src: TensorRef, rows: tuple[int, int], channels: tuple[int, int], dst: int, panel: int,
        page: tuple[TensorRef, int] | None = None, *, block: int = 0, fill: int = 0,
    ) -> Iterator[Task]:  # fmt: skip
        """LOAD channels of pixels of a row: vector i of each N pixels holds their channel i, as columns.

        Columns of N channels each are `panel` addresses apart, and those of the next N pixels `block` (N, if it is not
        said); `fill` stands for pixels that there are not. As many of them as the hardware transposes at a time
        are read together: bytes that lie together in memory, and all pixels at once where they follow each other.
        """
        (pixel, count), (first, length) = rows, channels
        n = self.config.n
        size, most = ceil_div(count, n) * n, self.config.transposed_vectors * n
        for at in range(0, length, most):
            part = min(most, length - at)
            panels = ceil_div(part, n)
            pixels = count if part == src.pixel_pitch else 1
            load = Load(
                base=src.base, rows=count // pixels, row_pitch=taken(src.pixel_pitch, count // pixels), pixels=pixels,
                pitch=part, length=part, run=pixels * part, dst_vector=1, dst_pixel=wrapped(panel, panels),
                dst_row=taken(block or n, ceil_div(count, n)), transpose=1, fill=fill,
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
        """The task of a LOAD that fills `size` vectors. Nothing on the device writes pages, so they need no order."""
        if page is not None:
            table, index = page
            entry = table.offset // 4 + index
            load = dataclasses.replace(load, paged=1, table=table.base, page=entry)
        bus = self._bus_cycles(load.rows, load.run)
        return Task(
            load, self.layer, max(bus, cycles), load.rows * load.run, addresses=addresses
        )  # fmt: skip

    def _load(
        self, src: TensorRef, offset: int, rows: int, pixels: int, pitch: int, length: int, before: int, run: int,
        dst: int, vectors: int, fill: int, size: int,
    ) -> Task:  # fmt: skip
        row_pitch = src.row_pitch if rows > 1 else 0
        reads = rows * row_reads(self.config, pixels, pitch, length)
        return Task(
            _rows(src.base, rows, row_pitch, pixels, pitch, length, before, run, fill, vectors),
            self.layer,
            max(self._bus_cycles(reads, run), rows * pixels * ceil_div(length, self.config.n)),
            reads * run,
            addresses=(offset, dst),
        )

    def store_box(
        self, dst: TensorRef, image: int, box: Box, channels: tuple[int, int], src: int, vectors: int
    ) -> Iterator[Task]:
        """STORE a box of channels ``[first, first + count)`` from consecutive pixels of `vectors` vectors at `src`."""
        rows, pixels = dst.joined(box.h, box.w)
        if pixels == 1 or dst.pixel_pitch <= PITCH_MAX:
            yield self._store(dst, dst.address(image, box.y, box.x), rows, pixels, dst.pixel_pitch, dst.row_pitch,
                              channels, src, vectors)  # fmt: skip
            return
        for row in range(rows):
            for _, x, _, count in _parts(1, pixels):  # pixels as rows
                offset = dst.address(image, box.y + row, box.x + x)
                at = src + (row * pixels + x) * vectors
                yield self._store(dst, offset, count, 1, 0, dst.pixel_pitch, channels, at, vectors)

    def _store(
        self, dst: TensorRef, offset: int, rows: int, pixels: int, pitch: int, row_pitch: int,
        channels: tuple[int, int], src: int, vectors: int,
    ) -> Task:  # fmt: skip
        first, count = channels
        offset += first
        row_pitch = taken(row_pitch, rows)
        pitch = pitch if pixels > 1 else max(count, 1)
        runs, size = (rows, pixels * count) if count == pitch else (rows * pixels, count)
        return Task(
            _stored(dst.base, rows, row_pitch, pixels, pitch, count, vectors),
            self.layer,
            self._bus_cycles(runs, size),
            rows * pixels * count,
            addresses=(offset, src),
        )


def _parts(h: int, w: int) -> Iterator[Box]:
    """Parts of a box of h x w pixels, of at most `COUNT_MAX` pixels each and without gaps in the order of pixels."""
    tall, wide = max(1, COUNT_MAX // w), min(w, COUNT_MAX)
    for y in range(0, h, tall):
        for x in range(0, w, wide):
            yield Box(y, x, min(tall, h - y), min(wide, w - x))


def _wrap(value: int) -> int:
    """`value` as a 16-bit stride: addresses are modulo 2**16."""
    return (value + (1 << 15)) % (1 << 16) - (1 << 15)
