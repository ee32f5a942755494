"""4-bit weights: programs on golden and RTL against their micro-ops."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from support.golden_compare import compare, compare_on_rtl
from support.mostly_long import mostly_long
from support.op_cases import draw, random_conv, random_inputs, random_matmul, segment_of

from weft.boards.registry import BOARDS
from weft.compiler.backend import compile_segment
from weft.compiler.ir.graph import Conv
from weft.hdl.isa.config import PRESETS, Config

CONFIGS = {
    "n2": Config(n=2, lanes=1, scratchpad_depth=1024, accumulator_depth=64, bus_bytes=4, int4=1),
    "wide bus": PRESETS["tiny"].replace(bus_bytes=64, int4=1),
    "small": PRESETS["small"],
    "default": PRESETS["default"],
    "ulx3s-85f": BOARDS["ulx3s-85f"].config,
    "huge": PRESETS["huge"],
}


def random_op(rng: np.random.Generator) -> Conv:
    op = random_conv(rng) if rng.random() < 0.6 else random_matmul(rng)
    limit = np.abs(op.weight).max()
    weight = rng.integers(-8, 8, op.weight.shape).astype(np.int16)
    return dataclasses.replace(op, weight=weight, scale=op.scale * limit / 8)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", CONFIGS)
def test_golden(name: str) -> None:
    config, rng = CONFIGS[name], np.random.default_rng([41, CONFIGS[name].n])
    for case in range(12):
        op = random_op(rng)
        segment, bandwidth = segment_of(op), 2.0 if case % 2 else None
        program = compile_segment(segment, config, bandwidth=bandwidth)
        compare(program, segment, random_inputs(rng, op), config)
        wide = compile_segment(segment, config.replace(int4=0), bandwidth=bandwidth)
        assert program.narrow_bytes > 0 == wide.narrow_bytes, op
        assert len(program.constants) <= len(wide.constants), op


@pytest.mark.parametrize("name", mostly_long(["small", "default"], 0))
def test_rtl(name: str) -> None:
    config, rng = CONFIGS[name], np.random.default_rng(43)
    for case in range(4):
        op = random_op(rng)
        compare_on_rtl(segment_of(op), random_inputs(rng, op), config, case)


@pytest.mark.long
@pytest.mark.parametrize("name", CONFIGS)
def test_many(name: str) -> None:
    config, rng = CONFIGS[name], np.random.default_rng([45, CONFIGS[name].n])
    for case in range(100):
        op = random_op(rng)
        segment = segment_of(op)
        program = compile_segment(segment, config, bandwidth=2.0 if case % 2 else None)
        compare(program, segment, random_inputs(rng, op), config)


def test_operators_with_wider_weights_stay_in_8_bits() -> None:
    """One value beyond 4 bits leaves all weights of its operator in 8."""
    rng = np.random.default_rng(47)
    for value, narrow in ((7, True), (8, False), (-8, True), (-9, False)):
        op = random_matmul(rng)
        weight = rng.integers(-3, 4, op.weight.shape).astype(np.int16)
        weight[draw(rng, 0, len(weight) - 1), 0, 0, 0] = value
        program = compile_segment(segment_of(dataclasses.replace(op, weight=weight)), PRESETS["small"])
        assert (program.narrow_bytes > 0) is narrow, value


@pytest.mark.parametrize("bandwidth", [None, 2.0])
def test_half_the_bytes(bandwidth: float | None) -> None:
    """A product of one row reads half as many bytes, and its plan is never slower."""
    rng, config = np.random.default_rng(49), PRESETS["small"]
    op = random_matmul(rng)
    weight = rng.integers(-8, 8, (256, 1, 1, 512)).astype(np.int16)
    source = dataclasses.replace(op.src.buffer, shape=(1, 1, 1, 512))
    target = dataclasses.replace(op.dst.buffer, shape=(1, 1, 1, 256))
    op = dataclasses.replace(
        op, weight=weight, bias=np.zeros(256, np.int32), scale=np.full(256, 0.001),
        src=dataclasses.replace(op.src, buffer=source, shape=source.shape),
        dst=dataclasses.replace(op.dst, buffer=target, shape=target.shape),
    )  # fmt: skip
    programs = [
        compile_segment(segment_of(op), each, bandwidth=bandwidth)
        for each in (config, config.replace(int4=0))
    ]
    assert programs[0].narrow_bytes == weight.size // 2
    read = [sum(layer.read_bytes for layer in program.layers) for program in programs]
    assert read[1] - read[0] == weight.size // 2
