"""The outermost layer of a bitstream: the PLL, the reset and the pads around a board's top component."""

from __future__ import annotations

import math
from typing import Any

from amaranth.hdl import Cat, ClockDomain, ClockSignal, Const, Elaboratable, Module, Signal, Value
from amaranth.lib import io
from amaranth.lib.cdc import AsyncFFSynchronizer, FFSynchronizer

from weft.boards.board import Board, MemoryKind
from weft.boards.family import Fabric
from weft.boards.pll import ShiftedPll

CONFIGURATION_FLASH = "configuration_flash"
"""Resource of platforms whose family has a `Fabric.flash_clock`: ``cs``, ``dq`` (2, both ways), ``wp`` and ``hold``."""


def spread(m: Module, fabric: Fabric, signal: Signal) -> Signal:
    """`signal` for thousands of flip-flops: where the FPGA has a network for that, it takes no other wires.

    nextpnr moves clocks there by itself, resets not; and where such a net is in the way of another, its router takes
    all of it up again.
    """
    if not fabric.global_buffer:
        return signal
    everywhere = Signal(name=f"{signal.name}_everywhere")
    m.submodules += fabric.global_buffer(signal, everywhere)
    return everywhere


def awake(m: Module, locked: Signal, cycles: int) -> Value:
    """Whether so many cycles of ``sync`` have passed with `locked` since the FPGA was configured."""
    if not cycles:
        return Const(1)
    # Registers that hold what they were configured with: nothing is there to reset them.
    m.domains.waking = waking = ClockDomain(reset_less=True, local=True)
    m.d.comb += waking.clk.eq(ClockSignal())
    left, over = Signal(range(cycles + 1), init=cycles), Signal()
    with m.If(left == 0):
        m.d.waking += over.eq(1)
    with m.Elif(locked):
        m.d.waking += left.eq(left - 1)
    return over


class Shell(Elaboratable):
    """A board's top component with its clock and pads.

    Parameters
    ----------
    board : Board
    top : Component
        Has ``rx: In(1)`` (synchronised here) and ``tx: Out(1)``; it may have ``lights: Out(lights())``, on boards with
        SDRAM ``sdram: Out(sdram_pads())`` and ``sdram_step: Out(1)``, which moves its clock, and on those with flash
        ``flash: Out(spi_flash_pads())``, whose pads have a register each way, and for whose clock `Fabric.flash_clock`
        says what it is. All of it in ``sync``.
    clock : float
        Hz of ``sync``, which comes out of reset once the PLL has locked and the family's block RAM can be read.
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
        # The line idles high: a low start would look like a start bit.
        m.submodules.rx_synchronizer = FFSynchronizer(rx.i, self.top.rx, init=1)
        m.d.comb += tx.o.eq(self.top.tx)
        if hasattr(self.top, "lights"):
            self._leds(m, platform)
        for resource, member, level in self.board.held:
            pad = getattr(platform.request(resource, dir="-"), member)
            m.submodules[f"{resource}_{member}"] = held = io.Buffer("o", pad)
            m.d.comb += held.o.eq(level)
        return m

    def _leds(self, m: Module, platform: Any) -> None:
        for index, led in enumerate(self.board.leds):
            pad = platform.request(led.resource, led.number, dir="-")
            m.submodules[f"led{index}"] = out = io.Buffer(
                "o", getattr(pad, led.member) if led.member else pad
            )
            m.d.comb += out.o.eq(Cat(getattr(self.top.lights, sign) for sign in led.shows).any())

    def _clock(self, m: Module, platform: Any, shifted: bool) -> None:
        pll = self.board.pll(platform.default_clk_frequency, self.clock)
        m.domains.sync = sync = ClockDomain()
        port = platform.request(platform.default_clk, dir="-")
        locked = Signal()
        if shifted:
            assert isinstance(pll, ShiftedPll)
            m.domains.sdram = sdram = ClockDomain(reset_less=True)
            step, sweep = getattr(self.top, "sdram_step", None), self.board.family.fabric.sweep
            assert step is None or (sweep and pll.steps == sweep.phases(pll.output))
            pll.cell(m, port, sync.clk, locked, sdram.clk, step)
        else:
            pll.cell(m, port, sync.clk, locked)
        reset = Signal()
        # Block RAM does not hold what it was configured with before that.
        ready = awake(m, locked, math.ceil(self.board.family.fabric.start_up * self.clock))
        m.submodules.reset_synchronizer = AsyncFFSynchronizer(~(locked & ready), reset)
        m.d.comb += sync.rst.eq(spread(m, self.board.family.fabric, reset))

    def _sdram(self, m: Module, pads: Any) -> None:
        sdram = self.top.sdram
        # From a register in its pad like everything else, so that only the PLL's phase decides how late it is.
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
            # Low, as unused pads are pulled, the chip would be on hold.
            for name in ("hold", "wp"):
                m.submodules[f"flash_{name}"] = off = io.Buffer("o", getattr(pads, name))
                m.d.comb += off.o.eq(0)
        else:
            pads = platform.request("spi_flash_2x", dir="-")
            # A pulse in the second half of a cycle: what the registers give stands half a cycle before it.
            m.submodules.flash_clk = clock = io.DDRBuffer("o", pads.clk)
            m.d.comb += [clock.o[0].eq(0), clock.o[1].eq(flash.clk)]
        m.submodules.flash_cs = select = io.FFBuffer("o", pads.cs)
        m.submodules.flash_dq0 = first = io.FFBuffer("io", pads.dq[0])
        alone = self.board.family.fabric.reads_alone
        m.submodules.flash_dq1 = second = io.FFBuffer("i" if alone else "io", pads.dq[1])
        if not alone:
            m.d.comb += [second.o.eq(0), second.oe.eq(0)]
        m.d.comb += [
            select.o.eq(flash.cs),
            first.o.eq(flash.dq_o),
            first.oe.eq(flash.dq_oe),
            flash.dq_i.eq(Cat(first.i, second.i)),
        ]
