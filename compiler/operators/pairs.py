"""Elementwise operators of two operands: addition and multiplication."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from weft.compiler.errors import IrError
from weft.compiler.ir.graph import ONE, Add, Multiply
from weft.compiler.ir.microops import (
    Value,
    apply_lookup,
    clamp,
    divide_half_even,
    elementwise,
    requantise,
    scalar,
)
from weft.compiler.ir.scales import quantise_pair
from weft.compiler.lower.vector import Job, lower_vector, pointwise_block
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
    # A flattened site has one row, so it cannot repeat an image, row or column.
    alike = op.b.shape in (op.a.shape, (1, 1, 1, op.a.shape[3]))
    return site.flatten() if alike else site


def plan(op: Pairwise, site: Site, choose: Chooser) -> VectorPlan | None:
    return vector_plan.plan(_site(op, site), ONE)


def plan_beside(op: Pairwise, site: Site) -> VectorPlan | None:
    return vector_plan.plan_beside(_site(op, site), ONE)


def lower(op: Pairwise, site: Site, emit: Emitter) -> Iterator[Task]:
    job = Job(lambda _: pointwise_block(op, site.config), op.a_zero, pairwise=op)
    return lower_vector(op, job, _site(op, site), op.plan, emit)


def cost(op: Pairwise, plan: VectorPlan, target: Target) -> Cost:
    """Estimate cycles. Each tensor is moved once; the vector unit reads a column that repeats only once per row."""
    n, h, w, c = op.dst.shape
    vectors = n * h * w * ceil_div(c, target.config.n)
    second = 1 if op.b.shape[2] == w else 0
    return Cost(*vector_plan.cycles(op, target, vectors * (target.config.groups + second), plan.moved))


def no_products(config: Config) -> str | None:
    """Return why elements cannot be multiplied or subtracted; None if they can."""
    if config.multiply:
        return None
    return "this configuration cannot multiply or subtract elements; set 'multiply' to 1"


def _evaluate(op: Add, inputs: tuple[np.ndarray, ...], bits: int) -> np.ndarray:
    a_mantissa, b_mantissa, shift = quantise_pair(op.a_scale, abs(op.b_scale), bits)
    sign = -1 if op.b_scale < 0 else 1
    total = elementwise(
        lambda p, q: (p - op.a_zero) * a_mantissa + sign * (q - op.b_zero) * b_mantissa,
        *map(Value.image, inputs),
    )
    return apply_lookup(clamp(divide_half_even(total, scalar(shift)), op), op).int8()


def _missing_feature(op: Add, config: Config) -> str | None:
    return no_products(config) if op.b_scale < 0 else None


ADD = Operator(
    Add,
    shape,
    _evaluate,
    plan,
    lower,
    cost,
    _missing_feature,
    plan_beside=plan_beside,
    resident=True,
)


def _multiply_evaluate(op: Multiply, inputs: tuple[np.ndarray, ...], bits: int) -> np.ndarray:
    product = elementwise(lambda p, q: (p - op.a_zero) * (q - op.b_zero), *map(Value.image, inputs))
    return apply_lookup(requantise(product, op.scale, "", op, bits), op).int8()


def _multiply_missing_feature(op: Multiply, config: Config) -> str | None:
    return no_products(config)


MULTIPLY = Operator(
    Multiply,
    shape,
    _multiply_evaluate,
    plan,
    lower,
    cost,
    _multiply_missing_feature,
    plan_beside=plan_beside,
    resident=True,
)
