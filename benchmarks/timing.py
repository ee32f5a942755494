"""The cycle model against the RTL: cycles, counters, and speed, on programs of every kind.

    python benchmarks/timing.py [--only TEXT] [--model] [--update]

Every case is compiled as users' models are and runs on both devices behind the same memory. Columns: cycles of both;
*error*, of the model's; *counter*, the largest difference in a counter other than cycles, in parts of the RTL's cycles;
*speed*, the RTL simulation's processor time over the model's, decoding the program included. It fails if a case's
error is above 2 %, a counter's difference above 4 %, or all RTL time together less than 100 times that of the model.

`timing_baseline.json` remembers the RTL's counters and the model's cycles. A case that takes over 1 % longer now is
listed, and fails, until `--update` stores what is. With `--model` the RTL does not run: the model's cycles are compared
with what they were, which takes seconds.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import attention as attention_cases
import numpy as np
from network import resnet18
from shapes import RESNET18, Shape, gemm

import weft
from weft.compiler.backend import DeviceProgram, compile_segment
from weft.compiler.ir.graph import Add, Conv, DeviceOp, DeviceSegment, Pool, Rescale, Softmax
from weft.compiler.ir.views import Buffer, View
from weft.compiler.ir.windows import Window
from weft.compiler.machine.areas import LENGTH
from weft.examples import attention as attention_example
from weft.examples import digits
from weft.hdl.isa.config import PRESETS, Config
from weft.run.attention import PagedAttention, Quantisation
from weft.run.runtime import Image
from weft.sim.device import Device
from weft.sim.rtl.device import RtlDevice
from weft.sim.timing import TimingDevice

Contents = dict[str, np.ndarray]


@dataclass(frozen=True)
class Run:
    """A device program with what is in its input buffers, and in base registers that hold no address."""

    program: DeviceProgram
    contents: Contents
    registers: dict[int, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Case:
    """`make` compiles for the configuration of `preset`; `memory` is one of `MEMORIES`."""

    title: str
    preset: str
    memory: str
    make: Callable[[Config], Run]

    @property
    def name(self) -> str:
        return f"{self.preset}, {self.memory}: {self.title}"

    @property
    def config(self) -> Config:
        return PRESETS[self.preset]

    def settings(self) -> dict[str, Any]:
        """Arguments of the devices: latency in cycles, bytes a cycle."""
        latency, share = MEMORIES[self.memory]
        return {
            "latency": latency,
            "bandwidth": None if share is None else share * self.config.bus_bytes,
        }


MEMORIES: dict[str, tuple[int, float | None]] = {
    "ideal": (1, None),
    "fast": (30, 1.0),
    "slow": (90, 0.25),
    "odd": (47, 0.61),
}
"""Latency, and bandwidth as a part of the bus, which reads and writes share; None for all of it to each."""


def _view(name: str, shape: Sequence[int], kind: str) -> View:
    n, h, w, c = shape
    return View(Buffer(name, (n, h, w, c), kind), (n, h, w, c))


def _inputs(*ops: DeviceOp) -> Contents:
    rng = np.random.default_rng(7)
    return {
        item.buffer.name: np.clip(np.rint(rng.normal(0, 40, item.buffer.shape)), -127, 127).astype(np.int8)
        for op in ops
        for item in op.sources
        if item.buffer.kind != "temp"
    }


def _one(*ops: DeviceOp) -> Callable[[Config], Run]:
    """Return an operator, or a convolution and operators that the compiler may fuse with it."""
    return lambda config: Run(compile_segment(DeviceSegment(ops[0].name, ops), config), _inputs(*ops))


def shape(item: Shape) -> Callable[[Config], Run]:
    def make(config: Config) -> Run:
        segment, inputs = item.segment()
        return Run(compile_segment(segment, config), inputs)

    return make


def conv(
    size: tuple[int, int],
    cin: int,
    cout: int,
    window: Window,
    groups: int = 1,
    pool: Window | None = None,
    residual: bool = False,
) -> Callable[[Config], Run]:
    """Return a convolution of an image of `size`, and perhaps an addition to its result."""
    rng = np.random.default_rng(3)
    middle = _view("m", (1, *window.output(*size), cout), "temp")
    weight = rng.integers(-127, 128, (cout, *window.kernel, cin // groups)).astype(np.int16)
    scale = np.full(cout, 1 / (127 * math.sqrt(weight[0].size)))
    bias = rng.integers(-1000, 1000, cout).astype(np.int32)
    op = Conv("conv", _view("x", (1, *size, cin), "input"), middle, weight, bias, scale, window, groups)
    if pool is not None:
        target = _view("y", (1, *pool.output(*middle.shape[1:3]), cout), "output")
        return _one(op, Pool("pool", middle, target, "max", pool))
    target = _view("y", middle.shape, "output")
    if residual:
        return _one(op, Add("add", middle, _view("r", middle.shape, "input"), target, 0.7, 0.6))
    return _one(dataclasses.replace(op, dst=target))


def pool(size: tuple[int, int], channels: int, kind: str, window: Window) -> Callable[[Config], Run]:
    source = _view("x", (1, *size, channels), "input")
    return _one(
        Pool("pool", source, _view("y", (1, *window.output(*size), channels), "output"), kind, window)
    )


def add(*dims: int) -> Callable[[Config], Run]:
    a, b, y = (_view(name, dims, "output" if name == "y" else "input") for name in "aby")
    return _one(Add("add", a, b, y, 0.7, 0.6, 3, -4, 5))


def rescale(*dims: int) -> Callable[[Config], Run]:
    return _one(Rescale("rescale", _view("x", dims, "input"), _view("y", dims, "output"), 0.7, 3, 4))


def softmax(*dims: int) -> Callable[[Config], Run]:
    return _one(
        Softmax("softmax", _view("x", dims, "input"), _view("y", dims, "output"), 0.05, 255.0, 0, -128)
    )


def attention(*numbers: int, causal: bool = False) -> Callable[[Config], Run]:
    """`numbers` as `attention.Case` has them: size, rows, keys, heads, kv_heads."""
    return _one(attention_cases.Case(*numbers, causal=causal).operator())


def paged_attention(config: Config) -> Run:
    """Build 12 rows of four heads on two at the end of a sequence of 200 keys in pages of 32, from a pool of ten."""
    quantisation = Quantisation(0.05, 0.05, 0.05, 0.05)
    cache = PagedAttention(
        config,
        rows=12,
        heads=4,
        kv_heads=2,
        head_size=32,
        page=32,
        pages=10,
        capacity=8,
        quantisation=quantisation,
        largest=100,
    )
    rng = np.random.default_rng(5)
    contents = {
        name: rng.integers(-100, 100, cache.program.buffers[name].shape).astype(np.int8) for name in "qkv"
    }
    contents["table"] = cache.entries([7, 2, 9, 0, 4, 1, 3], 200)
    return Run(cache.program, contents, {LENGTH: 200})


def network(model: Callable[[], bytes]) -> Callable[[Config], Run]:
    """The whole of an example's network, with random contents of its input buffers."""

    def make(config: Config) -> Run:
        compiled = weft.compile(model(), config=config)
        (program,) = (item for item in compiled.segments if isinstance(item, DeviceProgram))
        rng = np.random.default_rng(2)
        inputs = (name for name, buffer in program.buffers.items() if buffer.kind == "input")
        shapes = {name: program.input_shape(name) for name in inputs}
        return Run(
            program, {name: rng.integers(-50, 50, size).astype(np.int8) for name, size in shapes.items()}
        )

    return make


