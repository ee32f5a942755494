"""LiteX systems with an accelerator, simulated: their Verilog in Verilator, the host as a master of their bus."""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from litedram.modules import DDR3Module, SDRModule, _SpeedgradeTimings, _TechnologyTimings
from litedram.phy.model import SDRAMPHYModel
from litex.build.generic_platform import GenericPlatform, Pins
from litex.gen import LiteXModule
from litex.soc.integration.export import get_csr_csv
from litex.soc.integration.soc_core import SoCMini
from litex.soc.interconnect import wishbone
from migen import ClockDomain

from weft.boards.litex.litex import add_weft
from weft.hdl.isa.config import Config
from weft.sim.verilate import Model, load_library

CLOCK = 100e6
RUN = 200
"""Cycles between two reads of a register by the host."""
MAIN_RAM = 0x4000_0000
_SIGNATURES: dict[str, Any] = {
    "soc_open": (ctypes.c_void_p, []),
    "soc_close": (None, [ctypes.c_void_p]),
    "soc_cycles": (ctypes.c_uint64, [ctypes.c_void_p]),
    "soc_irq": (ctypes.c_int, [ctypes.c_void_p]),
    "soc_run": (None, [ctypes.c_void_p, ctypes.c_uint64]),
    "soc_access": (
        ctypes.c_int,
        [ctypes.c_void_p, ctypes.c_uint32, ctypes.POINTER(ctypes.c_uint32), ctypes.c_uint32, ctypes.c_int],
    ),
}


class SmallDdr3(DDR3Module):
    """A DDR3 chip of few columns: 2 MiB with 16 data lines."""

    nbanks, nrows, ncols = 8, 2048, 64
    technology_timings = _TechnologyTimings(
        tREFI=64e6 / 8192, tWTR=(4, 7.5), tCCD=(4, None), tRRD=(4, 10), tZQCS=(64, 80)
    )
    speedgrade_timings = {  # noqa: RUF012
        "default": _SpeedgradeTimings(
            tRP=13.75, tRCD=13.75, tWR=13.75, tRFC=(128, None), tFAW=(None, 40), tRAS=35
        )
    }


class SmallSdr(SDRModule):
    """An SDRAM chip of few columns: 1 MiB with 16 data lines."""

    nbanks, nrows, ncols = 4, 2048, 64
    technology_timings = _TechnologyTimings(
        tREFI=64e6 / 8192, tWTR=(2, None), tCCD=(1, None), tRRD=(None, 15)
    )
    speedgrade_timings = {  # noqa: RUF012
        "default": _SpeedgradeTimings(tRP=20, tRCD=20, tWR=15, tRFC=(None, 66), tFAW=None, tRAS=44)
    }


@dataclass(frozen=True)
class Memory:
    """``kind``: "ddr3" or "sdr" behind LiteDRAM, with ``lines`` data lines; or "sram" on the bus. ``bus``: standard of
    the system's bus; ``width``: its bits."""

    kind: str = "ddr3"
    lines: int = 16
    bus: str = "wishbone"
    width: int = 32
    size: int = 1 << 20


class _Clocks(LiteXModule):
    def __init__(self, platform: Any) -> None:
        self.cd_sys = ClockDomain()
        self.comb += self.cd_sys.clk.eq(platform.request("sys_clk"))
        self.comb += self.cd_sys.rst.eq(platform.request("sys_rst"))


def system(config: Config, memory: Memory, **options: Any) -> Any:
    """Return a system of a host's master, memory, and the accelerator."""
    soc = without_accelerator(memory)
    core = add_weft(soc, config, **{"dram": None if memory.kind == "sram" else "sdram"} | options)
    soc.comb += soc.platform.request("irq").eq(core.ev.irq)
    return soc


def without_accelerator(memory: Memory) -> Any:
    """Return a system of a host's master and memory."""
    host = wishbone.Interface(data_width=32, address_width=32, addressing="word")
    pins = [("sys_clk", 0, Pins(1)), ("sys_rst", 0, Pins(1)), ("irq", 0, Pins(1)), *host.get_ios("host")]
    platform = GenericPlatform("none", pins, name="none")
    soc = SoCMini(platform, CLOCK, bus_standard=memory.bus, bus_data_width=memory.width)
    soc.submodules.crg = _Clocks(platform)
    soc.comb += host.connect_to_pads(platform.request("host"), mode="slave")
    soc.bus.add_master("host", host)
    if memory.kind == "sram":
        soc.add_ram("main_ram", MAIN_RAM, memory.size)
    else:
        rate, chip = {"ddr3": ("1:4", SmallDdr3), "sdr": ("1:1", SmallSdr)}[memory.kind]
        module = chip(CLOCK, rate)
        soc.submodules.phy = phy = SDRAMPHYModel(module, data_width=memory.lines, clk_freq=CLOCK)
        soc.add_sdram("sdram", phy=phy, module=module, origin=MAIN_RAM, l2_cache_size=0, size=memory.size)
    return soc


def _without_warnings(text: str) -> str:
    """Turn off Verilator's warnings in LiteX's Verilog."""
    names = ("WIDTH", "COMBDLY", "CASEINCOMPLETE", "INITIALDLY")
    off, on = ("".join(f"/* verilator lint_{state} {name} */\n" for name in names) for state in ("off", "on"))
    # Its processes drive the valid of one channel and read another's ready: no loop, but Verilator reports one.
    off = "/* verilator lint_off UNOPTFLAT */\n" + off
    # Drop comments, which contain the time, and contents of memories, which are zeros.
    text = re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"initial begin\s+\$readmemh\([^)]*\);\s+end", "", text)
    return off + text + on


class SimulatedSoc:
    """A running system, in the place of ``litex_server``'s link to a board. Accesses and reads advance time.

    `csr_csv` is the text of the file that LiteX writes for hosts.
    """

    def __init__(self, config: Config, memory: Memory, **options: Any) -> None:
        soc = system(config, memory, **options)
        soc.finalize()
        verilog = soc.platform.get_verilog(soc, name="soc")
        text = _without_warnings(verilog.main_source)
        for path, *_ in soc.platform.sources:
            text += Path(path).read_text()
        self._size = memory.size
        self.csr_csv = get_csr_csv(soc.csr.regions, soc.constants, soc.bus.regions)
        self.model_path = Model(
            verilog=text, top="soc", driver=Path(__file__).with_name("litex_soc.cpp"), output="soc.so",
            link=["-Wl,-Bsymbolic"], optimise="-O0" if config.n <= 4 else "-O1",
        ).build()  # fmt: skip
        self._library = load_library(self.model_path, _SIGNATURES)
        self._soc = self._library.soc_open()

    @property
    def cycles(self) -> int:
        return int(self._library.soc_cycles(self._soc))

    @property
    def irq(self) -> bool:
        return bool(self._library.soc_irq(self._soc))

    def open(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        if self._soc:
            self._library.soc_close(self._soc)
            self._soc = None

    def read(self, addr: int, length: int = 1, burst: str = "incr") -> list[int]:
        if not MAIN_RAM <= addr < MAIN_RAM + self._size:
            self._library.soc_run(self._soc, RUN)
        words = (ctypes.c_uint32 * length)()
        self._access(addr, words, write=False)
        return list(words)

    def write(self, addr: int, datas: list[int]) -> None:
        self._access(addr, (ctypes.c_uint32 * len(datas))(*datas), write=True)

    def _access(self, address: int, words: Any, *, write: bool) -> None:
        if not self._library.soc_access(self._soc, address, words, len(words), write):
            raise TimeoutError(f"nothing answers at {address:#x}")
