"""Softmax over the channels of pixels."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from weft.compiler.ir import reference
from weft.compiler.ir.graph import DeviceOp, Softmax
from weft.compiler.lower.softmax import lower_softmax
from weft.compiler.machine.emit import Emitter, ceil_div
from weft.compiler.machine.target import Target
from weft.compiler.machine.tasks import Task
from weft.compiler.operators.record import Cost, Operator, Shape4
from weft.compiler.plan import softmax_plan, vector_plan
from weft.compiler.plan.conv_plan import Chooser
from weft.compiler.plan.site import Site
from weft.compiler.plan.softmax_plan import SoftmaxPlan
from weft.hdl.isa.config import Config


def _shape(op: Softmax) -> Shape4:
    return op.src.shape


def _evaluate(op: Softmax, given: tuple[np.ndarray, ...], bits: int) -> np.ndarray:
    return reference.softmax(op, given[0])


def _plan(op: Softmax, site: Site, choose: Chooser) -> SoftmaxPlan | None:
    return softmax_plan.plan(site.flattened().sources[0], site.config)


def _lower(op: Softmax, site: Site, emit: Emitter) -> Iterator[Task]:
    return lower_softmax(op, site.flattened(), op.plan, emit)


def _cost(op: Softmax, plan: SoftmaxPlan, target: Target) -> Cost:
    """Two passes over the scores, and one that normalises; each tensor is moved once."""
    n, h, w, c = op.dst.shape
    vectors = n * h * w * ceil_div(c, target.config.n)
    return Cost(*vector_plan.cycles(op, target, 3 * vectors * target.config.groups, 2 * prod(op.dst.shape)))


def no_softmax_unit(op: DeviceOp, config: Config) -> str | None:
    """What a configuration without the unit says to all who need it."""
    if config.softmax:
        return None
    return "this configuration has no softmax unit; set 'probability_bits' to 8, or to 7 for small parts"


OPERATOR = Operator(
    Softmax, _shape, _evaluate, _plan, _lower, _cost, no_softmax_unit, exact=False, looked_up=False
)
