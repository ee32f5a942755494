"""The accelerator in a LiteX system on a chip: a LiteX module, and what connects it to the system's memory and bus.

Importing this needs LiteX. What each path supports was read from LiteX and LiteDRAM 2024.12; docs/litex.md lists it.
"""

from __future__ import annotations

from typing import Any

from weft.boards.board import BoardError
from weft.boards.litex.soc_core import module_name, soc_core_verilog
from weft.hdl.bus.axi import axi4_signature
from weft.hdl.control.control import ADDRESS_BITS
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import SIZE
from weft.hdl.lib.arithmetic import INFERRED, Multipliers

try:
    from litex.gen import ClockSignal, Instance, LiteXModule, ResetSignal, Signal
    from litex.soc.cores.cpu import CPUNone
    from litex.soc.integration.soc import SoCRegion
    from litex.soc.interconnect import axi, wishbone
    from litex.soc.interconnect.csr import CSRStatus, CSRStorage
    from litex.soc.interconnect.csr_eventmanager import EventManager, EventSourceProcess
except ImportError as missing:
    raise BoardError(
        f"LiteX is not installed (no module {missing.name}): pip install 'weft[litex]'"
    ) from None

BUFFER = 64
"""Words that wait between LiteDRAM and the core, each way: as many as are under way at LiteDRAM's latency."""
ORIGIN = 0x9000_0000
"""Where the registers are in a system without CPU, which has no place of its own for them."""
_ADDRESS = ("id", "addr", "len", "size", "burst", "lock", "cache", "prot", "qos", "valid")
_FROM_CORE = {
    "aw": _ADDRESS,
    "ar": _ADDRESS,
    "w": ("data", "strb", "last", "valid"),
    "b": ("ready",),
    "r": ("ready",),
}
_TO_CORE = {
    "aw": ("ready",),
    "ar": ("ready",),
    "w": ("ready",),
    "b": ("id", "resp", "valid"),
    "r": ("id", "data", "resp", "last", "valid"),
}


class Weft(LiteXModule):
    """An accelerator.

    Its Verilog is made once and kept in the cache, and is a source of the platform from then on.

    Parameters
    ----------
    platform : litex.build.generic_platform.GenericPlatform
    config : Config
    sequential : bool
        The core in a third of the logic, see `weft.hdl.sequential.core.SequentialCore`.
    multipliers : Multipliers
        Those of the platform's FPGA family, as ``weft.boards.families.ecp5.ECP5.fabric.multipliers``; by default
        synthesis infers them.

    Attributes
    ----------
    bus : axi.AXIInterface
        Manager, `config.bus_bytes` wide, of INCR bursts of whole words that stay inside 4 KiB, two or three IDs.
    control : axi.AXILiteInterface
        Subordinate, 32 bits wide, with the registers of `weft.hdl.isa.memmap` in the low `SIZE` bytes.
    irq : Signal
        From the end of a program to the next start.
    ev : EventManager
        Its event ``done`` is pending from the end of a program on, until it is cleared.
    reset : CSRStorage
        While it is 1, the core is in reset, from when its bursts have ended.
    held : CSRStatus
        Whether the core is in reset.

    Raises
    ------
    weft.hdl.isa.config.ConfigError
        If these multipliers cannot make this configuration.
    """

    def __init__(
        self,
        platform: Any,
        config: Config,
        *,
        sequential: bool = False,
        multipliers: Multipliers = INFERRED,
    ) -> None:
        self.config = config
        identity = axi4_signature(config).members["arid"].shape
        self.bus = axi.AXIInterface(data_width=config.widths.bus, address_width=32, id_width=identity)
        self.control = axi.AXILiteInterface(data_width=32, address_width=32)
        self.irq = Signal()
        self.reset = CSRStorage(description="Write 1 to reset the accelerator, and 0 to let it go.")
        self.held = CSRStatus(description="1 while the accelerator is in reset.")
        self.ev = EventManager()
        self.ev.done = EventSourceProcess(edge="rising", description="A program has ended.")
        self.ev.finalize()
        self.comb += self.ev.done.trigger.eq(self.irq)
        self.specials += Instance(
            module_name(config, sequential=sequential),
            i_clk=ClockSignal(),
            i_rst=ResetSignal(),
            i_reset=self.reset.storage,
            o_held=self.held.status,
            o_irq=self.irq,
            **self._manager(),
            **self._registers(),
        )
        platform.add_source(
            str(soc_core_verilog(config, sequential=sequential, multipliers=multipliers)), copy=True
        )

    def _manager(self) -> dict[str, Any]:
        ports = {}
        for direction, channels in (("o", _FROM_CORE), ("i", _TO_CORE)):
            for channel, names in channels.items():
                for name in names:
                    ports[f"{direction}_m_axi_{channel}{name}"] = getattr(getattr(self.bus, channel), name)
        return ports

    def _registers(self) -> dict[str, Any]:
        control = self.control
        ports = {}
        for channel in ("aw", "ar"):
            side = getattr(control, channel)
            ports[f"i_s_axi_{channel}addr"] = side.addr[:ADDRESS_BITS]
            ports[f"i_s_axi_{channel}prot"] = side.prot
        ports |= {"i_s_axi_wdata": control.w.data, "i_s_axi_wstrb": control.w.strb}
        ports |= {"o_s_axi_rdata": control.r.data, "o_s_axi_rresp": control.r.resp}
        ports |= {"o_s_axi_bresp": control.b.resp}
        for channel in ("aw", "w", "ar"):
            side = getattr(control, channel)
            ports |= {f"i_s_axi_{channel}valid": side.valid, f"o_s_axi_{channel}ready": side.ready}
        for channel in ("b", "r"):
            side = getattr(control, channel)
            ports |= {f"o_s_axi_{channel}valid": side.valid, f"i_s_axi_{channel}ready": side.ready}
        return ports


