"""Lowering of kernel-engine operators and embeddings: LOAD rows, KERNEL, STORE, in rings of up to three."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from weft.compiler.errors import CompileError
from weft.compiler.ir.graph import Attention, DeviceOp, Softmax
from weft.compiler.ir.products import Embedding
from weft.compiler.kernel.code import elementwise, generate, tables_of, with_tables
from weft.compiler.kernel.operators import GroupNorm, RowOp
from weft.compiler.lower.attention import table_tasks
from weft.compiler.machine.areas import CONSTANTS
from weft.compiler.machine.emit import Box, Emitter, ceil_div
from weft.compiler.machine.memory import Ring
from weft.compiler.machine.target import COUNT_MAX, LENGTH_MAX, PIXELS_MAX
from weft.compiler.machine.tasks import Task, Tasks
from weft.compiler.machine.tensors import TensorRef
from weft.compiler.plan.site import Site
from weft.compiler.plan.vector_plan import RowPlan
from weft.hdl.isa import PAGE_ENTRY, Kernel, MicroOp, Opcode, Source, places
from weft.hdl.isa.config import LOOKUP_ENTRIES, Config
from weft.hdl.isa.kernel import SERIAL, STRIP_ROWS, Op
from weft.hdl.isa.operands import kernel_min_cycles, kernel_serial_cycles

VECTORS_PER_CONSTANT = 2
"""Vectors per N columns of a constant tensor: upper bytes, then lower bytes."""
ROW_OPERANDS = ("b", "c", "d")
"""Operands of KERNEL after the first."""


def lower_rows(op: RowOp, site: Site, plan: RowPlan, emit: Emitter) -> Iterator[Task]:
    """Yield the tasks of one operator in sequential order."""
    return _RowLowering(op, site, plan, emit).tasks()


def interleave_bytes(tensor: np.ndarray, n: int) -> bytes:
    """Return an int16 tensor (columns,) as vectors: for each N elements the upper bytes, then the lower bytes."""
    padded = np.zeros(ceil_div(len(tensor), n) * n, np.int16)
    padded[: len(tensor)] = tensor
    upper, lower = (padded >> 8).astype(np.int8), (padded & 0xFF).astype(np.uint8).view(np.int8)
    return np.stack([upper.reshape(-1, n), lower.reshape(-1, n)], axis=1).tobytes()


def kernel_cycles(ops: tuple[MicroOp, ...], rows: int, columns: int, config: Config) -> int:
    """Return the engine's cycles for `rows` rows of `columns` vectors."""
    return sum(
        _strip_cycles(ops, min(STRIP_ROWS, rows - first), columns, config) for first in _strips(rows)
    ) + kernel_min_cycles(config.groups)


class Loops(NamedTuple):
    """Loop counts ``ob``, ``oy`` and ``ox`` of a KERNEL, which works on the ``oy`` rows side by side.

    If a kernel computes each element from its position alone, each vector can be a row: with few rows that takes a
    fraction of the time. `whole` is set if all operands have adjacent rows, so that all vectors are one loop.
    """

    outer: int
    rows: int
    columns: int
    whole: bool = False

    def strides(self, row: int, column: int) -> tuple[int, int, int]:
        """Return the strides of an operand whose rows and columns are `row` and `column` vectors apart."""
        if self.whole:
            return 0, column, 0
        return (0, row, column) if self.outer == 1 else (row, column, 0)

    def cycles(self, ops: tuple[MicroOp, ...], config: Config) -> int:
        """Return the engine's cycles."""
        return self.outer * kernel_cycles(ops, self.rows, self.columns, config)


def loops_of(
    ops: tuple[MicroOp, ...], rows: int, vectors: int, config: Config, *, apart: bool, whole: bool
) -> Loops:
    """Return the fastest loops over rows of `vectors` vectors.

    Parameters
    ----------
    apart : bool
        Whether the kernel may process each vector independently.
    whole : bool
        Whether all operands have adjacent rows.
    """
    choices = [Loops(1, rows, vectors)]
    if apart and whole and rows * vectors <= COUNT_MAX:
        choices.append(Loops(1, rows * vectors, 1, whole=True))
    elif apart and rows > 1:
        choices.append(Loops(rows, vectors, 1))
    return min(choices, key=lambda loops: loops.cycles(ops, config))


