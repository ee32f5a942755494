"""Run device programs: load them into a device's memory, start them one after the other, and collect the report."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.compiler.backend import DeviceProgram
from weft.compiler.ir.model import HostSegment
from weft.compiler.machine.areas import CONSTANTS
from weft.configurations import runs_in_turn
from weft.hdl.checker.order import check_sequence
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import Counter
from weft.hdl.isa.program_lists import Record
from weft.run.options import RunOptions, check_target, open_device
from weft.sim.device import Device


def zeros(program: DeviceProgram) -> dict[str, np.ndarray]:
    """Return inputs of zeros, for devices that only count cycles."""
    return {
        name: np.zeros(program.input_shape(name), np.int8)
        for name, buffer in program.buffers.items()
        if buffer.kind == "input"
    }


class Image:
    """A device program placed in memory, by default with the areas of its base registers one after the other from 0.

    Parameters
    ----------
    program : DeviceProgram
    flash_address : int, optional
        Address of `read_only` in flash, from `weft.sim.device.Device.find_in_flash`; None if it is in memory.
    moved : mapping of int to int, optional
        Addresses of areas that lie elsewhere, by base register.

    Attributes
    ----------
    bases : dict of int to int
        Address in each base register.
    memory_bytes : int
        Bytes of memory that the program needs.
    """

    def __init__(
        self,
        program: DeviceProgram,
        flash_address: int | None = None,
        moved: Mapping[int, int] | None = None,
    ) -> None:
        self.program, self.flash_address = program, flash_address
        areas = program.areas
        self.bases = {**areas.assign_bases(flash_address), **(moved or {})}
        self.memory_bytes = areas.memory_bytes if flash_address is None else areas.values_bytes

    @property
    def read_only(self) -> bytes:
        """Read-only data of the program: constants followed by code."""
        return self.program.constants + self.program.code

    def address(self, name: str) -> int:
        """Return the DRAM byte address of a buffer."""
        return self.program.areas.address(name, self.bases)

    def run(
        self,
        device: Device,
        contents: dict[str, np.ndarray],
        timeout: int | None = None,
        *,
        registers: Mapping[int, int] | None = None,
    ) -> None:
        """Load the program and the `contents` (int8, NHWC) of its input buffers, start it, and wait for its end.

        `registers` are values of base registers that do not hold addresses of the program's areas.
        """
        self.load(device)
        self.write(device, contents)
        self.start(device, registers)
        device.wait(timeout)

    def load(self, device: Device) -> None:
        """Load the program, unless it is in flash.

        Raises
        ------
        ProgramError
            If the device has the sequential core, and the program needs instructions to overlap.
        """
        if runs_in_turn(device):
            check_sequence(self.program.instructions)
        if self.flash_address is None:
            constants, code = self.program.constants, self.program.code
            device.load(self.bases[CONSTANTS], constants, "the weights")
            device.load(self.bases[CONSTANTS] + len(constants), code, "the code")

    def unload(self, device: Device) -> None:
        """Mark the memory that the program writes, so that programs loaded there are loaded again before they run."""
        for base, size in self.program.areas.sizes.items():
            if base != CONSTANTS:
                device.unload(self.bases[base], size)

    def write(self, device: Device, contents: dict[str, np.ndarray]) -> None:
        """Write the contents of input buffers."""
        for name, array in contents.items():
            device.write(self.address(name), self.input_bytes(name, array))

    def start(self, device: Device, registers: Mapping[int, int] | None = None) -> None:
        """Start the program, after it was loaded and its inputs were written."""
        program = self.program
        self.unload(device)
        for base, value in ({**self.bases, **(registers or {})}).items():
            device.set_base(base, value)
        # STOREs are in order: the written bytes so far identify the end of each layer.
        device.mark_writes(
            np.cumsum([layer.written_bytes for layer in program.timed_layers.values()]).tolist()
        )
        device.start(self.bases[CONSTANTS] + program.entry)

    def input_bytes(self, name: str, array: np.ndarray) -> bytes:
        """Return the bytes of an input buffer for an array (int8, NHWC), with rows interleaved if necessary."""
        array = np.ascontiguousarray(array, np.int8).reshape(self.program.input_shape(name))
        rows = self.program.rows.get(name)
        return (array if rows is None else rows.gather(array)).tobytes()

    def read(self, device: Device, name: str) -> np.ndarray:
        """Return the contents of a buffer: int8, in the buffer's shape."""
        buffer = self.program.buffers[name]
        return np.frombuffer(device.read(self.address(name), buffer.size), np.int8).reshape(buffer.shape)


FORMAT = "weft report 2"
"""Format of reports. Version 1 lacked this field, and spelled its keys ``utilization``."""


def layers_of(program: DeviceProgram, device: Device, config: Config) -> list[dict[str, Any]]:
    """Return a report row for each layer that writes to memory, which includes preceding layers that do not.

    A layer's cycles reach from the end of the previous row to its last byte in memory. ``bound`` is the layer's
    bottleneck on the pipelined core, and None on the sequential core, where units take turns.
    """
    return _rows(program, device.marks(), config, in_turn=runs_in_turn(device, config))


def layers_in_list(program: DeviceProgram, device: Device, config: Config) -> list[dict[str, Any]]:
    """Return report rows for a program of a list, without cycles: lists do not record the ends of layers."""
    return _rows(program, None, config, in_turn=runs_in_turn(device, config))


