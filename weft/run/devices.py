"""Open the devices that `weft.Program.run` takes by name."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from weft import arguments
from weft.configurations import sequential_boards
from weft.errors import InputError
from weft.hdl.isa.config import Config

if TYPE_CHECKING:
    from weft.sim.device import Device
    from weft.sim.waves import Waves

Opening = Callable[[Config], contextlib.AbstractContextManager["Device"]]
"""Function that opens a device for a configuration."""
NAMES = ("golden", "rtl", "timing")
_CHOICE = "'golden', 'rtl' or 'timing'"


@dataclass(frozen=True)
class Simulation:
    """Options of a simulated device; see `weft.Program.run` for the parameters.

    Raises
    ------
    InputError
        If a value has a wrong type or is out of range.
    """

    latency: int = 30
    bandwidth: float | None = None
    stalls: int | None = None
    trace: str | os.PathLike[str] | Waves | None = None

    def __post_init__(self) -> None:
        arguments.memory(self.latency, self.bandwidth)
        if self.stalls is not None:
            arguments.integer("stalls", self.stalls, *arguments.SEED)
        if self.trace is not None:
            from weft.sim.waves import Waves

            if not isinstance(self.trace, str | os.PathLike | Waves):
                raise InputError(f"'trace' must be a path or Waves, not {type(self.trace).__name__}")

    @property
    def memory(self) -> dict[str, Any]:
        """Keyword arguments for the memory of every simulated device."""
        latency, bandwidth = arguments.memory(self.latency, self.bandwidth)
        return {"latency": latency, "bandwidth": bandwidth}

    @property
    def rtl(self) -> dict[str, Any]:
        """Keyword arguments of `weft.sim.rtl.device.RtlDevice`."""
        waves = Path(self.trace) if isinstance(self.trace, str | os.PathLike) else self.trace
        return {**self.memory, "stall_seed": self.stalls, "waves": waves}


def check_target(on: str | Device, config: Config) -> None:
    """Raise `InputError` unless `on` is the name of a device, or a device for `config`."""
    from weft.sim.device import Device

    if isinstance(on, str):
        if on not in NAMES:
            raise InputError(f"unknown device {on!r}; choose {_CHOICE}")
    elif not isinstance(on, Device):
        raise InputError(f"'on' must be {_CHOICE}, or a device, not {type(on).__name__}")
    elif on.config != config:
        raise InputError(
            f"the program is for configuration {config.digest:#010x}, the device is {on.config.digest:#010x}: "
            "compile the model for the device's configuration"
        )


@contextlib.contextmanager
def open_device(
    on: str | Device | Opening, config: Config, memory_bytes: int, simulation: Simulation, less: str = ""
) -> Iterator[Device]:
    """Open device `on`: a name, a device (which stays open), or a function that opens one.

    Raises `InputError` if the device has too little memory; `less` is a remedy to add to that message.
    """
    with _open(on, config, memory_bytes, simulation) as device:
        if device.memory_bytes < memory_bytes:
            raise InputError(
                f"the program needs {memory_bytes} bytes of memory, the device has {device.memory_bytes}{less}"
                f"{device.advice}"
            )
        yield device


@contextlib.contextmanager
def _open(
    on: str | Device | Opening, config: Config, memory_bytes: int, simulation: Simulation
) -> Iterator[Device]:
    if not isinstance(on, str) and callable(on):
        with on(config) as device:
            check_target(device, config)
            yield device
        return
    check_target(on, config)
    if isinstance(on, str):
        with contextlib.closing(_simulator(on, config, memory_bytes, simulation)) as device:
            yield device
    else:
        yield on


def _simulator(on: str, config: Config, memory_bytes: int, simulation: Simulation) -> Device:
    if on == "rtl":
        from weft.sim.rtl.device import RtlDevice

        return RtlDevice(config, memory_bytes, sequential=bool(sequential_boards(config)), **simulation.rtl)
    if on == "timing":
        from weft.sim.timing import SequentialTimingDevice, TimingDevice

        kind = SequentialTimingDevice if sequential_boards(config) else TimingDevice
        return kind(config, memory_bytes, **simulation.memory)
    from weft.sim.compiled.device import golden_device

    return golden_device(config, memory_bytes)
