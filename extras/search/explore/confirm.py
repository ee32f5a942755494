"""Points confirmed by what they stand for: the cycle model by the RTL, estimates by synthesis."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from weft.boards.build.build import synthesised_resources
from weft.boards.families.family import Resources
from weft.compiler.backend import DeviceProgram, compile_segment
from weft.compiler.ir.graph import Attention, CompileError, DeviceOp, DeviceSegment, View
from weft.configurations import room_of
from weft.extras.search.explore.evaluate import Models, device_segments
from weft.extras.search.explore.point import Measured
from weft.hdl.isa import Opcode
from weft.hdl.isa.memmap import Counter
from weft.run.runtime import Image
from weft.sim.compiled.device import golden_device
from weft.sim.rtl.device import RtlDevice
from weft.sim.timing import SequentialTimingDevice, TimingDevice
from weft.sim.timing.hardware import NORMALISING

CYCLES = 100_000
"""Of the largest layer that is run on the RTL, if there is one as short."""
MOST = 2_000_000
"""Cycles that the shortest layer may take where none is as short as that: small arrays are simulated quickly."""
NEAR = 0.10
"""By which part of the estimate synthesis may differ from it."""


@dataclass(frozen=True)
class Run:
    """A layer of the models on the RTL.

    Attributes
    ----------
    layer : str
        Its name; empty if there is none of at most `MOST` cycles with multiplications: nothing is confirmed then.
    differ : int
        Bytes of memory in which RTL and golden interpreter differ.
    rtl, model : int
        Cycles on the RTL, and by the cycle model.
    within : int
        Cycles by which they may differ: 0, unless they depend on data.
    """

    layer: str
    differ: int = 0
    rtl: int = 0
    model: int = 0
    within: int = 0

    @property
    def good(self) -> bool:
        return bool(self.layer) and self.differ == 0 and abs(self.rtl - self.model) <= self.within

    def described(self) -> dict[str, Any]:
        """As plain values."""
        return {**dataclasses.asdict(self), "good": self.good}

    @property
    def told(self) -> str:
        """A few words for people."""
        if not self.layer:
            return f"nothing was run: no layer with multiplications takes {MOST:,} cycles or fewer"
        if self.differ:
            return f"{self.differ:,} bytes of {self.layer} differ"
        same = self.rtl == self.model
        return f"{self.layer}: {self.rtl:,} cycles" + ("" if same else f", the model's {self.model:,}")


@dataclass(frozen=True)
class Counted:
    """What synthesis counts, beside the estimate; `lacking` are the resources of which the board has fewer."""

    counted: Resources
    estimated: Resources
    lacking: tuple[str, ...] = ()

    @property
    def apart(self) -> dict[str, float]:
        """By resource how much more synthesis counts, as a part of the estimate."""
        known = dict(self.estimated.items())
        return {name: count / max(known[name], 1) - 1 for name, count in self.counted.items()}

    @property
    def good(self) -> bool:
        """Whether LUTs and flip-flops, the cells of the design, are as near as `NEAR`, and the board has all of it."""
        return not self.lacking and all(abs(self.apart[name]) <= NEAR for name in ("lut", "ff"))

    def described(self) -> dict[str, Any]:
        """As plain values."""
        counted = dict(self.counted.items())
        return {"counted": counted, "apart": self.apart, "lacking": list(self.lacking), "good": self.good}

    @property
    def told(self) -> str:
        """A few words for people."""
        return ", ".join(
            f"{Resources.NAMES[name]} {count:,} ({self.apart[name]:+.1%}"
            f"{', more than the board has' if name in self.lacking else ''})"
            for name, count in self.counted.items()
        )


def run(item: Measured, models: Models, seed: int = 0) -> Run:
    """Run a layer by itself, on random inputs, on RTL, golden interpreter and cycle model: the largest one of at most
    `CYCLES` cycles, or, where none is as short, the one with the fewest, if these are at most `MOST`; attention only if
    there is no such convolution, as its cycles depend on data. The memory is a plain one, of the latency and the
    bandwidth that programs for a board are planned for: the RTL's memory is no SDRAM.

    Raises
    ------
    weft.sim.device.DeviceError
        If the RTL simulation fails.
    weft.sim.verilate.BuildError
        If the RTL, or the cycle model, cannot be built.
    """
    found = min(_tried(item, models, seed), key=lambda layer: layer.cycles, default=None)
    if found is None or found.cycles > MOST:
        return Run("")
    differ, rtl = _compared(item, found.image, found.contents)
    return Run(found.op.name, differ, rtl, found.cycles, _within(item, found.program))


def synthesised(item: Measured) -> Counted:
    """Synthesise the configuration for the board, or for the one whose estimates are those of the place, at that
    board's clock.

    Raises
    ------
    weft.boards.build.tools.ToolError
        If a tool fails, or is not installed.
    """
    place = item.point.place
    counted = synthesised_resources(place.similar, item.point.config)
    there = None if place.board is None else place.board.available
    lacking = (name for name, count in counted.items() if there and count > getattr(there, name))
    return Counted(counted, item.need, tuple(lacking))


class _Layer(NamedTuple):
    op: DeviceOp
    program: DeviceProgram
    image: Image
    contents: dict[str, np.ndarray]
    cycles: int


def _tried(item: Measured, models: Models, seed: int) -> Iterator[_Layer]:
    """Layers with their cycles by the model, up to the first of at most `CYCLES`. What surely takes longer, and
    attention, comes only if nothing before takes `MOST` or less."""
    short = False
    for op, program in _layers(item, models):
        if short and (isinstance(op, Attention) or _is_long(op, item)):
            return
        image, contents = Image(program), _contents(program, seed)
        model = _timing(item, image)
        image.run(model, contents)
        cycles = model.counters()[Counter.CYCLES]
        yield _Layer(op, program, image, contents, cycles)
        if cycles <= CYCLES:
            return
        short |= cycles <= MOST


def _is_long(op: DeviceOp, item: Measured) -> bool:
    return op.macs > CYCLES * item.point.config.n**2


def _layers(item: Measured, models: Models) -> Iterator[tuple[DeviceOp, DeviceProgram]]:
    """Operators with multiplications as programs of their own, of those that the array may do in `MOST` cycles:
    convolutions first, of these the largest that it may do in `CYCLES`, then the others from the smallest on."""
    config, board = item.point.config, item.point.place.board
    bandwidth, room = item.point.place.memory[1], None if board is None else room_of(board.name, config)
    ops = [op for graph in models.graphs(config) for segment in device_segments(graph) for op in segment.ops]
    ops = [op for op in ops if 0 < op.macs <= MOST * config.n**2]
    ops.sort(key=lambda op: (isinstance(op, Attention), op.macs if _is_long(op, item) else -op.macs))
    for op in ops:
        try:
            program = compile_segment(
                DeviceSegment(op.name, (_alone(op),)),
                config,
                bandwidth=bandwidth,
                room=room,
                sequential=item.point.place.sequential,
            )
        except CompileError:  # in the network it is fused with another one, and fits
            continue
        yield op, program


def _within(item: Measured, program: DeviceProgram) -> int:
    """By how many cycles the cycle model may be wrong: how long the pipelined core divides for a row of a softmax
    depends on the row's sum, which is data. The sequential core's model has the data."""
    if item.point.place.sequential:
        return 0
    code, opcode = program.instructions, Opcode.NORMALISE
    which = np.flatnonzero(code.opcodes == int(opcode))
    rows = code.field("ob", opcode, which) * code.field("oy", opcode, which)
    return NORMALISING * int(rows.sum())


def _alone(op: DeviceOp) -> DeviceOp:
    """With inputs and outputs in place of results of others."""

    def view(found: View) -> View:
        kind = "output" if found.buffer.name == op.dst.buffer.name else "input"
        kind = found.buffer.kind if found.buffer.kind in ("table", "pages", "state") else kind
        return dataclasses.replace(found, buffer=dataclasses.replace(found.buffer, kind=kind))

    return op.on(view)


def _timing(item: Measured, image: Image) -> TimingDevice:
    latency, bandwidth = item.point.place.memory
    kind = SequentialTimingDevice if item.point.place.sequential else TimingDevice
    return kind(item.point.config, image.memory_bytes, latency=latency, bytes_per_cycle=bandwidth)


def _contents(program: DeviceProgram, seed: int) -> dict[str, np.ndarray]:
    """Random inputs."""
    rng = np.random.default_rng(seed)
    return {
        name: rng.integers(-128, 128, program.input_shape(name), np.int8)
        for name, buffer in program.buffers.items()
        if buffer.kind == "input"
    }


def _compared(item: Measured, image: Image, contents: dict[str, np.ndarray]) -> tuple[int, int]:
    """Bytes that differ, and the RTL's cycles."""
    config, (latency, bandwidth) = item.point.config, item.point.place.memory
    golden = golden_device(config, image.memory_bytes)
    image.run(golden, contents)
    expected = np.frombuffer(golden.read(0, image.memory_bytes), np.uint8)
    with RtlDevice(
        config,
        image.memory_bytes,
        latency=latency,
        bytes_per_cycle=bandwidth,
        sequential=item.point.place.sequential,
    ) as device:
        image.run(device, contents)
        found = np.frombuffer(device.read(0, image.memory_bytes), np.uint8)
        return int(np.count_nonzero(found != expected)), device.counters()[Counter.CYCLES]
