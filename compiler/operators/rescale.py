"""Requantisation, and copies."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from weft.compiler.ir.graph import ONE, Rescale
from weft.compiler.ir.microops import Value, elementwise, looked_up, requantise
from weft.compiler.lower.vector import Job, lower_vector, pointwise
from weft.compiler.machine.emit import Emitter, ceil_div
from weft.compiler.machine.target import Target
from weft.compiler.machine.tasks import Task
from weft.compiler.operators.record import Cost, Operator, Shape4
from weft.compiler.plan import vector_plan
from weft.compiler.plan.conv_plan import Chooser
from weft.compiler.plan.site import Site
from weft.compiler.plan.vector_plan import VectorPlan


def _shape(op: Rescale) -> Shape4:
    return op.src.shape


def _evaluate(op: Rescale, given: tuple[np.ndarray, ...], bits: int) -> np.ndarray:
    centred = elementwise(lambda v: v - op.x_zero, Value.image(given[0]))
    return looked_up(requantise(centred, op.scale, "", op, bits), op).int8()


def _plan(op: Rescale, site: Site, choose: Chooser) -> VectorPlan | None:
    return vector_plan.plan(site.flattened(), ONE)


def _beside(op: Rescale, site: Site) -> VectorPlan | None:
    return vector_plan.beside(site.flattened(), ONE)


def _lower(op: Rescale, site: Site, emit: Emitter) -> Iterator[Task]:
    job = Job(lambda _: pointwise(op, site.config), op.x_zero)
    return lower_vector(op, job, site.flattened(), op.plan, emit)


def _cost(op: Rescale, plan: VectorPlan, target: Target) -> Cost:
    """Each tensor is moved once."""
    n, h, w, c = op.dst.shape
    vectors = n * h * w * ceil_div(c, target.config.n)
    return Cost(*vector_plan.cycles(op, target, vectors * target.config.groups, plan.moved))


OPERATOR = Operator(Rescale, _shape, _evaluate, _plan, _lower, _cost, beside=_beside, resident=True)
