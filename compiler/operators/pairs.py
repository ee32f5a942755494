"""What operators of two operands, element by element, have in common."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from weft.compiler.ir.graph import ONE, Add, IrError, Multiply
from weft.compiler.ir.microops import (
    Value,
    clamp,
    divide_half_even,
    elementwise,
    looked_up,
    requantise,
    scalar,
)
from weft.compiler.ir.scales import quantise_pair
from weft.compiler.lower.vector import Job, lower_vector, pointwise
from weft.compiler.machine.emit import Emitter, ceil_div
from weft.compiler.machine.target import Target
from weft.compiler.machine.tasks import Task
from weft.compiler.operators.record import Cost, Operator, Shape4
from weft.compiler.plan import vector_plan
from weft.compiler.plan.conv_plan import Chooser
from weft.compiler.plan.site import Site
from weft.compiler.plan.vector_plan import VectorPlan
from weft.hdl.isa.config import Config

Pairwise = Add | Multiply


def shape(op: Pairwise) -> Shape4:
    a, b = op.a.shape, op.b.shape
    if b[3] != a[3] or any(one not in (1, other) for one, other in zip(b, a, strict=True)):
        raise IrError(f"{op.name}: operands {a} and {b}")
    return a


def _site(op: Pairwise, site: Site) -> Site:
    """Rows of pixels, unless the second operand repeats in some way that these have not."""
    alike = op.b.shape in (op.a.shape, (1, 1, 1, op.a.shape[3]))
    return site.flattened() if alike else site


def plan(op: Pairwise, site: Site, choose: Chooser) -> VectorPlan | None:
    return vector_plan.plan(_site(op, site), ONE)


def beside(op: Pairwise, site: Site) -> VectorPlan | None:
    return vector_plan.beside(_site(op, site), ONE)


def lower(op: Pairwise, site: Site, emit: Emitter) -> Iterator[Task]:
    job = Job(lambda _: pointwise(op, site.config), op.a_zero, pairwise=op)
    return lower_vector(op, job, _site(op, site), op.plan, emit)


def cost(op: Pairwise, plan: VectorPlan, target: Target) -> Cost:
    """Each tensor is moved once; a second operand that is one column for all is read no more often than that."""
    n, h, w, c = op.dst.shape
    vectors = n * h * w * ceil_div(c, target.config.n)
    second = 1 if op.b.shape[2] == w else 0
    return Cost(*vector_plan.cycles(op, target, vectors * (target.config.groups + second), plan.moved))


def no_products(config: Config) -> str | None:
    """What a configuration lacks for products and differences."""
    if config.multiply:
        return None
    return "this configuration cannot multiply or subtract elements; set 'multiply' to 1"


def _evaluate(op: Add, given: tuple[np.ndarray, ...], bits: int) -> np.ndarray:
    """Both operands times their mantissas at a common shift."""
    a_mantissa, b_mantissa, shift = quantise_pair(op.a_scale, abs(op.b_scale), bits)
    sign = -1 if op.b_scale < 0 else 1
    total = elementwise(
        lambda p, q: (p - op.a_zero) * a_mantissa + sign * (q - op.b_zero) * b_mantissa,
        *map(Value.image, given),
    )
    return looked_up(clamp(divide_half_even(total, scalar(shift)), op), op).int8()


def _unsupported(op: Add, config: Config) -> str | None:
    return no_products(config) if op.b_scale < 0 else None


ADD = Operator(
    Add, shape, _evaluate, plan, lower, cost, _unsupported,
    beside=beside, resident=True,
)  # fmt: skip


def _multiply_evaluate(op: Multiply, given: tuple[np.ndarray, ...], bits: int) -> np.ndarray:
    """The product of the operands less their zero points, requantised."""
    product = elementwise(lambda p, q: (p - op.a_zero) * (q - op.b_zero), *map(Value.image, given))
    return looked_up(requantise(product, op.scale, "", op, bits), op).int8()


def _multiply_unsupported(op: Multiply, config: Config) -> str | None:
    return no_products(config)


MULTIPLY = Operator(
    Multiply,
    shape,
    _multiply_evaluate,
    plan,
    lower,
    cost,
    _multiply_unsupported,
    beside=beside,
    resident=True,
)
