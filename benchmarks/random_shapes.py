"""Array utilisation of random matrix products on the cycle model, from memory to memory.

    python benchmarks/random_shapes.py [--config default] [--count 500] [--seed 0] [--worst 10]

Rows, contraction and columns of each product are drawn alike from the multiples of 8 up to 256. Each is compiled as
users' models are, and timed from start to done behind a memory of 30 cycles' latency that moves as many bytes a cycle
as the bus is wide, reads and writes together. Utilisation is MACs over N * N * cycles. *padded* is the most of it that
whole vectors of N elements allow, and *roofline* the most with memory as well, each byte moved once.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

import numpy as np
from shapes import Shape

from weft.compiler.backend import compile_segment
from weft.configurations import configuration
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import Counter
from weft.run.runtime import Image
from weft.sim.timing import TimingDevice

LATENCY, STEP, MOST = 30, 8, 256
QUANTILES = {"worst": 0.0, "lower quartile": 0.25, "median": 0.5, "upper quartile": 0.75, "best": 1.0}


@dataclass(frozen=True)
class Measured:
    """A product of (rows, contraction, columns); `padded` and `roofline` are the most that `utilisation` can be."""

    sizes: tuple[int, int, int]
    cycles: int
    utilisation: float
    padded: float
    roofline: float


def draw(count: int, seed: int) -> list[tuple[int, int, int]]:
    """Return rows, contraction and columns of random products."""
    sizes = np.random.default_rng(seed).integers(1, MOST // STEP + 1, (count, 3)) * STEP
    return [(int(m), int(k), int(n)) for m, k, n in sizes]


def measure(sizes: tuple[int, int, int], config: Config) -> Measured:
    rows, depth, columns = sizes
    shape = Shape("x".join(map(str, sizes)), 1, rows, depth, columns)
    image = Image(compile_segment(shape.segment()[0], config))
    device = TimingDevice(config, image.memory_bytes, latency=LATENCY, bandwidth=config.bus_bytes)
    image.run(device, {})
    cycles = device.counters()[Counter.CYCLES]
    n = config.n
    padded = rows * -(-depth // n) * -(-columns // n)
    ideal = shape.macs / n**2
    least = max(padded, shape.least_bytes / config.bus_bytes)
    return Measured(sizes, cycles, ideal / cycles, ideal / padded, ideal / least)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", default="default")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--worst", type=int, default=10, help="show so many of the products furthest below")
    options = parser.parse_args()
    config = configuration(options.config)
    results = [measure(sizes, config) for sizes in draw(options.count, options.seed)]
    print(f"{options.count} products on {options.config}, seed {options.seed}\n")
    print("| | utilisation | padded | roofline | utilisation / roofline |")
    print("|---|---|---|---|---|")
    columns = np.array([[r.utilisation, r.padded, r.roofline, r.utilisation / r.roofline] for r in results])
    for name, quantile in QUANTILES.items():
        values = np.quantile(columns, quantile, axis=0)
        print(f"| {name} | " + " | ".join(f"{value:.1%}" for value in values) + " |")
    for item in sorted(results, key=lambda r: r.utilisation / r.roofline)[: options.worst]:
        print(f"{item.sizes}: {item.cycles:,} cycles, {item.utilisation:.1%} of {item.roofline:.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
