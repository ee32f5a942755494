"""Operators of the kernel engine."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np

from weft.compiler.errors import IrError
from weft.compiler.kernel.code import elementwise, generate, tables_of
from weft.compiler.kernel.evaluate import WideElements, evaluate
from weft.compiler.kernel.operators import GroupNorm, LayerNorm, RowFunction, RowOp
from weft.compiler.kernel.products import RowNorm, RowScale, RowShare
from weft.compiler.kernel.rows import RowLogSoftmax, RowPair, RowPlace, RowPower, RowResponse, RowTotal
from weft.compiler.kernel.wide import WideFunction, WideLayerNorm
from weft.compiler.lower.rows import VECTORS_PER_CONSTANT, kernel_cycles, loops_of, lower_images, lower_rows
from weft.compiler.machine.emit import Emitter, ceil_div
from weft.compiler.machine.target import Target
from weft.compiler.machine.tasks import Task
from weft.compiler.operators.record import Cost, Operator, Shape4
from weft.compiler.plan import vector_plan
from weft.compiler.plan import vector_plan as row_plan
from weft.compiler.plan.conv_plan import Chooser
from weft.compiler.plan.site import Site
from weft.compiler.plan.vector_plan import RowPlan
from weft.hdl.isa.config import LOOKUP_ENTRIES, Config
from weft.hdl.isa.kernel import STRIP_ROWS


def shape(op: RowOp) -> Shape4:
    """Return the output shape: the first source's rows, with one result per row or per element.

    Other sources may broadcast.
    """
    full = op.sources[0].shape
    for view in op.sources[1:]:
        fits = all(size in (1, most) for size, most in zip(view.shape[:3], full[:3], strict=True))
        if not fits or view.shape[3] not in (1, full[3]):
            raise IrError(f"{op.name}: rows of {view.shape} beside those of {full}")
    return (*full[:3], 1 if op.single else full[3])


def evaluate_rows(op: RowOp, inputs: tuple[np.ndarray, ...], bits: int) -> np.ndarray:
    pixels = op.dst.shape[:3]
    spread = (np.broadcast_to(tensor, (*pixels, tensor.shape[3])) for tensor in inputs)
    tensors = [tensor.reshape(-1, tensor.shape[3]) for tensor in spread]
    results = evaluate(op.kernel, [*tensors, *(vector[None] for vector in op.vectors)])
    return to_view(results, op.dst.shape, wide=op.wide)


def to_view(results: np.ndarray, shape: Shape4, *, wide: bool) -> np.ndarray:
    """Return results of `evaluate` as the contents of a view, or of its planes one after the other."""
    planes = np.split(results, 2, axis=1) if wide else [results]
    return np.concatenate([plane.reshape(shape) for plane in planes])


def plan(op: RowOp, site: Site, choose: Chooser) -> RowPlan | None:
    return row_plan.plan_rows(_as_one_row(site), VECTORS_PER_CONSTANT * len(op.vectors), wide=op.wide)


def plan_beside(op: RowOp, site: Site) -> RowPlan | None:
    """Plan strips of rows, of which at least two fit on chip.

    Kernels with look-up tables are left out: the operator beside them could refill the tables.
    """
    if tables_of(op.kernel):
        return None
    plan = row_plan.plan_rows(
        site.flatten(), VECTORS_PER_CONSTANT * len(op.vectors), STRIP_ROWS, wide=op.wide
    )
    return plan if plan is not None and plan.slots > 1 else None


def lower(op: RowOp, site: Site, emit: Emitter) -> Iterator[Task]:
    return lower_rows(op, _as_one_row(site), op.plan, emit)


def _as_one_row(site: Site) -> Site:
    """Return the site with all rows in one, unless some sources repeat rows."""
    pixels = {(tensor.n, tensor.h, tensor.w) for tensor in (*site.sources, site.dst)}
    return site.flatten() if len(pixels) == 1 else site


def cost(op: RowOp, plan: RowPlan, target: Target) -> Cost:
    config = target.config
    n, h, w, _ = op.dst.shape
    c = op.sources[0].shape[3]
    traffic = prod(op.dst.shape) + sum(prod(view.shape) for view in op.sources)
    rows = op.kernel
    ops, apart = generate(rows, config.n), elementwise(rows)
    # As the lowering chooses them, if all operands are contiguous.
    loops = loops_of(ops, n * h * w, ceil_div(c, config.n), config, apart=apart, whole=apart)
    cycles = loops.cycles(ops, config) + LOOKUP_ENTRIES * len(tables_of(rows))
    return Cost(*vector_plan.cycles(op, target, cycles, traffic))


def missing_feature(op: RowOp, config: Config) -> str | None:
    """Return what a configuration lacks: the kernel engine, or enough look-up tables; None if nothing."""
    if not config.kernel:
        return "this configuration has no kernel engine; set 'kernel' to 64"
    count, most = len(tables_of(op.kernel)), config.lookup_tables
    if count <= most:
        return None
    return f"the kernel reads {count} look-up tables, but the configuration has {most}: set 'lookup_tables' to more"


def operator(kind: type[RowOp]) -> Operator:
    """Return the record of a kind of row operator."""
    return Operator(
        kind,
        shape,
        evaluate_rows,
        plan,
        lower,
        cost,
        missing_feature,
        allows_lookup=False,
        plan_beside=plan_beside,
    )


def _shape(op: GroupNorm) -> Shape4:
    if op.src.shape[3] % op.group or op.group & (op.group - 1):
        raise IrError(f"{op.name}: groups of {op.group} of {op.src.shape[3]} channels")
    return op.src.shape


def _evaluate(op: GroupNorm, inputs: tuple[np.ndarray, ...], bits: int) -> np.ndarray:
    """Evaluate each group of each image as a row."""
    n, h, w, c = op.dst.shape
    groups = c // op.group

    def rows_of(tensor: np.ndarray) -> np.ndarray:
        split = np.broadcast_to(tensor, (n, h * w, c)).reshape(n, h * w, groups, op.group)
        return split.swapaxes(1, 2).reshape(n * groups, h * w * op.group)

    tensors = [rows_of(inputs[0].reshape(n, h * w, c)), *map(rows_of, op.vectors)]
    results = evaluate(op.kernel, tensors).reshape(n, groups, h * w, op.group)
    return results.swapaxes(1, 2).reshape(op.dst.shape)


def _plan(op: GroupNorm, site: Site, choose: Chooser) -> RowPlan | None:
    return row_plan.image_plan(site, VECTORS_PER_CONSTANT * len(op.vectors))


def _lower(op: GroupNorm, site: Site, emit: Emitter) -> Iterator[Task]:
    return lower_images(op, site, op.plan, emit)


def _cost(op: GroupNorm, plan: RowPlan, target: Target) -> Cost:
    config = target.config
    n, h, w, c = op.dst.shape
    cycles = n * kernel_cycles(generate(op.kernel, config.n), ceil_div(c, config.n), h * w, config)
    return Cost(*vector_plan.cycles(op, target, cycles, 2 * prod(op.dst.shape)))


def _missing_feature(op: GroupNorm, config: Config) -> str | None:
    if op.group > config.n:
        return f"groups of {op.group} channels are more than the {config.n} elements of a vector"
    return missing_feature(op, config)


GROUP_NORM = Operator(
    GroupNorm, _shape, _evaluate, _plan, _lower, _cost, _missing_feature, allows_lookup=False
)


LAYER_NORM = operator(LayerNorm)


ROW_FUNCTION = operator(RowFunction)


ROW_LOG_SOFTMAX = operator(RowLogSoftmax)


ROW_NORM = operator(RowNorm)


ROW_PAIR = operator(RowPair)


ROW_PLACE = operator(RowPlace)


ROW_POWER = operator(RowPower)


ROW_RESPONSE = operator(RowResponse)


ROW_SCALE = operator(RowScale)


ROW_SHARE = operator(RowShare)


ROW_TOTAL = operator(RowTotal)


WIDE_ELEMENTS = operator(WideElements)


WIDE_FUNCTION = operator(WideFunction)


WIDE_NORM = operator(WideLayerNorm)
