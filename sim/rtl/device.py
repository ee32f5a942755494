"""The generated Verilog as a device, simulated by Verilator with a memory model on its AXI4 port."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from weft.hdl.control.counters import HangDetector, describe_stalls
from weft.hdl.isa import BASES
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import (
    ERRORS,
    MAGIC,
    RESPONSES,
    SLVERR,
    START,
    START_LIST,
    STOP,
    VERSION,
    WATCHDOG_BITS,
    Counter,
    Fault,
    ListProgress,
    Reg,
    Status,
    base_register,
    counter_register,
    failure,
)
from weft.sim.device import (
    Closable,
    Device,
    DeviceError,
    check_base,
    check_list,
    check_memory,
    check_program,
    check_range,
)
from weft.sim.rtl.library import SIGNATURES, Observed, build_model, core_verilog
from weft.sim.verilate import load_library
from weft.sim.waves import CYCLE_TIME, Waves

PAGE = 4096
CHUNK = 100_000
"""Cycles between reads of the status register."""
PROBE = 1000
"""Cycles to watch a program that does not end, in order to report what it waits for."""
SLOWEST = 10_000_000
"""Most cycles to wait for a slow memory before a program counts as hanging."""
STALLS = 0.3
"""Default probability of stalls."""
SETTLING_COLUMN, SETTLING = 5, 6
"""Cycles from a reset until a sequential core can start a program: per column of the array, and in addition."""
_NEVER = 1 << 56  # cycles


class RtlDevice(Closable, Device):
    """A `weft.sim.device.Device` that simulates the generated Verilog cycle by cycle.

    Parameters
    ----------
    config : Config
        The accelerator; its model is built on first use and kept in the cache.
    memory_bytes : int
        Size of the DRAM, rounded up to whole pages of 4 KiB; zero at first.
    latency : int
        Cycles from an accepted address to its first beat, and from the last write beat to its response.
    bandwidth : float or None
        Memory bandwidth shared by reads and writes; None: one beat a cycle in each direction.
    stall_seed : int or None
        Seed of random stalls, and of reordering; None: no stalls.
    stall_probability : float or None
        Probability, in every cycle and for every AXI channel, that the memory stalls the channel. None: `STALLS` with a
        `stall_seed`, else 0.
    reordered : bool
        Memory answers reads of different IDs in random order, and interleaves their beats.
    waves : Waves, Path or None
        Waveform file to write; a path records all cycles from the reset on. Slow.
    wave_levels : int or None
        Depth of traced modules: 1 for the ports, 2 for the wires between the units, and so on; None for all modules,
        which is about 10 kB a cycle as VCD.
    verilog : str or None
        Verilog of the core (top module `weft.sim.rtl.library.TOP`) to use instead of generating it.
    sequential : bool
        Simulate a `weft.hdl.sequential.core.SequentialCore`.
    observed : Observed or None
        See `weft.sim.rtl.library.build_model`.

    Raises
    ------
    DeviceError
        If the model does not identify itself as this version and configuration.
    MemoryError
        If the simulation runs out of memory, here or in a later call.
    weft.sim.verilate.BuildError
        If the model cannot be built.
    """

    DRIVER = "rtl_model.cpp"
    COVERAGE = False
    """True to count coverage, see `weft.sim.rtl.coverage`."""

    def __init__(
        self,
        config: Config,
        memory_bytes: int,
        *,
        latency: int = 30,
        bandwidth: float | None = None,
        stall_seed: int | None = None,
        stall_probability: float | None = None,
        reordered: bool = False,
        waves: Waves | Path | None = None,
        wave_levels: int | None = None,
        verilog: str | None = None,
        sequential: bool = False,
        observed: Observed | None = None,
    ) -> None:
        check_memory(latency, bandwidth)
        if stall_probability is None:
            stall_probability = 0.0 if stall_seed is None else STALLS
        if not 0 <= stall_probability < 1:
            raise ValueError(f"the stall probability is from 0 to below 1, not {stall_probability}")
        self.config = config
        self.memory_bytes = -(-memory_bytes // PAGE) * PAGE
        self._model: int | None = None
        if sequential and verilog is None:
            verilog = core_verilog(config, sequential=True)
        self._waves = Waves(waves) if isinstance(waves, Path) else waves
        form = self._waves.format if self._waves else False
        library = build_model(
            config, trace=form, observed=observed, verilog=verilog, driver=self.DRIVER, coverage=self.COVERAGE
        )
        self._library = load_library(library, SIGNATURES)
        path = None if self._waves is None else str(self._waves.path).encode()
        exhausted = ctypes.c_int()
        model = self._library.weft_open(
            self.memory_bytes,
            latency,
            bandwidth or 0.0,
            stall_probability,
            stall_seed or 0,
            path,
            wave_levels or 0,
            self._waves is not None and self._waves.has_window,
            ctypes.byref(exhausted),
        )
        if exhausted.value:
            raise MemoryError(f"no room for a simulation with {self.memory_bytes} bytes of memory")
        if not model:
            raise DeviceError(f"cannot write the trace {path.decode() if path else ''}")
        self._model = model  # a pointer, freed by `close`
        if reordered:
            self._library.weft_reorder(model)
        self._memory: int = self._library.weft_memory(model)
        self._bases = [0] * BASES
        self._failed = False
        self._started = False
        self._in_list = False  # True if a list was started last
        self._watchdog = 0
        self.sequential = sequential
        # A program hangs if no counter moves for several times the cycles of a memory access.
        answer = (latency + config.bus_bytes / (bandwidth or config.bus_bytes)) / (1 - stall_probability)
        self._patience = CHUNK + int(min(4 * answer, SLOWEST))
        self._marks = 0
        self._settle()
        self._identify()

    def _settle(self) -> None:
        """Wait until a sequential core has written its row of zeros after a reset.

        A program that starts earlier would wait, and count the wait. Hosts of boards are too slow for that.
        """
        if self.sequential:
            self._library.weft_idle(self._handle, SETTLING + SETTLING_COLUMN * self.config.n)

    def _identify(self) -> None:
        expected = {Reg.MAGIC: MAGIC, Reg.VERSION: VERSION, Reg.CONFIG: self.config.digest}
        for register, value in expected.items():
            actual = self._read_register(register)
            if actual != value:
                raise DeviceError(f"register {register.name} of the model is {actual:#x}, not {value:#x}")

    def close(self) -> None:
        """Free the model and finish the trace. The device cannot be used afterwards."""
        if self._model is not None:
            self._library.weft_close(self._model)
            self._model = None

    def __del__(self) -> None:
        if getattr(self, "_model", None) is not None:
            self.close()

    @property
    def cycles(self) -> int:
        """Clock cycles simulated so far, including register accesses."""
        return int(self._library.weft_cycles(self._handle))

    @property
    def _handle(self) -> int:
        if self._model is None:
            raise DeviceError("the device is closed")
        return self._model

    def write(self, address: int, payload: bytes) -> None:
        """Write `payload` to DRAM. Raises `DeviceError` if it does not lie inside memory."""
        ctypes.memmove(self._range(address, len(payload)), bytes(payload), len(payload))

    def read(self, address: int, size: int) -> bytes:
        """Return `size` bytes of DRAM. Raises `DeviceError` if they do not lie inside memory."""
        return ctypes.string_at(self._range(address, size), size)

    def _range(self, address: int, size: int) -> int:
        check_range(address, size, self.memory_bytes)
        assert self._handle
        return self._memory + address

    def set_base(self, index: int, address: int) -> None:
        """Set base register `index` (0 to 7) to a 32-bit DRAM byte address."""
        check_base(index, address)
        self._bases[index] = address
        self._write_register(base_register(index), address)

    def break_memory(
        self,
        address: int,
        size: int,
        *,
        response: int | None = SLVERR,
        reads: bool = True,
        writes: bool = True,
    ) -> None:
        """Have memory answer accesses to these bytes with an error from now on, without reading or writing.

        Parameters
        ----------
        address, size : int
            Range of DRAM bytes.
        response : int or None
            AXI response: 1 (EXOKAY, an error because no access is exclusive), 2 (SLVERR) or 3 (DECERR). None for no
            response at all.
        reads, writes : bool
            Accesses to fail.

        Raises
        ------
        DeviceError
            If the bytes do not lie inside memory.
        ValueError
            If the response is invalid.
        """
        self._range(address, size)
        if response is not None and response not in RESPONSES:
            raise ValueError(
                f"memory answers with {', '.join(f'{number} ({name})' for number, name in RESPONSES.items())} or None, "
                f"not {response}"
            )
        self._library.weft_fault(self._handle, address, address + size, response or 0, reads, writes)
        self._check_memory()

    def mend_memory(self) -> None:
        """Undo all calls of `break_memory`."""
        self._library.weft_no_faults(self._handle)

    def set_watchdog(self, units: int) -> None:
        """Stop programs that make no progress for `units` (1 to 255; 0: off) times `WATCHDOG_CYCLES` cycles."""
        if not 0 <= units < 1 << WATCHDOG_BITS:
            raise DeviceError(f"the watchdog waits for 0 to {(1 << WATCHDOG_BITS) - 1} units, not {units}")
        self._watchdog = units
        self._write_register(Reg.WATCHDOG, units)

    def stop(self) -> None:
        """Ask the running program to stop; `wait` then raises `DeviceError`."""
        self._write_register(Reg.CONTROL, STOP)

    @property
    def fault(self) -> Fault:
        """First bus error of the last program."""
        return Fault.of(self._read_register(Reg.FAULT), self._read_register(Reg.FAULT_ADDRESS))

    def start(self, program: int) -> None:
        """Start the program at DRAM byte address `program`, a multiple of the bus width.

        After a run that did not end, this resets the core first, because its units may be in any state.
        """
        check_program(program, self.config)
        self._range(program, 0)
        self._begin(Reg.PROGRAM, program, START)

    def start_list(self, address: int) -> None:
        """Start the list of programs at DRAM byte address `address`, with a reset as in `start`.

        Raises `DeviceError` if no list can start there.
        """
        check_list(address, self.config, self.memory_bytes)
        self._begin(Reg.LIST, address, START_LIST)

    def list_progress(self) -> ListProgress:
        """Return the progress of the list that was started last."""
        return ListProgress.of(self._read_register(Reg.LISTED))

    def _begin(self, register: Reg, address: int, command: int) -> None:
        """Write `address` to `register`, then `command` to the control register."""
        if self._failed:
            # The reset clears base registers and watchdog.
            self._library.weft_reset(self._handle)
            self._settle()
            for index, base in enumerate(self._bases):
                self._write_register(base_register(index), base)
            self._write_register(Reg.WATCHDOG, self._watchdog)
            self._failed = False
        elif self._status() & Status.BUSY:
            raise DeviceError("a program is still running")
        self._write_register(register, address)
        waves = self._waves
        if waves is not None and waves.has_window:
            self._library.weft_window(self._handle, waves.first, waves.cycles or _NEVER)
        self._write_register(Reg.CONTROL, command)
        if waves is not None:
            waves.zero = CYCLE_TIME * self._begun()
        self._started, self._in_list = True, command == START_LIST

    def _begun(self) -> int:
        """Return the value of `cycles` at which the last program started."""
        return int(self._library.weft_begun(self._handle))

    def wait(self, timeout: int | None = None) -> None:
        """Wait until the program is done; return at once if no program was started.

        Raises
        ------
        DeviceError
            If the program is not done after `timeout` cycles, or without a timeout, makes no progress for a long time
            (the message says what it waits for). If an address is outside memory, the core violates the AXI protocol,
            memory answers with an error, an instruction is invalid, or the program was stopped.
        """
        remaining = timeout
        watch = HangDetector(self.config, self._patience, sequential=self.sequential)
        while self._started:
            chunk = CHUNK if remaining is None else min(CHUNK, remaining)
            done = self._library.weft_run(self._handle, chunk)
            if self._waves is not None:
                self._waves.ran = self.cycles - self._begun()
            self._check_memory()
            message = self._library.weft_error(self._handle).decode()
            if message:
                self._fail(message)
            if done:
                self._end()
            elif remaining is None:
                if watch.hangs(self.counters()):
                    self._fail(f"the program hangs: {self._diagnose(hangs=True)}")
            else:
                remaining -= chunk
                if remaining <= 0:
                    self._fail(f"the program is not done after {timeout} cycles: {self._diagnose()}")

    def _end(self) -> None:
        """Check the status register after the interrupt. Raises `DeviceError` if it reports an error."""
        status = self._status()
        if not status & Status.DONE:  # memory did not answer, so the units never finish
            self._fail(f"{self._failure(status)}: {self._diagnose(hangs=True)}")
        self._started = False
        if status & ERRORS:
            self._settle()  # the core resets itself when an error stops a run
            raise DeviceError(self._failure(status))

    def _failure(self, status: Status) -> str:
        return failure(status, self.fault, self.list_progress() if self._in_list else None)

    def _fail(self, message: str) -> NoReturn:
        self._failed = True
        raise DeviceError(message)

    def mark_writes(self, totals: Sequence[int]) -> None:
        """Have the next program record the cycle at which it has written each of `totals` bytes (ascending) to memory.

        STOREs are in order, so these cycles are the ends of layers; hardware needs no trace of its units for this.
        """
        self._marks = len(totals)
        self._library.weft_mark(self._handle, (ctypes.c_uint64 * len(totals))(*totals), len(totals))
        self._check_memory()

    def marks(self) -> list[int]:
        """Return the recorded cycles, counted from the call of `mark_writes`, without totals that were not reached."""
        cycles = (ctypes.c_uint64 * max(1, self._marks))()
        return list(cycles[: self._library.weft_marks(self._handle, cycles)])

    def counters(self) -> dict[Counter, int]:
        """Return the counters of the last program."""
        return {
            counter: self._read_register(counter_register(counter))
            | self._read_register(counter_register(counter) + 4) << 32
            for counter in Counter
        }

    def _diagnose(self, *, hangs: bool = False) -> str:
        """Describe the activity of the units over the next `PROBE` cycles, from the counters."""
        # The busy and stall counters that change meanwhile show what units wait for.
        before = self.counters()
        self._library.weft_run(self._handle, PROBE)
        return describe_stalls(before, self.counters(), hangs=hangs)

    def _status(self) -> Status:
        return Status(self._read_register(Reg.STATUS))

    def _write_register(self, address: int, value: int) -> None:
        if not self._library.weft_write_register(self._handle, address, value):
            self._check_memory()
            raise DeviceError(f"the core does not answer a write of register {address:#x}")

    def _read_register(self, address: int) -> int:
        value = ctypes.c_uint32()
        if not self._library.weft_read_register(self._handle, address, ctypes.byref(value)):
            self._check_memory()
            raise DeviceError(f"the core does not answer a read of register {address:#x}")
        return value.value

    def _check_memory(self) -> None:
        if self._library.weft_exhausted(self._handle):
            self.close()
            raise MemoryError("the simulation needs more memory than there is")
