"""Cycles of convolutions with inputs and results of 8 and 16 bits in the cycle model.

python benchmarks/sixteen_bits.py [CONFIG]
"""

from __future__ import annotations

import sys

import numpy as np

from weft.compiler.backend import compile_segment
from weft.compiler.ir.graph import Conv, DeviceSegment
from weft.compiler.ir.views import Buffer, View
from weft.compiler.ir.windows import Window
from weft.compiler.kernel.wide import WideConv
from weft.compiler.onnx.wide import upper_plane
from weft.hdl.isa.config import PRESETS
from weft.hdl.isa.memmap import Counter
from weft.run.runtime import Image
from weft.sim.timing import TimingDevice

KERNEL = 64
CASES = {
    "3 x 3, 28 x 28, 128 to 128 channels": (28, 28, 128, 128, 3),
    "3 x 3, 14 x 14, 256 to 256 channels": (14, 14, 256, 256, 3),
    "1 x 1, 28 x 28, 96 to 96 channels": (28, 28, 96, 96, 1),
    "matrix product, 128 x 768 by 768 x 3072": (1, 128, 768, 3072, 1),
}
"""Rows, columns, input and output channels, and the side of the window."""


def conv(case: str, x_wide: bool, wide: bool) -> Conv | WideConv:
    """Return a convolution with results of 16 bits if `wide`, and inputs if `x_wide`; of 8 bits if neither."""
    height, width, inputs, outputs, side = CASES[case]

    def view(name: str, channels: int, wide: bool) -> View:
        shape = (1, height, width, channels)
        plain = View(Buffer(name, shape, "input" if name == "x" else "output"), shape)
        return upper_plane(plain) if wide else plain

    weight = np.random.default_rng(0).integers(-127, 128, (outputs, side, side, inputs)).astype(np.int16)
    views, scale = (view("x", inputs, x_wide), view("y", outputs, wide)), np.full(outputs, 1e-4)
    window = Window((side, side), pad=(side // 2,) * 4)
    if not (x_wide or wide):
        return Conv("conv", *views, weight, np.zeros(outputs, np.int32), scale, window)
    return WideConv(
        name="conv", src=views[0], dst=views[1], weight=weight, bias=np.zeros(outputs, np.int64), scale=scale,
        window=window, x_wide=x_wide, wide=wide,
    )  # fmt: skip


def rows(name: str) -> list[str]:
    """Return a row of a table for each case: cycles, by the bits of inputs and of results."""
    config = PRESETS[name].replace(kernel=KERNEL)
    lines = []
    for case in CASES:
        cells = []
        for x_wide, wide in ((False, False), (False, True), (True, False), (True, True)):
            op = conv(case, x_wide, wide)
            image = Image(compile_segment(DeviceSegment("conv", (op,)), config))
            device = TimingDevice(config, image.memory_bytes)
            image.run(device, {"x": np.zeros(op.src.buffer.shape, np.int8)})
            cells.append(f"{device.counters()[Counter.CYCLES]:,}")
        lines.append(f"| {case} | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    print("\n".join(rows(sys.argv[1] if len(sys.argv) > 1 else "default")))
