"""Top component of every board: the core, its memory, and the link to the host."""

from __future__ import annotations

import math
from typing import Any

from amaranth.hdl import (
    Cat,
    ClockDomain,
    ClockSignal,
    Const,
    DomainRenamer,
    Elaboratable,
    Module,
    Signal,
    Value,
)
from amaranth.lib import io, wiring
from amaranth.lib.cdc import AsyncFFSynchronizer, FFSynchronizer
from amaranth.lib.wiring import In, Out

from weft.boards.board import Board, CoreKind, MemoryKind
from weft.boards.bus.axi import AxiBridge
from weft.boards.bus.block_memory import BlockMemory, RamAndFlash, Spram
from weft.boards.bus.port import Arbiter, DirectBridge, Gate
from weft.boards.families.family import Fabric, ShiftedPll
from weft.boards.flash.chip import spi_flash_pads
from weft.boards.link.link import BUFFER, Link
from weft.boards.link.loader import Loader
from weft.boards.link.uart import SIGNS, Lights, lights
from weft.boards.sdram.calibration import CalibrationState
from weft.boards.sdram.chip import sdram_pads
from weft.boards.sdram.controller import SdramController
from weft.boards.sdram.eye import best_eye
from weft.hdl.bus.axi import axi4_signature
from weft.hdl.control.control import AXI_LITE
from weft.hdl.core import Core
from weft.hdl.isa.config import Config
from weft.hdl.sequential.core import SequentialCore

CONFIGURATION_FLASH = "configuration_flash"
"""Name of the platform resource for the flash chip, on families with a `Fabric.flash_clock`. Its members are ``cs``,
``dq`` (2 bits, bidirectional), ``wp`` and ``hold``."""


def buffer_globally(m: Module, fabric: Fabric, signal: Signal) -> Signal:
    """Return a copy of `signal` on the FPGA's global network, for signals of thousands of flip-flops.

    Without such a network, return `signal`. nextpnr promotes clocks by itself but not resets. Where an ordinary reset
    net blocks another net, its router rips up all of it.
    """
    if not fabric.global_buffer:
        return signal
    everywhere = Signal(name=f"{signal.name}_everywhere")
    m.submodules += fabric.global_buffer(signal, everywhere)
    return everywhere


def wait_for_start_up(m: Module, locked: Signal, cycles: int) -> Value:
    """Return 1 once `cycles` cycles of ``sync`` have passed with `locked` high since the FPGA was configured."""
    if not cycles:
        return Const(1)
    # These registers start from their configured values, because nothing can reset them yet.
    m.domains.waking = waking = ClockDomain(reset_less=True, local=True)
    m.d.comb += waking.clk.eq(ClockSignal())
    left = Signal(range(cycles + 1), init=cycles)
    done = Signal()
    with m.If(left == 0):
        m.d.waking += done.eq(1)
    with m.Elif(locked):
        m.d.waking += left.eq(left - 1)
    return done


