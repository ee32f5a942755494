"""Cycles of weft on the topologies that SCALE-Sim comes with for MLPerf, beside its best dataflow by closed forms.

    python benchmarks/topologies.py [--only TEXT]

Layers are those of ``topologies/mlperf`` of SCALE-Sim (github.com/scalesim-project/SCALE-Sim): convolutions without
padding, whose outputs are rounded down, and products as convolutions of 1 x 1, or of a row of k elements. ResNet-50
and Faster R-CNN, whose layers are much like those of `peers.py`, the LSTM's, and the Transformer's two products of one
element for 33,708 columns are left out.

*SCALE-Sim* is the least of three dataflows on 16 x 16, by the closed forms that its reports equal, with all operands on
chip, for m output pixels, n channels and k elements of a window, N = 16:

    weight stationary    ceil(k/N) * ceil(n/N) * (3 N + m - 2) - 1
    output stationary    ceil(m/N) * ceil(n/N) * (2 N + k - 2) - 1
    input stationary     ceil(k/N) * ceil(m/N) * (3 N + n - 2) - 1

Its runs know the first two to be right (`peers.py`); the third is the first with both operands exchanged. *Behind the
memory* is the larger of that and the cycles in which 16 bytes each move input, weights and outputs once. weft is
`default` on the cycle model, from start to done behind a memory of 30 cycles' latency and 16 bytes a cycle.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from weft.compiler.backend import compile_segment
from weft.compiler.errors import CompileError
from weft.compiler.ir.graph import Conv, DeviceSegment
from weft.compiler.ir.views import Buffer, View
from weft.compiler.ir.windows import Window
from weft.hdl.isa.config import PRESETS
from weft.hdl.isa.memmap import Counter
from weft.run.runtime import Image
from weft.sim.timing import TimingDevice

CONFIG = PRESETS["default"]
N = CONFIG.n


@dataclass(frozen=True)
class Layer:
    """A convolution of `h` x `w` x `cin` by `kernel` with a stride to `cout` channels, `count` times in its network."""

    h: int
    w: int
    kernel: tuple[int, int]
    cin: int
    cout: int
    stride: int = 1
    count: int = 1

    @property
    def mnk(self) -> tuple[int, int, int]:
        """The matrix product that it is: output pixels, output channels, elements of a window."""
        oh, ow = self.window.output(self.h, self.w)
        return oh * ow, self.cout, math.prod(self.kernel) * self.cin

    @property
    def window(self) -> Window:
        return Window(self.kernel, (self.stride,) * 2)

    @property
    def scale_sim(self) -> int:
        """Cycles of the best dataflow, operands on chip."""
        m, n, k = self.mnk
        return min(
            -(-k // N) * -(-n // N) * (3 * N + m - 2) - 1,
            -(-m // N) * -(-n // N) * (2 * N + k - 2) - 1,
            -(-k // N) * -(-m // N) * (3 * N + n - 2) - 1,
        )

    @property
    def memory(self) -> int:
        """Cycles in which the bus moves input, weights and outputs once."""
        m, n, k = self.mnk
        return -(-(self.h * self.w * self.cin + n * k + m * n) // CONFIG.bus_bytes)

    def segment(self) -> DeviceSegment:
        """Return the layer with random weights."""
        source, (oh, ow) = (1, self.h, self.w, self.cin), self.window.output(self.h, self.w)
        target = (1, oh, ow, self.cout)
        rng = np.random.default_rng(0)
        weight = rng.integers(-127, 128, (self.cout, *self.kernel, self.cin)).astype(np.int16)
        bias, scale = np.zeros(self.cout, np.int32), np.full(self.cout, 1 / (127 * math.sqrt(self.mnk[2])))
        src, dst = (View(Buffer(name, shape, kind), shape)
                    for name, shape, kind in (("x", source, "input"), ("y", target, "output")))  # fmt: skip
        return DeviceSegment("layer", (Conv("layer", src, dst, weight, bias, scale, self.window),))

    def weft(self) -> int:
        """Return the cycles from start to done."""
        program = compile_segment(self.segment(), CONFIG)
        image = Image(program)
        device = TimingDevice(CONFIG, image.memory_bytes, latency=30, bandwidth=float(CONFIG.bus_bytes))
        image.run(device, {"x": np.zeros(program.input_shape("x"), np.int8)})
        return device.counters()[Counter.CYCLES]


def product(m: int, n: int, k: int, count: int = 1) -> Layer:
    """m rows of k elements times k x n, in a file as an image of m pixels."""
    return Layer(1, m, (1, 1), k, n, count=count)


TOPOLOGIES: dict[str, tuple[Layer, ...]] = {
    "AlphaGo Zero": (
        Layer(19, 19, (3, 3), 17, 256),
        Layer(19, 19, (3, 3), 256, 256, count=2),
        product(361, 1, 256),
        product(1, 256, 361),
        product(1, 1, 256),
        product(361, 2, 256),
        product(1, 362, 722),
    ),
    "DeepSpeech2": (
        Layer(700, 161, (41, 11), 1, 32, 2),
        Layer(341, 79, (21, 11), 32, 32, 2),
        product(672, 4, 2560),
        product(2560, 4, 2560, 2),
        product(1, 29, 2560),
    ),
    "NCF": (
        product(1, 8, 138000, 2),
        product(1, 32, 138000, 2),
        product(1, 32, 64),
        product(1, 16, 32),
        product(1, 8, 16),
        product(1, 1, 16),
    ),
    "Sentimental, CNN": (
        product(1024, 5, 30000),
        Layer(5, 1024, (3, 3), 1, 1024, count=2),
        product(1, 2, 2048),
    ),
    "Transformer": (
        product(1, 64, 512, 432),
        product(1, 512, 512, 145),
        product(64, 64, 1, 144),
        product(64, 1, 64, 144),
        product(1, 2048, 512, 12),
        product(1, 512, 2048, 12),
    ),
}
HEADER = "| topology | m x n x k | times | SCALE-Sim | behind the memory | weft | of SCALE-Sim | of that |"


def rows(only: str) -> Iterator[str]:
    """Yield lines of the table: layers, and each topology's layers together."""
    for name, layers in TOPOLOGIES.items():
        if only.lower() not in name.lower():
            continue
        total = [0, 0, 0]
        for layer in layers:
            title = f"{name} | {' x '.join(f'{size:,}' for size in layer.mnk)} | {layer.count}"
            try:
                triple = layer.scale_sim, max(layer.scale_sim, layer.memory), layer.weft()
            except CompileError as error:
                yield f"| {title} | {layer.scale_sim:,} | | {error} | | |"
                continue
            total = [sum_ + layer.count * cycles for sum_, cycles in zip(total, triple, strict=True)]
            yield line(title, triple)
        yield line(f"**{name}** | all | {sum(layer.count for layer in layers)}", total)


def line(title: str, cycles: list[int] | tuple[int, ...]) -> str:
    ideal, with_memory, ours = cycles
    return f"| {title} | {ideal:,} | {with_memory:,} | {ours:,} | {ours / ideal:.2f} | {ours / with_memory:.2f} |"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="topologies whose name contains this")
    options = parser.parse_args()
    print(HEADER)
    print("|---" * (HEADER.count("|") - 1) + "|")
    for row in rows(options.only):
        print(row, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
