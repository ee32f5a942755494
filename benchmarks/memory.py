"""Measure the gain of planning for the actual memory: networks on memories of 1 to 16 bytes a cycle.

    python benchmarks/memory.py [--network resnet18] [CONFIG ...]

`resnet18` is the network of `network.py`; all others are those of `zoo.py`.

Columns: cycles of the program that is planned for a memory as fast as the bus, and of the one that is planned for the
memory that it runs behind, by the cycle model, with the bytes that they move.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
import zoo
from network import resnet18

import weft
from weft.compiler.backend import compile_segment
from weft.configurations import configuration
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import Counter
from weft.run.runtime import Image
from weft.sim.timing import TimingDevice

BANDWIDTHS = (1.0, 2.0, 4.0, 8.0, 16.0)


def measure(network: str, config: Config, planned: float | None, bandwidth: float) -> tuple[int, float]:
    """Return cycles, and megabytes moved."""
    if network != "resnet18":
        program = weft.compile(zoo.quantise_network(network), config, memory=planned or config.bus_bytes)
        inputs = {name: np.zeros(shape, dtype) for name, (dtype, shape) in program.inputs.items()}
        report = program.run(inputs, on="timing", latency=30, bandwidth=bandwidth).report
        return report["cycles"], report["dram_bytes"] / 1e6
    image = Image(compile_segment(resnet18(), config, bandwidth=planned))
    device = TimingDevice(config, image.memory_bytes, latency=30, bandwidth=bandwidth)
    image.run(device, {})
    counters = device.counters()
    beats = counters[Counter.READ_BEATS] + counters[Counter.WRITE_BEATS]
    return counters[Counter.CYCLES], beats * config.bus_bytes / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--network", default="resnet18")
    parser.add_argument("configs", nargs="*", default=["default", "ulx3s-85f"])
    options = parser.parse_args()
    print("| configuration | bytes a cycle | planned for the bus | MB | planned for the memory | MB | less |")
    print("|---|---|---|---|---|---|---|")
    for name in options.configs:
        config = configuration(name)
        for bandwidth in BANDWIDTHS:
            before, much = measure(options.network, config, None, bandwidth)
            after, little = measure(options.network, config, bandwidth, bandwidth)
            print(
                f"| `{name}` | {bandwidth:g} | {before:,} | {much:.1f} | {after:,} | {little:.1f} | "
                f"{1 - after / before:.1%} |",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
