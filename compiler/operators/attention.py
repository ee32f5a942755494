"""Softmax, fused attention, embeddings, and matrix products of two activations."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from weft.compiler.errors import IrError
from weft.compiler.ir import products
from weft.compiler.ir.graph import Attention, DeviceOp, Softmax
from weft.compiler.ir.microops import Value, product_sum, requantise
from weft.compiler.ir.products import Counts, Embedding, Product
from weft.compiler.lower.attention import lower_attention
from weft.compiler.lower.product import lower_product, lower_softmax
from weft.compiler.lower.rows import EmbeddingPlan, lower_embedding, plan
from weft.compiler.machine import target as overheads
from weft.compiler.machine.emit import Emitter, ceil_div
from weft.compiler.machine.target import Target
from weft.compiler.machine.tasks import Task
from weft.compiler.operators.record import Cost, Operator, Shape4
from weft.compiler.plan import attention_plan, product_plan, vector_plan
from weft.compiler.plan import vector_plan as softmax_plan
from weft.compiler.plan.attention_plan import AttentionPlan
from weft.compiler.plan.conv_plan import Chooser
from weft.compiler.plan.product_plan import ProductPlan
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


def _product_shape(op: Product) -> Shape4:
    images, heads = op.counts
    inner = op.b.shape[2] if not op.transposed else prod(op.b.shape) // (prod(op.b_counts) * op.b.shape[2])
    for view, counts, rows in ((op.a, op.a_counts, op.a.shape[2]), (op.b, op.b_counts, op.b.shape[2])):
        size = prod(view.shape) // (prod(counts) * rows)
        if view.shape not in _shapes(counts, rows, size) or counts[0] not in (1, images) or heads % counts[1]:
            raise IrError(f"{op.name}: operand {view.shape} as {counts} matrices for {op.counts}")
    if inner != op.depth:
        raise IrError(f"{op.name}: rows of {op.depth} elements times columns of {inner}")
    shapes = _shapes(op.counts, op.rows, op.columns)
    return op.dst.shape if op.dst.shape in shapes else shapes[0]


def _shapes(counts: Counts, rows: int, size: int) -> tuple[Shape4, Shape4]:
    """Return the two shapes of a tensor of matrices: heads as images, or heads as channels."""
    images, heads = counts
    return (images * heads, 1, rows, size), (images, 1, rows, heads * size)


def matrices(view_shape: Shape4, counts: Counts, array: np.ndarray) -> np.ndarray:
    """Return the matrices of an operand: (images, heads, rows, size)."""
    images, heads = counts
    if view_shape[0] == images:
        return array.reshape(images, view_shape[2], heads, -1).swapaxes(1, 2)
    return array.reshape(images, heads, view_shape[2], -1)


def _product_evaluate(op: Product, inputs: tuple[np.ndarray, ...], bits: int) -> np.ndarray:
    operands = []
    for view, counts, zero, tensor in zip(
        (op.a, op.b), (op.a_counts, op.b_counts), (op.a_zero, op.b_zero), inputs, strict=True
    ):
        heads = matrices(view.shape, counts, tensor.astype(np.int64)) - zero
        # Operands may have one image for all, and one head for several.
        heads = np.broadcast_to(heads, (op.counts[0], *heads.shape[1:]))
        operands.append(np.repeat(heads, op.counts[1] // counts[1], axis=1))
    a = Value(operands[0], "nhiw" if op.a_transposed else "nhwi")
    b = Value(operands[1], "nhci" if op.transposed else "nhic")
    result = requantise(product_sum(a, b, "i"), op.scale, "", op, bits).int8()
    heads_in_channels = op.dst.shape[0] == op.counts[0]
    return (result.swapaxes(1, 2) if heads_in_channels else result).reshape(op.dst.shape)


def _product_plan(op: Product, site: Site, choose: Chooser) -> ProductPlan | None:
    return product_plan.plan(op, site.target)


def _product_lower(op: Product, site: Site, emit: Emitter) -> Iterator[Task]:
    return lower_product(op, site, op.plan, emit)


def _product_cost(op: Product, plan: ProductPlan, target: Target) -> Cost:
    return Cost(plan.cycles, plan.traffic)


def _missing_feature(op: Product, config: Config) -> str | None:
    if (op.transposed and not op.a_transposed) or config.softmax:
        return None
    return (
        "this configuration cannot transpose matrices, which it does for attention; set 'probability_bits' "
        "to 8, or to 7 for small parts"
    )


PRODUCT = Operator(
    Product,
    _product_shape,
    _product_evaluate,
    _product_plan,
    _product_lower,
    _product_cost,
    _missing_feature,
    allows_lookup=False,
)
