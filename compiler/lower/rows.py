"""Operators of the kernel engine to tasks: LOAD rows, KERNEL, STORE, in rings of up to three."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from weft.compiler.ir.graph import Attention, CompileError, DeviceOp, Softmax
from weft.compiler.ir.products import Embedding
from weft.compiler.kernel.code import elementwise, generate, tables_of, with_tables
from weft.compiler.kernel.operators import GroupNorm, RowOp
from weft.compiler.lower.attention import table_tasks
from weft.compiler.machine.emit import Box, Emitter, ceil_div
from weft.compiler.machine.memory import CONSTANTS, Ring, TensorRef
from weft.compiler.machine.target import COUNT_MAX, LENGTH_MAX, PIXELS_MAX
from weft.compiler.machine.tasks import Task, Tasks
from weft.compiler.plan.site import Site
from weft.compiler.plan.vector_plan import RowPlan
from weft.hdl.isa import PAGE_ENTRY, Kernel, MicroOp, Opcode, Source, places
from weft.hdl.isa.config import LOOKUP_ENTRIES, Config
from weft.hdl.isa.kernel import SERIAL, STRIP_ROWS, Op
from weft.hdl.isa.operands import kernel_min_cycles, kernel_serial_cycles

BYTES = 2
"""Vectors of a column of a tensor that is the same for all rows."""
ROW_OPERANDS = ("b", "c", "d")
"""The operands of KERNEL behind the first."""


def lower_rows(op: RowOp, site: Site, plan: RowPlan, emit: Emitter) -> Iterator[Task]:
    """Tasks of one operator in sequential order."""
    return _RowLowering(op, site, plan, emit).tasks()


def interleaved(tensor: np.ndarray, n: int) -> bytes:
    """The vectors of an int16 tensor (columns,): of each N elements the upper bytes, then the lower ones."""
    padded = np.zeros(ceil_div(len(tensor), n) * n, np.int16)
    padded[: len(tensor)] = tensor
    upper, lower = (padded >> 8).astype(np.int8), (padded & 0xFF).astype(np.uint8).view(np.int8)
    return np.stack([upper.reshape(-1, n), lower.reshape(-1, n)], axis=1).tobytes()


def kernel_cycles(ops: tuple[MicroOp, ...], rows: int, columns: int, config: Config) -> int:
    """What the engine takes for so many rows of `columns` vectors, by itself."""
    return sum(
        _strip_cycles(ops, min(STRIP_ROWS, rows - first), columns, config) for first in _strips(rows)
    ) + kernel_min_cycles(config.groups)


class Loops(NamedTuple):
    """How rows of vectors are the loops ``ob``, ``oy`` and ``ox`` of KERNEL, which works on ``oy`` side by side.

    Rows are rows; or each vector is, where a kernel makes every element of those in its place alone: with few rows
    that takes a fraction of the time. `whole` tells that all operands have their rows one behind the other, so
    that all vectors are one loop.
    """

    outer: int
    rows: int
    columns: int
    whole: bool = False

    def strides(self, row: int, column: int) -> tuple[int, int, int]:
        """Those of an operand whose rows and columns are so many vectors apart."""
        if self.whole:
            return 0, column, 0
        return (0, row, column) if self.outer == 1 else (row, column, 0)

    def cycles(self, ops: tuple[MicroOp, ...], config: Config) -> int:
        """What the engine takes, by itself."""
        return self.outer * kernel_cycles(ops, self.rows, self.columns, config)


def loops_of(
    ops: tuple[MicroOp, ...], rows: int, vectors: int, config: Config, *, apart: bool, whole: bool
) -> Loops:
    """The quickest loops over rows of so many vectors, which the kernel may work on each by itself if `apart`."""
    found = [Loops(1, rows, vectors)]
    if apart and whole and rows * vectors <= COUNT_MAX:
        found.append(Loops(1, rows * vectors, 1, whole=True))
    elif apart and rows > 1:
        found.append(Loops(rows, vectors, 1))
    return min(found, key=lambda loops: loops.cycles(ops, config))


def _strips(rows: int) -> range:
    return range(0, rows, STRIP_ROWS)


def _strip_cycles(ops: tuple[MicroOp, ...], rows: int, columns: int, config: Config) -> int:
    groups, total = config.groups, 0
    for index, op in enumerate(ops):
        loop = next((item.target for item in ops[index:] if item.again), len(ops))
        if op.op in SERIAL:
            root, lanes = op.op == Op.RSQRT, 1 if op.unsigned else config.lanes
            each = kernel_serial_cycles(lanes, groups if op.unsigned else 1, root=root)
            cycles = rows * (1 if op.unsigned else groups) * each
        else:
            cycles = max(rows * groups, kernel_min_cycles(groups))
        total += cycles * (columns if loop <= index else 1)
    return total


def lower_images(op: GroupNorm, site: Site, plan: RowPlan, emit: Emitter) -> Iterator[Task]:
    """Tasks of an operator whose rows are channels, over all pixels of an image."""
    n, vectors, pixels = site.config.n, plan.vectors, plan.rows
    src, dst = site.sources[0], site.dst
    images = Ring(0, pixels * vectors, plan.slots)
    constants = site.config.scratchpad_size - BYTES * len(op.vectors) * vectors
    ops = generate(op.kernel, n)
    start = yield from emit.kernel(ops)
    box = Box(0, 0, dst.h, dst.w)
    for first in range(0, dst.c, vectors * n):
        channels = (first, min(vectors * n, dst.c - first))
        count = ceil_div(channels[1], n)
        fields: dict[str, int] = {}
        for index, tensor in enumerate(op.vectors):
            place = constants + BYTES * index * vectors
            yield emit.load_constant(interleaved(tensor[first : first + channels[1]], n), place)
            name = ROW_OPERANDS[index]
            fields |= {f"with_{name}": 1, name: place, f"{name}_oy": BYTES, f"{name}_vectors": BYTES}
        for image in range(dst.n):
            x, _ = images.get((image, first))
            yield from emit.load_box(src, image, box, channels, x, count, 0)
            yield Task(
                Kernel(
                    source=Source.SCRATCHPAD, start=start, oy=count, ox=pixels, src=x, src_oy=1, src_ox=count,
                    dst=x, dst_oy=1, dst_ox=count, **fields,
                ),
                emit.layer,
                kernel_cycles(ops, count, pixels, site.config),
                paces=True,
            )  # fmt: skip
            yield from emit.store_box(dst, image, box, channels, x, count)


class _RowLowering:
    def __init__(self, op: RowOp, site: Site, tile: RowPlan, emit: Emitter) -> None:
        self.op, self.tile, self.emit, self.config = op, tile, emit, site.config
        self.sources, self.dst, self.layer = site.sources, site.dst, emit.layer
        slots, n = tile.slots, site.config.n
        self.apart = elementwise(op.kernel)
        first, last = site.room
        self.constants = last - BYTES * len(op.vectors) * tile.vectors
        self.vectors = [ceil_div(tensor.c, n) for tensor in (*self.sources, self.dst)]
        at, self.inputs = first, []
        for vectors in self.vectors[:-1]:
            self.inputs.append(Ring(at, tile.rows * vectors, slots))
            at += slots * tile.rows * vectors
        size = tile.rows * self.vectors[-1] * (1 + op.wide)
        self.outputs = Ring(self.constants - slots * size, size, slots)

    def tasks(self) -> Iterator[Task]:
        rows = self.op.kernel
        tables = yield from self.emit.lookups(tables_of(rows), self._blocks())
        ops = with_tables(generate(rows, self.config.n), tables)
        start = yield from self.emit.kernel(ops)
        for index, tensor in enumerate(self.op.vectors):
            at = self.constants + BYTES * index * self.tile.vectors
            yield self.emit.load_constant(interleaved(tensor, self.config.n), at)
        for image in range(self.dst.n):
            for y in range(self.dst.h):
                for x in range(0, self.dst.w, self.tile.rows):
                    box = Box(y, x, 1, min(self.tile.rows, self.dst.w - x))
                    yield from self._tile(image, box, ops, start)

    def _blocks(self) -> Ring:
        """Where look-up tables come by: in the place of the first rows, which are loaded behind them."""
        first = self.inputs[0].start
        return Ring(first, min(self.constants - first, ceil_div(LOOKUP_ENTRIES, self.config.n)), 1)

    def _tile(self, image: int, box: Box, ops: tuple[MicroOp, ...], start: int) -> Iterator[Task]:
        rows, (*counts, stored) = box.w, self.vectors
        places = []
        for ring, source, count in zip(self.inputs, self.sources, counts, strict=True):
            part = _repeated(source, image, box)
            place, held = ring.get(part)
            if not held:
                yield from self.emit.load_box(source, *part, (0, source.c), place, count, 0)
            # Rows that read the same one, or columns that read the same vector.
            places.append((place, count if part[1].w > 1 else 0, 1 if count > 1 else 0))
        out, _ = self.outputs.get((image, box))
        vectors, columns = self.tile.vectors, max(self.sources[0].c, self.dst.c)
        places += [
            (self.constants + BYTES * index * vectors, 0, BYTES) for index in range(len(self.op.vectors))
        ]
        lower, ends = out + rows * stored, (stored, 1 if stored > 1 else 0)
        whole = all(row == column * vectors for _, row, column in (*places, (out, *ends)))
        loops = loops_of(ops, rows, vectors, self.config, apart=self.apart, whole=whole or rows == 1)
        fields = _operand("src", places[0], loops)
        for name, read in zip(ROW_OPERANDS, places[1:], strict=False):
            fields |= {f"with_{name}": 1, f"{name}_vectors": max(1, read[2])} | _operand(name, read, loops)
        fields |= _operand("dst", (out, *ends), loops)
        if self.op.wide:
            fields |= {"with_dst2": 1} | _operand("dst2", (lower, *ends), loops)
        yield Task(
            Kernel(
                source=Source.SCRATCHPAD, start=start, ob=loops.outer, oy=loops.rows, ox=loops.columns,
                tail=0 if loops.whole or loops.outer > 1 else columns % self.config.n, **fields,
            ),
            self.layer,
            loops.cycles(ops, self.config),
            paces=True,
        )  # fmt: skip
        yield from self.emit.store_box(self.dst, image, box, (0, self.dst.c), out, stored)
        if self.op.wide:
            dst = self.dst.moved(self.op.dst.plane_pitch)
            yield from self.emit.store_box(dst, image, box, (0, dst.c), lower, stored)


def _operand(name: str, place: tuple[int, int, int], loops: Loops) -> dict[str, int]:
    """The address and strides of an operand whose rows and columns are so many vectors apart."""
    at, row, column = place
    strides = loops.strides(row, column)
    return {name: at} | {f"{name}_{loop}": by for loop, by in zip(("ob", "oy", "ox"), strides, strict=True)}


def _repeated(source: TensorRef, image: int, box: Box) -> tuple[int, Box]:
    """The image and the pixels of it that a source has for those of the result: it may have one for all of them."""
    row, column = (0 if source.h == 1 else box.y), (0 if source.w == 1 else box.x)
    return (image if source.n > 1 else 0), Box(row, column, 1, 1 if source.w == 1 else box.w)


ENTRIES = places(Opcode.LOAD)["page"].high + 1
"""Offsets that the LOADs of a program tell apart."""
_VECTORS = 2048
"""Vectors of a slot at most, so that LOADs and STOREs overlap."""
_SLOTS = 2


@dataclass(frozen=True)
class EmbeddingPlan:
    """Rows that are on chip at a time, and how many of their columns."""

    rows: int
    columns: int


def plan(site: Site) -> EmbeddingPlan | None:
    """As many rows as fit twice, in parts if not even one does."""
    n, (first, last) = site.config.n, site.room
    room = min((last - first) // _SLOTS, _VECTORS, LENGTH_MAX // n)
    if room < 1:
        return None
    vectors = ceil_div(site.dst.c, n)
    rows = min(room // min(vectors, room), site.dst.w, COUNT_MAX, PIXELS_MAX)
    return EmbeddingPlan(rows, min(room * n, site.dst.c))


def lower_embedding(op: Embedding, site: Site, plan: EmbeddingPlan, emit: Emitter) -> Iterator[Task]:
    """Tasks of one operator in sequential order.

    Raises
    ------
    CompileError
        If a program has more offsets than LOADs can tell apart.
    """
    n, dst, (offsets,) = site.config.n, site.dst, site.sources
    if offsets.offset // PAGE_ENTRY + dst.w > ENTRIES:
        raise CompileError(
            f"{op.name}: with it the program has more than {ENTRIES:,} indices of embeddings, which is as many as LOADs"
            " tell apart; split the model, or take fewer at once"
        )
    content = op.content
    rows, columns = content.shape
    size = rows * columns
    table = TensorRef(
        CONSTANTS, emit.constants.add(content.tobytes()), 1, 1, rows, columns, size, size, columns
    )
    slots = Ring(site.room[0], plan.rows * ceil_div(plan.columns, n), _SLOTS)
    for first in range(0, columns, plan.columns):
        part = (first, min(plan.columns, columns - first))
        vectors = ceil_div(part[1], n)
        for row in range(0, dst.w, plan.rows):
            place, _ = slots.get((first, row))
            count = min(plan.rows, dst.w - row)
            for index in range(count):
                page = (offsets, row + index)
                yield emit.load_rows(table, (0, 1), part, place + index * vectors, vectors, 0, page)
            yield from emit.store_box(dst, 0, Box(0, row, 1, count), part, place, vectors)


def table_ahead(ops: Sequence[DeviceOp], emit: Emitter) -> Tasks:
    """The tasks that fill the table at the start of a program, when the vector unit has nothing to do yet; none if the
    first operator that needs it is an attention, which fills it while the array works, or the program's first one.
    """
    config = emit.config
    user = next((op for op in ops if isinstance(op, Softmax | Attention)), None)
    worth = isinstance(user, Softmax) and user is not ops[0]
    place = config.scratchpad_size - config.table_depth // config.n
    return Tasks.of(table_tasks(emit, place) if worth else (), config)
