"""The top component of every board: the core, its memory, and the link to the host."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, ClockDomain, ClockSignal, DomainRenamer, Module, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from weft.boards.arbiter import Arbiter
from weft.boards.axi_bridge import AxiBridge
from weft.boards.block_memory import BlockMemory, Spram
from weft.boards.board import Board, CoreKind, MemoryKind
from weft.boards.calibration import CalibrationState
from weft.boards.direct import Direct
from weft.boards.family import Fabric
from weft.boards.gate import Gate
from weft.boards.lights import SIGNS, Lights, lights
from weft.boards.link import BUFFER, Link
from weft.boards.loader import Loader
from weft.boards.ram_and_flash import RamAndFlash
from weft.boards.sdram import SdramController
from weft.boards.sdram_chip import sdram_pads
from weft.boards.sdram_eye import best_eye
from weft.boards.shell import spread
from weft.boards.spi_flash_chip import spi_flash_pads
from weft.hdl.bus.axi import axi4_signature
from weft.hdl.control.control import AXI_LITE
from weft.hdl.core import Core
from weft.hdl.isa.config import Config
from weft.hdl.sequential.core import SequentialCore


class Top(wiring.Component):
    """A core with everything around it but clock and pads.

    Core and link share the memory. When the host asks for a reset, core and bridge are reset once memory has done
    what it was asked for; memory and link go on.

    Parameters
    ----------
    board : Board
    config : Config
    clock : float
        Frequency of ``sync`` in Hz.
    divisor : int
        Clock cycles a bit of the serial line.
    fabric : Fabric
        That of the board's family, or `weft.boards.family.GENERIC` for simulation.

    Members
    -------
    rx : In(1), tx : Out(1)
        The serial line.
    lights : Out(lights())
        What LEDs show.
    sdram : Out(sdram_pads())
        With SDRAM only; the pads have a register each way, and the chip's clock the phase of
        `weft.boards.sdram_eye.best_eye`.
    sdram_step : Out(1)
        With SDRAM, and a `Fabric.sweep`: falls for each step to a later phase of the chip's clock, see
        `weft.boards.pll.ShiftedPll`. Memory waits until one is found.
    flash : Out(spi_flash_pads())
        On boards with `Board.flash` only; the pads have a register each way. If `Board.copies`, ``clk`` is as
        `weft.boards.loader.Loader` has it.
    """

    def __init__(self, board: Board, config: Config, clock: float, divisor: int, fabric: Fabric) -> None:
        self.board, self.config, self.clock = board, config, clock
        self.divisor, self.fabric = divisor, fabric
        members: dict[str, Any] = {"rx": In(1, init=1), "tx": Out(1, init=1), "lights": Out(lights())}
        if board.memory.kind is MemoryKind.SDRAM:
            members["sdram"] = Out(sdram_pads())
        if self.sweeps:
            members["sdram_step"] = Out(1)
        if board.flash is not None:
            members["flash"] = Out(spi_flash_pads())
        super().__init__(members)

    @property
    def sweeps(self) -> bool:
        """Whether it looks for the phase of an SDRAM's clock."""
        return self.board.memory.kind is MemoryKind.SDRAM and self.fabric.sweep is not None

    def elaborate(self, platform: object) -> Module:
        m = Module()
        config, board, multipliers = self.config, self.board, self.fabric.multipliers
        sequential = board.core is CoreKind.SEQUENTIAL
        large = board.memory.kind is MemoryKind.SDRAM
        m.submodules.link = link = Link(
            config,
            self.divisor,
            board=board.name,
            memory_bytes=board.memory.size,
            clock=round(self.clock),
            buffer=BUFFER // 2 if sequential else BUFFER,
            inner=board.copies,
            calibrated=self.sweeps,
            fills=large,
            checks=4 if large else 1,
        )
        pieces, commands = self.fabric.queues
        # A register, as it goes everywhere; and so that the core has no other reset.
        reset = Signal(init=1)
        m.domains.core = domain = ClockDomain("core", local=True)
        m.d.comb += [domain.clk.eq(ClockSignal()), domain.rst.eq(spread(m, self.fabric, reset))]
        in_domain = DomainRenamer("core")
        # Memory beside a sequential core always answers, and never with an error.
        inner = SequentialCore(config, multipliers, stops=False) if sequential else Core(config, multipliers)
        outer = Direct(config) if sequential else AxiBridge(config, pieces=pieces)
        m.submodules.core = core = in_domain(inner)
        m.submodules.bridge = bridge = in_domain(outer)
        m.submodules.gate = gate = Gate(config.bus_bytes, 1, 1) if sequential else Gate(config.bus_bytes)
        m.submodules.arbiter = arbiter = Arbiter(config.bus_bytes, 2, commands=commands)
        m.submodules.memory = memory = self._memory()
        with m.If(link.reset):
            m.d.sync += gate.close.eq(1)
        with m.Elif(reset):
            m.d.sync += gate.close.eq(0)
        m.d.sync += reset.eq(gate.idle)
        m.d.comb += [link.rx.eq(self.rx), self.tx.eq(link.tx)]
        m.submodules.signs = signs = Lights(self.clock)
        m.d.comb += [
            signs.address.eq(link.registers.s_axi_araddr),
            signs.answered.eq(link.registers.s_axi_rvalid),
            signs.word.eq(link.registers.s_axi_rdata),
        ]
        faults: list[Value] = []
        if board.flash is not None and board.copies:
            m.submodules.loader = loader = Loader(board.flash, self.clock)
            wiring.connect(m, loader.link, link.inner)
            wiring.connect(m, loader.flash, wiring.flipped(self.flash))
            faults.append(loader.damaged)
            if self.sweeps:
                m.d.comb += loader.ready.eq(memory.calibration.state == CalibrationState.FOUND)
        if self.sweeps:
            m.d.comb += [self.sdram_step.eq(memory.step), link.calibration.eq(memory.calibration)]
            faults.append(memory.calibration.state == CalibrationState.FAILED)
        m.d.comb += [getattr(self.lights, sign).eq(getattr(signs.lights, sign)) for sign in SIGNS]
        if faults:
            m.d.comb += self.lights.error.eq(Cat(signs.lights.error, *faults).any())
        _join(m, axi4_signature(config), core, "m_axi_", bridge.axi)
        _join(m, wiring.Signature(AXI_LITE), core, "", link.registers)
        wiring.connect(m, link.memory, arbiter.port[0])
        wiring.connect(m, bridge.memory, gate.port)
        wiring.connect(m, gate.memory, arbiter.port[1])
        wiring.connect(m, arbiter.memory, memory.bus)
        if board.memory.kind is MemoryKind.SDRAM:
            wiring.connect(m, memory.pads, wiring.flipped(self.sdram))
        if board.window is not None:
            wiring.connect(m, memory.flash, wiring.flipped(self.flash))
        return m

    def _memory(self) -> Any:
        bus_bytes, board = self.config.bus_bytes, self.board
        if board.memory.kind is MemoryKind.SDRAM:
            capture = best_eye(self.clock).capture
            return SdramController(bus_bytes, self.clock, capture=capture, sweep=self.fabric.sweep)
        ram: Spram | BlockMemory = (
            Spram(bus_bytes, self.fabric.single_port_ram)
            if board.memory.kind is MemoryKind.SPRAM
            else BlockMemory(bus_bytes, board.memory.size)
        )
        return ram if board.window is None else RamAndFlash(ram, board.window, self.clock)


def _join(m: Module, signature: wiring.Signature, core: Any, prefix: str, port: Any) -> None:
    """Connect the flat members of a core's port, as the core sees them, with the same members of `port`."""
    for name, member in signature.members.items():
        ours, theirs = getattr(core, f"{prefix}{name}"), getattr(port, name)
        m.d.comb += theirs.eq(ours) if member.flow is Out else ours.eq(theirs)