def _rows(
    program: DeviceProgram, times: list[int] | None, config: Config, *, in_turn: bool
) -> list[dict[str, Any]]:
    rows, previous = [], 0
    for index, layer in enumerate(program.timed_layers.values()):
        cycles = None
        if times is not None:
            cycles, previous = times[index] - previous, times[index]
        # The queue with the most estimated cycles limits the layer.
        slowest = max(layer.cycles, key=lambda queue: layer.cycles[queue])
        bound = None if in_turn else {"MM": "array", "VEC": "vector unit"}.get(slowest, "memory")
        rows.append(
            {
                "name": layer.name,
                "kind": layer.kind,
                "cycles": cycles,
                "macs": layer.macs,
                "utilisation": _utilisation(layer.macs, cycles, config),
                "dram_bytes": layer.dram_bytes,
                "bound": bound,
            }
        )
    return rows


@dataclass
class Totals:
    """Sums over device programs; None until a device has counted."""

    cycles: int | None = None
    dram_bytes: int | None = None
    counters: dict[str, int] | None = None

    def add(self, counters: dict[Counter, int], config: Config) -> None:
        if Counter.CYCLES not in counters:  # a device without time
            return
        beats = counters[Counter.READ_BEATS] + counters[Counter.WRITE_BEATS]
        self.cycles = (self.cycles or 0) + counters[Counter.CYCLES]
        self.dram_bytes = (self.dram_bytes or 0) + beats * config.bus_bytes
        earlier = self.counters or {}
        self.counters = {
            item.name.lower(): earlier.get(item.name.lower(), 0) + value for item, value in counters.items()
        }

    def add_record(self, record: Record) -> None:
        """Add the record of a program in a list, which has two counters; they are 0 from a device without time."""
        if not record.cycles:
            return
        self.cycles = (self.cycles or 0) + record.cycles
        earlier = self.counters or {}
        counters = {Counter.CYCLES: record.cycles, Counter.LOAD_MEMORY: record.memory}
        self.counters = earlier | {
            item.name.lower(): earlier.get(item.name.lower(), 0) + value for item, value in counters.items()
        }


def _utilisation(macs: int, cycles: int | None, config: Config) -> float | None:
    return macs / (config.n * config.n * cycles) if cycles else None


def report(
    layers: list[dict[str, Any]],
    totals: Totals,
    config: Config,
    host: list[dict[str, Any]],
    warnings: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the report of a whole run, see `weft.Result`."""
    macs = sum(layer["macs"] for layer in layers)
    planned = sum(layer["dram_bytes"] for layer in layers)
    return {
        "format": FORMAT,
        "config": config.to_dict(),
        "cycles": totals.cycles,
        "macs": macs,
        "utilisation": _utilisation(macs, totals.cycles, config),
        "dram_bytes": planned if totals.dram_bytes is None else totals.dram_bytes,
        "counters": totals.counters,
        "layers": layers,
        "host": host,
        "warnings": list(warnings),
    }


class Execution:
    """A run of device programs and host segments, with its report and memory for `weft.Result`.

    Parameters
    ----------
    options : RunOptions
    config : Config
        Configuration that the programs are compiled for.
    keep : bool
        Store the device's memory after each program in `memory`.
    warnings : sequence of str
        Warnings for the report.

    Attributes
    ----------
    complete : bool
        True while every device so far has computed results.
    memory : bytes
        The device's memory after each program, concatenated, as long as the run is `complete`.

    Raises
    ------
    InputError
        If the programs cannot run on the device.
    """

    def __init__(
        self,
        options: RunOptions,
        config: Config,
        *,
        keep: bool = True,
        warnings: Sequence[str] = (),
    ) -> None:
        check_target(options.on, config)
        self._warnings = warnings
        self._options, self._config, self._keep = options, config, keep
        self.complete, self.memory = True, b""
        self._layers: list[dict[str, Any]] = []
        self._host: list[dict[str, Any]] = []
        self._totals = Totals()

    def run(
        self,
        program: DeviceProgram,
        contents: dict[str, np.ndarray],
        read: Collection[str],
        registers: Mapping[int, int] | None = None,
    ) -> dict[str, np.ndarray]:
        """Run a program on the `contents` of its input buffers.

        Returns the contents of the buffers `read`, or nothing from a device that computes no results. For `registers`
        see `weft.run.runtime.Image.run`.

        Raises
        ------
        InputError
            If the device has too little memory.
        """
        image = self._image(program)
        less = "; with `plain_inputs` it may need less" if program.rows else ""
        with open_device(self._options, self._config, image.memory_bytes, less) as device:
            self.complete = self.complete and device.computes
            image.run(device, contents, registers=registers)
            results = {name: image.read(device, name) for name in read} if device.computes else {}
            self.memory += device.read(0, image.memory_bytes) if self._keep and self.complete else b""
            self.count(program, device)
        return results

    def _image(self, program: DeviceProgram) -> Image:
        image = Image(program)
        on = self._options.on
        address = on.find_in_flash(image.read_only) if isinstance(on, Device) else None
        return image if address is None else Image(program, address)

    def count(self, program: DeviceProgram, device: Device) -> None:
        """Add the layers and counters of a program that has just ended."""
        self._layers += layers_of(program, device, self._config)
        self._totals.add(device.counters(), self._config)

    def count_record(self, program: DeviceProgram, device: Device, record: Record) -> None:
        """Add the layers and the record of a program of a list that has just ended."""
        self._layers += layers_in_list(program, device, self._config)
        self._totals.add_record(record)

    def add_host(self, segment: HostSegment, seconds: float) -> None:
        """Add a segment of the model that the host has run."""
        operators = [operator for _, operator, _ in segment.nodes]
        self._host.append({"name": segment.name, "operators": operators, "seconds": seconds})

    @property
    def report(self) -> dict[str, Any]:
        """The report so far, see `weft.Result`."""
        host = self._host if self.complete else []
        return report(self._layers, self._totals, self._config, host, self._warnings)
