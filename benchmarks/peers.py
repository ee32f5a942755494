"""Cycles and utilisation of weft beside SCALE-Sim's, on the same shapes and an array of the same size.

    python benchmarks/peers.py [--only TEXT] [--jobs 1] [--json FILE] [--svg docs/peers.svg]
    python benchmarks/peers.py (--read FILE | --again FILE) [--json FILE] [--svg docs/peers.svg]

SCALE-Sim (PyPI: scalesim) runs in an environment of its own, which the first run makes in weft's cache folder: 16 x 16,
weight stationary (WS) and output stationary (OS), all operands in its SRAM, a memory that never stalls. Its figure is
*Total Cycles* of COMPUTE_REPORT.csv, the most favourable one: not that "incl. prefetch", which adds the loading of
operands. The report must be of as many multiplications as weft's shape has, and the figure equal the closed form of
the dataflow, or the benchmark fails.

weft is the preset `default` (16 x 16) in the cycle model. *whole* counts all cycles from start to done behind a memory
of 30 cycles' latency and 16 bytes a cycle, reads and writes together: operands are loaded, results requantised and
stored. *window* is from the first row that enters the array to the last accumulator write. Utilisation is MACs over 256
times the cycles. *weft ahead* of both dataflows: **yes**, whole; **array**, only where memory is left out as SCALE-Sim
leaves it out (window, and 16 cycles in which the first weights enter, which SCALE-Sim counts); **no**, not even there.

A full run takes half an hour on a busy core, nearly all of them in SCALE-Sim; `--jobs` runs several of it at once.
`--read` shows what an earlier run wrote with `--json`, and measures nothing; `--again` measures weft anew, beside
SCALE-Sim's figures from there, in a minute.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import on_chip
from plots import Row, chart
from shapes import RESNET18, Shape, gemm

from weft.compiler.backend import compile_segment
from weft.hdl.cache import cache_root
from weft.hdl.isa.config import PRESETS
from weft.hdl.isa.memmap import Counter
from weft.run.runtime import Image
from weft.sim.timing import TimingDevice
from weft.sim.verilate import BuildError


def product(m: int, n: int, k: int, name: str = "", count: int = 1) -> Shape:
    """Return a product of m rows of k elements and k x n elements."""
    return Shape(name or f"GEMM {m}x{n}x{k}", 1, m, k, n, count=count)


GEMMS = (
    gemm(16),
    gemm(32),
    gemm(64),
    gemm(128),
    gemm(256),
    gemm(512),
    product(100, 100, 100),
    product(256, 128, 256),
    product(128, 64, 128),
    product(128, 512, 512),
)
"""m x n x k; the last three are from SCALE-Sim's GEMM examples (test_mnk_input, transformer_partial)."""

_HEADS, _BLOCKS = 6, 12
VIT_SMALL = (
    product(197, 1152, 384, "qkv 384->1152", _BLOCKS),
    product(197, 197, 64, "scores of a head", _BLOCKS * _HEADS),
    product(197, 64, 197, "values of a head", _BLOCKS * _HEADS),
    product(197, 384, 384, "projection 384->384", _BLOCKS),
    product(197, 1536, 384, "mlp1 384->1536", _BLOCKS),
    product(197, 384, 1536, "mlp2 1536->384", _BLOCKS),
)
"""Products in the twelve blocks of ViT-Small/16: 197 tokens of 384, six heads of 64."""

GROUPS: dict[str, tuple[Shape, ...]] = {
    "GEMM": GEMMS,
    "ResNet-18, 224 x 224": RESNET18,
    "ViT-Small/16, 197 tokens": VIT_SMALL,
}


def mnk(shape: Shape) -> tuple[int, int, int]:
    """Return the matrix product of a shape: output pixels, output channels, elements of a window."""
    oh, ow = shape.window.output(shape.h, shape.w)
    return oh * ow, shape.cout, shape.kernel**2 * shape.cin


def topology(shape: Shape) -> str:
    """Return a file for SCALE-Sim's convolutions with this shape alone.

    A matrix product is what SCALE-Sim's own reader of such makes of it: windows of 1 x k on an image of m x k.
    SCALE-Sim knows no padding and rounds outputs up: the image is as large as what the windows cover, edges included.
    """
    m, n, k = mnk(shape)
    if shape.h == shape.kernel == 1:
        # The window covers a row of the image, so that each of its m positions is a row of the product.
        numbers = (m, k, 1, k, 1, n, 1)
    else:
        height, width = (
            (side - 1) * shape.stride + shape.kernel for side in shape.window.output(shape.h, shape.w)
        )
        numbers = (height, width, shape.kernel, shape.kernel, shape.cin, n, shape.stride)
    header = "Layer,IFMAP Height,IFMAP Width,Filter Height,Filter Width,Channels,Num Filter,Strides,"
    return f"{header}\nlayer,{','.join(map(str, numbers))},\n"


