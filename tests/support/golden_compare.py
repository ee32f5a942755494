"""A compiled segment on the golden interpreter, held against the micro-ops."""

from __future__ import annotations

import numpy as np

from weft.compiler.backend import DeviceProgram
from weft.compiler.interpret import run_ops
from weft.compiler.ir.graph import DeviceSegment
from weft.hdl.checker.program import check
from weft.hdl.isa.config import Config
from weft.runtime import Image
from weft.sim.golden.interpreter import GoldenDevice


def compare(
    program: DeviceProgram,
    segment: DeviceSegment,
    inputs: dict[str, np.ndarray],
    config: Config,
    *,
    temps: bool = True,
) -> None:
    """Check the program, run it on the golden interpreter, and compare every buffer in DRAM with the micro-ops.

    Without `temps` those that may share memory with each other are left out.
    """
    check(program.instructions, config, extents=program.areas.extents)
    image = Image(program)
    device = GoldenDevice(config, image.memory_bytes)
    image.run(device, inputs)
    expected = run_ops(segment, inputs, config.mantissa_bits)
    for name, rows in program.rows.items():
        expected[name] = rows.gather(inputs[name]).reshape(-1)
    for name, buffer in program.buffers.items():
        if buffer.kind != "temp" or (temps and name in expected):
            got = image.read(device, name).reshape(-1)
            assert np.array_equal(got, expected[name]), f"{segment.ops[0]}: buffer {name} differs"