def _strips(rows: int) -> range:
    return range(0, rows, STRIP_ROWS)


def _strip_cycles(ops: tuple[MicroOp, ...], rows: int, columns: int, config: Config) -> int:
    groups, total = config.groups, 0
    for index, op in enumerate(ops):
        # Target of the loop that the micro-operation is in; those outside run once per row.
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
    """Yield the tasks of an operator whose rows are channels over all pixels of an image."""
    n, vectors, pixels = site.config.n, plan.vectors, plan.rows
    src, dst = site.sources[0], site.dst
    # Results overwrite their sources, so that a slot is all that an image needs.
    images = Ring(0, pixels * vectors, plan.slots)
    constants = site.config.scratchpad_size - VECTORS_PER_CONSTANT * len(op.vectors) * vectors
    ops = generate(op.kernel, n)
    start = yield from emit.kernel(ops)
    box = Box(0, 0, dst.h, dst.w)
    for first in range(0, dst.c, vectors * n):
        channels = (first, min(vectors * n, dst.c - first))
        count = ceil_div(channels[1], n)
        fields: dict[str, int] = {}
        for index, tensor in enumerate(op.vectors):
            place = constants + VECTORS_PER_CONSTANT * index * vectors
            yield emit.load_constant(interleave_bytes(tensor[first : first + channels[1]], n), place)
            name = ROW_OPERANDS[index]
            fields |= {
                f"with_{name}": 1,
                name: place,
                f"{name}_oy": VECTORS_PER_CONSTANT,
                f"{name}_vectors": VECTORS_PER_CONSTANT,
            }
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
        self.constants = last - VECTORS_PER_CONSTANT * len(op.vectors) * tile.vectors
        self.vectors = [ceil_div(tensor.c, n) for tensor in (*self.sources, self.dst)]
        at, self.inputs = first, []
        for vectors in self.vectors[:-1]:
            self.inputs.append(Ring(at, tile.rows * vectors, slots))
            at += slots * tile.rows * vectors
        # In a slot of 16-bit results, all lower bytes follow all upper bytes.
        size = tile.rows * self.vectors[-1] * (1 + op.wide)
        self.outputs = Ring(self.constants - slots * size, size, slots)

    def tasks(self) -> Iterator[Task]:
        rows = self.op.kernel
        tables = yield from self.emit.lookups(tables_of(rows), self._blocks())
        ops = with_tables(generate(rows, self.config.n), tables)
        start = yield from self.emit.kernel(ops)
        for index, tensor in enumerate(self.op.vectors):
            at = self.constants + VECTORS_PER_CONSTANT * index * self.tile.vectors
            yield self.emit.load_constant(interleave_bytes(tensor, self.config.n), at)
        for image in range(self.dst.n):
            for y in range(self.dst.h):
                for x in range(0, self.dst.w, self.tile.rows):
                    box = Box(y, x, 1, min(self.tile.rows, self.dst.w - x))
                    yield from self._tile(image, box, ops, start)

    def _blocks(self) -> Ring:
        """Return the ring through which look-up tables pass: the space of the first rows, which are loaded
        afterwards."""
        first = self.inputs[0].start
        return Ring(first, min(self.constants - first, ceil_div(LOOKUP_ENTRIES, self.config.n)), 1)

    def _tile(self, image: int, box: Box, ops: tuple[MicroOp, ...], start: int) -> Iterator[Task]:
        rows, (*counts, stored) = box.w, self.vectors
        places = []
        for ring, source, count in zip(self.inputs, self.sources, counts, strict=True):
            part = _source_box(source, image, box)
            place, is_loaded = ring.get(part)
            if not is_loaded:
                yield from self.emit.load_box(source, *part, (0, source.c), place, count, 0)
            # A step of 0 repeats a row, or a vector, that the source broadcasts.
            places.append((place, count if part[1].w > 1 else 0, 1 if count > 1 else 0))
        out, _ = self.outputs.get((image, box))
        vectors, columns = self.tile.vectors, max(self.sources[0].c, self.dst.c)
        places += [
            (self.constants + VECTORS_PER_CONSTANT * index * vectors, 0, VECTORS_PER_CONSTANT)
            for index in range(len(self.op.vectors))
        ]
        lower, ends = out + rows * stored, (stored, 1 if stored > 1 else 0)
        # All operands, results included, have adjacent rows.
        adjacent = all(row == column * vectors for _, row, column in (*places, (out, *ends)))
        loops = loops_of(ops, rows, vectors, self.config, apart=self.apart, whole=adjacent or rows == 1)
        fields = _operand("src", places[0], loops)
        for name, read in zip(ROW_OPERANDS, places[1:], strict=False):
            fields |= {f"with_{name}": 1, f"{name}_vectors": max(1, read[2])} | _operand(name, read, loops)
        fields |= _operand("dst", (out, *ends), loops)
        if self.op.wide:
            fields |= {"with_dst2": 1} | _operand("dst2", (lower, *ends), loops)
        yield Task(
            Kernel(
                source=Source.SCRATCHPAD,
                start=start,
                ob=loops.outer,
                oy=loops.rows,
                ox=loops.columns,
                tail=0 if loops.whole or loops.outer > 1 else columns % self.config.n,
                **fields,
            ),
            self.layer,
            loops.cycles(ops, self.config),
            paces=True,
        )
        yield from self.emit.store_box(self.dst, image, box, (0, self.dst.c), out, stored)
        if self.op.wide:
            dst = self.dst.advance(self.op.dst.plane_pitch)
            yield from self.emit.store_box(dst, image, box, (0, dst.c), lower, stored)


