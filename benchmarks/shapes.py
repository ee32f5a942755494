"""The shapes that the benchmarks run: matrix products and the layers of ResNet-18."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from weft.compiler.ir.graph import Conv, DeviceSegment
from weft.compiler.ir.views import Buffer, View
from weft.compiler.ir.windows import Window


@dataclass(frozen=True)
class Shape:
    """A convolution of `h` x `w` x `cin` to `cout` channels; a matrix product has h = 1, w = rows, kernel 1."""

    name: str
    h: int
    w: int
    cin: int
    cout: int
    kernel: int = 1
    stride: int = 1
    count: int = 1
    """Occurrences in the network."""

    @property
    def window(self) -> Window:
        side = (self.kernel - 1) // 2
        return Window((self.kernel,) * 2, (self.stride,) * 2, (1, 1), (side,) * 4)

    def segment(self, seed: int = 0) -> tuple[DeviceSegment, dict[str, np.ndarray]]:
        """Return the shape with random int8 operands."""
        rng = np.random.default_rng(seed)
        source = (1, self.h, self.w, self.cin)
        oh, ow = self.window.output(self.h, self.w)
        target = (1, oh, ow, self.cout)
        weight = rng.integers(-127, 128, (self.cout, self.kernel, self.kernel, self.cin)).astype(np.int16)
        scale = np.full(self.cout, 1 / (math.sqrt(self.cin) * self.kernel * 127))
        op = Conv(
            self.name,
            View(Buffer("x", source, "input"), source),
            View(Buffer("y", target, "output"), target),
            weight,
            rng.integers(-1000, 1000, self.cout).astype(np.int32),
            scale,
            self.window,
        )
        return DeviceSegment(self.name, (op,)), {"x": rng.integers(-128, 128, source).astype(np.int8)}

    @property
    def macs(self) -> int:
        oh, ow = self.window.output(self.h, self.w)
        return oh * ow * self.cout * self.cin * self.kernel**2

    @property
    def least_bytes(self) -> int:
        """Bytes of input, weights and output, each moved once."""
        oh, ow = self.window.output(self.h, self.w)
        return self.h * self.w * self.cin + self.cin * self.cout * self.kernel**2 + oh * ow * self.cout

    def roofline(self, n: int, bandwidth: float) -> float:
        """Return the largest possible utilisation of an n x n array with memory of `bandwidth` bytes a cycle."""
        ideal = self.macs / (n * n)
        return ideal / max(ideal, self.least_bytes / bandwidth)


def gemm(side: int) -> Shape:
    return Shape(f"GEMM {side}x{side}x{side}", 1, side, side, side)


ON_CHIP = (gemm(64), gemm(128), gemm(512), Shape("conv 3x3 64->64 on 28x28", 28, 28, 64, 64, 3))

RESNET18 = (
    Shape("conv1 7x7/2 3->64", 224, 224, 3, 64, 7, 2),
    Shape("layer1 3x3 64->64", 56, 56, 64, 64, 3, 1, 4),
    Shape("layer2.0 3x3/2 64->128", 56, 56, 64, 128, 3, 2),
    Shape("layer2 3x3 128->128", 28, 28, 128, 128, 3, 1, 3),
    Shape("layer2.0 1x1/2 64->128", 56, 56, 64, 128, 1, 2),
    Shape("layer3.0 3x3/2 128->256", 28, 28, 128, 256, 3, 2),
    Shape("layer3 3x3 256->256", 14, 14, 256, 256, 3, 1, 3),
    Shape("layer3.0 1x1/2 128->256", 28, 28, 128, 256, 1, 2),
    Shape("layer4.0 3x3/2 256->512", 14, 14, 256, 512, 3, 2),
    Shape("layer4 3x3 512->512", 7, 7, 512, 512, 3, 1, 3),
    Shape("layer4.0 1x1/2 256->512", 14, 14, 256, 512, 1, 2),
    Shape("fc 512->1000", 1, 1, 512, 1000),
)
