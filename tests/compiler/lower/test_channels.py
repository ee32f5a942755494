"""Convolutions of one weight per channel in the vector unit: bytes equal the array's."""

from __future__ import annotations

import numpy as np
import pytest
from support.branch_cases import channels
from support.configurations import every
from support.golden_compare import compare
from support.op_cases import draw, random_lookup, whole

from weft.compiler.backend import compile_segment
from weft.compiler.ir.graph import Conv, DeviceSegment
from weft.compiler.ir.windows import Window
from weft.compiler.machine.target import Target
from weft.compiler.operators.record import operator_of
from weft.compiler.pipeline import Pass
from weft.compiler.plan.vector_plan import ChannelPlan, channelwise
from weft.compiler.planner import Planner
from weft.hdl.isa import Opcode
from weft.hdl.isa.config import PRESETS, Config

CONFIGS = every()


def random_channels(rng: np.random.Generator, config: Config) -> Conv:
    shape = (draw(rng, 1, 2), draw(rng, 1, 12), draw(rng, 1, 12), draw(rng, 1, 5 * config.n))
    op = channels(rng, "y", whole("x", shape, "input"), whole("y", shape, "output"))
    return op.replace(weight=np.clip(op.weight, -128, 127))


def in_vector_unit(segment: DeviceSegment, planner: Planner) -> DeviceSegment:
    """Lower all operators as they run beside others, in a quarter of the scratchpad."""
    size = planner.config.scratchpad_size
    region = (size // 2, size - size // 4)
    ops = []
    for op in segment.ops:
        beside = operator_of(op).plan_beside
        assert beside is not None
        plan = beside(op, planner.site(op, region=region))
        assert isinstance(plan, ChannelPlan)
        ops.append(op.replace(plan=plan))
    return DeviceSegment(segment.name, tuple(ops), regions=(region,) * len(ops))


@pytest.mark.parametrize("name", [name for name, config in CONFIGS.items() if config.multiply])
def test_results(name: str) -> None:
    config, rng = CONFIGS[name], np.random.default_rng(len(name))
    for _ in range(4):
        op = random_channels(rng, config)
        segment = DeviceSegment("channels", (op,))
        program = compile_segment(segment, config, passes=(Pass(in_vector_unit),))
        assert Opcode.MM not in {opcode for opcode, _ in program.instructions.by_opcode()}
        inputs = {"x": rng.integers(-128, 128, op.src.shape).astype(np.int8)}
        compare(program, segment, inputs, config)


def test_parts_of_channels() -> None:
    config, rng = PRESETS["tiny"], np.random.default_rng(3)
    shape = (1, 4, 5, 90)
    op = channels(rng, "y", whole("x", shape, "input"), whole("y", shape, "output"))
    op = op.replace(weight=np.clip(op.weight, -128, 127))
    (planned,) = in_vector_unit(DeviceSegment("channels", (op,)), Planner(Target(config))).ops
    assert planned.plan.channels < 90
    segment = DeviceSegment("channels", (op,))
    program = compile_segment(segment, config, passes=(Pass(in_vector_unit),))
    compare(program, segment, {"x": rng.integers(-128, 128, shape).astype(np.int8)}, config)


def test_others_need_the_array() -> None:
    config, rng = PRESETS["small"], np.random.default_rng(1)
    op = random_channels(rng, config)
    assert channelwise(op, config)
    count = len(op.weight)
    for other in (
        op.replace(weight=np.full_like(op.weight, 128)),
        op.replace(window=Window(stride=(2, 2))),
        op.replace(window=Window(pad=(1, 0, 0, 0))),
        op.replace(pool=Window((2, 2))),
        op.replace(lookup=random_lookup(rng)),
        op.replace(weight=np.ones((2 * count, 1, 1, 1), np.int16)),
        op.replace(weight=np.ones((count, 1, 3, 1), np.int16)),
    ):
        assert not channelwise(other, config)
    assert not channelwise(op, config.replace(multiply=0))
