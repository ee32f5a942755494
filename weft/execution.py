"""Runs of device programs, one after the other, on a device by name or one that is there."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from weft.compiler.backend import DeviceProgram
from weft.compiler.ir.model import HostSegment
from weft.devices import Simulation, check_target, simulated
from weft.hdl.isa.config import Config
from weft.hdl.isa.program_lists import Record
from weft.run_report import Totals, layers_of, listed_layers, report
from weft.runtime import Image

if TYPE_CHECKING:
    from weft.sim.device import Device


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
        a device that computes nothing. `registers` is as `weft.runtime.Image.run` has it.

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
