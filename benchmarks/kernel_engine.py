"""Cycles of kernels in the cycle model, against a cycle for each operation on each element and lane.

python benchmarks/kernel_engine.py [CONFIG]
"""

from __future__ import annotations

import sys

import numpy as np

from weft.compiler.backend import compile_segment
from weft.compiler.ir.graph import DeviceSegment
from weft.compiler.ir.views import Buffer, View
from weft.compiler.kernel.code import generate
from weft.compiler.kernel.operators import GroupNorm, LayerNorm
from weft.hdl.isa.config import PRESETS
from weft.hdl.isa.memmap import Counter
from weft.run.runtime import Image
from weft.sim.timing import TimingDevice

KERNEL = 64


def cases() -> dict[str, LayerNorm]:
    """Return operators by title."""

    def views(*shape: int) -> tuple[View, View]:
        size = (shape[0], shape[1], shape[2], shape[3])
        pair = [View(Buffer(name, size, kind), size) for name, kind in (("x", "input"), ("y", "output"))]
        return pair[0], pair[1]

    def constants(channels: int) -> tuple[np.ndarray, np.ndarray, float, float]:
        return np.ones(channels), np.zeros(channels), 1e-2, 30.0

    return {
        "LayerNormalization of 128 x 768": LayerNorm("norm", *views(1, 1, 128, 768), *constants(768)),
        "LayerNormalization of 197 x 384": LayerNorm("norm", *views(1, 1, 197, 384), *constants(384)),
        "RMSNormalization of 128 x 768": LayerNorm(
            "norm", *views(1, 1, 128, 768), *constants(768), centre=False
        ),
        "InstanceNormalization of 56 x 56 x 64": GroupNorm("norm", *views(1, 56, 56, 64), *constants(64)),
    }


def rows(name: str) -> list[str]:
    """Return a row of a table for each case."""
    config = PRESETS[name].replace(kernel=KERNEL)
    lines = []
    for title, op in cases().items():
        image = Image(compile_segment(DeviceSegment("norm", (op,)), config))
        device = TimingDevice(config, image.memory_bytes)
        image.run(device, {"x": np.zeros(op.src.shape, np.int8)})
        cycles = device.counters()[Counter.CYCLES]
        ops = generate(op.rows(), config.n)
        inner = sum(any(later.again and later.target <= at for later in ops[at:]) for at in range(len(ops)))
        least = inner * op.src.buffer.size // config.lanes
        lines.append(f"| {title} | {inner} | {cycles:,} | {cycles / least:.2f} |")
    return lines


if __name__ == "__main__":
    print("\n".join(rows(sys.argv[1] if len(sys.argv) > 1 else "default")))
