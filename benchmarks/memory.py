"""What plans for the memory there is are worth: ResNet-18 behind memories of 1 to 16 bytes a cycle.

    python benchmarks/memory.py [CONFIG ...]

Columns: cycles of the program that is planned for a memory as fast as the bus, and of the one that is planned for the
memory that it runs behind, by the cycle model, with the bytes that they move.
"""

from __future__ import annotations

import sys

from network import resnet18

from weft.compiler.backend import compile_segment
from weft.configurations import configuration
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import Counter
from weft.runtime import Image
from weft.sim.timing import TimingDevice

BANDWIDTHS = (1.0, 2.0, 4.0, 8.0, 16.0)


def measured(config: Config, planned: float | None, bandwidth: float) -> tuple[int, float]:
    """Cycles, and megabytes moved."""
    image = Image(compile_segment(resnet18(), config, bandwidth=planned))
    device = TimingDevice(config, image.memory_bytes, latency=30, bytes_per_cycle=bandwidth)
    image.run(device, {})
    counters = device.counters()
    beats = counters[Counter.READ_BEATS] + counters[Counter.WRITE_BEATS]
    return counters[Counter.CYCLES], beats * config.bus_bytes / 1e6


def main() -> int:
    print("| configuration | bytes a cycle | planned for the bus | MB | planned for the memory | MB | less |")
    print("|---|---|---|---|---|---|---|")
    for name in sys.argv[1:] or ["default", "ulx3s-85f"]:
        config = configuration(name)
        for bandwidth in BANDWIDTHS:
            before, much = measured(config, None, bandwidth)
            after, little = measured(config, bandwidth, bandwidth)
            print(
                f"| `{name}` | {bandwidth:g} | {before:,} | {much:.1f} | {after:,} | {little:.1f} | "
                f"{1 - after / before:.1%} |",
                flush=True,
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
