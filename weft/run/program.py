"""Compiled programs and the results of their runs."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol, Unpack

import numpy as np

from weft.arguments import flag
from weft.compiler.artefact import Compiled
from weft.compiler.backend import DeviceProgram
from weft.compiler.host.segments import from_buffer, prepare, run_host, to_buffer
from weft.compiler.ir.model import HostSegment, clamp_warnings
from weft.compiler.passes.drop_channels import channels_left_out
from weft.errors import InputError
from weft.files import whole_folder
from weft.hdl.isa.config import Config
from weft.hdl.schema import printable
from weft.run.options import RunKeywords, RunOptions
from weft.run.runtime import Execution

if TYPE_CHECKING:
    from weft.compiler.ir.graph import DeviceSegment
    from weft.sim.device import Device


class Changes(Protocol):
    """Changes that a search made to a model before it was compiled."""

    @property
    def used(self) -> tuple[Any, ...]: ...
    @property
    def lines(self) -> tuple[str, ...]:
        """Lines of text that describe the changes."""


@dataclass(frozen=True)
class Result:
    """Result of a run.

    Attributes
    ----------
    outputs : dict of str to ndarray
        The model's outputs by name; empty from a device that computes no results ("timing").
    report : dict
        ``cycles``, ``macs``, ``utilisation`` (useful MACs over N * N * cycles), ``dram_bytes`` and ``counters`` of the
        run. ``layers`` has these fields, ``name``, ``kind`` and ``bound`` for every operator. Cycles, utilisation and
        counters are None on a device without time. ``config`` has the configuration's fields, ``format`` the version
        of the report, and ``warnings`` the program's warnings.
    memory : bytes
        All of DRAM after each device program, concatenated; empty from a device that computes no results.
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
    """A compiled model, created by `compile` or `load`.

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
        """Graphs of the device programs before the compiler's passes, but after the rewrites of `roundings`; empty if
        the program was loaded."""
        self.substitutions = substitutions
        """Graph substitutions, or None if none were searched for or the program was loaded."""
        self.roundings = roundings
        """Rewrites that change rounding, or None if there was no budget for them or the program was loaded."""
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
        """The compiled model in the form in which `save` stores it."""
        return self._compiled

    @property
    def config(self) -> Config:
        """Configuration that the program is compiled for."""
        return self._compiled.config

    @property
    def memory(self) -> float:
        """Bandwidth of the memory that the program is planned for, in bytes a cycle."""
        return min(self._compiled.memory or math.inf, float(self.config.bus_bytes))

    @property
    def inputs(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Inputs of `run`: (dtype name, shape) by name."""
        return self._compiled.inputs

    @property
    def outputs(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Contents of `Result.outputs`: (dtype name, shape) by name."""
        return self._compiled.outputs

    @property
    def states(self) -> dict[str, np.ndarray]:
        """Copies of the current states, which the model keeps between runs, by name. `reset` takes such a dict."""
        return {name: value.copy() for name, value in self._states.items()}

    def reset(self, states: Mapping[str, np.ndarray] | None = None) -> None:
        """Set the states that the model keeps between runs to `states`, and all others to their initial values.

        Raises
        ------
        InputError
            If the model has no state of this name, or its dtype or shape differs. Then no state is changed.
        """
        if not isinstance(states, Mapping | None):
            raise InputError(f"states are a dict of arrays by name, not {type(states).__name__}")
        initial = {state.source: state.initial for state in self._compiled.states}
        values = {name: _array("state", name, value) for name, value in (states or {}).items()}
        for name, value in values.items():
            if name not in initial:
                raise InputError(f"the model has no state {name!r}; it keeps {_quote_names(initial)}")
            if (value.dtype, value.shape) != (initial[name].dtype, initial[name].shape):
                raise InputError(
                    f"state {name!r} is {value.dtype.name} of shape {value.shape}; "
                    f"the model keeps {initial[name].dtype.name} of shape {initial[name].shape}"
                )
        self._states = {name: np.array(value) for name, value in (initial | values).items()}

    @property
    def segments(self) -> tuple[DeviceProgram | HostSegment, ...]:
        """Segments of the model in order: device programs, and networks for the host."""
        return self._compiled.segments

    @property
    def assignment(self) -> tuple[tuple[str, str, str, str], ...]:
        """(name, operator, "device" or "host", reason) of every node of the model, as in `check`."""
        return self._compiled.assignment

    @property
    def warnings(self) -> tuple[str, ...]:
        """A warning for each value that the device may clamp, because its range is limited."""
        return clamp_warnings(self.assignment)

    @property
    def device_programs(self) -> tuple[DeviceProgram, ...]:
        """The segments that run on the device, in order."""
        return tuple(segment for segment in self.segments if isinstance(segment, DeviceProgram))

    @property
    def narrow_bytes(self) -> int:
        """Bytes of int4 weights in memory, two values a byte."""
        return sum(program.narrow_bytes for program in self.device_programs)

    @property
    def channels_left_out(self) -> tuple[int, int]:
        """Numbers of convolutions' channels: dropped because nothing depends on them, and in all; (0, 0) if loaded.

        Programs that leave all results in memory drop no channels.
        """
        counts = [channels_left_out(segment, self.config) for segment in self.graphs]
        return sum(dropped for dropped, _ in counts), sum(total for _, total in counts)

    @property
    def on_device(self) -> bool:
        """True if at least one segment runs on the device."""
        return bool(self.device_programs)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the program to a folder, which is created if necessary."""
        with whole_folder(folder_of(folder)) as part:
            self._compiled.save(part)

    def disassemble(self) -> str:
        """Return all device programs as assembly text."""
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
        on: str | Device | RunOptions = "golden",
        *,
        memory: bool = True,
        **options: Unpack[RunKeywords],
    ) -> Result:
        """Run the model.

        States carry over from the previous run, on whatever device that was (see `reset`). A run that fails, or is on
        "timing", does not change them.

        Parameters
        ----------
        inputs : dict of str to ndarray
            One array for each of `self.inputs`, with exactly its dtype and shape.
        on : "golden", "rtl", "timing", Device or RunOptions
            Device for device programs, or all options in one record. On "timing" there are no outputs, and host
            segments do not run.
        memory : bool
            Store the device's memory in the result, which takes time on a serial line.
        options
            Fields of `weft.RunOptions`: ``latency``, ``bandwidth``, ``stall_seed``, ``waves`` and so on.

        Raises
        ------
        InputError
            If an input is missing or has a wrong dtype or shape, or another argument has a wrong type or is out of
            range. Then nothing has run.
            If the device was built for another configuration, or has too little memory.
            If the device is "timing", and no part of the model runs on the device.
        weft.sim.device.DeviceError
            If a device fails.
        """
        record = RunOptions.of(on, **options).planned_for(self.memory)
        keep = flag("memory", memory)
        execution = Execution(record, self.config, keep=keep, warnings=self.warnings)
        values = self._check(inputs) | self._states  # by name; segments add their outputs
        if record.on == "timing" and not self.on_device:
            raise InputError("nothing of this program runs on the device, so there are no cycles to report")
        for segment in self.segments:
            if isinstance(segment, DeviceProgram):
                values |= self._run_device(execution, segment, values)
            elif execution.complete:
                prepare(segment)
                started = perf_counter()
                values |= run_host(segment, values)
                execution.add_host(segment, perf_counter() - started)
        outputs = {name: np.asarray(values[name]) for name in self.outputs} if execution.complete else {}
        # States change only after a complete run, so a failure leaves them unchanged.
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
        leaving = {
            item.buffer.name for item in self._compiled.from_device if item.buffer.name in program.buffers
        }
        return self._leaving(program, execution.run(program, self._entering(program, values), leaving))

    def _entering(self, program: DeviceProgram, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Convert values to the contents of a device program's buffers, as far as they are known."""
        items = (item for item in self._compiled.to_device if item.buffer.name in program.buffers)
        return {
            item.buffer.name: to_buffer(item, values[item.value]) for item in items if item.value in values
        }

    def _leaving(self, program: DeviceProgram, read: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Convert the contents of a device program's buffers to values, as far as they were read."""
        items = (item for item in self._compiled.from_device if item.buffer.name in program.buffers)
        return {
            item.value: from_buffer(item, read[item.buffer.name])
            for item in items
            if item.buffer.name in read
        }


def _array(kind: str, name: str, value: object) -> np.ndarray:
    try:
        return np.asarray(value)
    except (ValueError, TypeError) as error:
        raise InputError(f"{kind} {name!r} is no array: {error}") from None


def _quote_names(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "nothing"


def _signature(values: Mapping[str, Any]) -> str:
    """Return names, types and shapes of arrays, or of (dtype name, shape) pairs."""
    kinds = {
        name: (value.dtype, value.shape) if isinstance(value, np.ndarray) else value
        for name, value in values.items()
    }
    return ", ".join(f"{name} {dtype} {'x'.join(map(str, shape))}" for name, (dtype, shape) in kinds.items())


def folder_of(path: str | os.PathLike[str]) -> Path:
    if not isinstance(path, str | os.PathLike):
        raise InputError(f"a folder is a path, not {type(path).__name__}")
    return Path(path)
