"""Compiled programs, and what running them gives."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from weft.arguments import flag
from weft.compiler.artefact import Compiled
from weft.compiler.backend import DeviceProgram
from weft.compiler.host.segments import from_buffer, prepare, run_host, to_buffer
from weft.compiler.ir.model import HostSegment, clamps
from weft.compiler.passes.drop_channels import channels_left_out
from weft.errors import InputError
from weft.files import whole_folder
from weft.hdl.isa.config import Config
from weft.hdl.schema import printable
from weft.run.devices import Simulation
from weft.run.execution import Execution

if TYPE_CHECKING:
    from weft.compiler.ir.graph import DeviceSegment
    from weft.sim.device import Device
    from weft.sim.waves import Waves


class Changes(Protocol):
    """What a search did to a model before it was compiled."""

    @property
    def used(self) -> tuple[Any, ...]: ...
    @property
    def told(self) -> tuple[str, ...]:
        """Lines for the user."""


@dataclass(frozen=True)
class Result:
    """What a run gave.

    Attributes
    ----------
    outputs : dict of str to ndarray
        The model's outputs by name; empty from a device that computes nothing ("timing").
    report : dict
        ``cycles``, ``macs``, ``utilisation`` (useful MACs over N * N * cycles), ``dram_bytes``, ``counters``, and the
        same with ``name``, ``kind`` and ``bound`` for every operator under ``layers``; cycles, utilisation and counters
        are None on a device without time. ``config`` has the configuration's fields, ``format`` the version of this,
        and ``warnings`` those of the program.
    memory : bytes
        The whole DRAM after the run, one device program after the other; empty like the outputs.
    """

    outputs: dict[str, np.ndarray]
    report: dict[str, Any]
    memory: bytes

    def __repr__(self) -> str:
        cycles = self.report.get("cycles")
        return (
            f"<weft.Result: {_signature(self.outputs) or 'no outputs'}; "
            f"{'cycles unknown' if cycles is None else f'{cycles:,} cycles'}, {len(self.memory):,} bytes of memory>"
        )


class Program:
    """A compiled model. Made by `compile` or `load`.

    Examples
    --------
    >>> program = weft.compile("digits.onnx", config="small")
    >>> result = program.run({"image": np.zeros((1, 1, 8, 8), np.float32)})
    >>> result.outputs["logits"].shape
    (1, 10)
    """

    def __init__(
        self,
        compiled: Compiled,
        graphs: Sequence[DeviceSegment] = (),
        substitutions: Changes | None = None,
        roundings: Changes | None = None,
    ) -> None:
        self._compiled = compiled
        self.graphs = tuple(graphs)
        """The networks of its device programs, as they were before the compiler's passes, but with the rewrites of
        `roundings`; none if it was loaded."""
        self.substitutions = substitutions
        """What graph substitutions were made; none if none were searched for, or if it was loaded."""
        self.roundings = roundings
        """What rewrites that round otherwise were made; none without a budget for them, or if it was loaded."""
        self._states: dict[str, np.ndarray] = {}
        self.reset()

    def __repr__(self) -> str:
        n, host = self.config.n, sum(node[2] == "host" for node in self.assignment)
        return (
            f"<weft.Program for an array of {n} x {n}: {_signature(self.inputs)} -> {_signature(self.outputs)}; "
            f"{len(self.assignment) - host} of {len(self.assignment)} nodes on the device>"
        )

    @property
    def compiled(self) -> Compiled:
        """All that its folder holds."""
        return self._compiled

    @property
    def config(self) -> Config:
        """The configuration it is compiled for."""
        return self._compiled.config

    @property
    def memory(self) -> float:
        """The memory that it is planned for: the bytes that it moves in a cycle."""
        return min(self._compiled.memory or math.inf, float(self.config.bus_bytes))

    @property
    def inputs(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Input names with (dtype name, shape): what `run` takes."""
        return self._compiled.inputs

    @property
    def outputs(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Output names with (dtype name, shape): what `Result.outputs` holds."""
        return self._compiled.outputs

    @property
    def states(self) -> dict[str, np.ndarray]:
        """What the model keeps from run to run, by name, as it is now: copies. `reset` takes the same."""
        return {name: value.copy() for name, value in self._states.items()}

    def reset(self, states: Mapping[str, np.ndarray] | None = None) -> None:
        """Set what is kept from run to run: to `states`, those of an earlier time, and what these leave out to what the
        model starts with.

        Raises
        ------
        InputError
            If the model has no state of a name, or it has another dtype or shape; nothing is set then.
        """
        if not isinstance(states, Mapping | None):
            raise InputError(f"states are a dict of arrays by name, not {type(states).__name__}")
        first = {state.source: state.initial for state in self._compiled.states}
        given = {name: _array("state", name, value) for name, value in (states or {}).items()}
        for name, value in given.items():
            if name not in first:
                raise InputError(f"the model has no state {name!r}; it keeps {_listed(first)}")
            if (value.dtype, value.shape) != (first[name].dtype, first[name].shape):
                raise InputError(
                    f"state {name!r} is {value.dtype.name} of shape {value.shape}; "
                    f"the model keeps {first[name].dtype.name} of shape {first[name].shape}"
                )
        self._states = {name: np.array(value) for name, value in (first | given).items()}

    @property
    def segments(self) -> tuple[DeviceProgram | HostSegment, ...]:
        """The parts it runs in, in order: programs of the device, and networks for the host."""
        return self._compiled.segments

    @property
    def assignment(self) -> tuple[tuple[str, str, str, str], ...]:
        """(name, operator, "device" or "host", reason) of every node of the model, as `check` gives them."""
        return self._compiled.assignment

    @property
    def warnings(self) -> tuple[str, ...]:
        """A sentence for each value that may leave the range that the device has for it, and is clamped then."""
        return clamps(self.assignment)

    @property
    def device_programs(self) -> tuple[DeviceProgram, ...]:
        """Those of its parts that run on the device, in order."""
        return tuple(segment for segment in self.segments if isinstance(segment, DeviceProgram))

    @property
    def narrow_bytes(self) -> int:
        """Bytes of weights in memory that hold two values of 4 bits each."""
        return sum(program.narrow_bytes for program in self.device_programs)

    @property
    def channels_left_out(self) -> tuple[int, int]:
        """How many channels of convolutions are not computed, unless results are all left in memory, since nothing
        depends on them, and how many the model has; both 0 of a program that was loaded."""
        found = [channels_left_out(segment, self.config) for segment in self.graphs]
        return sum(gone for gone, _ in found), sum(every for _, every in found)

    @property
    def on_device(self) -> bool:
        """Whether anything runs on the device."""
        return bool(self.device_programs)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the program to a folder, which is created if it is missing."""
        with whole_folder(folder_of(folder)) as part:
            self._compiled.save(part)

    def disassemble(self) -> str:
        """All device programs as assembly text."""
        from weft.hdl.isa.code import disassemble

        parts = []
        for segment in self.segments:
            if isinstance(segment, DeviceProgram):
                parts.append(f"; {printable(segment.name)}: {len(segment.instructions)} instructions\n")
                parts.append(disassemble(segment.instructions))
        return "".join(part if part.endswith("\n") else part + "\n" for part in parts)

    def run(
        self,
        inputs: Mapping[str, np.ndarray],
        on: str | Device = "golden",
        *,
        latency: int = 30,
        bandwidth: float | None = None,
        stalls: int | None = None,
        trace: str | os.PathLike[str] | Waves | None = None,
        memory: bool = True,
    ) -> Result:
        """Run the model. What it keeps from run to run goes on from the run before, wherever that was (see `reset`); a
        run that fails, or is on "timing", leaves it as it is.

        Parameters
        ----------
        inputs : dict of str to ndarray
            One array for each of `self.inputs`, of exactly that dtype and shape.
        on : "golden", "rtl", "timing" or Device
            Where device programs run. A device must be built for this program's configuration. "rtl" is the core that
            `weft.verilog` writes for it. "timing" tells how long they take there, and computes nothing: there are no
            outputs, and what would follow on the host is left out.
        latency, bandwidth : int, float
            Of the simulated memory (rtl, timing): cycles from 1 to 1,000,000, and bytes a cycle from 0.001 (None for
            those of the memory that the program is planned for).
        stalls : int
            Seed of random pauses on every bus channel (rtl), 32 bits; None for none.
        trace : path or Waves
            File for waveforms of the last device program (rtl): FST if it ends so, else VCD.
        memory : bool
            Keep what is in the device's memory in the result; over a serial line that takes time.

        Raises
        ------
        InputError
            If an input is missing or has another dtype or shape, or another argument is of a wrong type or outside its
            limits; nothing has started then.
            If `on` is a device that was built for another configuration, or has too little memory.
            If `on` is "timing", and nothing of the program runs on the device, or its core has no cycle model: the
            sequential core of some boards.
        weft.sim.device.DeviceError
            If a device fails.
        """
        simulation = Simulation(latency, self.memory if bandwidth is None else bandwidth, stalls, trace)
        keep = flag("memory", memory)
        execution = Execution(on, self.config, simulation, keep=keep, warnings=self.warnings)
        values = self._check(inputs) | self._states
        if on == "timing" and not self.on_device:
            raise InputError("nothing of this program runs on the device, so there are no cycles to tell")
        for segment in self.segments:
            if isinstance(segment, DeviceProgram):
                values |= self._run_device(execution, segment, values)
            elif execution.complete:
                prepare(segment)
                started = perf_counter()
                values |= run_host(segment, values)
                execution.add_host(segment, perf_counter() - started)
        outputs = {name: np.asarray(values[name]) for name in self.outputs} if execution.complete else {}
        if execution.complete:
            self._states = {state.source: np.asarray(values[state.target]) for state in self._compiled.states}
        return Result(outputs, execution.report, execution.memory)

    def _check(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        if not isinstance(inputs, Mapping):
            raise InputError(f"inputs are a dict of arrays by name, not {type(inputs).__name__}")
        values = {}
        for name, (dtype, shape) in self.inputs.items():
            if name not in inputs:
                raise InputError(
                    f"input {name!r} is missing; the model reads {', '.join(map(repr, self.inputs))}"
                )
            value = _array("input", name, inputs[name])
            if value.dtype.name != dtype or value.shape != shape:
                raise InputError(
                    f"input {name!r} is {value.dtype.name} of shape {value.shape}; "
                    f"the model reads {dtype} of shape {shape}"
                )
            values[name] = value
        for name in inputs:
            if name not in self.inputs:
                raise InputError(
                    f"the model has no input {name!r}; it reads {', '.join(map(repr, self.inputs))}"
                )
        return values

    def _run_device(
        self, execution: Execution, program: DeviceProgram, values: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """The values that a device program makes of those that enter it, as far as they are known."""
        leaving = {
            item.buffer.name for item in self._compiled.from_device if item.buffer.name in program.buffers
        }
        return self._leaving(program, execution.run(program, self._entering(program, values), leaving))

    def _entering(self, program: DeviceProgram, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The contents of a device program's buffers, of the values that are known."""
        items = (item for item in self._compiled.to_device if item.buffer.name in program.buffers)
        return {
            item.buffer.name: to_buffer(item, values[item.value]) for item in items if item.value in values
        }

    def _leaving(self, program: DeviceProgram, read: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The values in a device program's buffers, as far as these were read."""
        items = (item for item in self._compiled.from_device if item.buffer.name in program.buffers)
        return {
            item.value: from_buffer(item, read[item.buffer.name])
            for item in items
            if item.buffer.name in read
        }


def _array(what: str, name: str, value: object) -> np.ndarray:
    try:
        return np.asarray(value)
    except (ValueError, TypeError) as error:
        raise InputError(f"{what} {name!r} is no array: {error}") from None


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "nothing"


def _signature(values: Mapping[str, Any]) -> str:
    """Names, types and shapes: of arrays, or of (dtype name, shape)."""
    kinds = {
        name: (value.dtype, value.shape) if isinstance(value, np.ndarray) else value
        for name, value in values.items()
    }
    return ", ".join(f"{name} {dtype} {'x'.join(map(str, shape))}" for name, (dtype, shape) in kinds.items())


def folder_of(path: str | os.PathLike[str]) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"a folder is a path, not {type(path).__name__}")
    return Path(path)
