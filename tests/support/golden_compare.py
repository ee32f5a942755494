"""A compiled segment on the golden interpreter or the RTL, compared with the micro-ops."""

from __future__ import annotations

import numpy as np

from weft.compiler.backend import DeviceProgram, compile_segment
from weft.compiler.ir.graph import DeviceSegment
from weft.compiler.verify import run_ops
from weft.hdl.checker.program import check
from weft.hdl.isa.config import Config
from weft.run.runtime import Image
from weft.sim.golden.interpreter import GoldenDevice
from weft.sim.rtl.device import RtlDevice
from weft.sim.timing import TimingDevice


def compare_on_rtl(segment: DeviceSegment, inputs: dict[str, np.ndarray], config: Config, case: int) -> None:
    """Run a compiled segment on the RTL and compare its output `y` with the micro-ops. Every other case has random
    stalls; in the others the cycle model matches every counter."""
    image = Image(compile_segment(segment, config))
    stalls = 0.3 if case % 2 else 0.0
    with RtlDevice(
        config, image.memory_bytes, latency=5 * case + 1, stall_probability=stalls, stall_seed=case
    ) as rtl:
        image.run(rtl, inputs)
        found, counters = image.read(rtl, "y").reshape(-1), rtl.counters()
    assert np.array_equal(found, run_ops(segment, inputs, config.mantissa_bits)["y"]), case
    if not stalls:
        model = TimingDevice(config, image.memory_bytes, latency=5 * case + 1)
        image.run(model, inputs)
        assert counters == model.counters()


def compare(
    program: DeviceProgram,
    segment: DeviceSegment,
    inputs: dict[str, np.ndarray],
    config: Config,
    *,
    temps: bool = True,
) -> None:
    """Check the program, run it on the golden interpreter, and compare every buffer in DRAM with the micro-ops.

    `temps` includes temporaries, which may share memory with each other.
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
