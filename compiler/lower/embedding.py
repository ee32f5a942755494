"""Rows of a constant table to tasks: a LOAD for each row, which adds its offset, and a STORE of many."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from weft.compiler.ir.embedding import Embedding
from weft.compiler.ir.graph import CompileError
from weft.compiler.machine.emit import Box, Emitter, ceil_div
from weft.compiler.machine.limits import COUNT_MAX, LENGTH_MAX, PIXELS_MAX
from weft.compiler.machine.memory import CONSTANTS, Ring, TensorRef
from weft.compiler.machine.tasks import Task
from weft.compiler.plan.site import Site
from weft.hdl.isa import PAGE_ENTRY, Opcode, places

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