def resnet(config: Config) -> Run:
    image = np.random.default_rng(1).integers(-128, 128, (1, 224, 224, 3)).astype(np.int8)
    return Run(compile_segment(resnet18(), config), {"image": image})


def _layers() -> dict[str, Callable[[Config], Run]]:
    """Yield layers for all configurations."""
    same = (1, 1, 1, 1)
    return {
        "GEMM 64x64x64": shape(gemm(64)),
        "GEMM 17x90x33": shape(Shape("GEMM", 1, 17, 90, 33)),
        "vector 200->150": shape(Shape("vector", 1, 1, 200, 150)),
        "conv 3x3 16->32": conv((14, 14), 16, 32, Window((3, 3), pad=same)),
        "conv 3x3/2 24->20": conv((15, 13), 24, 20, Window((3, 3), (2, 2), pad=same)),
        "conv 5x3 dilated 10->12": conv((14, 12), 10, 12, Window((5, 3), (1, 1), (2, 2), (3, 0, 1, 2))),
        "conv 1x1/2 32->40": conv((12, 12), 32, 40, Window((1, 1), (2, 2))),
        "depthwise 3x3 24": conv((12, 12), 24, 24, Window((3, 3), pad=same), 24),
        "grouped 3x3 32->32 by 4": conv((10, 10), 32, 32, Window((3, 3), pad=same), 4),
        "first layer 7x7/2 3->16": conv((28, 28), 3, 16, Window((7, 7), (2, 2), pad=(3, 3, 3, 3))),
        "first layer 3x3 1->8": conv((16, 16), 1, 8, Window((3, 3), pad=same)),
        "conv 3x3 8->16 and pool 2x2": conv(
            (12, 12), 8, 16, Window((3, 3), pad=same), pool=Window((2, 2), (2, 2))
        ),
        "conv 1x1 64->32 and addition": conv((8, 8), 64, 32, Window(), residual=True),
        "max pool 3x3/2": pool((15, 15), 20, "max", Window((3, 3), (2, 2), pad=same)),
        "average pool 7x7": pool((7, 7), 40, "average", Window((7, 7))),
        "add": add(1, 9, 11, 24),
        "rescale": rescale(1, 9, 11, 24),
        "softmax": softmax(1, 1, 9, 70),
        "attention 32, 24 queries, 40 keys": attention(32, 24, 40),
        "attention 32, 40 queries, 40 keys, causal": attention(32, 40, 40, causal=True),
        "attention 32, 1 query, 60 keys, 4 heads on 2": attention(32, 1, 60, 4, 2),
        "paged attention": paged_attention,
        "digits": network(digits.model),
        "small transformer": network(attention_example.model),
    }


