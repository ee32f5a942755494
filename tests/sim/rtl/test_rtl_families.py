"""Compiled programs on the RTL for FPGA families, with models of their cells: all memory is as the golden device's."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from support.attention_cases import random_attention, random_inputs
from support.families import models, multipliers
from support.mostly_long import mostly_long
from support.op_cases import random_chain

from weft.compiler.backend import compile_segment
from weft.compiler.ir.graph import DeviceSegment
from weft.hdl.core import Core
from weft.hdl.isa.config import PRESETS, Config
from weft.hdl.sequential.core import SequentialCore
from weft.hdl.verilog import generate
from weft.run.runtime import Image
from weft.sim.golden.interpreter import GoldenDevice
from weft.sim.rtl.device import RtlDevice
from weft.sim.rtl.library import TOP
from weft.sim.verilate import replace_cells

TINY = PRESETS["tiny"]
ICE40 = TINY.replace(lanes=1, mantissa_bits=16, probability_bits=0)


ICE40_SOFTMAX = ICE40.replace(probability_bits=7, row_states=16, alignments=64, table_depth=512)
GOWIN5A = ICE40.replace(n=8, bus_bytes=8)
"""More products than the family's smallest FPGA has multipliers."""


@cache
def verilog(config: Config, family: str, kind: type[Core | SequentialCore]) -> str:
    return replace_cells(
        generate(kind(config, multipliers(family)), name=TOP), top=TOP, models=models(family)
    )


@pytest.mark.parametrize(
    ("config", "family", "seed", "kind"),
    mostly_long(
        [
            (TINY, "ecp5", 0, Core),
            (TINY, "ecp5", 1, Core),
            (TINY, "ecp5", 2, Core),
            (ICE40, "ice40", 0, Core),
            (ICE40, "ice40", 1, Core),
            (ICE40, "ice40", 0, SequentialCore),
            (ICE40_SOFTMAX, "ice40", 1, SequentialCore),
            (GOWIN5A, "gowin5a", 0, SequentialCore),
        ],
        3,
        5,
        7,
    ),
)
def test_families(config: Config, family: str, seed: int, kind: type[Core | SequentialCore]) -> None:
    rng = np.random.default_rng([seed, 5])
    if config.softmax:
        op = random_attention(rng, config)
        segment, inputs = DeviceSegment("attention", (op,)), random_inputs(rng, op)
    else:
        segment, inputs = random_chain(rng, side=6, channels=6)
    image = Image(compile_segment(segment, config))
    golden = GoldenDevice(config, image.memory_bytes)
    image.run(golden, inputs)
    memory = {"stall_probability": 0.2, "stall_seed": seed}
    with RtlDevice(config, image.memory_bytes, verilog=verilog(config, family, kind), **memory) as rtl:
        image.run(rtl, inputs, timeout=20_000_000)
        got = np.frombuffer(rtl.read(0, image.memory_bytes), np.uint8)
    expected = np.frombuffer(golden.read(0, image.memory_bytes), np.uint8)
    wrong = np.flatnonzero(got != expected)
    assert not wrong.size, f"{wrong.size} bytes differ, the first at {wrong[0]:#x}"
