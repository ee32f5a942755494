"""Measure the gain of 4-bit weights: networks bound by their weights, in 8 bits and in 4.

    python benchmarks/int4.py

Both are sequences of fully connected layers, for one row of inputs or for many: the shape of MLPerf Tiny's autoencoder,
and the two products of a BERT-base layer's feed-forward network. Cycles are those of the cycle model: on `default`
behind a memory of 2 bytes a cycle, on the ULX3S 85F's configuration behind its SDRAM controller.
"""

from __future__ import annotations

import sys
from itertools import pairwise

import numpy as np

from weft.boards.registry import BOARDS
from weft.compiler.backend import compile_segment
from weft.compiler.ir.graph import Conv, DeviceSegment
from weft.compiler.ir.views import Buffer, View
from weft.configurations import configuration, memory_of
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import Counter
from weft.run.board_run import board_model
from weft.run.runtime import Image
from weft.sim.timing import TimingDevice

AUTOENCODER = (640, 128, 128, 128, 128, 8, 128, 128, 128, 128, 640)
NETWORKS = {
    "autoencoder, 1 row": (1, AUTOENCODER),
    "autoencoder, 16 rows": (16, AUTOENCODER),
    "BERT-base FFN, 1 row": (1, (768, 3072, 768)),
    "BERT-base FFN, 128 rows": (128, (768, 3072, 768)),
}
"""Rows, and the features of the input and of each result."""
BANDWIDTH, LATENCY = 2.0, 30


def network(rows: int, features: tuple[int, ...]) -> DeviceSegment:
    """Return layers with random weights of 4 bits."""
    rng, ops = np.random.default_rng(rows), []
    kinds = ["input", *["temp"] * (len(features) - 2), "output"]
    views = [
        View(Buffer(f"x{at}", (1, 1, rows, size), kind), (1, 1, rows, size))
        for at, (size, kind) in enumerate(zip(features, kinds, strict=True))
    ]
    for at, (src, dst) in enumerate(pairwise(views)):
        inner, out = features[at], features[at + 1]
        weight = rng.integers(-8, 8, (out, 1, 1, inner)).astype(np.int16)
        scale = np.full(out, 1 / (8 * np.sqrt(inner)))
        ops.append(Conv(f"layer{at}", src, dst, weight, np.zeros(out, np.int32), scale))
    return DeviceSegment("network", tuple(ops))


def measure(segment: DeviceSegment, config: Config, board: str | None) -> tuple[int, int]:
    """Return cycles, and bytes moved."""
    bandwidth = memory_of(board, config) if board else BANDWIDTH
    image = Image(compile_segment(segment, config, bandwidth=bandwidth))
    if board:
        device = board_model(BOARDS[board], config, BOARDS[board].clock, image.memory_bytes)
    else:
        device = TimingDevice(config, image.memory_bytes, latency=LATENCY, bandwidth=BANDWIDTH)
    image.run(device, {})
    counters = device.counters()
    beats = counters[Counter.READ_BEATS] + counters[Counter.WRITE_BEATS]
    return counters[Counter.CYCLES], beats * config.bus_bytes


def main() -> int:
    print("| network | on | cycles, 8 bits | 4 bits | bytes, 8 bits | 4 bits |")
    print("|---|---|---|---|---|---|")
    for name, shape in NETWORKS.items():
        for board in (None, "ulx3s-85f"):
            config = configuration(board or "default")
            wide, narrow = (measure(network(*shape), config.replace(int4=int4), board) for int4 in (0, 1))
            place = board or f"`default`, {BANDWIDTH:g} bytes a cycle"
            cells = f"{wide[0]:,} | {narrow[0]:,} | {wide[1]:,} | {narrow[1]:,}"
            print(f"| {name} | {place} | {cells} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
