"""Core for other systems on a chip, with a reset that keeps bus transactions intact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from amaranth.hdl import ClockDomain, ClockSignal, DomainRenamer, Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from weft.boards.bus import axi
from weft.boards.bus.axi import AxiGate
from weft.hdl.bus.axi import axi4_signature
from weft.hdl.control.control import AXI_LITE
from weft.hdl.core import Core
from weft.hdl.isa.config import Config
from weft.hdl.lib.arithmetic import INFERRED, Multipliers
from weft.hdl.sequential.core import SequentialCore
from weft.hdl.verilog import generate_cached


class SocCore(wiring.Component):
    """Core whose reset does not disturb the buses that it is connected to.

    Only a reset brings a core to a known state after a failed program. Without precautions, memory would deliver
    outstanding words to the next program, and a bus would wait forever for missing ones. Bursts and register accesses
    that have begun therefore complete first.

    Parameters
    ----------
    config : Config
    sequential : bool
        Use `weft.hdl.sequential.core.SequentialCore`.
    multipliers : Multipliers
        Multipliers of the FPGA family.

    Members
    -------
    m_axi_*, s_axi_*, irq
        As of `weft.hdl.core.Core`.
    reset : In(1)
        Request a reset, and keep the core in reset.
    held : Out(1)
        The core is in reset, and memory has completed its accesses.
    """

    def __init__(
        self, config: Config, *, sequential: bool = False, multipliers: Multipliers = INFERRED
    ) -> None:
        multipliers.check(config)
        self.config, self.sequential, self.multipliers = config, sequential, multipliers
        manager = {f"m_axi_{name}": member for name, member in axi4_signature(config).members.items()}
        super().__init__({**manager, **AXI_LITE, "irq": Out(1), "reset": In(1), "held": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        # A register, because the reset has a large fan-out.
        reset = Signal(init=1)
        m.domains.core = domain = ClockDomain("core", local=True)
        m.d.comb += [domain.clk.eq(ClockSignal()), domain.rst.eq(reset)]
        kind = SequentialCore if self.sequential else Core
        m.submodules.core = core = DomainRenamer("core")(kind(self.config, self.multipliers))
        m.submodules.gate = gate = AxiGate(self.config)
        with m.If(self.reset):
            m.d.sync += gate.close.eq(1)
        with m.Elif(reset):
            m.d.sync += gate.close.eq(0)
        quiet = self._registers(m, core, ~gate.close & ~reset)
        m.d.sync += reset.eq(gate.close & gate.idle & quiet)
        for name, member in axi4_signature(self.config).members.items():
            inner, passed, outer = (
                getattr(core, f"m_axi_{name}"),
                getattr(gate.port, name),
                getattr(gate.memory, name),
            )
            pad = getattr(self, f"m_axi_{name}")
            outwards = member.flow is Out
            m.d.comb += [passed.eq(inner), pad.eq(outer)] if outwards else [outer.eq(pad), inner.eq(passed)]
        m.d.comb += [self.irq.eq(core.irq), self.held.eq(reset)]
        return m

    def _registers(self, m: Module, core: Any, open_: Value) -> Value:
        """Forward register accesses that begin while `open_`; return whether none is in progress."""
        under_way = {channel: Signal(name=f"{channel}_under_way") for channel in ("aw", "w", "ar")}
        for name, member in AXI_LITE.items():
            inner, outer = getattr(core, name), getattr(self, name)
            m.d.comb += outer.eq(inner) if member.flow is Out else inner.eq(outer)
        for channel, mine in under_way.items():
            # Address and word of a write belong together: if one has been accepted, the other passes as well.
            other = under_way[{"aw": "w", "w": "aw"}.get(channel, channel)]
            passes = ~mine & (open_ | other)
            valid, ready = f"s_axi_{channel}valid", f"s_axi_{channel}ready"
            answer = "s_axi_r" if channel == "ar" else "s_axi_b"
            offered = getattr(self, valid) & passes
            # Ready depends on valid, because LiteX's AXI4-Lite width converter takes any ready as meant for it.
            m.d.comb += [
                getattr(core, valid).eq(offered),
                getattr(self, ready).eq(getattr(core, ready) & offered),
            ]
            with m.If(getattr(self, valid) & getattr(self, ready)):
                m.d.sync += mine.eq(1)
            with m.Elif(getattr(self, f"{answer}valid") & getattr(self, f"{answer}ready")):
                m.d.sync += mine.eq(0)
        return ~(under_way["aw"] | under_way["w"] | under_way["ar"])


def module_name(config: Config, *, sequential: bool = False) -> str:
    """Return the name of the Verilog module, which is unique per configuration so that a design may contain several
    cores."""
    return f"weft_{'sequential_' if sequential else ''}{config.digest:08x}"


def soc_core_verilog(
    config: Config, *, sequential: bool = False, multipliers: Multipliers = INFERRED
) -> Path:
    """Return the file with the Verilog of a `SocCore`, top module `module_name`, from the cache if possible.

    Raises
    ------
    weft.hdl.errors.ConfigError
        If the multipliers cannot carry out the configuration.
    weft.hdl.errors.CacheError
        If there is no cache folder.
    """
    return generate_cached(
        lambda: SocCore(config, sequential=sequential, multipliers=multipliers),
        name=module_name(config, sequential=sequential),
        of=f"{config} {sequential} {multipliers.family}",
        sources=[Path(__file__), Path(axi.__file__)],
        comments=True,
    )
