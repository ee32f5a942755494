"""All of ResNet-18 at 224 x 224 in one program, with random weights, on the RTL and the golden interpreter.

python benchmarks/network.py [--config default]
"""

from __future__ import annotations

import argparse
import sys
import time

import numpy as np

from weft.compiler.backend import compile_segment
from weft.compiler.ir.graph import Add, Conv, DeviceOp, DeviceSegment, Pool
from weft.compiler.ir.views import Buffer, View
from weft.compiler.ir.windows import Window
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import Counter
from weft.run.runtime import Image
from weft.sim.golden.interpreter import GoldenDevice
from weft.sim.rtl.device import RtlDevice


class _Builder:
    """Operators one after the other, each writing a temporary of its own."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(18)
        self.ops: list[DeviceOp] = []

    def _view(self, name: str, h: int, w: int, c: int) -> View:
        return View(Buffer(name, (1, h, w, c)), (1, h, w, c))

    def conv(self, src: View, out: int, kernel: int, stride: int = 1) -> View:
        _, h, w, cin = src.shape
        window = Window((kernel,) * 2, (stride,) * 2, (1, 1), ((kernel - 1) // 2,) * 4)
        name = f"conv{len(self.ops)} {kernel}x{kernel}/{stride} {cin}->{out}"
        dst = self._view(name, *window.output(h, w), out)
        weight = self.rng.integers(-127, 128, (out, kernel, kernel, cin)).astype(np.int16)
        scale = np.full(out, 1 / (np.sqrt(cin) * kernel * 127))
        self.ops.append(Conv(name, src, dst, weight, np.zeros(out, np.int32), scale, window))
        return dst

    def pool(self, src: View, kind: str, window: Window) -> View:
        _, h, w, c = src.shape
        dst = self._view(f"{kind} pool{len(self.ops)}", *window.output(h, w), c)
        self.ops.append(Pool(dst.buffer.name, src, dst, kind, window))
        return dst

    def add(self, a: View, b: View) -> View:
        dst = self._view(f"add{len(self.ops)}", *a.shape[1:])
        self.ops.append(Add(dst.buffer.name, a, b, dst, 0.7, 0.7, low=0))
        return dst


def resnet18() -> DeviceSegment:
    """Return the network from its quantised input to its logits, as the front end gives it."""
    builder = _Builder()
    shape = (1, 224, 224, 3)
    x = builder.conv(View(Buffer("image", shape, "input"), shape), 64, 7, 2)
    x = builder.pool(x, "max", Window((3, 3), (2, 2), (1, 1), (1, 1, 1, 1)))
    for stage, channels in enumerate((64, 128, 256, 512)):
        for block in range(2):
            stride = 2 if stage and not block else 1
            inner = builder.conv(builder.conv(x, channels, 3, stride), channels, 3)
            x = builder.add(inner, builder.conv(x, channels, 1, stride) if stride > 1 else x)
    logits = builder.conv(builder.pool(x, "average", Window((7, 7))), 1000, 1)
    last = builder.ops[-1].replace(dst=View(Buffer("logits", logits.shape, "output"), logits.shape))
    return DeviceSegment("resnet18", (*builder.ops[:-1], last))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", default="default")
    config = Config.load(parser.parse_args().config)
    segment = resnet18()
    begin = time.perf_counter()
    program = compile_segment(segment, config)
    compiled = time.perf_counter() - begin
    image = Image(program)
    values = {"image": np.random.default_rng(1).integers(-128, 128, (1, 224, 224, 3)).astype(np.int8)}
    golden = GoldenDevice(config, image.memory_bytes)
    begin = time.perf_counter()
    image.run(golden, values)
    interpreted = time.perf_counter() - begin
    with RtlDevice(config, image.memory_bytes, latency=30, bandwidth=config.bus_bytes) as rtl:
        begin = time.perf_counter()
        image.run(rtl, values)
        simulated = time.perf_counter() - begin
        counters, marks = rtl.counters(), rtl.marks()
        same = rtl.read(0, image.memory_bytes) == golden.read(0, image.memory_bytes)
    print("| layer | cycles | utilisation |\n|---|---|---|")
    for layer, end, start in zip(program.timed_layers.values(), marks, [0, *marks[:-1]], strict=True):
        share = layer.macs / config.n**2 / (end - start)
        print(f"| {layer.name} | {end - start:,} | {f'{share:.1%}' if layer.macs else '-'} |")
    cycles, macs = counters[Counter.CYCLES], sum(layer.macs for layer in program.layers)
    print(f"| **total** | {cycles:,} | {macs / config.n**2 / cycles:.1%} |\n")
    moved = (counters[Counter.READ_BEATS] + counters[Counter.WRITE_BEATS]) * config.bus_bytes
    print(
        f"{len(program.instructions):,} instructions, compiled in {compiled:.1f} s; {moved / 1e6:.1f} MB moved"
    )
    print(
        f"golden interpreter {interpreted:.1f} s, RTL {simulated:.0f} s ({cycles / simulated:,.0f} cycles/s)"
    )
    print(
        f"memory equal in RTL and golden interpreter, all {image.memory_bytes:,} bytes: {'yes' if same else 'NO'}"
    )
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
