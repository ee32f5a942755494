"""The synthesised core, with models of the vendors' cells, matches the golden device on a matrix product."""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from support.families import models, multipliers

from weft.boards.build.flow import synthesis
from weft.boards.registry import BOARDS
from weft.hdl.cache import entry
from weft.hdl.core import Core
from weft.hdl.isa import End, Load, Mm, Store, Vec
from weft.hdl.isa.config import PRESETS, Config
from weft.hdl.sequential.core import SequentialCore
from weft.hdl.verilog import generate, run_yosys
from weft.sim.device import Device
from weft.sim.golden.interpreter import GoldenDevice
from weft.sim.rtl.device import RtlDevice
from weft.sim.rtl.library import TOP
from weft.sim.verilate import replace_cells

SMALLEST = PRESETS["tiny"].replace(
    n=2,
    lanes=1,
    mantissa_bits=16,
    probability_bits=0,
    scratchpad_depth=64,
    accumulator_depth=16,
    queue_depth=2,
)
MEMORY = 1 << 13
PROGRAM = 0x1800
ROWS, STEPS = 12, 3
"""Rows of A, and contraction length in vectors."""


def netlist(config: Config, family: str, kind: type[Core | SequentialCore]) -> str:
    """Synthesise the core of `config` without vendors' cells; cached."""
    core = generate(kind(config, multipliers(family)), name=TOP)
    commands = [
        "read_verilog core.v",
        *synthesis(f"synth_{family} -top {TOP}"),
        "write_verilog -noattr netlist.v",
    ]
    text = "\n".join([core, *commands, version("pyosys")])

    def synthesise(folder: Path) -> None:
        (folder / "core.v").write_text(core)
        run_yosys(*commands, cwd=folder)

    made = entry(f"netlist-{hashlib.sha256(text.encode()).hexdigest()[:24]}", synthesise) / "netlist.v"
    return replace_cells(made.read_text(), top=TOP, models=models(family))


def product(device: Device, config: Config, limit: int, shift: int) -> bytes:
    """Return all memory after a product of random matrices of elements below `limit`, scaled by about ``2**(15 -
    shift)``."""
    n, depth, generator = config.n, config.scratchpad_depth, np.random.default_rng(1)
    vectors = {"run": n, "row_pitch": n, "length": n, "pitch": n, "dst_row": 1}
    program = (
        Load(base=0, rows=ROWS * STEPS, dst=0, signal=1, **vectors),
        Load(base=1, rows=n * STEPS, dst=depth, signal=2, **vectors),
        Load(base=2, rows=8, dst=2 * depth, signal=4, **vectors),
        Mm(wait=1 | 2, kc=STEPS, ox=ROWS, a_ox=1, a_kc=ROWS, b=depth, b_row=1, b_kc=n, c_ox=1, signal=8),
        Vec(wait=4 | 8, ox=ROWS, src_ox=1, dst=3 * depth, dst_ox=1, params=2 * depth, signal=16),
        Store(wait=16, base=3, pixels=ROWS, pitch=n, length=n, src=3 * depth, src_pixel=1),
        End(),
    )
    device.write(0, generator.integers(-limit, limit, 0x800, np.int8).tobytes())
    words = [column & 0xFFFFFFFF | (32769 + column) << 32 | shift << 56 for column in range(n)]
    device.write(0x800, bytes(word >> 8 * byte & 0xFF for byte in range(8) for word in words))
    device.write(PROGRAM, b"".join(instruction.encode() for instruction in program))
    for index, address in enumerate((0, 0x400, 0x800, 0x1000)):
        device.set_base(index, address)
    device.start(PROGRAM)
    device.wait(100_000)
    return device.read(0, MEMORY)


# With an empty cache each takes a minute or two to synthesise and compile.
@pytest.mark.long
@pytest.mark.parametrize(
    ("config", "family"),
    [
        (SMALLEST, "ecp5"),
        (SMALLEST, "ice40"),
        (PRESETS["tiny"], "ecp5"),
        (PRESETS["tiny"].replace(probability_bits=0), "ice40"),
    ],
)
def test_netlist(config: Config, family: str) -> None:
    compare(config, family, Core)


@pytest.mark.long
def test_netlist_of_a_sequential_core() -> None:
    """Uses a board's configuration."""
    compare(BOARDS["icebreaker"].config, "ice40", SequentialCore)


def compare(config: Config, family: str, kind: type[Core | SequentialCore]) -> None:
    golden = GoldenDevice(config, MEMORY)
    with RtlDevice(config, MEMORY, verilog=netlist(config, family, kind), stall_probability=0.2) as device:
        # Large sums, whose upper bits are kept, and small sums, whose bits are all kept.
        for limit, shift in ((128, 24), (4, 15)):
            expected = product(golden, config, limit, shift)
            assert len(set(expected[0x1000 : 0x1000 + ROWS * config.n])) > 10, "a result worth comparing"
            assert product(device, config, limit, shift) == expected
