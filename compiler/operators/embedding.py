"""Rows of a constant table."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from weft.compiler.ir.embedding import Embedding
from weft.compiler.ir.graph import IrError
from weft.compiler.lower.embedding import EmbeddingPlan, lower_embedding, plan
from weft.compiler.machine import overheads
from weft.compiler.machine.emit import Emitter
from weft.compiler.machine.target import Target
from weft.compiler.machine.tasks import Task
from weft.compiler.operators.record import Cost, Operator, Shape4
from weft.compiler.operators.softmax import no_softmax_unit
from weft.compiler.plan.conv_plan import Chooser
from weft.compiler.plan.site import Site
from weft.hdl.isa import PAGE_ENTRY


def _shape(op: Embedding) -> Shape4:
    n, h, w, c = op.src.shape
    if (n, h, c) != (1, 1, PAGE_ENTRY) or op.values.ndim != 2:
        raise IrError(f"{op.name}: offsets of shape {op.src.shape} for values of shape {op.values.shape}")
    return 1, 1, w, op.values.shape[1]


def _evaluate(op: Embedding, given: tuple[np.ndarray, ...], bits: int) -> np.ndarray:
    offsets = np.ascontiguousarray(given[0]).view("<u4").reshape(-1)
    return op.content[offsets // op.values.shape[1]][None, None]


def _plan(op: Embedding, site: Site, choose: Chooser) -> EmbeddingPlan | None:
    return plan(site)


def _lower(op: Embedding, site: Site, emit: Emitter) -> Iterator[Task]:
    return lower_embedding(op, site, op.plan, emit)


def _cost(op: Embedding, plan: EmbeddingPlan, target: Target) -> Cost:
    """Each row is read and written once, and its offset read."""
    _, _, rows, columns = op.dst.shape
    moved = 2 * rows * target.run(columns) + rows * overheads.RUN
    return Cost(moved, moved)


OPERATOR = Operator(Embedding, _shape, _evaluate, _plan, _lower, _cost, no_softmax_unit, looked_up=False)
