"""Reading an SPI flash chip from one address on, byte after byte, slowly: for chips whose clock has no register."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from weft.boards.spi_flash import ADDRESS_BITS
from weft.boards.spi_flash_chip import HEADER_CLOCKS, Command, SpiFlash, spi_flash_pads

SLOW = 4
"""Cycles of the chip's clock."""
AHEAD = 2
"""Bytes that are on their way, or wait to be taken."""
_TURN = 64
"""The chip is awake after a multiple of so many of its clocks, which is more than a header has."""


class SpiFlashStream(wiring.Component):
    """Wakes the chip and reads from `SpiFlash.offset` on with `Command.DUAL_READ`, two bits in `SLOW` cycles.

    Parameters
    ----------
    chip : SpiFlash
    clock : float
        Frequency in Hz.

    Members
    -------
    byte : Out(stream of 8 bits)
    stop : In(1)
        The chip is let go for good.
    pads : Out(spi_flash_pads())
        Every pad but the clock's has a register. ``clk`` is the chip's clock itself: it is high in the second half of
        `SLOW` cycles, in which nothing else changes.
    """

    def __init__(self, chip: SpiFlash, clock: float) -> None:
        if clock / SLOW > chip.fastest:
            raise ValueError(
                f"an SPI flash chip is read at up to {chip.fastest / 1e6:g} MHz, not {clock / SLOW / 1e6:g}"
            )
        self.chip, self.clock = chip, clock
        super().__init__({"byte": Out(stream.Signature(8)), "stop": In(1), "pads": Out(spi_flash_pads())})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        chip, pads = self.chip, self.pads
        slept = 8 + max(chip.cycles(time, self.clock / SLOW) for time in (chip.release, chip.deselect))
        turns = -(-slept // _TURN)
        at, turn = Signal(range(_TURN)), Signal(range(turns + 1))
        awake, selected, reading, wanted = turn == turns, Signal(), Signal(), Signal()
        phase, run = Signal(range(SLOW)), Signal()
        tick = phase == SLOW - 1
        m.d.sync += phase.eq(phase + 1)
        m.d.comb += selected.eq(~self.stop & (awake | ((turn == 0) & (at < 8))))
        with m.If(tick):
            m.d.sync += [
                pads.cs.eq(selected),
                pads.dq_o.eq(self._bit(at, awake)),
                pads.dq_oe.eq(selected & ~reading & ~at[5]),
                run.eq(selected & (~reading | wanted)),
            ]
            with m.If(~reading):
                m.d.sync += at.eq(at + 1)
                # The first bits of data follow the last clock of the header, so that one is the first byte's.
                m.d.sync += reading.eq(awake & (at == HEADER_CLOCKS - 2))
                with m.If(~awake & at.all()):
                    m.d.sync += turn.eq(turn + 1)
        m.d.comb += pads.clk.eq(run & (phase >= SLOW // 2))
        self._bytes(m, phase, reading, wanted)
        return m

    def _bit(self, at: Signal, awake: Value) -> Value:
        """What is sent with a clock: the command to wake up, or the one to read."""
        read = Command.DUAL_READ << ADDRESS_BITS | self.chip.offset
        header = Array(read >> 31 - bit & 1 for bit in range(32))
        release = Array(Command.RELEASE >> 7 - bit & 1 for bit in range(8))
        return Mux(awake, header[at[:5]], release[at[:3]])

    def _bytes(self, m: Module, phase: Signal, reading: Value, wanted: Signal) -> None:
        """Bytes from bits, as many as are `wanted`."""
        pads, byte = self.pads, self.byte
        sent, got, out = Signal(range(4)), Signal(range(4)), Signal(range(AHEAD + 1))
        shift, full, coming = Signal(8), Signal(), Signal(3)
        begins, taken = Signal(), byte.valid & byte.ready
        tick = phase == SLOW - 1
        m.d.comb += [
            wanted.eq(reading & ((sent != 0) | (out != AHEAD))),
            begins.eq(tick & wanted & (sent == 0)),
        ]
        m.d.sync += out.eq(out + begins - taken)
        with m.If(tick):
            m.d.sync += [coming.eq(Cat(wanted, coming)), sent.eq(sent + wanted)]
        # A clock that is decided on now is sent in the next `SLOW` cycles, and falls when they are over, behind its
        # register at the beginning of phase 1. What follows has three cycles until the pads' registers take it, and
        # stands for one more.
        with m.If((phase == 0) & coming[-1]):
            m.d.sync += [shift.eq(Cat(pads.dq_i, shift)), got.eq(got + 1), full.eq(got == 3)]
        with m.Elif(full & ~byte.valid):
            m.d.sync += [full.eq(0), byte.payload.eq(shift), byte.valid.eq(1)]
        with m.If(taken):
            m.d.sync += byte.valid.eq(0)
