"""Whole networks through the compiler, the cycle model and the golden interpreter, compared with ONNX Runtime.

    python benchmarks/models.py [--only TEXT] [--config default] [--rtl] [--svg docs/networks.svg]

Networks are those of `zoo.py`: random weights, quantised by ONNX Runtime. Columns: operators that run on the device of
all there are, QuantizeLinear and DequantizeLinear not counted; seconds to compile and to interpret one image (golden);
cycles of the device by the cycle model behind a memory of 30 cycles' latency that moves as many bytes a cycle as the
bus is wide; utilisation of the array over all of these cycles; millions of bytes that the bus moves, and how many it
would if all results went to memory (``reuse=False``). With both the outputs are compared. Then each quantised value is
computed by the golden interpreter from ONNX Runtime's own values before it, operator by operator: *differ* is how many
are not equal, in parts of all, softmax, averages and LRN left out, and *most* by how many steps, all included. It fails
if one is off by more than a step. What operators become together is what `tests/compiler` holds against numpy.

With `--rtl` three layers of each network, by chance, run on the RTL too, and all of memory is compared. `--svg` only
draws what the cycles go into.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import zoo
from oracle import compare_layers, layers, steps
from plots import stacked_chart

import weft
from weft.compiler.backend import DeviceProgram
from weft.hdl.isa.config import Config

LINKS = ("QuantizeLinear", "DequantizeLinear")
LOOSE = ("Softmax", "AveragePool", "GlobalAveragePool", "LRN")
"""Operators whose results differ more often: softmax has numerics of its own on the device, averages that keep their
input's scale fall on exact halves, which float32 breaks either way, and LRN, on the host, falls next to them."""
HEADER = (
    "| network | operators | MACs | compile s | golden s | cycles | utilisation | MB moved | all in memory "
    "| values | differ | most |\n|---|---|---|---|---|---|---|---|---|---|---|---|"
)


def differences(
    model: onnx.ModelProto, feeds: dict[str, np.ndarray], config: Config, rtl: int = 0
) -> tuple[int, int, int]:
    """Values compared, how many differ, and by how many steps at most; `rtl` layers run on the RTL as well.

    Results of `LOOSE` operators count in the last figure only.

    Raises
    ------
    AssertionError
        If a byte of memory is not equal on RTL and golden interpreter.
    """
    parts = list(layers(model))
    chosen = set(np.random.default_rng(0).choice(len(parts), min(rtl, len(parts)), replace=False).tolist())
    total = wrong = most = 0
    for index, layer in enumerate(compare_layers(model, parts, [feeds], config)):
        ((name, computed),) = layer.result.outputs.items()
        if index in chosen and any(isinstance(part, DeviceProgram) for part in layer.program.segments):
            simulated = layer.program.run(layer.inputs, on="rtl")
            assert simulated.memory == layer.result.memory, f"RTL and golden interpreter differ in {name}"
        off = steps(layer.wanted, computed)
        most = max(most, int(off.max(initial=0)))
        if not any(node.op_type in LOOSE for node in layer.model.graph.node):
            total, wrong = total + off.size, wrong + int(np.count_nonzero(off))
    return total, wrong, most


def image(program: weft.Program) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    return {name: rng.normal(0, 1, shape).astype(np.float32) for name, (_, shape) in program.inputs.items()}


def row(name: str, config: Config, rtl: int) -> tuple[str, bool]:
    """A line of the table, and whether no value is off by more than a step."""
    model = zoo.quantise_network(name)
    begin = time.perf_counter()
    program = weft.compile(model, config)
    compiled = time.perf_counter() - begin
    feeds = image(program)
    begin = time.perf_counter()
    outputs = program.run(feeds).outputs
    interpreted = time.perf_counter() - begin
    report = program.run(feeds, on="timing", bandwidth=config.bus_bytes).report
    plain = weft.compile(model, config, reuse=False)
    most_moved = plain.run(feeds, on="timing", bandwidth=config.bus_bytes).report["dram_bytes"]
    for output, value in plain.run(feeds).outputs.items():
        assert np.array_equal(outputs[output], value), f"{output} of {name} depends on what stays on chip"
    placed = [place for _, kind, place, _ in program.assignment if kind not in LINKS]
    total, wrong, most = differences(model, feeds, config, rtl)
    return (
        f"| {name} | {placed.count('device')} of {len(placed)} | {report['macs'] / 1e6:,.0f} M | {compiled:.1f} "
        f"| {interpreted:.2f} | {report['cycles']:,} | {report['utilisation']:.1%} "
        f"| {report['dram_bytes'] / 1e6:.1f} | {most_moved / 1e6:.1f} | {total:,} "
        f"| {wrong / total:.1e} | {most} |"
    ), most <= 1


PARTS = {
    "work": "useful multiplications",
    "array": "rest of layers on the array: partial tiles, start and end",
    "memory": "rest of layers that memory paces",
    "vector unit": "rest of layers that the vector unit paces",
    "pool": "pooling",
    "other": "adding, rescaling, copying, softmax",
}
"""Parts of cycles: work, the rest of layers on the array by their bottleneck, and layers of other kinds."""


def parts(name: str, config: Config) -> list[float]:
    """Return the share of each of `PARTS` in a network's cycles."""
    program = weft.compile(zoo.quantise_network(name), config)
    report = program.run(image(program), on="timing", bandwidth=config.bus_bytes).report
    shares = dict.fromkeys(PARTS, 0.0)
    for layer in report["layers"]:
        work = layer["macs"] / config.n**2
        part = layer["bound"] if work else "pool" if layer["kind"] == "pool" else "other"
        shares["work"] += work
        shares[part] += layer["cycles"] - work
    left = [max(share, 0.0) for share in shares.values()]  # layers overlap: one may take less than its work
    return [share / sum(left) for share in left]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="networks whose name contains this")
    parser.add_argument("--config", default="default")
    parser.add_argument("--rtl", action="store_true", help="run three layers of each network on the RTL")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="only draw what the cycles go into")
    options = parser.parse_args()
    config = Config.load(options.config)
    if options.svg:
        rows = {name: parts(name, config) for name in zoo.NETWORKS if options.only in name}
        title = f"What the cycles of networks go into, on {config.n} x {config.n}"
        options.svg.write_text(stacked_chart(title, tuple(PARTS.values()), "useful", rows))
        return 0
    print(HEADER)
    fits = True
    for name in zoo.NETWORKS:
        if options.only in name:
            line, right = row(name, config, 3 if options.rtl else 0)
            print(line, flush=True)
            fits &= right
    return 0 if fits else 1


if __name__ == "__main__":
    sys.exit(main())
