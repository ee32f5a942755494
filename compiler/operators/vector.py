"""Operators of the vector unit: pooling, padding, requantisation, addition and multiplication."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from weft.compiler.errors import IrError
from weft.compiler.ir.graph import Add, Multiply, Pad, Pool, Rescale
from weft.compiler.ir.microops import (
    Value,
    apply_lookup,
    clamp,
    divide_half_even,
    elementwise,
    reduce,
    requantise,
    scalar,
    window_of,
)
from weft.compiler.ir.scales import quantise_pair, quantise_scale
from weft.compiler.ir.windows import ONE
from weft.compiler.lower.vector import Job, lower_vector, pointwise_block, uniform_block
from weft.compiler.machine.emit import Emitter, ceil_div
from weft.compiler.machine.target import Target
from weft.compiler.machine.tasks import Task
from weft.compiler.operators.record import Cost, Operator, Shape4
from weft.compiler.plan import vector_plan
from weft.compiler.plan.conv_plan import Chooser
from weft.compiler.plan.site import Site
from weft.compiler.plan.vector_plan import VectorPlan
from weft.hdl.isa import Reduce
from weft.hdl.isa.config import Config


def _shape(op: Pool | Pad) -> Shape4:
    n, h, w, c = op.src.shape
    return n, *op.window.output(h, w), c


def _evaluate(op: Pool, inputs: tuple[np.ndarray, ...], bits: int) -> np.ndarray:
    x, out = Value.image(inputs[0]), op.dst.shape[1:3]
    if op.kind == "max":
        # Out-of-range elements never win the maximum.
        most = reduce("maximum", window_of(x, op.window, out, -(1 << 31)), "yx")
        centred = elementwise(lambda v: v - op.x_zero, most)
        return apply_lookup(requantise(centred, op.scale, "", op, bits), op).int8()
    centred = elementwise(lambda v: v - op.x_zero, x)
    total = reduce("add", window_of(centred, op.window, out, 0), "yx")
    # Count elements by pooling ones; padding counts as 1 with `include_pad`.
    ones = elementwise(np.ones_like, centred)
    counts = reduce("add", window_of(ones, op.window, out, int(op.include_pad)), "yx")
    number = np.maximum(counts.array[0, :, :, 0], 1)  # a window may lie in the padding
    return apply_lookup(requantise(total, op.scale / number, "hw", op, bits), op).int8()


def _site(op: Pool, site: Site) -> Site:
    return site.flatten() if op.window == ONE else site


def _plan(op: Pool, site: Site, choose: Chooser) -> VectorPlan | None:
    return vector_plan.plan(_site(op, site), op.window)


def _plan_beside(op: Pool, site: Site) -> VectorPlan | None:
    return vector_plan.plan_beside(_site(op, site), op.window)


def _lower(op: Pool, site: Site, emit: Emitter) -> Iterator[Task]:
    mean = op.kind == "average"

    def parameters(count: int) -> bytes:
        elements = math.prod(op.window.kernel) if mean else 1
        bias = -op.x_zero * elements  # out of range reads x_zero, so every element is offset by it
        return uniform_block(
            site.config, bias, *quantise_scale(op.scale / max(count, 1), site.config.mantissa_bits)
        )

    reduction = Reduce.SUM if mean else Reduce.MAX
    job = Job(parameters, op.x_zero, op.window, reduction, mean, op.include_pad)
    return lower_vector(op, job, _site(op, site), op.plan, emit)


def _cost(op: Pool, plan: VectorPlan, target: Target) -> Cost:
    n, h, w, c = op.dst.shape
    vectors = n * h * w * ceil_div(c, target.config.n) * math.prod(op.window.kernel)
    return Cost(*vector_plan.cycles(op, target, vectors * target.config.groups, plan.moved))


POOL = Operator(Pool, _shape, _evaluate, _plan, _lower, _cost, plan_beside=_plan_beside, resident=True)


def _pad_evaluate(op: Pad, inputs: tuple[np.ndarray, ...], bits: int) -> np.ndarray:
    around = window_of(Value.image(inputs[0]), op.window, op.dst.shape[1:3], op.fill)
    centred = elementwise(lambda v: v - op.x_zero, reduce("add", around, "yx"))
    return apply_lookup(requantise(centred, op.scale, "", op, bits), op).int8()


def _pad_plan(op: Pad, site: Site, choose: Chooser) -> VectorPlan | None:
    return vector_plan.plan(site, op.window)


def _pad_plan_beside(op: Pad, site: Site) -> VectorPlan | None:
    return vector_plan.plan_beside(site, op.window)


def _pad_lower(op: Pad, site: Site, emit: Emitter) -> Iterator[Task]:
    block = uniform_block(site.config, -op.x_zero, *quantise_scale(op.scale, site.config.mantissa_bits))
    return lower_vector(op, Job(lambda _: block, op.fill, op.window), site, op.plan, emit)


def _pad_cost(op: Pad, plan: VectorPlan, target: Target) -> Cost:
    n, h, w, c = op.dst.shape
    vectors = n * h * w * ceil_div(c, target.config.n)
    return Cost(*vector_plan.cycles(op, target, vectors * target.config.groups, plan.moved))


PAD = Operator(
    Pad,
    _shape,
    _pad_evaluate,
    _pad_plan,
    _pad_lower,
    _pad_cost,
    plan_beside=_pad_plan_beside,
    resident=True,
)


def _rescale_shape(op: Rescale) -> Shape4:
    return op.src.shape


def _rescale_evaluate(op: Rescale, inputs: tuple[np.ndarray, ...], bits: int) -> np.ndarray:
    centred = elementwise(lambda v: v - op.x_zero, Value.image(inputs[0]))
    return apply_lookup(requantise(centred, op.scale, "", op, bits), op).int8()


def _rescale_plan(op: Rescale, site: Site, choose: Chooser) -> VectorPlan | None:
    return vector_plan.plan(site.flatten(), ONE)


def _rescale_plan_beside(op: Rescale, site: Site) -> VectorPlan | None:
    return vector_plan.plan_beside(site.flatten(), ONE)


def _rescale_lower(op: Rescale, site: Site, emit: Emitter) -> Iterator[Task]:
    job = Job(lambda _: pointwise_block(op, site.config), op.x_zero)
    return lower_vector(op, job, site.flatten(), op.plan, emit)


def _rescale_cost(op: Rescale, plan: VectorPlan, target: Target) -> Cost:
    n, h, w, c = op.dst.shape
    vectors = n * h * w * ceil_div(c, target.config.n)
    return Cost(*vector_plan.cycles(op, target, vectors * target.config.groups, plan.moved))


RESCALE = Operator(
    Rescale,
    _rescale_shape,
    _rescale_evaluate,
    _rescale_plan,
    _rescale_lower,
    _rescale_cost,
    plan_beside=_rescale_plan_beside,
    resident=True,
)


Pairwise = Add | Multiply


def shape(op: Pairwise) -> Shape4:
    a, b = op.a.shape, op.b.shape
    if b[3] != a[3] or any(one not in (1, other) for one, other in zip(b, a, strict=True)):
        raise IrError(f"{op.name}: operands {a} and {b}")
    return a


def _pairs_site(op: Pairwise, site: Site) -> Site:
    # A flattened site has one row, so it cannot repeat an image, row or column.
    alike = op.b.shape in (op.a.shape, (1, 1, 1, op.a.shape[3]))
    return site.flatten() if alike else site


def plan(op: Pairwise, site: Site, choose: Chooser) -> VectorPlan | None:
    return vector_plan.plan(_pairs_site(op, site), ONE)


def plan_beside(op: Pairwise, site: Site) -> VectorPlan | None:
    return vector_plan.plan_beside(_pairs_site(op, site), ONE)


def lower(op: Pairwise, site: Site, emit: Emitter) -> Iterator[Task]:
    job = Job(lambda _: pointwise_block(op, site.config), op.a_zero, pairwise=op)
    return lower_vector(op, job, _pairs_site(op, site), op.plan, emit)


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


def _pairs_evaluate(op: Add, inputs: tuple[np.ndarray, ...], bits: int) -> np.ndarray:
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
    _pairs_evaluate,
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