def _operand(name: str, place: tuple[int, int, int], loops: Loops) -> dict[str, int]:
    """Return the address and stride fields of an operand, from (address, row step, column step)."""
    at, row, column = place
    strides = loops.strides(row, column)
    return {name: at} | {f"{name}_{loop}": by for loop, by in zip(("ob", "oy", "ox"), strides, strict=True)}


def _source_box(source: TensorRef, image: int, box: Box) -> tuple[int, Box]:
    """Return the image and box of a source for those of the result; sources may broadcast images, rows and columns."""
    row, column = (0 if source.h == 1 else box.y), (0 if source.w == 1 else box.x)
    return (image if source.n > 1 else 0), Box(row, column, 1, 1 if source.w == 1 else box.w)


MAX_OFFSETS = places(Opcode.LOAD)["page"].high + 1
"""Most page-table offsets that LOADs of one program can address."""
_VECTORS = 2048
"""Most vectors of a slot, so that LOADs and STOREs overlap."""
_SLOTS = 2


@dataclass(frozen=True)
class EmbeddingPlan:
    """Rows of an embedding on chip at a time, and their columns."""

    rows: int
    columns: int


def plan(site: Site) -> EmbeddingPlan | None:
    """Plan as many rows as fit twice; parts of a row if not even one fits."""
    n, (first, last) = site.config.n, site.room
    room = min((last - first) // _SLOTS, _VECTORS, LENGTH_MAX // n)
    if room < 1:
        return None
    vectors = ceil_div(site.dst.c, n)
    rows = min(room // min(vectors, room), site.dst.w, COUNT_MAX, PIXELS_MAX)
    return EmbeddingPlan(rows, min(room * n, site.dst.c))


def lower_embedding(op: Embedding, site: Site, plan: EmbeddingPlan, emit: Emitter) -> Iterator[Task]:
    """Yield the tasks of one embedding in sequential order.

    Raises
    ------
    CompileError
        If the program then has more offsets than LOADs can address.
    """
    n, dst, (offsets,) = site.config.n, site.dst, site.sources
    if offsets.offset // PAGE_ENTRY + dst.w > MAX_OFFSETS:
        raise CompileError(
            f"{op.name}: the program has more than {MAX_OFFSETS:,} embedding indices, the most that LOADs can address; "
            "split the model, or look up fewer indices at once"
        )
    content = op.content
    rows, columns = content.shape
    size = rows * columns
    # Rows are addressed through the page table: each index is a page offset into the constants.
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


def early_table_tasks(ops: Sequence[DeviceOp], emit: Emitter) -> Tasks:
    """Return tasks that fill the softmax table at the start of a program, while the vector unit is idle.

    There are none if the table's first user is an attention, which fills it while the array works, or the program's
    first operator.
    """
    config = emit.config
    user = next((op for op in ops if isinstance(op, Softmax | Attention)), None)
    worth = isinstance(user, Softmax) and user is not ops[0]
    place = config.scratchpad_size - config.table_depth // config.n
    return Tasks.of(table_tasks(emit, place) if worth else (), config)
