"""Many runs on one device, one behind the other: what the next one needs crosses while this one is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.compiler.backend import DeviceProgram
from weft.compiler.host.segments import prepare, run_host
from weft.compiler.ir.model import HostSegment
from weft.compiler.machine.memory import CONSTANTS, INPUTS, OUTPUTS
from weft.devices import Simulation
from weft.execution import Execution
from weft.hdl.isa.program_lists import pitch
from weft.program import Program, Result
from weft.program_list import ProgramList
from weft.runtime import Image

if TYPE_CHECKING:
    from weft.sim.device import Device

Values = dict[str, np.ndarray]
LISTED = 4
"""Runs at most that a device gets at a start."""


def stream(program: Program, runs: Sequence[Mapping[str, np.ndarray]], device: Device) -> Iterator[Result]:
    """Run a model once for each of `runs`, as `Program.run` does without `memory`; yields results as they come.

    Inputs and outputs have two places in memory, by turns: while the device computes, the outputs of the run before are
    read, the host computes what comes before and behind the device's part, and the inputs of the next run are written.
    Where that cannot be, as the host computes with what the model keeps from run to run, the model has several parts on
    the device or none, or memory is too small, one run ends before the next begins.

    What is kept stays in the device's memory: it is written before the first run, and read behind the last one.

    A device whose configuration has `descriptors` gets up to `LISTED` runs at a start: they are computed one behind the
    other without the host, each with a place of its own for inputs and outputs, while it reads and writes those of the
    start before and the next. Their reports have the cycles of whole runs, and of counters only `load_memory`.

    Raises
    ------
    InputError, weft.sim.device.DeviceError
        As `Program.run` does.
    """
    queued = _queued(program, device, len(runs))
    if queued is not None:
        yield from queued.run(runs)
        return
    images = places(program, device.memory_bytes, device.kept) if len(runs) > 1 else None
    if images is None:
        for inputs in runs:
            yield program.run(inputs, on=device, memory=False)
        return
    yield from _Stream(program, device, images).run(runs)


def places(
    program: Program,
    memory_bytes: int,
    find: Callable[[bytes], int | None] = lambda fixed: None,
    count: int = 2,
) -> list[Image] | None:
    """So many images of the device's part that differ in where inputs and outputs lie; None if there cannot be as many.
    `find` tells where the device keeps code and constants, as `Device.kept` does."""
    parts = [part for part in program.segments if isinstance(part, DeviceProgram)]
    if len(parts) != 1 or parts[0].compact:  # inputs of compact programs lie among temporaries
        return None
    (part,) = parts
    if {buffer.kind for buffer in part.buffers.values()} - {"input", "output", "temp", "state"}:
        return None
    if not _stay(program, part):
        return None
    kept = find(Image(part).fixed)
    first = Image(part, kept)
    bases = {base: at for base, at in first.bases.items() if kept is None or base != CONSTANTS}
    ends = [*sorted(bases.values())[1:], first.memory_bytes]
    sizes = {base: end - bases[base] for base, end in zip(sorted(bases), ends, strict=True)}
    step = sizes[INPUTS] + sizes[OUTPUTS]
    if first.memory_bytes + (count - 1) * step > memory_bytes:
        return None
    starts = [first.memory_bytes + number * step for number in range(count - 1)]
    return [first, *(Image(part, kept, {INPUTS: at, OUTPUTS: at + sizes[INPUTS]}) for at in starts)]


def _queued(program: Program, device: Device, runs: int) -> _Queued | None:
    """What has the device run several of so many at a start; None if it cannot."""
    if not program.config.descriptors or device.config != program.config:
        return None
    for size in range(min(LISTED, runs), 1, -1):
        room = device.memory_bytes - ProgramList.bytes_of(size, program.config)
        address = room // pitch(program.config) * pitch(program.config)
        images = places(program, address, device.kept, 2 * size)
        if images is not None:
            return _Queued(program, device, images, address)
    return None


def _stay(program: Program, part: DeviceProgram) -> bool:
    """Whether all that the model keeps is kept in the memory of this part, and nobody else reads it."""
    compiled = program._compiled
    ends = [(state.source, state.target) for state in compiled.states]
    places = [
        {item.value: item.buffer.name for item in items if item.buffer.name in part.buffers}
        for items in (compiled.to_device, compiled.from_device)
    ]
    hosted = {
        name
        for segment in program.segments
        if isinstance(segment, HostSegment)
        for name in segment.network.inputs
    }
    return all(
        source in places[0]
        and places[0][source] == places[1].get(target)
        and part.buffers[places[0][source]].kind == "state"
        and not {source, target} & hosted
        for source, target in ends
    )


class _Run:
    """One of the runs, from its inputs to its result; `states` are what it begins with, if nothing has run yet."""

    def __init__(
        self, program: Program, device: Device, inputs: Mapping[str, np.ndarray], image: Image, states: Values
    ) -> None:
        self.program, self.device, self.image = program, device, image
        self.execution = Execution(
            device, program.config, Simulation(), keep=False, warnings=program.warnings
        )
        self.values: Values = program._check(inputs) | states
        segments = list(program.segments)
        at = segments.index(image.program)
        self._before: Sequence[Any] = segments[:at]
        self._behind: Sequence[Any] = segments[at + 1 :]

    def send(self) -> None:
        """Compute what comes before the device's part, and write its inputs."""
        self._host(self._before)
        self.image.write(self.device, self.program._entering(self.image.program, self.values))

    def finish(self, *, last: bool) -> Result:
        """Read its outputs, of the last run what is kept as well, and compute what comes behind."""
        part, program = self.image.program, self.program
        names = {
            item.buffer.name
            for item in program._compiled.from_device
            if item.buffer.name in part.buffers and (last or part.buffers[item.buffer.name].kind != "state")
        }
        self.values |= program._leaving(part, {name: self.image.read(self.device, name) for name in names})
        self._host(self._behind)
        outputs = {name: np.asarray(self.values[name]) for name in program.outputs}
        if last:
            program._states = {
                state.source: np.asarray(self.values[state.target]) for state in program._compiled.states
            }
        return Result(outputs, self.execution.report, b"")

    def _host(self, segments: Sequence[HostSegment]) -> None:
        for segment in segments:
            prepare(segment)
            started = perf_counter()
            self.values |= run_host(segment, self.values)
            self.execution.add_host(segment, perf_counter() - started)


