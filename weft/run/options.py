"""Options of a run, and the devices that they name: one record for the command line and the Python API."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from weft.arguments import BANDWIDTH, SEED, Real, Whole, check_fields, option
from weft.errors import InputError

if TYPE_CHECKING:
    from weft.hdl.isa.config import Config
    from weft.sim.device import Device
    from weft.sim.waves import Waves


Opening = Callable[["Config"], contextlib.AbstractContextManager["Device"]]
"""Function that opens a device for a configuration."""
DEVICES = ("golden", "rtl", "timing")
_CHOICE = "'golden', 'rtl' or 'timing'"


class MemoryKeywords(TypedDict, total=False):
    """Keyword arguments of functions that take only the memory's fields of `RunOptions`."""

    latency: int
    bandwidth: float | None


class RunKeywords(MemoryKeywords, total=False):
    """Keyword arguments of functions that take all fields of `RunOptions` but `on`."""

    stall_seed: int | None
    waves: str | os.PathLike[str] | Waves | None
    waves_from: int
    waves_cycles: int | None


@dataclass(frozen=True)
class RunOptions:
    """Options of a run. On the command line, each field is an option of its name, for example ``--stall-seed``.

    Parameters
    ----------
    on : "golden", "rtl", "timing", Device or function
        Device to run on. A `Device` must be built for the program's configuration; a function opens one for a
        configuration. "rtl" simulates the core that `weft.verilog` writes. "timing" counts that core's cycles and
        computes no results.
    latency, bandwidth : int, float
        Latency (1 to 1,000,000 cycles) and bandwidth (at least 0.001 bytes a cycle) of the simulated memory (rtl,
        timing). None: the bandwidth that the program is planned for, or else that of the bus.
    stall_seed : int
        Seed (32 bits) of random stalls on every bus channel (rtl); None: no stalls.
    waves : path or Waves
        Waveform file for the last device program (rtl): FST if the suffix is ``.fst``, else VCD.
    waves_from, waves_cycles : int
        First cycle and number of cycles to record, counted from the start of the program; by default all, from the
        reset on. A `Waves` has its own.

    Raises
    ------
    InputError
        If a value has a wrong type or is out of range, or waveforms are not of "rtl".
    """

    on: str | Device | Opening = option("golden", "Device to run on.")  # noqa: RUF009
    _: KW_ONLY
    latency: int = option(
        30, Whole("Latency of the simulated memory in cycles.", 1, 1_000_000), "rtl", "timing"
    )
    bandwidth: float | None = option(
        None, Real("Bandwidth of the simulated memory in bytes per cycle.", *BANDWIDTH), "rtl", "timing"
    )
    stall_seed: int | None = option(None, Whole("Seed of random stalls. Default: no stalls.", *SEED), "rtl")
    waves: str | os.PathLike[str] | Waves | None = option(  # noqa: RUF009
        None, "Write waveforms as .fst or .vcd, with setup files for GTKWave and Surfer.", "rtl"
    )
    waves_from: int = option(0, Whole("First cycle in --waves.", 0, 1 << 40))
    waves_cycles: int | None = option(None, Whole("Cycles in --waves. Default: to the end.", 1, 1 << 40))

    def __post_init__(self) -> None:
        check_fields(self)
        if self.waves is None:
            if self.waves_from or self.waves_cycles is not None:
                raise InputError("'waves' is missing: 'waves_from' and 'waves_cycles' select its cycles")
            return
        from weft.sim.waves import Waves

        if not isinstance(self.waves, str | os.PathLike | Waves):
            raise InputError(f"'waves' must be a path or Waves, not {type(self.waves).__name__}")
        if self.on != "rtl":
            device = self.on if isinstance(self.on, str) else type(self.on).__name__
            raise InputError(f"'waves' is for the device rtl, and this one is {device}")

    @classmethod
    def of(cls, on: str | Device | Opening | RunOptions, **keywords: Unpack[RunKeywords]) -> RunOptions:
        """Return `on` if it is a record, else a record for this device; `keywords` replace fields."""
        return replace(on, **keywords) if isinstance(on, RunOptions) else cls(on, **keywords)

    def planned_for(self, bandwidth: float) -> RunOptions:
        """Return these options with this bandwidth, in bytes a cycle, unless they have one."""
        return self if self.bandwidth is not None else replace(self, bandwidth=bandwidth)

    def without_waves(self) -> RunOptions:
        return replace(self, waves=None, waves_from=0, waves_cycles=None)

    @property
    def memory(self) -> dict[str, Any]:
        """Keyword arguments for the memory of every simulated device."""
        return {"latency": self.latency, "bandwidth": self.bandwidth}

    @property
    def recording(self) -> Waves | None:
        """The waveform file with its cycles."""
        if isinstance(self.waves, str | os.PathLike):
            from weft.sim.waves import Waves

            return Waves(Path(self.waves), self.waves_from, self.waves_cycles)
        return self.waves


def check_target(on: str | Device | Opening, config: Config) -> None:
    """Raise `InputError` unless `on` is the name of a device, or a device for `config`."""
    from weft.sim.device import Device

    if isinstance(on, str):
        if on not in DEVICES:
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
    # Imported here, because the command line loads this module for its help, which must appear at once.
    from weft.configurations import sequential_boards

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
