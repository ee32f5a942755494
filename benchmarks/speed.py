"""Speed of the tools: Verilog generation, the RTL simulation, the golden interpreter, the compiler.

    python benchmarks/speed.py [--config default]

Figures are wall-clock times on this machine, each with its workload.
"""

from __future__ import annotations

import argparse
import sys
import time

from shapes import RESNET18

from weft.compiler.backend import compile_segment
from weft.hdl.core import Core
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import Counter
from weft.hdl.verilog import generate
from weft.run.runtime import Image
from weft.sim.compiled.device import CompiledDevice
from weft.sim.golden.interpreter import GoldenDevice
from weft.sim.rtl.device import RtlDevice
from weft.sim.rtl.library import build_model


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", default="default")
    name = parser.parse_args().config
    config = Config.load(name)
    print("| what | figure |\n|---|---|")
    begin = time.perf_counter()
    text = generate(Core(config), name="weft")
    print(
        f"| Verilog of `{name}` | {time.perf_counter() - begin:.1f} s, {len(text) / 1e6:.1f} MB |", flush=True
    )
    build_model(config)
    shape = next(shape for shape in RESNET18 if shape.name.startswith("layer1"))
    segment, inputs = shape.segment()
    begin = time.perf_counter()
    program = compile_segment(segment, config)
    print(f"| compile {shape.name} | {time.perf_counter() - begin:.2f} s |", flush=True)
    image = Image(program)
    with RtlDevice(config, image.memory_bytes, bandwidth=config.bus_bytes) as rtl:
        begin = time.perf_counter()
        image.run(rtl, inputs)
        seconds = time.perf_counter() - begin
        cycles = rtl.counters()[Counter.CYCLES]
    print(f"| RTL simulation, whole program {shape.name} | {cycles / seconds:,.0f} cycles/s |", flush=True)
    for title, kind in (
        ("golden interpreter", GoldenDevice),
        ("golden interpreter, compiled", CompiledDevice),
    ):
        golden = kind(config, image.memory_bytes)
        begin = time.perf_counter()
        image.run(golden, inputs)
        seconds = time.perf_counter() - begin
        print(f"| {title}, the same program | {shape.macs / seconds / 1e9:.2f} GMAC/s |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
