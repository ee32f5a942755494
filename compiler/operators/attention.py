"""Fused attention."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from weft.compiler.ir import reference
from weft.compiler.ir.graph import Attention, IrError
from weft.compiler.lower.attention import lower_attention
from weft.compiler.machine.emit import Emitter
from weft.compiler.machine.target import Target
from weft.compiler.machine.tasks import Task
from weft.compiler.operators.record import Cost, Operator, Shape4
from weft.compiler.operators.softmax import no_softmax_unit
from weft.compiler.plan import attention_plan
from weft.compiler.plan.attention_plan import AttentionPlan
from weft.compiler.plan.conv_plan import Chooser
from weft.compiler.plan.site import Site


def _shape(op: Attention) -> Shape4:
    if op.heads % op.kv_heads or len(op.lengths) != op.images or (op.page and op.images != 1):
        raise IrError(
            f"{op.name}: {op.heads} heads on {op.kv_heads}, {len(op.lengths)} lengths of {op.images} images"
        )
    for view, heads, size in ((op.q, op.heads, op.head_size), (op.k, op.kv_heads, op.head_size),
                              (op.v, op.kv_heads, op.v_size)):  # fmt: skip
        images, rows = (
            (view.shape[0], op.page) if op.page and view is not op.q else (op.images, view.shape[2])
        )
        if view.shape not in ((images, 1, rows, heads * size), (images * heads, 1, rows, size)):
            raise IrError(
                f"{op.name}: operand {view.shape} is not {heads} heads of {size} in {images} images"
            )
    if op.k.shape[2] != op.v.shape[2] or not all(0 <= length <= op.keys for length in op.lengths):
        raise IrError(f"{op.name}: {op.k.shape[2]} keys, {op.v.shape[2]} values, lengths {op.lengths}")
    rows = op.q.shape[2]
    if op.dst.shape[0] == op.images and op.dst.shape[3] == op.heads * op.v_size:
        return op.images, 1, rows, op.heads * op.v_size
    return op.images * op.heads, 1, rows, op.v_size


def _evaluate(op: Attention, given: tuple[np.ndarray, ...], bits: int) -> np.ndarray:
    return reference.attention(op, *given)


def _plan(op: Attention, site: Site, choose: Chooser) -> AttentionPlan | None:
    return attention_plan.plan(op, site.target)


def _lower(op: Attention, site: Site, emit: Emitter) -> Iterator[Task]:
    return lower_attention(op, site, op.plan, emit)


def _cost(op: Attention, plan: AttentionPlan, target: Target) -> Cost:
    """Queries and outputs are moved once, keys and values at least once."""
    moved = sum(prod(view.shape) for view in (op.q, op.dst)) + op.images * op.keys * op.kv_heads * (
        op.head_size + op.v_size
    )
    return Cost(plan.cycles, target.moved(moved))


OPERATOR = Operator(
    Attention, _shape, _evaluate, _plan, _lower, _cost, no_softmax_unit, exact=False, looked_up=False
)
