"""Softmax, fused attention and embeddings."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from weft.compiler.errors import IrError
from weft.compiler.ir import products
from weft.compiler.ir.graph import Attention, DeviceOp, Softmax
from weft.compiler.ir.products import Embedding
from weft.compiler.lower.attention import lower_attention
from weft.compiler.lower.product import lower_softmax
from weft.compiler.lower.rows import EmbeddingPlan, lower_embedding, plan
from weft.compiler.machine import target as overheads
from weft.compiler.machine.emit import Emitter, ceil_div
from weft.compiler.machine.target import Target
from weft.compiler.machine.tasks import Task
from weft.compiler.operators.record import Cost, Operator, Shape4
from weft.compiler.plan import attention_plan, vector_plan
from weft.compiler.plan import vector_plan as softmax_plan
from weft.compiler.plan.attention_plan import AttentionPlan
from weft.compiler.plan.conv_plan import Chooser
from weft.compiler.plan.site import Site
from weft.compiler.plan.vector_plan import SoftmaxPlan
from weft.hdl.isa import PAGE_ENTRY
from weft.hdl.isa.config import Config


def _softmax_shape(op: Softmax) -> Shape4:
    return op.src.shape


def _softmax_evaluate(op: Softmax, inputs: tuple[np.ndarray, ...], bits: int) -> np.ndarray:
    return products.softmax(op, inputs[0])


def _softmax_plan(op: Softmax, site: Site, choose: Chooser) -> SoftmaxPlan | None:
    return softmax_plan.plan_softmax(site.flatten().sources[0], site.config)


def _softmax_lower(op: Softmax, site: Site, emit: Emitter) -> Iterator[Task]:
    return lower_softmax(op, site.flatten(), op.plan, emit)


def _softmax_cost(op: Softmax, plan: SoftmaxPlan, target: Target) -> Cost:
    n, h, w, c = op.dst.shape
    vectors = n * h * w * ceil_div(c, target.config.n)
    return Cost(*vector_plan.cycles(op, target, 3 * vectors * target.config.groups, 2 * prod(op.dst.shape)))


def no_softmax_unit(op: DeviceOp, config: Config) -> str | None:
    """Return why an operator that needs the softmax unit cannot run; None if there is a unit."""
    if config.softmax:
        return None
    return "this configuration has no softmax unit; set 'probability_bits' to 8, or to 7 for small parts"


SOFTMAX = Operator(
    Softmax,
    _softmax_shape,
    _softmax_evaluate,
    _softmax_plan,
    _softmax_lower,
    _softmax_cost,
    no_softmax_unit,
    exact=False,
    allows_lookup=False,
)


def _shape(op: Attention) -> Shape4:
    if op.heads % op.kv_heads or len(op.lengths) != op.images or (op.page and op.images != 1):
        raise IrError(
            f"{op.name}: {op.heads} heads on {op.kv_heads}, {len(op.lengths)} lengths of {op.images} images"
        )
    for view, heads, size in (
        (op.q, op.heads, op.head_size),
        (op.k, op.kv_heads, op.head_size),
        (op.v, op.kv_heads, op.v_size),
    ):
        images, rows = (
            (view.shape[0], op.page) if op.page and view is not op.q else (op.images, view.shape[2])
        )
        if view.shape not in ((images, 1, rows, heads * size), (images * heads, 1, rows, size)):
            raise IrError(
                f"{op.name}: operand {view.shape} is not {heads} heads of {size} in {images} images"
            )
    if op.k.shape[2] != op.v.shape[2] or not all(0 <= length <= op.keys for length in op.lengths):
        raise IrError(f"{op.name}: {op.k.shape[2]} keys, {op.v.shape[2]} values, lengths {op.lengths}")
    # The result's layout is free: heads side by side in the channels, or as images.
    rows = op.q.shape[2]
    if op.dst.shape[0] == op.images and op.dst.shape[3] == op.heads * op.v_size:
        return op.images, 1, rows, op.heads * op.v_size
    return op.images * op.heads, 1, rows, op.v_size


def _evaluate(op: Attention, inputs: tuple[np.ndarray, ...], bits: int) -> np.ndarray:
    return products.attention(op, *inputs)


def _plan(op: Attention, site: Site, choose: Chooser) -> AttentionPlan | None:
    return attention_plan.plan(op, site.target)


def _lower(op: Attention, site: Site, emit: Emitter) -> Iterator[Task]:
    return lower_attention(op, site, op.plan, emit)


def _cost(op: Attention, plan: AttentionPlan, target: Target) -> Cost:
    size = sum(prod(view.shape) for view in (op.q, op.dst)) + op.images * op.keys * op.kv_heads * (
        op.head_size + op.v_size
    )
    return Cost(plan.cycles, target.transfer_cycles(size))


ATTENTION = Operator(
    Attention, _shape, _evaluate, _plan, _lower, _cost, no_softmax_unit, exact=False, allows_lookup=False
)


def _embedding_shape(op: Embedding) -> Shape4:
    n, h, w, c = op.src.shape
    if (n, h, c) != (1, 1, PAGE_ENTRY) or op.values.ndim != 2:
        raise IrError(f"{op.name}: offsets of shape {op.src.shape} for values of shape {op.values.shape}")
    return 1, 1, w, op.values.shape[1]


def _embedding_evaluate(op: Embedding, inputs: tuple[np.ndarray, ...], bits: int) -> np.ndarray:
    offsets = np.ascontiguousarray(inputs[0]).view("<u4").reshape(-1)
    return op.content[offsets // op.values.shape[1]][None, None]


def _embedding_plan(op: Embedding, site: Site, choose: Chooser) -> EmbeddingPlan | None:
    return plan(site)


def _embedding_lower(op: Embedding, site: Site, emit: Emitter) -> Iterator[Task]:
    return lower_embedding(op, site, op.plan, emit)


def _embedding_cost(op: Embedding, plan: EmbeddingPlan, target: Target) -> Cost:
    _, _, rows, columns = op.dst.shape
    cycles = 2 * rows * target.run(columns) + rows * overheads.RUN_CYCLES
    return Cost(cycles, cycles)


EMBEDDING = Operator(
    Embedding,
    _embedding_shape,
    _embedding_evaluate,
    _embedding_plan,
    _embedding_lower,
    _embedding_cost,
    no_softmax_unit,
    allows_lookup=False,
)
