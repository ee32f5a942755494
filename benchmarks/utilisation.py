"""Array utilisation on the RTL, from the hardware's own counters: matrix products, convolutions, ResNet-18's layers.

    python benchmarks/utilisation.py [--config default] [--write docs/utilisation.md]

Every shape is compiled as users' models are, and runs on the Verilator model behind a memory of 30 cycles' latency that
moves as many bytes a cycle as the bus is wide, reads and writes together. Results are compared with the golden
interpreter, byte for byte. Columns: *window* is useful MACs over N * N * (cycles from the first row that enters the
array to the last accumulator write); *whole* counts all cycles from start to done, the loading of the first
operands and the storing of the last results included; *roofline* is the most that the memory's bandwidth allows.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
from on_chip import fits, utilisation
from shapes import ON_CHIP, RESNET18, Shape

from weft.compiler.backend import compile_segment
from weft.compiler.ir.graph import DeviceSegment
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import Counter
from weft.run.runtime import Image
from weft.sim.golden.interpreter import GoldenDevice
from weft.sim.rtl.device import RtlDevice

HEADER = (
    "| shape | MACs | cycles | window | whole | roofline | stalls: semaphore, weights, port |\n"
    "|---|---|---|---|---|---|---|"
)


def measure(
    segment: DeviceSegment, inputs: dict[str, np.ndarray], config: Config
) -> tuple[dict[Counter, int], bool]:
    """Run a segment on the RTL; return its counters, and whether all memory equals the golden interpreter's."""
    image = Image(compile_segment(segment, config))
    with RtlDevice(config, image.memory_bytes, latency=30, bandwidth=config.bus_bytes) as rtl:
        image.run(rtl, inputs)
        counters = rtl.counters()
        got = rtl.read(0, image.memory_bytes)
    golden = GoldenDevice(config, image.memory_bytes)
    image.run(golden, inputs)
    return counters, golden.read(0, image.memory_bytes) == got


def run(shape: Shape, config: Config) -> tuple[str, bool]:
    """Return a row of the table, and whether RTL and golden interpreter agree."""
    segment, inputs = shape.segment()
    counters, same = measure(segment, inputs, config)
    roofline = f"{shape.roofline(config.n, config.bus_bytes):.0%}"
    return format_row(shape.name, shape.macs, counters, config, roofline), same


def format_row(name: str, macs: int, counters: dict[Counter, int], config: Config, roofline: str) -> str:
    ideal = macs / config.n**2
    return (
        f"| {name} | {macs:,} | {counters[Counter.CYCLES]:,} "
        f"| {ideal / counters[Counter.ARRAY_WINDOW]:.1%} | {ideal / counters[Counter.CYCLES]:.1%} | {roofline} "
        f"| {counters[Counter.MM_SEMAPHORE]:,}, {counters[Counter.MM_WEIGHTS]:,}, {counters[Counter.MM_PORT]:,} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", default="default")
    parser.add_argument("--only", default="", help="run shapes whose name contains this")
    parser.add_argument("--write", type=Path, help="write the table to this Markdown file")
    options = parser.parse_args()
    config = Config.load(options.config)
    rows, wrong = [HEADER], 0
    print(HEADER)
    begin = time.monotonic()
    for side in (64, 128):
        name = f"GEMM {side}x{side}x{side}, operands on chip"
        if options.only in name and fits(side, config):
            counters, same = utilisation(side, config)
            row = format_row(name, side**3, counters, config, "-")
            wrong += not same
            rows.append(row)
            print(row if same else row + " **differs from golden**", flush=True)
    for shape in (*ON_CHIP, *RESNET18):
        if options.only in shape.name:
            row, same = run(shape, config)
            wrong += not same
            rows.append(row)
            print(row if same else row + " **differs from golden**", flush=True)
    print(f"{time.monotonic() - begin:.0f} s; shapes whose bytes differ from the golden interpreter: {wrong}")
    if options.write is not None:
        options.write.write_text("\n".join(rows) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