class Shell(Elaboratable):
    """A board's top component with its clock and pads.

    Parameters
    ----------
    board : Board
    top : Component
        All its ports are in ``sync``. It has ``rx: In(1)`` (synchronised here) and ``tx: Out(1)``. It may have
        ``lights: Out(lights())``. On boards with SDRAM it may have ``sdram: Out(sdram_pads())`` and ``sdram_step:
        Out(1)``, which moves the phase of the SDRAM's clock. On boards with flash it may have ``flash:
        Out(spi_flash_pads())``: these pads have a register in each direction, and `Fabric.flash_clock` defines their
        clock.
    clock : float
        Frequency of ``sync`` in Hz. The domain leaves reset once the PLL has locked and the family's block RAM is
        readable.
    """

    def __init__(self, board: Board, top: Any, clock: float) -> None:
        self.board = board
        self.top = top
        self.clock = clock

    def elaborate(self, platform: Any) -> Module:
        m = Module()
        m.submodules.top = self.top
        has_sdram = self.board.memory.kind is MemoryKind.SDRAM and hasattr(self.top, "sdram")
        self._clock(m, platform, has_sdram)
        if has_sdram:
            self._sdram(m, platform.request("sdram", dir="-"))
        if hasattr(self.top, "flash"):
            self._flash(m, platform)
        uart = platform.request("uart", dir="-")
        m.submodules.rx_buffer = rx = io.Buffer("i", uart.rx)
        m.submodules.tx_buffer = tx = io.Buffer("o", uart.tx)
        # The line idles high: a low initial value would look like a start bit.
        m.submodules.rx_synchronizer = FFSynchronizer(rx.i, self.top.rx, init=1)
        m.d.comb += tx.o.eq(self.top.tx)
        if hasattr(self.top, "lights"):
            self._leds(m, platform)
        for resource, member, level in self.board.driven_pads:
            pad = getattr(platform.request(resource, dir="-"), member)
            m.submodules[f"{resource}_{member}"] = buffer = io.Buffer("o", pad)
            m.d.comb += buffer.o.eq(level)
        return m

    def _leds(self, m: Module, platform: Any) -> None:
        for index, led in enumerate(self.board.leds):
            pad = platform.request(led.resource, led.number, dir="-")
            m.submodules[f"led{index}"] = out = io.Buffer(
                "o", getattr(pad, led.member) if led.member else pad
            )
            m.d.comb += out.o.eq(Cat(getattr(self.top.lights, sign) for sign in led.shows).any())

    def _clock(self, m: Module, platform: Any, has_sdram: bool) -> None:
        pll = self.board.pll(platform.default_clk_frequency, self.clock)
        m.domains.sync = sync = ClockDomain()
        port = platform.request(platform.default_clk, dir="-")
        locked = Signal()
        if has_sdram:
            assert isinstance(pll, ShiftedPll)
            m.domains.sdram = sdram = ClockDomain(reset_less=True)
            step, sweep = getattr(self.top, "sdram_step", None), self.board.family.fabric.sweep
            # The calibrator must step through all phases of this PLL, once around.
            assert step is None or (sweep and pll.steps == sweep.phases(pll.output))
            pll.cell(m, port, sync.clk, locked, sdram.clk, step)
        else:
            pll.cell(m, port, sync.clk, locked)
        reset = Signal()
        # Some families read zeros from block RAM until this time after configuration.
        ready = wait_for_start_up(m, locked, math.ceil(self.board.family.fabric.start_up * self.clock))
        m.submodules.reset_synchronizer = AsyncFFSynchronizer(~(locked & ready), reset)
        m.d.comb += sync.rst.eq(buffer_globally(m, self.board.family.fabric, reset))

    def _sdram(self, m: Module, pads: Any) -> None:
        sdram = self.top.sdram
        # A register in the pad, as for all other pads: the clock's delay then depends on the PLL's phase only.
        m.submodules.sdram_clk = clock = io.DDRBuffer("o", pads.clk, o_domain="sdram")
        m.d.comb += [clock.o[0].eq(1), clock.o[1].eq(0)]
        for name in ("clk_en", "cs", "ras", "cas", "we", "ba", "a", "dqm"):
            m.submodules[f"sdram_{name}"] = buffer = io.FFBuffer("o", getattr(pads, name))
            m.d.comb += buffer.o.eq(getattr(sdram, name))
        m.submodules.sdram_dq = dq = io.FFBuffer("io", pads.dq)
        m.d.comb += [dq.o.eq(sdram.dq_o), dq.oe.eq(sdram.dq_oe), sdram.dq_i.eq(dq.i)]

    def _flash(self, m: Module, platform: Any) -> None:
        flash = self.top.flash
        if cell := self.board.family.fabric.flash_clock:
            pads = platform.request(CONFIGURATION_FLASH, dir="-")
            level = Signal()
            m.d.sync += level.eq(flash.clk)
            m.submodules.flash_clk = cell(level)
            # Unused pads are pulled low, which would activate HOLD# and WP#.
            for name in ("hold", "wp"):
                m.submodules[f"flash_{name}"] = inactive = io.Buffer("o", getattr(pads, name))
                m.d.comb += inactive.o.eq(0)
        else:
            pads = platform.request("spi_flash_2x", dir="-")
            # The clock pulses in the second half of a cycle: the other pads have been stable for half a cycle by then.
            m.submodules.flash_clk = clock = io.DDRBuffer("o", pads.clk)
            m.d.comb += [clock.o[0].eq(0), clock.o[1].eq(flash.clk)]
        m.submodules.flash_cs = select = io.FFBuffer("o", pads.cs)
        m.submodules.flash_dq0 = first = io.FFBuffer("io", pads.dq[0])
        input_only = self.board.family.fabric.input_only_pads
        m.submodules.flash_dq1 = second = io.FFBuffer("i" if input_only else "io", pads.dq[1])
        if not input_only:
            m.d.comb += [second.o.eq(0), second.oe.eq(0)]
        m.d.comb += [
            select.o.eq(flash.cs),
            first.o.eq(flash.dq_o),
            first.oe.eq(flash.dq_oe),
            flash.dq_i.eq(Cat(first.i, second.i)),
        ]


