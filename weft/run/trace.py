"""What a compiled program does when: one timeline for each of its device segments, from a run on the cycle model or
on the RTL."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from weft.compiler.backend import DeviceProgram
from weft.configurations import sequential, sequential_boards
from weft.errors import FileError, InputError
from weft.hdl.isa import Instruction, Queue
from weft.hdl.isa.code import format_instruction
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import Counter
from weft.run.devices import Simulation
from weft.run.program import Program
from weft.run.runtime import Image
from weft.sim.rtl.trace import TracedRtl
from weft.sim.timing import TimingDevice
from weft.sim.timing.device import SAMPLE, Interval, occupancy

LAYERS = "layers"
"""The track of layers, each from the last byte that the one before wrote to its own last byte, as in reports: with
those before it that wrote nothing."""
TRACKS = (LAYERS, *(queue.name for queue in Queue))
_WINDOWS = 2000  # of bandwidth, at most, in a timeline


@dataclass(frozen=True)
class Slice:
    """A part of a track from cycle `start` to cycle `end`, the latter not included.

    Attributes
    ----------
    layer : int
        Index into `Timeline.layers`.
    instruction : int or None
        Its index in the program; None for a slice of a layer.
    waits : bool
        It waits for semaphores, or for its unit, and nothing else runs there.
    """

    name: str
    layer: int
    instruction: int | None
    waits: bool
    start: int
    end: int
    details: dict[str, Any]


@dataclass(frozen=True)
class Window:
    """DRAM bytes that crossed the bus from cycle `start` to cycle `end`: whole beats, the program's own included."""

    start: int
    end: int
    read: int
    written: int


@dataclass(frozen=True)
class Timeline:
    """One device segment. Its cycles count from its own start, which is cycle `origin` of all segments.

    On a track, slices follow each other without overlap. Units take an instruction before the last one is done: where
    both run, the slice is that of the earlier one, so that the slices of a track last as long as its unit was busy.
    `vectors` are those of the scratchpad in use, as (cycle, number) wherever that changes.
    """

    name: str
    origin: int
    cycles: int
    layers: tuple[str, ...]
    tracks: dict[str, list[Slice]]
    windows: list[Window]
    vectors: list[tuple[int, int]]
    counters: dict[Counter, int]


def timelines_of(
    program: Program, *, on: str = "timing", latency: int = 30, bandwidth: float | None = None
) -> list[Timeline]:
    """Run a program, and tell what its device segments do when.

    What the host does between them takes no time.

    Parameters
    ----------
    program : Program
    on : "timing" or "rtl"
        The cycle model, or the RTL. There everything that enters a segment is zeros: that matters to softmax only.
    latency, bandwidth
        As of `Program.run`.

    Raises
    ------
    InputError
        If `on` is neither, or the memory none; if the program's core is the sequential one, whose units nobody watches.
    FileError
        If nothing of the program runs on the device.
    weft.sim.device.DeviceError
        If the model or the RTL fails.
    """
    if on not in ("timing", "rtl"):
        raise InputError(f"traces are of 'timing' or 'rtl', not of {on!r}")
    boards = sequential_boards(program.config)
    if boards:
        raise InputError(f"{sequential(boards)}: there are no traces of it, as it does one thing at a time")
    memory = Simulation(latency, program.memory if bandwidth is None else bandwidth).memory
    made: list[Timeline] = []
    for segment in program.segments:
        if isinstance(segment, DeviceProgram):
            image = Image(segment)
            with _traced(on, program.config, image.memory_bytes, memory) as device:
                image.run(device, {})
                made.append(_timeline(segment, device, sum(before.cycles for before in made)))
    if not made:
        raise FileError("nothing of this program runs on the device, so there is nothing to trace")
    return made


@contextmanager
def _traced(
    on: str, config: Config, memory_bytes: int, memory: dict[str, Any]
) -> Iterator[TimingDevice | TracedRtl]:
    if on == "rtl":
        with TracedRtl(config, memory_bytes, **memory) as device:
            yield device
    else:
        yield TimingDevice(config, memory_bytes, trace=True, **memory)


def _timeline(program: DeviceProgram, device: TimingDevice | TracedRtl, origin: int) -> Timeline:
    counters = device.counters()
    cycles = counters[Counter.CYCLES]
    places = _places(program)
    tracks = {LAYERS: list(_layers(program, device.marks()))}
    for queue in Queue:
        own = [item for item in device.intervals if item.unit == queue]
        tracks[queue.name] = list(_slices(own, program, places))
    spans = {item.instruction: (item.start, item.end) for item in device.intervals if item.kind == "runs"}
    return Timeline(
        program.name, origin, cycles, tuple(layer.name for layer in program.layers), tracks,
        list(_windows(device.beats, cycles, device.config)),
        occupancy(program.instructions, spans, device.config), counters,
    )  # fmt: skip


def _places(program: DeviceProgram) -> dict[int, tuple[int, int]]:
    """Layer, and number among its instructions in its queue, of every instruction: layers keep their order there."""
    waiting = {
        queue: deque(
            (index, number)
            for index, layer in enumerate(program.layers)
            for number in range(layer.queued[queue.name])
        )
        for queue in Queue
    }
    return {
        index: waiting[instruction.QUEUE].popleft()
        for index, instruction in enumerate(program.instructions)
        if instruction.QUEUE is not None
    }


def _layers(program: DeviceProgram, marks: Sequence[int]) -> Iterator[Slice]:
    """Slices of layers, or of several of which the last one writes to memory: they count as that one."""
    for (index, layer), (start, end) in zip(program.timed.items(), pairwise([0, *marks]), strict=False):
        details = {"kind": layer.kind, "macs": layer.macs, "dram_bytes": layer.dram_bytes}
        yield Slice(layer.name, index, None, False, start, end, details)


def _slices(
    intervals: Iterable[Interval], program: DeviceProgram, places: dict[int, tuple[int, int]]
) -> Iterator[Slice]:
    """The slices of one unit, in the order of its instructions, each from where the one before ends."""
    at = 0
    for item in sorted(intervals, key=lambda item: (item.instruction, item.kind == "runs")):
        waits = item.kind == "waits"
        start, end = max(at, item.start), max(at, item.end)
        if waits and start == end:
            continue
        layer, number = places[item.instruction]
        name = f"{program.layers[layer].name} {number + 1}/{program.layers[layer].queued[item.unit.name]}"
        details: dict[str, Any] = {} if waits else {"index": item.instruction, "accepted": item.start}
        details |= _fields(program.instructions[item.instruction])
        yield Slice(f"wait: {name}" if waits else name, layer, item.instruction, waits, start, end, details)
        at = end


def _fields(instruction: Instruction) -> dict[str, str]:
    """The fields of an instruction as the disassembler writes them, those at their default left out."""
    opcode, *fields = format_instruction(instruction).split()
    return {"opcode": opcode} | {name: value for name, _, value in (field.partition("=") for field in fields)}


def _windows(beats: Sequence[tuple[int, int]], cycles: int, config: Config) -> Iterator[Window]:
    samples = -(-cycles // (SAMPLE * _WINDOWS))
    for at in range(0, -(-cycles // SAMPLE), samples):
        read, written = (sum(pair[way] for pair in beats[at : at + samples]) for way in (0, 1))
        end = min(cycles, (at + samples) * SAMPLE)
        yield Window(at * SAMPLE, end, read * config.bus_bytes, written * config.bus_bytes)