PINS = {
    "scalesim": "3.0.0",
    "numpy": "2.3.5",  # SCALE-Sim converts arrays of one element with int(), which numpy 2.4 refuses
    "tqdm": "4.67.1",  # with numpy, all that the simulator imports of its nine requirements: --no-deps
}
CONFIG = PRESETS["default"]
N = CONFIG.n
LATENCY = 30
DATAFLOWS = ("ws", "os")
ON_CHIP = (64, 128, 512)
"""Sides of the matrix products that also run with operands on chip, as far as they fit there."""

_SETTINGS = f"""[general]
run_name = run
[run_presets]
InterfaceBandwidth = CALC
UseRamulatorTrace = False
[architecture_presets]
ArrayHeight = {N}
ArrayWidth = {N}
IfmapSramSzkB = 8192
FilterSramSzkB = 8192
OfmapSramSzkB = 32768
IfmapOffset = 0
FilterOffset = 10000000
OfmapOffset = 20000000
Dataflow = %s
ReadRequestBuffer = 64
WriteRequestBuffer = 64
[layout]
IfmapCustomLayout = False
IfmapSRAMBankBandwidth = 10
IfmapSRAMBankNum = 10
IfmapSRAMBankPort = 2
FilterCustomLayout = False
FilterSRAMBankBandwidth = 10
FilterSRAMBankNum = 10
FilterSRAMBankPort = 2
[sparsity]
SparsitySupport = False
"""
"""CALC: memory as fast as is needed never to stall. SRAM: twice the largest operands, and all partial sums of WS."""

_DRIVER = """
import sys
from scalesim.scale_sim import scalesim
folder = sys.argv[1]
files = {name: f"{folder}/{name}" for name in ("config", "topology", "layout")}
scalesim(save_disk_space=True, verbose=False, **files).run_scale(top_path=folder)
"""
"""`python -m scalesim.scale` without its traces, gigabytes that it writes unconditionally."""


class PeerError(RuntimeError):
    """SCALE-Sim cannot be installed or does not run; the message says why in a sentence."""


@dataclass(frozen=True)
class Result:
    """Cycles of a shape: SCALE-Sim's by dataflow, weft's whole and in the array's window."""

    group: str
    name: str
    count: int
    m: int
    n: int
    k: int
    ws: int
    os: int
    whole: int
    window: int

    @property
    def macs(self) -> int:
        return self.m * self.n * self.k

    @property
    def ahead(self) -> str:
        """Return whether weft takes fewer cycles than both dataflows."""
        best = min(self.ws, self.os)
        if self.whole < best:
            return "yes"
        return "array" if self.window + N < best else "**no**"


def closed_form(dataflow: str, m: int, n: int, k: int) -> int:
    """Return SCALE-Sim's Total Cycles, which is the number of the last cycle, counted from 0."""
    if dataflow == "ws":
        return -(-k // N) * -(-n // N) * (3 * N + m - 2) - 1
    return -(-m // N) * -(-n // N) * (2 * N + k - 2) - 1


def _call(command: Sequence[str | Path], label: str) -> None:
    """Run a program. Raises `PeerError` with `label`, and the last line that the program wrote."""
    try:
        process = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise PeerError(f"{label}: {error}") from error
    if process.returncode:
        lines = (process.stderr + process.stdout).strip().splitlines()
        errors = [line[7:] for line in lines if line.startswith("ERROR: ")] or lines[-1:]
        raise PeerError(f"{label}: {errors[-1] if errors else f'exit code {process.returncode}'}")


def environment() -> Path:
    """Return the Python that has SCALE-Sim, and install it if necessary. Raises `PeerError`."""
    folder = cache_root() / "-".join(["scalesim", sys.implementation.cache_tag, *PINS.values()])
    if not folder.exists():
        print(f"installing SCALE-Sim {PINS['scalesim']} into {folder} (once)...", file=sys.stderr)
        cache_root().mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=cache_root(), prefix="part-"))
        try:
            _call([sys.executable, "-m", "venv", part], "no virtual environment (is python3-venv installed?)")
            pins = [f"{name}=={version}" for name, version in PINS.items()]
            pip: list[str | Path] = [part / "bin" / "python", "-m", "pip", "install"]
            _call(
                [*pip, "--no-deps", "--only-binary=:all:", *pins],
                "pip could not install SCALE-Sim (is there a network?)",
            )
            part.rename(folder)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return folder / "bin" / "python"


