"""Convolution with pooling and epilogue, and convolution in 16 bits."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from weft.compiler.errors import IrError
from weft.compiler.ir.graph import Conv
from weft.compiler.ir.microops import (
    Value,
    apply_lookup,
    elementwise,
    iota,
    product_sum,
    reduce,
    reindex,
    requantise,
    window_of,
)
from weft.compiler.kernel.evaluate import evaluate
from weft.compiler.kernel.wide import WideConv
from weft.compiler.lower.conv import lower_conv
from weft.compiler.lower.conv_results import lower_channels
from weft.compiler.machine.emit import Emitter
from weft.compiler.machine.target import Target, has_coordinates
from weft.compiler.machine.tasks import Task
from weft.compiler.operators.record import Cost, Operator, Shape4, operator_of
from weft.compiler.operators.rows import missing_feature, to_view
from weft.compiler.plan import vector_plan
from weft.compiler.plan.conv_plan import Chooser, ConvPlan
from weft.compiler.plan.conv_shape import ConvShape
from weft.compiler.plan.site import Site
from weft.compiler.plan.vector_plan import ChannelPlan


def _shape(op: Conv) -> Shape4:
    n, h, w, c = op.src.shape
    out, kh, kw, cin = op.weight.shape
    if cin * op.groups != c or out % op.groups or (kh, kw) != op.window.kernel:
        raise IrError(f"{op.name}: weight {op.weight.shape} with {op.groups} groups on input {op.src.shape}")
    if op.bias.shape != (out,) or op.scale.shape != (out,):
        raise IrError(f"{op.name}: bias {op.bias.shape} and scale {op.scale.shape} for {out} outputs")
    oh, ow = op.window.output(h, w)
    if op.pool is not None:
        oh, ow = op.pool.output(oh, ow)
    shape = (n, oh, ow, out)
    if op.epilogue is not None:
        _check_epilogue(op, shape)
    return shape


def _check_epilogue(op: Conv, shape: Shape4) -> None:
    assert op.epilogue is not None
    operator_of(op.epilogue).verify(op.epilogue)
    own, dst = op.epilogue.sources[0], op.epilogue.dst
    if own.shape != shape or dst != op.dst:
        raise IrError(
            f"{op.name}: {op.epilogue.name} makes {dst.buffer.name!r} of {own.shape}, not {op.dst.buffer.name!r}"
            f" of {shape}"
        )
    if not own.contiguous or own.buffer.kind != "temp":
        raise IrError(f"{op.name}: what stays on chip is no temporary of its own, but {own.buffer.name!r}")


def sums(op: Conv | WideConv, centred: Value) -> Value:
    """Return sums of products over the window and the channels of a group, from inputs less the padding's value."""
    out, kh, kw, cin = op.weight.shape
    _, h, w, _ = op.src.shape
    # Axes: g groups, o outputs of a group, y x kernel, i inputs of a group.
    weight = Value(op.weight.astype(np.int64).reshape(op.groups, out // op.groups, kh, kw, cin), "goyxi")
    groups = elementwise(lambda g, i: g * cin + i, iota("g", op.groups), iota("i", cin))
    grouped = reindex(centred, "nhwgi", {"c": groups})
    acc = product_sum(window_of(grouped, op.window, op.window.output(h, w), 0), weight, "yxi")
    # Channel c of the output is output c % (out / groups) of group c // (out / groups).
    split = {"g": elementwise(lambda c: c // (out // op.groups), iota("c", out))}
    split["o"] = elementwise(lambda c: c % (out // op.groups), iota("c", out))
    return reindex(acc, "nhwc", split)


def _evaluate(op: Conv, inputs: tuple[np.ndarray, ...], bits: int) -> np.ndarray:
    acc = sums(op, elementwise(lambda v: v - op.x_zero, Value.image(inputs[0])))
    acc = elementwise(np.add, acc, Value(op.bias.astype(np.int64), "c"))
    q = requantise(acc, op.scale, "c", op, bits)
    if op.pool is not None:
        shape = op.dst.shape[1:3]
        q = reduce("maximum", window_of(q, op.pool, shape, -128), "yx")
    result = apply_lookup(q, op).int8()
    return (
        result
        if op.epilogue is None
        else operator_of(op.epilogue).evaluate(op.epilogue, (result, *inputs[1:]), bits)
    )


def plan(op: Conv | WideConv, site: Site, choose: Chooser) -> ConvPlan | None:
    shape = ConvShape(op, site)
    return choose(shape) if all(has_coordinates(shape.loop_window, axis) for axis in (0, 1)) else None


def lower(op: Conv | WideConv, site: Site, emit: Emitter) -> Iterator[Task]:
    if isinstance(op, Conv) and isinstance(op.plan, ChannelPlan):
        return lower_channels(op, site, op.plan, emit)
    shape = emit.shared.get(op) or emit.shared.setdefault(op, ConvShape(op, site))
    return lower_conv(shape, op.plan, emit)


def cost(op: Conv | WideConv, plan: ConvPlan | ChannelPlan, target: Target) -> Cost:
    return Cost(plan.cycles, plan.traffic)


def _plan_beside(op: Conv, site: Site) -> ChannelPlan | None:
    return vector_plan.plan_channelwise(op, site) if vector_plan.channelwise(op, site.config) else None


CONV = Operator(Conv, _shape, _evaluate, plan, lower, cost, plan_beside=_plan_beside, resident=True)


def _wide_conv_shape(op: WideConv) -> Shape4:
    n, h, w, c = op.src.shape
    out, kh, kw, cin = op.weight.shape
    fits = cin * op.groups == c and out % op.groups == 0 and (kh, kw) == op.window.kernel
    if not fits or op.bias.shape != (out,) or op.scale.shape != (out,):
        raise IrError(f"{op.name}: weight {op.weight.shape} with {op.groups} groups on input {op.src.shape}")
    return (n, *op.window.output(h, w), out)


def _wide_conv_evaluate(op: WideConv, inputs: tuple[np.ndarray, ...], bits: int) -> np.ndarray:
    """Sum products of each byte of the inputs, and apply the kernel to the sums."""
    totals = op.weight.astype(np.int64).sum(axis=(1, 2, 3))
    planes = [
        sums(op, Value.image(plane.astype(np.int64) - fill)).spread("nhwc") + fill * totals
        for plane, fill in zip(inputs, op.fills, strict=True)
    ]
    # The kernel reads sums of both bytes side by side, as the accumulator holds them.
    tensors = [np.stack(planes, axis=-1).reshape(-1, len(totals), len(planes))]
    outputs = evaluate(op.kernel, [*tensors, *(vector[None] for vector in op.vectors)])
    return to_view(outputs, op.dst.shape, wide=op.wide)


WIDE_CONV = Operator(
    WideConv, _wide_conv_shape, _wide_conv_evaluate, plan, lower, cost, missing_feature, allows_lookup=False
)