class _Stream:
    def __init__(self, program: Program, device: Device, images: Sequence[Image]) -> None:
        self.program, self.device, self.images = program, device, images

    def run(self, runs: Sequence[Mapping[str, np.ndarray]]) -> Iterator[Result]:
        device = self.device
        self.images[0].load(device)
        waiting = [
            _Run(
                self.program, device, inputs, self.images[number % 2], {} if number else self.program._states
            )
            for number, inputs in enumerate(runs)
        ]
        done: _Run | None = None
        waiting[0].send()
        for number, now in enumerate(waiting):
            now.image.start(device)
            # The core computes; nothing of what is moved here is in its two places.
            if done is not None:
                yield done.finish(last=False)
            if number + 1 < len(waiting):
                waiting[number + 1].send()
            device.wait()
            now.execution.count(now.image.program, device)
            done = now
        assert done is not None
        yield done.finish(last=True)


class _Queued:
    """Runs in groups, one start for each: half of the images by turns. The list of a group lies at `address`."""

    def __init__(self, program: Program, device: Device, images: Sequence[Image], address: int) -> None:
        self.program, self.device = program, device
        half = len(images) // 2
        self.halves, self.address = (images[:half], images[half:]), address

    def run(self, runs: Sequence[Mapping[str, np.ndarray]]) -> Iterator[Result]:
        device = self.device
        size = len(self.halves[0])
        waiting = [
            _Run(
                self.program,
                device,
                inputs,
                self.halves[number // size % 2][number % size],
                {} if number else self.program._states,
            )
            for number, inputs in enumerate(runs)
        ]
        self.halves[0][0].load(device)
        groups = [waiting[at : at + size] for at in range(0, len(waiting), size)]
        done: list[_Run] = []
        _send(groups[0])
        for number, group in enumerate(groups):
            listed = ProgramList(
                [run.image for run in group], self.program.config, self.address, device.memory_bytes
            )
            listed.start(device)
            # The core computes; nothing of what is moved here is in the places of this group.
            for run in done:
                yield run.finish(last=False)
            if number + 1 < len(groups):
                _send(groups[number + 1])
            device.wait()
            for run, record in zip(group, listed.records(device), strict=True):
                run.execution.count_listed(run.image.program, device, record)
            done = group
        for run in done:
            yield run.finish(last=run is waiting[-1])


def _send(group: Sequence[_Run]) -> None:
    for run in group:
        run.send()