def _cases() -> list[Case]:
    layers = _layers()
    memories = {"tiny": ("fast", "slow"), "small": ("fast", "odd"), "default": ("fast", "slow")}
    cases = [
        Case(title, preset, memory, make)
        for preset, kinds in memories.items()
        for memory in kinds
        for title, make in layers.items()
    ]
    cases += [Case(title, "default", "ideal", layers[title]) for title in ("GEMM 64x64x64", "add", "digits")]
    cases += [
        Case(item.name, "default", "fast", shape(item)) for item in (gemm(512), *RESNET18[:5], RESNET18[-1])
    ]
    cases += [
        Case("attention 64, 128 queries, 512 keys", "default", "fast", attention(64, 128, 512)),
        Case("attention 64, 512 queries, 512 keys, causal", "default", "fast", attention(64, 512, 512, causal=True)),
        Case("attention 64, 1 query, 1024 keys, 8 heads on 2", "default", "slow", attention(64, 1, 1024, 8, 2)),
        Case("ResNet-18", "default", "fast", resnet),
        Case("GEMM 128x128x128", "large", "fast", shape(gemm(128))),
        Case("conv 3x3 64->64 on 28x28", "large", "fast", shape(Shape("conv", 28, 28, 64, 64, 3))),
        Case("layer2 3x3 128->128", "large", "slow", shape(RESNET18[3])),
        Case("digits", "large", "fast", layers["digits"]),
        Case("attention 64, 128 queries, 512 keys", "large", "fast", attention(64, 128, 512)),
    ]  # fmt: skip
    return cases


CASES = tuple(_cases())


BASELINE = Path(__file__).with_name("timing_baseline.json")
ERROR, COUNTER, SPEED, SLOWER = 0.02, 0.04, 100, 0.01
HEADER = "| case | RTL cycles | model cycles | error | counter | speed |\n|---|---|---|---|---|---|"

Counters = dict[str, int]


@dataclass(frozen=True)
class Measured:
    """Counters of both devices, and processor time in seconds that they took; 0 where one did not run."""

    rtl: Counters
    model: Counters
    rtl_time: float
    model_time: float

    @property
    def error(self) -> float:
        return self.model["cycles"] / self.rtl["cycles"] - 1

    def counter(self) -> tuple[float, str]:
        """Return the largest difference in a counter, in parts of the cycles, and the counter."""
        differences = {
            name: abs(self.model[name] - value) / self.rtl["cycles"]
            for name, value in self.rtl.items()
            if name != "cycles"
        }
        return max((value, name) for name, value in differences.items())


class _Timed:
    """A device that notes the processor time of its programs; loading them is not what is measured."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.seconds = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.device, name)

    def start(self, program: int) -> None:
        # A program is loaded before this call, so loading does not count.
        self.seconds -= time.process_time()
        self.device.start(program)

    def wait(self, timeout: int | None = None) -> None:
        self.device.wait(timeout)
        self.seconds += time.process_time()


def run(device: Device, prepared: Run) -> tuple[Counters, float]:
    """Return counters, and the processor time of the program in seconds."""
    timed = _Timed(device)
    Image(prepared.program).run(timed, prepared.contents, registers=prepared.registers)
    return {counter.name.lower(): value for counter, value in device.counters().items()}, timed.seconds


def measure(case: Case, stored: Counters | None) -> Measured:
    """Run `case`; `stored` stands for the RTL's counters if it is given."""
    prepared = case.make(case.config)
    size = Image(prepared.program).memory_bytes
    model, model_time = run(TimingDevice(case.config, size, **case.settings()), prepared)
    if stored is not None:
        return Measured(stored, model, 0.0, model_time)
    with RtlDevice(case.config, size, **case.settings()) as device:
        rtl, rtl_time = run(device, prepared)
    return Measured(rtl, model, rtl_time, model_time)


