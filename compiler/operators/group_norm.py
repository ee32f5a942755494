"""Normalisation of groups of channels over the pixels of images."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from weft.compiler.ir.graph import IrError
from weft.compiler.kernel.code import generate
from weft.compiler.kernel.evaluate import evaluate
from weft.compiler.kernel.operators import GroupNorm
from weft.compiler.lower.rows import BYTES, kernel_cycles, lower_images
from weft.compiler.machine.emit import Emitter, ceil_div
from weft.compiler.machine.target import Target
from weft.compiler.machine.tasks import Task
from weft.compiler.operators.record import Cost, Operator, Shape4
from weft.compiler.operators.row_wise import lacking
from weft.compiler.plan import row_plan, vector_plan
from weft.compiler.plan.conv_plan import Chooser
from weft.compiler.plan.row_plan import RowPlan
from weft.compiler.plan.site import Site
from weft.hdl.isa.config import Config


def _shape(op: GroupNorm) -> Shape4:
    if op.src.shape[3] % op.group or op.group & (op.group - 1):
        raise IrError(f"{op.name}: groups of {op.group} of {op.src.shape[3]} channels")
    return op.src.shape


def _evaluate(op: GroupNorm, given: tuple[np.ndarray, ...], bits: int) -> np.ndarray:
    """Each group of each image as a row."""
    n, h, w, c = op.dst.shape
    groups = c // op.group

    def rows_of(tensor: np.ndarray) -> np.ndarray:
        split = np.broadcast_to(tensor, (n, h * w, c)).reshape(n, h * w, groups, op.group)
        return split.swapaxes(1, 2).reshape(n * groups, h * w * op.group)

    tensors = [rows_of(given[0].reshape(n, h * w, c)), *map(rows_of, op.vectors)]
    found = evaluate(op.kernel, tensors).reshape(n, groups, h * w, op.group)
    return found.swapaxes(1, 2).reshape(op.dst.shape)


def _plan(op: GroupNorm, site: Site, choose: Chooser) -> RowPlan | None:
    return row_plan.image_plan(site, BYTES * len(op.vectors))


def _lower(op: GroupNorm, site: Site, emit: Emitter) -> Iterator[Task]:
    return lower_images(op, site, op.plan, emit)


def _cost(op: GroupNorm, plan: RowPlan, target: Target) -> Cost:
    config = target.config
    n, h, w, c = op.dst.shape
    cycles = n * kernel_cycles(generate(op.kernel, config.n), ceil_div(c, config.n), h * w, config)
    return Cost(*vector_plan.cycles(op, target, cycles, 2 * prod(op.dst.shape)))


def _unsupported(op: GroupNorm, config: Config) -> str | None:
    if op.group > config.n:
        return f"groups of {op.group} channels are more than the {config.n} elements of a vector"
    return lacking(op, config)


OPERATOR = Operator(GroupNorm, _shape, _evaluate, _plan, _lower, _cost, _unsupported, looked_up=False)
