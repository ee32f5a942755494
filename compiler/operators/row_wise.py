"""What operators of the kernel engine have in common."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from weft.compiler.kernel.code import generate
from weft.compiler.kernel.evaluate import evaluate
from weft.compiler.kernel.operators import RowOp
from weft.compiler.lower.rows import BYTES, kernel_cycles, lower_rows
from weft.compiler.machine.emit import Emitter, ceil_div
from weft.compiler.machine.tasks import Task
from weft.compiler.operators.record import Cost, Operator, Shape4
from weft.compiler.plan import row_plan, vector_plan
from weft.compiler.plan.conv_plan import Chooser
from weft.compiler.plan.row_plan import RowPlan
from weft.compiler.plan.site import Site
from weft.hdl.isa.config import Config


def shape(op: RowOp) -> Shape4:
    return op.sources[0].shape


def evaluate_rows(op: RowOp, given: tuple[np.ndarray, ...], bits: int) -> np.ndarray:
    channels = op.dst.shape[3]
    tensors = [*(tensor.reshape(-1, channels) for tensor in given), *(vector[None] for vector in op.vectors)]
    return evaluate(op.rows(), tensors).reshape(op.dst.shape)


def plan(op: RowOp, site: Site, choose: Chooser) -> RowPlan | None:
    return row_plan.plan(site.flattened(), BYTES * len(op.vectors))


def lower(op: RowOp, site: Site, emit: Emitter) -> Iterator[Task]:
    return lower_rows(op, site.flattened(), op.plan, emit)


def cost(op: RowOp, plan: RowPlan | None, config: Config) -> Cost:
    n, h, w, c = op.dst.shape
    moved = prod(op.dst.shape) * (1 + len(op.sources))
    cycles = kernel_cycles(generate(op.rows(), config.n), n * h * w, ceil_div(c, config.n), config)
    return Cost(*vector_plan.cycles(op, config, cycles, moved))


def no_kernels(op: RowOp, config: Config) -> str | None:
    """What a configuration without the kernel engine says."""
    if config.kernel:
        return None
    return "this configuration has no kernel engine; set 'kernel' to 64"


def operator(kind: type[RowOp]) -> Operator:
    """The record of a kind."""
    return Operator(kind, shape, evaluate_rows, plan, lower, cost, no_kernels, looked_up=False)
