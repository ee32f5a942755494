"""Matrix products of two activations."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from weft.compiler.errors import IrError
from weft.compiler.ir.microops import Value, product_sum, requantise
from weft.compiler.ir.products import Counts, Product
from weft.compiler.lower.product import lower_product
from weft.compiler.machine.emit import Emitter
from weft.compiler.machine.target import Target
from weft.compiler.machine.tasks import Task
from weft.compiler.operators.record import Cost, Operator, Shape4
from weft.compiler.plan import product_plan
from weft.compiler.plan.conv_plan import Chooser
from weft.compiler.plan.product_plan import ProductPlan
from weft.compiler.plan.site import Site
from weft.hdl.isa.config import Config


def _shape(op: Product) -> Shape4:
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


def _evaluate(op: Product, inputs: tuple[np.ndarray, ...], bits: int) -> np.ndarray:
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


def _plan(op: Product, site: Site, choose: Chooser) -> ProductPlan | None:
    return product_plan.plan(op, site.target)


def _lower(op: Product, site: Site, emit: Emitter) -> Iterator[Task]:
    return lower_product(op, site, op.plan, emit)


def _cost(op: Product, plan: ProductPlan, target: Target) -> Cost:
    return Cost(plan.cycles, plan.traffic)


def _missing_feature(op: Product, config: Config) -> str | None:
    if (op.transposed and not op.a_transposed) or config.softmax:
        return None
    return (
        "this configuration cannot transpose matrices, which it does for attention; set 'probability_bits' "
        "to 8, or to 7 for small parts"
    )


OPERATOR = Operator(Product, _shape, _evaluate, _plan, _lower, _cost, _missing_feature, allows_lookup=False)
