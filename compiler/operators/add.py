"""Addition of two tensors."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from weft.compiler.ir.graph import ONE, Add, IrError
from weft.compiler.ir.microops import Value, clamp, divide_half_even, elementwise, looked_up, scalar
from weft.compiler.ir.scales import quantise_pair
from weft.compiler.lower.vector import Job, lower_vector, pointwise
from weft.compiler.machine.emit import Emitter, ceil_div
from weft.compiler.machine.tasks import Task
from weft.compiler.operators.record import Cost, Operator, Shape4
from weft.compiler.plan import vector_plan
from weft.compiler.plan.conv_plan import Chooser
from weft.compiler.plan.site import Site
from weft.compiler.plan.vector_plan import VectorPlan
from weft.hdl.isa.config import Config


def _shape(op: Add) -> Shape4:
    if op.a.shape != op.b.shape:
        raise IrError(f"{op.name}: operands {op.a.shape} and {op.b.shape}")
    return op.a.shape


def _evaluate(op: Add, given: tuple[np.ndarray, ...], bits: int) -> np.ndarray:
    """Both operands times their mantissas at a common shift."""
    a_mantissa, b_mantissa, shift = quantise_pair(op.a_scale, op.b_scale, bits)
    total = elementwise(
        lambda p, q: (p - op.a_zero) * a_mantissa + (q - op.b_zero) * b_mantissa, *map(Value.image, given)
    )
    return looked_up(clamp(divide_half_even(total, scalar(shift)), op), op).int8()


def _plan(op: Add, site: Site, choose: Chooser) -> VectorPlan | None:
    return vector_plan.plan(site.flattened(), ONE)


def _lower(op: Add, site: Site, emit: Emitter) -> Iterator[Task]:
    job = Job(lambda _: pointwise(op, site.config), op.a_zero, added=op)
    return lower_vector(op, job, site.flattened(), op.plan, emit)


def _cost(op: Add, plan: VectorPlan | None, config: Config) -> Cost:
    """Each tensor is moved once."""
    n, h, w, c = op.dst.shape
    vectors = n * h * w * ceil_div(c, config.n)
    return Cost(*vector_plan.cycles(op, config, vectors * (config.groups + 1), 3 * prod(op.dst.shape)))


OPERATOR = Operator(Add, _shape, _evaluate, _plan, _lower, _cost)