def row(case: Case, measured: Measured) -> str:
    counter, name = measured.counter()
    speed = f"{measured.rtl_time / measured.model_time:.0f}" if measured.rtl_time else "-"
    return (
        f"| {case.name} | {measured.rtl['cycles']:,} | {measured.model['cycles']:,} | {measured.error:+.2%} "
        f"| {f'{counter:.2%} {name}' if counter else '-'} | {speed} |"
    )


def off(case: Case, measured: Measured) -> list[str]:
    """Return a sentence for each excessive difference of model and RTL."""
    sentences = []
    if abs(measured.error) > ERROR:
        sentences.append(f"{case.name}: the model is {measured.error:+.2%} off")
    counter, name = measured.counter()
    if counter > COUNTER:
        sentences.append(f"{case.name}: counter {name} is off by {counter:.2%} of the cycles")
    return sentences


def slower(case: Case, measured: Measured, stored: dict[str, Any]) -> list[str]:
    """Return whether the case takes longer than in the baseline, on the RTL or, if that did not run, on the model."""
    on_rtl = measured.rtl_time > 0
    before = stored["rtl"]["cycles"] if on_rtl else stored["model"]
    now = (measured.rtl if on_rtl else measured.model)["cycles"]
    if now <= before * (1 + SLOWER):
        return []
    return [f"{case.name}: takes {now:,} cycles, {now / before - 1:+.1%} on the baseline"]


def write_baseline(stored: dict[str, Any]) -> None:
    """Write a line per case, so that a diff shows which changed."""
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in sorted(stored.items())]
    BASELINE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="run cases whose name contains this")
    parser.add_argument("--model", action="store_true", help="compare with the stored counters")
    parser.add_argument("--update", action="store_true", help="store the RTL's counters")
    options = parser.parse_args()
    if options.model and options.update:
        parser.error("--model does not run what --update stores")
    baseline = json.loads(BASELINE.read_text()) if BASELINE.exists() else {}
    chosen = [case for case in CASES if options.only in case.name]
    print(HEADER, flush=True)
    wrong: list[str] = []
    results: dict[str, Measured] = {}
    for case in chosen:
        stored = baseline.get(case.name)
        if options.model and stored is None:
            wrong.append(f"{case.name}: the baseline does not have it")
            continue
        results[case.name] = measured = measure(case, stored["rtl"] if options.model else None)
        print(row(case, measured), flush=True)
        wrong += off(case, measured) if not options.model else []
        wrong += slower(case, measured, stored) if stored and not options.update else []
    wrong += summary(list(results.values()))
    if options.update:
        new = {name: {"model": item.model["cycles"], "rtl": item.rtl} for name, item in results.items()}
        write_baseline(baseline | new)
    for sentence in wrong:
        print(sentence)
    return 1 if wrong else 0


def summary(results: list[Measured]) -> list[str]:
    """Print totals, and return those that exceed their bounds."""
    if not results:
        return ["no case has that name"]
    exact = sum(measured.rtl["cycles"] == measured.model["cycles"] for measured in results)
    equal = sum(measured.rtl == measured.model for measured in results)
    worst = max(abs(measured.error) for measured in results)
    rtl, model = (sum(getattr(measured, f"{name}_time") for measured in results) for name in ("rtl", "model"))
    cycles = sum(measured.rtl["cycles"] for measured in results)
    print(
        f"\n{len(results)} cases: {exact} exact in cycles, {equal} in all counters; largest error {worst:.2%}; "
        f"{cycles:,} cycles in {model:.2f} s on the model"
        + (f", {rtl:.1f} s on the RTL: {rtl / model:.0f} times" if rtl else "")
    )
    if rtl and rtl < SPEED * model and len(results) == len(CASES):
        return [f"the model is only {rtl / model:.0f} times as fast as the RTL simulation"]
    return []


if __name__ == "__main__":
    sys.exit(main())
