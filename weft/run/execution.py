"""Runs of device programs, one after the other, on a device by name or one that is there."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.compiler.backend import DeviceProgram
from weft.compiler.ir.model import HostSegment
from weft.configurations import runs_in_turn
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import Counter
from weft.hdl.isa.program_lists import Record
from weft.run.devices import Simulation, check_target, simulated
from weft.run.runtime import Image

if TYPE_CHECKING:
    from weft.sim.device import Device


FORMAT = "weft report 2"
"""Version 1 had no format, and spelled its keys ``utilization``."""


def layers_of(program: DeviceProgram, device: Device, config: Config) -> list[dict[str, Any]]:
    """One row a layer, or several of which only the last one writes to memory. Its cycles reach from the layer before
    it to its own last byte there.

    ``bound`` is what paces the layer on the pipelined core, None on the sequential one, where units take turns.
    """
    return _rows(program, device.marks(), config, in_turn=runs_in_turn(device, config))


def listed_layers(program: DeviceProgram, device: Device, config: Config) -> list[dict[str, Any]]:
    """The same of a program that ran in a list, in which nobody tells layers' cycles: they are None."""
    return _rows(program, None, config, in_turn=runs_in_turn(device, config))


def _rows(
    program: DeviceProgram, times: list[int] | None, config: Config, *, in_turn: bool
) -> list[dict[str, Any]]:
    rows, previous = [], 0
    for index, layer in enumerate(program.timed.values()):
        cycles = None
        if times is not None:
            cycles, previous = times[index] - previous, times[index]
        slowest = max(layer.cycles, key=lambda queue: layer.cycles[queue])
        bound = None if in_turn else {"MM": "array", "VEC": "vector unit"}.get(slowest, "memory")
        rows.append({
            "name": layer.name, "kind": layer.kind, "cycles": cycles, "macs": layer.macs,
            "utilisation": _utilisation(layer.macs, cycles, config), "dram_bytes": layer.dram_bytes, "bound": bound,
        })  # fmt: skip
    return rows


@dataclass
class Totals:
    """Sums over device programs; None where no device has counted."""

    cycles: int | None = None
    dram_bytes: int | None = None
    counters: dict[str, int] | None = None

    def add(self, counters: dict[Counter, int], config: Config) -> None:
        if Counter.CYCLES not in counters:
            return
        beats = counters[Counter.READ_BEATS] + counters[Counter.WRITE_BEATS]
        self.cycles = (self.cycles or 0) + counters[Counter.CYCLES]
        self.dram_bytes = (self.dram_bytes or 0) + beats * config.bus_bytes
        known = self.counters or {}
        self.counters = {
            item.name.lower(): known.get(item.name.lower(), 0) + value for item, value in counters.items()
        }

    def add_listed(self, record: Record) -> None:
        """Of a program in a list: its record has less than counters. Without time there is nothing in it."""
        if not record.cycles:
            return
        self.cycles = (self.cycles or 0) + record.cycles
        known = self.counters or {}
        told = {Counter.CYCLES: record.cycles, Counter.LOAD_MEMORY: record.memory}
        self.counters = known | {
            item.name.lower(): known.get(item.name.lower(), 0) + value for item, value in told.items()
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
    """The report of a whole run."""
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
    """A run: what `weft.Result` tells of the device programs in it.

    Parameters
    ----------
    on : "golden", "rtl", "timing" or Device
    config : Config
        What the programs are compiled for.
    simulation : Simulation
    keep : bool
        Keep what is in the device's memory.
    warnings : sequence of str
        What the report says of values that may be clamped.

    Attributes
    ----------
    complete : bool
        Whether all devices so far have computed what they ran.
    memory : bytes
        The whole memory after each program that was `complete`, one after the other.

    Raises
    ------
    InputError
        If such programs cannot run on that.
    """

    def __init__(
        self,
        on: str | Device,
        config: Config,
        simulation: Simulation,
        *,
        keep: bool = True,
        warnings: Sequence[str] = (),
    ) -> None:
        check_target(on, config)
        self._warnings = warnings
        self._on, self._config, self._simulation, self._keep = on, config, simulation, keep
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
        """Run a program on the `contents` of its input buffers; the contents of the buffers `read` after it, none from
        a device that computes nothing. `registers` is as `weft.run.runtime.Image.run` has it.

        Raises
        ------
        InputError
            If the device has too little memory.
        """
        image = self._image(program)
        less = "; with `plain_inputs` it may need less" if program.rows else ""
        with simulated(self._on, self._config, image.memory_bytes, self._simulation, less) as device:
            self.complete = self.complete and device.computes
            image.run(device, contents, registers=registers)
            found = {name: image.read(device, name) for name in read} if device.computes else {}
            self.memory += device.read(0, image.memory_bytes) if self._keep and self.complete else b""
            self.count(program, device)
        return found

    def _image(self, program: DeviceProgram) -> Image:
        """The program, placed as the device wants it."""
        image = Image(program)
        kept = None if isinstance(self._on, str) else self._on.kept(image.fixed)
        return image if kept is None else Image(program, kept)

    def count(self, program: DeviceProgram, device: Device) -> None:
        """Note what the device has counted in a program that has just ended."""
        self._layers += layers_of(program, device, self._config)
        self._totals.add(device.counters(), self._config)

    def count_listed(self, program: DeviceProgram, device: Device, record: Record) -> None:
        """Note what the device has told about a program of a list that has just ended."""
        self._layers += listed_layers(program, device, self._config)
        self._totals.add_listed(record)

    def add_host(self, segment: HostSegment, seconds: float) -> None:
        """Note how long the host took for a part of the model."""
        operators = [operator for _, operator, _ in segment.nodes]
        self._host.append({"name": segment.name, "operators": operators, "seconds": seconds})

    @property
    def report(self) -> dict[str, Any]:
        """As in `weft.Result`."""
        host = self._host if self.complete else []
        return report(self._layers, self._totals, self._config, host, self._warnings)
