"""Recorded costs of programs of random networks for every configuration.

``cd tests && ../.venv/bin/python -m support.recorded_programs`` records them anew, after an intended change of
programs.

A plan that costs more cycles computes the same bytes, so tests of results miss it; the record does not.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from support.certified_cases import EVERY_CONFIG, KINDS, compile_random, draw_network
from support.op_cases import segment_of, split_operators
from support.rooflines import LATENCY, random_layer, small_layer
from weft.compiler.backend import compile_segment
from weft.compiler.ir.graph import DeviceSegment
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import Counter
from weft.run.runtime import Image
from weft.sim.timing import SequentialTimingDevice, TimingDevice

RECORD = Path(__file__).resolve().parent.parent / "compiler" / "recorded_programs.json"
SHARES = (1.0, 0.5, 0.25, 0.0625)
"""Memory bandwidths that programs are planned for and run on, in parts of the bus."""
DRAWN, LAYERS = 2, 2
"""Small networks, and layers (half of them large), for a configuration."""
OTHERS = 4
"""Programs of each kind of operator except convolutions."""
Measured = dict[str, int | str]


def segments(name: str) -> Iterator[tuple[str, DeviceSegment, Config]]:
    """Return the segments of a configuration or of a kind of operator, with a title for each."""
    if name in KINDS:
        for seed in range(OTHERS):
            yield (f"{seed}", *compile_random(name, seed))
        return
    config, place = EVERY_CONFIG[name], sorted(EVERY_CONFIG).index(name)
    for number in range(DRAWN):
        yield (f"network {number}", *draw_network(place + number * len(EVERY_CONFIG)))
    for number in range(LAYERS):
        rng = np.random.default_rng([place, number])
        yield f"layer {number}", segment_of(*split_operators(random_layer(rng, config))), config
        yield f"small layer {number}", segment_of(*split_operators(small_layer(rng))), config


def measure(name: str) -> dict[str, Measured]:
    """Return cycles, instructions, bus beats and a hash of the words of each program, by title."""
    found: dict[str, Measured] = {}
    for number, (title, segment, config) in enumerate(segments(name)):
        share = SHARES[number % len(SHARES)]
        bandwidth = share * config.bus_bytes
        sequential = number % 5 == 4 and not config.depthwise_taps and not config.loops
        program = compile_segment(segment, config, bandwidth=bandwidth, sequential=sequential)
        image = Image(program)
        kind = SequentialTimingDevice if sequential else TimingDevice
        device = kind(config, image.memory_bytes, latency=LATENCY, bandwidth=bandwidth)
        image.run(device, {})
        counters = device.counters()
        found[title] = {
            "cycles": int(counters[Counter.CYCLES]),
            "beats": int(counters[Counter.READ_BEATS] + counters[Counter.WRITE_BEATS]),
            "instructions": len(program.instructions),
            "words": hashlib.sha256(program.instructions.tobytes()).hexdigest()[:12],
        }
    return found


NAMES = (*sorted(EVERY_CONFIG), *sorted(KINDS))


def recorded() -> dict[str, dict[str, Measured]]:
    return dict(json.loads(RECORD.read_text()))


def main() -> None:
    """Record all programs anew, and print which became slower or faster."""
    before = recorded() if RECORD.exists() else {}
    now = {name: measure(name) for name in NAMES}
    for name, programs in now.items():
        for title, item in programs.items():
            old = before.get(name, {}).get(title, item)
            if item != old:
                print(f"{name}, {title}: {old['cycles']:,} cycles, now {item['cycles']:,}")
    RECORD.write_text(_to_json(now))


def _to_json(found: dict[str, dict[str, Measured]]) -> str:
    """Return JSON with a line a program, so that a diff shows which changed."""
    blocks = []
    for name, programs in found.items():
        lines = [f"{json.dumps(title)}: {json.dumps(item)}" for title, item in programs.items()]
        blocks.append(f"{json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n}")
    return "{\n" + ",\n".join(blocks) + "\n}\n"


if __name__ == "__main__":
    main()
