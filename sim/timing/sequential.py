"""The cycle model of the sequential core as a device."""

from __future__ import annotations

import ctypes

import numpy as np

from weft.hdl.isa import BASES
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import Counter
from weft.hdl.sequential.control import BASE, PROGRAM
from weft.hdl.sequential.core import check_config
from weft.sim.device import DeviceError, check_program, check_range
from weft.sim.memories import TimedFlash
from weft.sim.timing.device import LIMIT, TOO_LARGE, TimingDevice
from weft.sim.timing.library import SequentialRequest, core_parameters, microprogram

_OUTCOMES = ("done", "hangs", "timeout", "outside")


class SequentialTimingDevice(TimingDevice):
    """A `weft.sim.device.Device` that predicts the counters of `weft.hdl.sequential.core.SequentialCore`.

    It executes the microprogram cycle by cycle on the data in memory, because the time of SOFTMAX, NORMALISE and some
    micro-operations of kernels depends on data. Programs write to a copy of memory. Each program starts on a ready
    core, with zeros in all memories on chip.

    Parameters
    ----------
    config : Config
    memory_bytes : int
        Size of the DRAM; zero at first.
    latency, bandwidth
        Latency and bandwidth of the memory, as in `weft.sim.rtl.device.RtlDevice`.
    flash : TimedFlash, optional
        Flash next to that memory, for read-only data.

    Attributes
    ----------
    computed : ndarray, uint8
        Contents of DRAM after the last program.

    Raises
    ------
    weft.hdl.errors.ConfigError
        If the sequential core does not support this configuration.
    weft.sim.verilate.BuildError
        If the C++ model cannot be built.
    """

    def __init__(
        self,
        config: Config,
        memory_bytes: int,
        *,
        latency: int = 30,
        bandwidth: float | None = None,
        flash: TimedFlash | None = None,
    ) -> None:
        check_config(config)
        self.sequential = True
        super().__init__(config, memory_bytes, latency=latency, bandwidth=bandwidth)
        self.flash = flash
        if flash is not None:  # one array holds DRAM and, from `window` on, flash
            self._memory = np.zeros(flash.window + flash.end, np.uint8)
        self._core = np.array(list(core_parameters(config).values()), np.int64)
        self.computed = self._memory

    def find_in_flash(self, payload: bytes) -> int | None:
        """Write `payload` to flash and return its address, or None if flash is absent or too small."""
        if self.flash is None or len(payload) > self.flash.end - self.flash.first:
            return None
        at = self.flash.window + self.flash.first
        self._memory[at : at + len(payload)] = np.frombuffer(payload, np.uint8)
        return at

    def start(self, program: int) -> None:
        """Start the program at an address of memory or flash, a multiple of the bus width; `wait` runs it."""
        if self.flash is None or program < self.flash.window:
            super().start(program)
            return
        check_program(program, self.config)
        check_range(program, 0, len(self._memory))
        self._program = program

    def _run(self, program: int, timeout: int | None) -> None:
        check = self._request(program, timeout)
        faulty = self._library.weft_timing_check(ctypes.byref(check))
        if faulty < -1:
            raise MemoryError(TOO_LARGE)
        if faulty >= 0:
            raise DeviceError(self._fault(program, faulty))
        # The model does not check instructions itself. The host's registers are words of data memory.
        words, memory = microprogram(self.config)
        memory = memory.copy()
        memory[PROGRAM], memory[BASE : BASE + BASES] = program, self._bases
        self.computed = self._memory.copy()
        request = SequentialRequest(
            self._core.ctypes.data, words.ctypes.data, len(words), memory.ctypes.data, len(memory),
            self.computed.ctypes.data, len(self.computed), self.latency, self.bandwidth or 0.0, self._tokens,
            self._marks.ctypes.data, len(self._marks), LIMIT if timeout is None else timeout,
            *((flash.window, flash.page, flash.jump, flash.word) if (flash := self.flash) else (0,) * 4),
        )  # fmt: skip
        outcome = ctypes.c_int64()
        model = self._library.weft_sequential_run(ctypes.byref(request), ctypes.byref(outcome))
        if not model:
            raise MemoryError(TOO_LARGE)
        try:
            self._collect_core(model)
        finally:
            self._library.weft_sequential_free(model)
        result = _OUTCOMES[outcome.value]
        if result == "timeout":
            raise DeviceError(f"the program is not done after {timeout} cycles")
        if result == "outside":
            raise DeviceError("the program reads or writes outside memory")
        if result == "hangs":
            raise DeviceError("the program hangs: the microprogram waits for what no unit will do")

    def _collect_core(self, model: int) -> None:
        self._tokens = self._library.weft_sequential_tokens(model)
        counters = (ctypes.c_uint64 * len(Counter))()
        self._library.weft_sequential_counters(model, counters)
        self._counters = dict(zip(Counter, map(int, counters), strict=True))
        cycles = (ctypes.c_uint64 * max(1, len(self._marks)))()
        self._mark_cycles = [
            int(cycle) for cycle in cycles[: self._library.weft_sequential_marks(model, cycles)]
        ]
