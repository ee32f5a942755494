"""Open the devices that `weft.Program.run` takes by name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from weft.configurations import sequential_boards
from weft.errors import InputError
from weft.hdl.isa.config import Config

if TYPE_CHECKING:
    from weft.run.options import Opening, RunOptions
    from weft.sim.device import Device

NAMES = ("golden", "rtl", "timing")
_CHOICE = "'golden', 'rtl' or 'timing'"


def check_target(on: str | Device | Opening, config: Config) -> None:
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
def open_device(options: RunOptions, config: Config, memory_bytes: int, less: str = "") -> Iterator[Device]:
    """Open the device that `options.on` names. A device that is open already stays open.

    Raises `InputError` if the device has too little memory; `less` is a remedy to add to that message.
    """
    with _open(options, config, memory_bytes) as device:
        if device.memory_bytes < memory_bytes:
            raise InputError(
                f"the program needs {memory_bytes} bytes of memory, the device has {device.memory_bytes}{less}"
                f"{device.advice}"
            )
        yield device


@contextlib.contextmanager
def _open(options: RunOptions, config: Config, memory_bytes: int) -> Iterator[Device]:
    on = options.on
    if not isinstance(on, str) and callable(on):
        with on(config) as device:
            check_target(device, config)
            yield device
        return
    check_target(on, config)
    if isinstance(on, str):
        with contextlib.closing(_simulator(options, config, memory_bytes)) as device:
            yield device
    else:
        yield on


def _simulator(options: RunOptions, config: Config, memory_bytes: int) -> Device:
    if options.on == "rtl":
        from weft.sim.rtl.device import RtlDevice

        return RtlDevice(
            config,
            memory_bytes,
            stall_seed=options.stall_seed,
            waves=options.recording,
            sequential=bool(sequential_boards(config)),
            **options.memory,
        )
    if options.on == "timing":
        from weft.sim.timing import SequentialTimingDevice, TimingDevice

        kind = SequentialTimingDevice if sequential_boards(config) else TimingDevice
        return kind(config, memory_bytes, **options.memory)
    from weft.sim.compiled.device import golden_device

    return golden_device(config, memory_bytes)