def scale_sim(python: Path, shape: Shape, dataflow: str) -> int:
    """Cycles that SCALE-Sim reports. Raises `PeerError` also for a report that is not of this shape, or has stalls."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {"config": _SETTINGS % dataflow, "topology": topology(shape), "layout": ""}
        for name, text in settings.items():
            (Path(folder) / name).write_text(text)
        label = f"SCALE-Sim failed for {shape.name}, {dataflow}"
        _call([python, "-I", "-c", _DRIVER, folder], label)
        lines = (Path(folder) / "run" / "COMPUTE_REPORT.csv").read_text().splitlines()
    (report,) = csv.DictReader(lines, skipinitialspace=True)
    cycles = int(report["Total Cycles"])
    macs = float(report["Overall Util %"]) / 100 * cycles * N * N
    if round(macs) != shape.macs or int(report["Stall Cycles"]):
        raise PeerError(
            f"{label}: {macs:,.0f} MACs of {shape.macs:,}, {report['Stall Cycles']} cycles' stalls"
        )
    return cycles


def _cycles(device: TimingDevice) -> tuple[int, int]:
    counters = device.counters()
    return counters[Counter.CYCLES], counters[Counter.ARRAY_WINDOW]


def weft_cycles(shape: Shape) -> tuple[int, int]:
    """Return whole and window cycles with memory, compiled as models are."""
    segment, inputs = shape.segment()
    image = Image(compile_segment(segment, CONFIG))
    device = TimingDevice(CONFIG, image.memory_bytes, latency=LATENCY, bandwidth=float(CONFIG.bus_bytes))
    image.run(device, inputs)
    return _cycles(device)


def weft_on_chip(side: int) -> tuple[int, int]:
    """Return these cycles if the array waits until all operands are on chip."""
    code, start = on_chip.image(side, CONFIG)
    device = TimingDevice(CONFIG, start + len(code), latency=LATENCY, bandwidth=float(CONFIG.bus_bytes))
    on_chip.execute(device, code, start)
    return _cycles(device)


def measure(only: str, jobs: int) -> Iterator[Result]:
    """Yield results of the shapes whose group or name contains `only`, in their order, each as soon as it is there."""
    chosen = [
        (group, shape)
        for group, shapes in GROUPS.items()
        for shape in shapes
        if only.lower() in f"{group}: {shape.name}".lower()
    ]
    if not chosen:
        raise PeerError(f"no shape has {only!r} in its name")
    python = environment()
    with ThreadPoolExecutor(jobs) as pool:
        runs: list[list[Future[int]]] = [
            [pool.submit(scale_sim, python, shape, dataflow) for dataflow in DATAFLOWS] for _, shape in chosen
        ]
        try:
            for (group, shape), run in zip(chosen, runs, strict=True):
                ws, os = (future.result() for future in run)
                columns = (shape.count, *mnk(shape), ws, os)
                yield Result(group, shape.name, *columns, *weft_cycles(shape))
                if shape in map(gemm, ON_CHIP) and on_chip.fits(shape.w, CONFIG):
                    yield Result(group, f"{shape.name}, on chip", *columns, *weft_on_chip(shape.w))
        finally:
            pool.shutdown(cancel_futures=True)


def again(results: Sequence[Result]) -> Iterator[Result]:
    """Yield the rows with weft's figures measured anew."""
    shapes = {(group, shape.name): shape for group, members in GROUPS.items() for shape in members}
    for result in results:
        name = result.name.removesuffix(", on chip")
        if (result.group, name) not in shapes:
            raise PeerError(f"there is no shape {name!r} in {result.group} any more; run all of it again")
        shape = shapes[result.group, name]
        total, window = weft_cycles(shape) if name == result.name else weft_on_chip(shape.w)
        yield dataclasses.replace(result, whole=total, window=window)


HEADER = (
    "| shape | MACs | SCALE-Sim WS: cycles | utilisation | OS: cycles | utilisation "
    "| weft, whole: cycles | utilisation | window: cycles | utilisation | weft ahead |\n"
    "|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|"
)
CHECK = "| shape | M, N, K | WS: closed form | SCALE-Sim | OS: closed form | SCALE-Sim |\n|---|---|--:|--:|--:|--:|"


def _pairs(figures: Sequence[int], macs: int) -> str:
    return " | ".join(f"{cycles:,} | {macs / N**2 / cycles:.1%}" for cycles in figures)


def row(result: Result) -> str:
    """Return a row of the table: cycles and utilisation in turn."""
    figures = (result.ws, result.os, result.whole, result.window)
    pairs = _pairs(figures, result.macs)
    count = f" (x {result.count})" if result.count > 1 else ""
    return f"| {result.name}{count} | {result.macs:,} | {pairs} | {result.ahead} |"


