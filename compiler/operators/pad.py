"""Rows and columns around an image."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from weft.compiler.ir.graph import Pad
from weft.compiler.ir.microops import Value, elementwise, looked_up, reduce, requantise, window_of
from weft.compiler.ir.scales import quantise_scale
from weft.compiler.lower.vector import Job, lower_vector, uniform
from weft.compiler.machine.emit import Emitter, ceil_div
from weft.compiler.machine.target import Target
from weft.compiler.machine.tasks import Task
from weft.compiler.operators.record import Cost, Operator, Shape4
from weft.compiler.plan import vector_plan
from weft.compiler.plan.conv_plan import Chooser
from weft.compiler.plan.site import Site
from weft.compiler.plan.vector_plan import VectorPlan


def _shape(op: Pad) -> Shape4:
    n, h, w, c = op.src.shape
    return n, *op.window.output(h, w), c


def _evaluate(op: Pad, given: tuple[np.ndarray, ...], bits: int) -> np.ndarray:
    around = window_of(Value.image(given[0]), op.window, op.dst.shape[1:3], op.fill)
    centred = elementwise(lambda v: v - op.x_zero, reduce("add", around, "yx"))
    return looked_up(requantise(centred, op.scale, "", op, bits), op).int8()


def _plan(op: Pad, site: Site, choose: Chooser) -> VectorPlan | None:
    return vector_plan.plan(site, op.window)


def _beside(op: Pad, site: Site) -> VectorPlan | None:
    return vector_plan.beside(site, op.window)


def _lower(op: Pad, site: Site, emit: Emitter) -> Iterator[Task]:
    block = uniform(site.config, -op.x_zero, *quantise_scale(op.scale, site.config.mantissa_bits))
    return lower_vector(op, Job(lambda _: block, op.fill, op.window), site, op.plan, emit)


def _cost(op: Pad, plan: VectorPlan, target: Target) -> Cost:
    """Each tensor is moved once."""
    n, h, w, c = op.dst.shape
    vectors = n * h * w * ceil_div(c, target.config.n)
    return Cost(*vector_plan.cycles(op, target, vectors * target.config.groups, plan.moved))


OPERATOR = Operator(Pad, _shape, _evaluate, _plan, _lower, _cost, beside=_beside, resident=True)
