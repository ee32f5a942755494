"""What a run cost, as plain values: see `weft.Result`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from weft.compiler.backend import DeviceProgram
from weft.configurations import runs_in_turn
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import Counter
from weft.hdl.isa.program_lists import Record

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
