"""Every operator gets its plan."""

from __future__ import annotations

import dataclasses

from weft.compiler.ir.graph import CompileError, DeviceOp, DeviceSegment, Region
from weft.compiler.operators.record import operator_of
from weft.compiler.planner import Planner
from weft.hdl.isa.config import Config


def choose_plans(segment: DeviceSegment, planner: Planner) -> DeviceSegment:
    """Every operator gets the plan by which it is lowered.

    Raises
    ------
    CompileError
        If the configuration lacks a unit for an operator, or an operator cannot be cut small enough for its memories.
    """
    regions = segment.regions or (None,) * len(segment.ops)
    ops = (_planned(op, segment, planner, region) for op, region in zip(segment.ops, regions, strict=True))
    return dataclasses.replace(segment, ops=tuple(ops))


def _planned(op: DeviceOp, segment: DeviceSegment, planner: Planner, region: Region | None) -> DeviceOp:
    unsupported = operator_of(op).unsupported(op, planner.config)
    if op.lookup is not None and not planner.config.lookup_tables:
        unsupported = "this configuration has no look-up tables; set 'lookup_tables' to 1, 2, 4 or 8"
    if unsupported is not None:
        raise CompileError(f"{op.name}: {unsupported}")
    plan = planner.plan(op, segment.resident, region)
    if plan is None:
        raise CompileError(_too_large(op, planner.config))
    return op.replace(plan=plan)


def _too_large(op: DeviceOp, config: Config) -> str:
    return (
        f"{op.name}: not even one output of this {type(op).__name__.lower()} fits on chip "
        f"(scratchpad {config.scratchpad_size} vectors of {config.n} bytes); "
        "use a configuration with a larger scratchpad"
    )