def add_weft(
    soc: Any,
    config: Config,
    name: str = "weft",
    *,
    dram: str | None = "sdram",
    origin: int | None = None,
    sequential: bool = False,
    multipliers: Multipliers = INFERRED,
    buffer: int = BUFFER,
) -> Weft:
    """Add an accelerator to a system: its memory, its registers as a region of the bus, and its interrupt if the system
    has interrupts.

    Parameters
    ----------
    soc : litex.soc.integration.soc.SoC
    config : Config
    name : str
        Of the module, of the region with its registers, and in the names of its CSRs.
    dram : str or None
        Name of the LiteDRAM core whose port the accelerator gets, as ``soc.add_sdram(name=...)`` has it. None: it
        reaches memory over the system's bus, a word at a time, each in three cycles and what the bus takes.
    origin : int or None
        Address of the registers; None for ``soc.mem_map[name]``, else `ORIGIN` without a CPU, and with one where LiteX
        finds room.
    sequential, multipliers
        See `Weft`.
    buffer : int
        Words that may be under way between LiteDRAM and the core, each way.

    Returns
    -------
    Weft
        It is ``soc.<name>`` as well.

    Raises
    ------
    BoardError
        If there is no such LiteDRAM core, or a cache in front of it whose contents the accelerator would not see.
    weft.hdl.isa.config.ConfigError
        As `Weft`.
    """
    if dram is not None:
        _check_dram(soc, dram)
    core = Weft(soc.platform, config, sequential=sequential, multipliers=multipliers)
    soc.add_module(name=name, module=core)
    # What LiteX allocates before it has placed the CSRs may be where they go if there is no CPU.
    default = ORIGIN if isinstance(soc.cpu, CPUNone) else None
    where = soc.mem_map.get(name, default) if origin is None else origin
    soc.bus.add_slave(name, core.control, SoCRegion(origin=where, size=SIZE, cached=False))
    if dram is not None:
        _to_dram(soc, core, getattr(soc, dram), buffer)
    else:
        _to_bus(soc, core, name)
    if soc.irq.enabled:
        soc.irq.add(name, use_loc_if_exists=True)
    return core


def _check_dram(soc: Any, dram: str) -> None:
    if not hasattr(getattr(soc, dram, None), "crossbar"):
        raise BoardError(
            f"the system has no LiteDRAM core {dram!r}: call soc.add_sdram({dram!r}, ...) before add_weft, or let the "
            "accelerator reach memory over the bus with dram=None"
        )
    if hasattr(soc, "l2_cache"):
        raise BoardError(
            "the system has a cache between its bus and LiteDRAM, whose contents the accelerator does not see: give "
            "add_sdram l2_cache_size=0, or add_weft dram=None"
        )


class _WordsAfterCommands(LiteXModule):
    """Between `LiteDRAMAXI2Native` and a port that converts widths: the former counts on words that are taken after
    their command, as the crossbar takes them, where the latter takes them as soon as they come."""

    def __init__(self, asks: Any, port: Any) -> None:
        owed = Signal(8)  # words whose commands the port has taken
        commands = port.cmd.valid & port.cmd.ready & port.cmd.we
        words = port.wdata.valid & port.wdata.ready
        self.comb += [
            asks.cmd.connect(port.cmd),
            asks.wdata.connect(port.wdata, omit={"valid", "ready"}),
            port.wdata.valid.eq(asks.wdata.valid & (owed != 0)),
            asks.wdata.ready.eq(port.wdata.ready & (owed != 0)),
            port.rdata.connect(asks.rdata),
        ]
        self.sync += owed.eq(owed + commands - words)


def _to_dram(soc: Any, core: Weft, dram: Any, buffer: int) -> None:
    """A port of LiteDRAM's crossbar, in which words of another width are put together or taken apart."""
    from litedram.common import LiteDRAMNativePort
    from litedram.frontend.axi import LiteDRAMAXI2Native

    # Not LiteX's AXI width converters: they take bursts to begin at whole words of the wider side, and to stay below
    # 256 beats of the narrower one.
    width = core.config.widths.bus
    port = asks = dram.crossbar.get_port(data_width=width)
    if dram.crossbar.controller.data_width != width:
        asks = LiteDRAMNativePort("both", port.address_width, width)
        soc.submodules += _WordsAfterCommands(asks, port)
    # Addresses are cut off at the size of the memory, which is where its region begins as well.
    soc.submodules += LiteDRAMAXI2Native(
        core.bus, asks, w_buffer_depth=buffer, r_buffer_depth=buffer, base_address=0
    )


def _to_bus(soc: Any, core: Weft, name: str) -> None:
    """A master of the system's bus, whatever that is: LiteX converts Wishbone to its width and standard."""
    single = wishbone.Interface(data_width=core.config.widths.bus, address_width=32, addressing="word")
    soc.submodules += axi.AXI2Wishbone(core.bus, single)
    soc.bus.add_master(name, single)