class Top(wiring.Component):
    """A core with everything around it except clock and pads.

    Core and link share the memory. When the host requests a reset, core and bridge are reset as soon as the memory has
    completed their commands. Memory and link keep running.

    Parameters
    ----------
    board : Board
    config : Config
    clock : float
        Frequency of ``sync`` in Hz.
    divisor : int
        Clock cycles per bit of the serial line.
    fabric : Fabric
        The fabric of the board's family, or `weft.boards.families.family.GENERIC` for simulation.

    Members
    -------
    rx : In(1), tx : Out(1)
        Serial line.
    lights : Out(lights())
        Signals for LEDs.
    sdram : Out(sdram_pads())
        Only with SDRAM. The pads have a register in each direction, and the chip's clock has the phase of
        `weft.boards.sdram.eye.best_eye`.
    sdram_step : Out(1)
        Only with SDRAM and a `Fabric.sweep`. Each falling edge moves the chip's clock to the next later phase, see
        `weft.boards.families.family.ShiftedPll`. Memory commands wait until calibration ends.
    flash : Out(spi_flash_pads())
        Only on boards with `Board.flash`. The pads have a register in each direction. With `Board.copies_flash`,
        ``clk`` is as `weft.boards.link.loader.Loader` defines it.
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
        """True if the hardware calibrates the phase of the SDRAM's clock."""
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
            inner=board.copies_flash,
            calibrated=self.sweeps,
            fills=large,
            checks=4 if large else 1,
        )
        pieces, commands = self.fabric.queue_depths
        # A register, because the reset has a large fan-out. It is the core's only reset.
        reset = Signal(init=1)
        m.domains.core = domain = ClockDomain("core", local=True)
        m.d.comb += [domain.clk.eq(ClockSignal()), domain.rst.eq(buffer_globally(m, self.fabric, reset))]
        in_domain = DomainRenamer("core")
        # Every memory of a board with a sequential core answers, and never with an error.
        inner = SequentialCore(config, multipliers, stops=False) if sequential else Core(config, multipliers)
        outer = DirectBridge(config) if sequential else AxiBridge(config, pieces=pieces)
        m.submodules.core = core = in_domain(inner)
        m.submodules.bridge = bridge = in_domain(outer)
        m.submodules.gate = gate = Gate(config.bus_bytes, 1, 1) if sequential else Gate(config.bus_bytes)
        m.submodules.arbiter = arbiter = Arbiter(config.bus_bytes, 2, commands=commands)
        m.submodules.memory = memory = self._memory()
        # A reset request closes the gate. Core and bridge are reset once it is idle, and leave reset with it open.
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
        # The error LED also shows faults of start-up.
        faults: list[Value] = []
        if board.flash is not None and board.copies_flash:
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
        _connect_flat(m, axi4_signature(config), core, "m_axi_", bridge.axi)
        _connect_flat(m, wiring.Signature(AXI_LITE), core, "", link.registers)
        wiring.connect(m, link.memory, arbiter.port[0])
        wiring.connect(m, bridge.memory, gate.port)
        wiring.connect(m, gate.memory, arbiter.port[1])
        wiring.connect(m, arbiter.memory, memory.bus)
        if board.memory.kind is MemoryKind.SDRAM:
            wiring.connect(m, memory.pads, wiring.flipped(self.sdram))
        if board.flash_window is not None:
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
        return ram if board.flash_window is None else RamAndFlash(ram, board.flash_window, self.clock)


def _connect_flat(m: Module, signature: wiring.Signature, core: Any, prefix: str, port: Any) -> None:
    for name, member in signature.members.items():
        inner, outer = getattr(core, f"{prefix}{name}"), getattr(port, name)
        m.d.comb += outer.eq(inner) if member.flow is Out else inner.eq(outer)