def totals(results: Sequence[Result]) -> list[str]:
    """Return a row for every network of which all shapes were measured, each as often as the network has it."""
    lines = []
    for group, shapes in GROUPS.items():
        members = [result for result in results if result.group == group]
        if group == "GEMM" or [result.name for result in members] != [shape.name for shape in shapes]:
            continue
        macs = sum(result.count * result.macs for result in members)
        sums = [
            sum(result.count * getattr(result, name) for result in members)
            for name in ("ws", "os", "whole", "window")
        ]
        pairs = _pairs(sums, macs)
        ahead = sum(result.ahead == "yes" for result in members)
        lines.append(
            f"| **{group}**, one after the other | {macs:,} | {pairs} | {ahead} of {len(members)} shapes |"
        )
    return lines


def check(results: Sequence[Result]) -> tuple[list[str], list[str]]:
    """Return the table of closed forms, and a sentence for every figure that differs from its closed form."""
    rows, wrong = [CHECK], []
    for result in results:
        if result.name.endswith("on chip"):
            continue
        numbers = (result.m, result.n, result.k)
        cells = [f"{result.name}", ", ".join(map(str, numbers))]
        for dataflow in DATAFLOWS:
            expected, simulated = closed_form(dataflow, *numbers), getattr(result, dataflow)
            cells += [f"{expected:,}", f"{simulated:,}"]
            if expected != simulated:
                wrong.append(
                    f"{result.name}, {dataflow}: SCALE-Sim says {simulated:,}, its closed form {expected:,}"
                )
        rows.append(f"| {' | '.join(cells)} |")
    return rows, wrong


def drawing(results: Sequence[Result]) -> str:
    """Return utilisations as an SVG."""
    sections: dict[str, list[Row]] = {}
    for result in results:
        ideal = result.macs / N**2
        bars = (ideal / result.ws, ideal / result.os, ideal / result.whole)
        sections.setdefault(result.group, []).append(Row(result.name, bars, ideal / result.window))
    legend = (
        f"SCALE-Sim {PINS['scalesim']}, weight stationary, operands on chip",
        "SCALE-Sim, output stationary, operands on chip",
        "weft, with its memory's time",
        "weft, the array alone",
    )
    return chart(f"Utilisation of {N} x {N} multipliers", legend, "SCALE-Sim : weft", sections)


def save(path: Path, results: Sequence[Result]) -> None:
    """Write a line per result, so that a diff shows which changed."""
    lines = ",\n".join(json.dumps(dataclasses.asdict(result)) for result in results)
    memory = {"latency": LATENCY, "bandwidth": CONFIG.bus_bytes}
    about = {"array": N, "versions": PINS, "memory": memory}
    path.write_text(f'{json.dumps(about)[:-1]}, "results": [\n{lines}\n]}}\n')


def load(path: Path) -> list[Result]:
    """Read the file written by `save`. Raises `PeerError`."""
    try:
        return [Result(**item) for item in json.loads(path.read_text())["results"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise PeerError(f"{path} is not what --json writes: {error}") from error


def report(measured: Iterator[Result]) -> tuple[list[Result], list[str]]:
    """Print results as they come, and the check; return the results, and sentences on differences."""
    results: list[Result] = []
    for result in measured:
        print(row(result) if results else f"{HEADER}\n{row(result)}", flush=True)
        results.append(result)
    print("\n".join(totals(results)) + "\n")
    for side in ON_CHIP:
        if not on_chip.fits(side, CONFIG) and any(result.name == gemm(side).name for result in results):
            print(f"{gemm(side).name} does not fit on chip in the configuration default.\n")
    rows, wrong = check(results)
    print("\n".join(rows) + "\n")
    return results, wrong


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="shapes whose group or name contains this")
    parser.add_argument("--jobs", type=int, default=1, help="how many SCALE-Sims run at once (1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results to this file")
    parser.add_argument("--svg", type=Path, metavar="FILE", help="draw the utilisations into this file")
    parser.add_argument("--read", type=Path, metavar="FILE", help="show what --json wrote, measure nothing")
    parser.add_argument(
        "--again", type=Path, metavar="FILE", help="measure weft only, beside what --json wrote"
    )
    options = parser.parse_args()
    begin = time.monotonic()
    try:
        if options.again:
            measured = again(load(options.again))
        else:
            measured = (
                iter(load(options.read)) if options.read else measure(options.only, max(1, options.jobs))
            )
        results, wrong = report(measured)
    except (PeerError, BuildError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.json:
        save(options.json, results)
    if options.svg:
        options.svg.write_text(drawing(results))
    print(f"{len(results)} rows in {time.monotonic() - begin:.0f} s")
    for sentence in wrong:
        print(sentence)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
