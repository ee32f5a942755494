"""LiteX module of the accelerator, and its connection to the system's memory and bus.

Importing this module needs LiteX. The supported paths follow from LiteX and LiteDRAM 2024.12; docs/litex.md lists them.
"""

from __future__ import annotations

from typing import Any

from weft.boards.errors import BoardError
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
"""Words buffered between LiteDRAM and the core in each direction, enough for LiteDRAM's latency."""
ORIGIN = 0x9000_0000
"""Address of the registers in a system without CPU, which has no memory map of its own."""
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
    """Accelerator as a LiteX module.

    Its Verilog is generated once, cached, and added to the platform's sources.

    Parameters
    ----------
    platform : litex.build.generic_platform.GenericPlatform
    config : Config
    sequential : bool
        Use `weft.hdl.sequential.core.SequentialCore`, which takes a third of the logic.
    multipliers : Multipliers
        Multipliers of the platform's FPGA family, such as ``weft.boards.families.ecp5.ECP5.fabric.multipliers``. By
        default synthesis infers them.

    Attributes
    ----------
    bus : axi.AXIInterface
        Manager, `config.bus_bytes` wide, with INCR bursts of whole words that stay inside 4 KiB, and two or three IDs.
    control : axi.AXILiteInterface
        Subordinate, 32 bits wide, with the registers of `weft.hdl.isa.memmap` in the low `SIZE` bytes.
    irq : Signal
        High from the end of a program to the next start.
    ev : EventManager
        Its event ``done`` is pending from the end of a program until it is cleared.
    reset : CSRStorage
        While it is 1, the core is in reset, starting when its bursts have completed.
    held : CSRStatus
        1 while the core is in reset.

    Raises
    ------
    weft.hdl.errors.ConfigError
        If the multipliers cannot carry out the configuration.
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
    """Add an accelerator to a system: its memory, its registers as a bus region, and its interrupt if the system has
    any.

    Parameters
    ----------
    soc : litex.soc.integration.soc.SoC
    config : Config
    name : str
        Name of the module and of the region with its registers, and prefix of its CSRs.
    dram : str or None
        Name of the LiteDRAM core whose port the accelerator gets, as in ``soc.add_sdram(name=...)``. None: the
        accelerator accesses memory over the system's bus, word by word, each in three cycles plus the bus's latency.
    origin : int or None
        Address of the registers. None: ``soc.mem_map[name]`` if set; else `ORIGIN` without CPU, or an address that
        LiteX allocates with a CPU.
    sequential, multipliers
        See `Weft`.
    buffer : int
        Words buffered between LiteDRAM and the core, in each direction.

    Returns
    -------
    Weft
        Also available as ``soc.<name>``.

    Raises
    ------
    BoardError
        If the LiteDRAM core does not exist, or if a cache in front of it would hide data from the accelerator.
    weft.hdl.errors.ConfigError
        As `Weft` does.
    """
    if dram is not None:
        _check_dram(soc, dram)
    core = Weft(soc.platform, config, sequential=sequential, multipliers=multipliers)
    soc.add_module(name=name, module=core)
    # Without a CPU, a region that LiteX allocates before the CSRs are placed may overlap them.
    default = ORIGIN if isinstance(soc.cpu, CPUNone) else None
    address = soc.mem_map.get(name, default) if origin is None else origin
    soc.bus.add_slave(name, core.control, SoCRegion(origin=address, size=SIZE, cached=False))
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
    """Adapter between `LiteDRAMAXI2Native` and a port that converts widths.

    `LiteDRAMAXI2Native` relies on words being accepted after their command, as the crossbar does. The converting port
    accepts words at once.
    """

    def __init__(self, asks: Any, port: Any) -> None:
        owed = Signal(8)  # words missing for commands that the port has accepted
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
    """Connect the core to a port of LiteDRAM's crossbar, which converts between word widths."""
    from litedram.common import LiteDRAMNativePort
    from litedram.frontend.axi import LiteDRAMAXI2Native

    # LiteX's AXI width converters are unusable here: they require bursts that begin at whole words of the wider side
    # and have fewer than 256 beats of the narrower side.
    width = core.config.widths.bus
    port = asks = dram.crossbar.get_port(data_width=width)
    if dram.crossbar.controller.data_width != width:
        asks = LiteDRAMNativePort("both", port.address_width, width)
        soc.submodules += _WordsAfterCommands(asks, port)
    # Addresses are truncated to the size of the memory, and the memory's region begins at a multiple of that size.
    soc.submodules += LiteDRAMAXI2Native(
        core.bus, asks, w_buffer_depth=buffer, r_buffer_depth=buffer, base_address=0
    )


def _to_bus(soc: Any, core: Weft, name: str) -> None:
    """Connect the core as a master of the system's bus. LiteX converts Wishbone to its width and standard."""
    single = wishbone.Interface(data_width=core.config.widths.bus, address_width=32, addressing="word")
    soc.submodules += axi.AXI2Wishbone(core.bus, single)
    soc.bus.add_master(name, single)
