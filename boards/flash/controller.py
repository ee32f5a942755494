"""Reading an SPI flash chip: a memory port that only reads."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from weft.boards.bus.port import MAX_BEATS, PAGE, Command
from weft.boards.flash.chip import HEADER_CLOCKS, FlashCommand, SpiFlash, spi_flash_pads
from weft.boards.flash.chip import FlashCommand as ChipCommand

COUNT_BITS = 6
PAD_CYCLES = 3
"""From a clock pulse to where the bits that follow it are seen: a register in the pad, the chip, a register in the pad.

The chip gives its bits with the falling edge, which is the end of a cycle, so they have the whole next one."""
ADDRESS_BITS = 24


class SpiFlashReader(wiring.Component):
    """Reads words with `Command.DUAL_READ`, two bits a cycle, and stays there: the next word is read ahead, and a
    command that goes on where the last one ended finds it, but for the first of a `PAGE`. Any other command costs the
    chip's header.

    Parameters
    ----------
    bus_bytes : int
        1 to 16.
    chip : SpiFlash
    clock : float
        Frequency in Hz.

    Members
    -------
    command : In(stream.Signature(Command))
        To read; its address is taken modulo 2**24.
    read : Out(stream.Signature(8 * bus_bytes))
    idle : Out(1)
        All words that were asked for are read.
    pads : Out(spi_flash_pads())
    """

    def __init__(self, bus_bytes: int, chip: SpiFlash, clock: float) -> None:
        if bus_bytes not in (1, 2, 4, 8, 16):
            raise ValueError(f"words of SPI flash have 1 to 16 bytes, not {bus_bytes}")
        if clock > chip.fastest:
            raise ValueError(
                f"an SPI flash chip is read at up to {chip.fastest / 1e6:g} MHz, not {clock / 1e6:g}"
            )
        self.bus_bytes, self.chip, self.clock = bus_bytes, chip, clock
        super().__init__(
            {
                "command": In(stream.Signature(Command)),
                "read": Out(stream.Signature(8 * bus_bytes)),
                "idle": Out(1),
                "pads": Out(spi_flash_pads()),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        chip, pads = self.chip, self.pads
        full_count = 1 << COUNT_BITS
        pause = full_count - chip.cycles(chip.deselect, self.clock)
        word_start = full_count - 4 * self.bus_bytes
        turns = chip.cycles(chip.release, self.clock) // full_count + 2

        # `count` has the number of the header's clock, or of the word's; deselected, it measures the pause.
        count, selected, in_data, awake = Signal(COUNT_BITS), Signal(), Signal(), Signal()
        want = Signal(MAX_BEATS.bit_length(), init=turns)  # words; before the chip is awake, turns of `count`
        align = (self.bus_bytes - 1).bit_length()
        here = Signal(ADDRESS_BITS - align)  # of the word that comes, in words
        in_page = (PAGE // self.bus_bytes - 1).bit_length()
        shift, full, paused = Signal(8 * self.bus_bytes), Signal(), Signal()
        run, last = Signal(), Signal()
        coming, ending = Signal(PAD_CYCLES), Signal(PAD_CYCLES)
        asked, hit, taken = Signal(), Signal(), Signal()
        address = self.command.payload.address[align:ADDRESS_BITS]
        m.d.comb += [
            self.idle.eq(awake & (want == 0)),
            self.command.ready.eq(self.idle),
            asked.eq(self.command.valid & self.command.ready),
            hit.eq(selected & (here == address)),
            self.read.valid.eq(full & (want != 0) & awake),
            self.read.payload.eq(Cat(shift.word_select(byte, 8) for byte in reversed(range(self.bus_bytes)))),
            taken.eq(self.read.valid & self.read.ready),
            run.eq(selected & ~paused),
            last.eq(count == full_count - 1),
        ]
        m.d.sync += [
            coming.eq(Cat(run & in_data, coming)),
            ending.eq(Cat(run & in_data & last, ending)),
        ]
        with m.If(run):
            m.d.sync += [count.eq(count + 1), paused.eq(in_data & last)]
            # The first bits of data follow the last clock of the header, so that one is the word's first.
            with m.If(~in_data & (count == HEADER_CLOCKS - 2)):
                m.d.sync += [in_data.eq(1), count.eq(word_start)]
        with m.If(coming[-1]):
            m.d.sync += shift.eq(Cat(pads.dq_i, shift))
        with m.If(ending[-1]):
            m.d.sync += full.eq(1)
        with m.If(taken):
            m.d.sync += [full.eq(0), paused.eq(0), count.eq(word_start), want.eq(want - 1)]
            m.d.sync += here[:in_page].eq(here[:in_page] + 1)
            # No command goes on from here: what is read ahead belongs to the next page, and `here` does not say so.
            with m.If(here[:in_page].all()):
                m.d.sync += selected.eq(0)
        with m.If(asked):
            m.d.sync += want.eq(self.command.payload.beats)
        with m.If(asked & ~hit):
            m.d.sync += [here.eq(address), selected.eq(0), in_data.eq(0), paused.eq(0), full.eq(0)]
            m.d.sync += [count.eq(pause), coming.eq(0), ending.eq(0)]
        self._select(m, count, selected, awake, want, last)

        header = self._header(here, awake, align)
        m.d.comb += [
            pads.cs.eq(selected),
            pads.clk.eq(run),
            pads.dq_o.eq(Array(header)[count[:5]]),
            pads.dq_oe.eq(selected & ~in_data & ~count[5]),
        ]
        return m

    def _select(
        self, m: Module, count: Signal, selected: Signal, awake: Signal, want: Signal, last: Signal
    ) -> None:
        """Select the chip behind the pause. Behind a reset, wake it first: only the command, then a long pause."""
        sent = Signal()
        with m.If(~selected & (want != 0)):
            m.d.sync += count.eq(count + 1)
            with m.If(awake | ~sent):
                m.d.sync += selected.eq(last)
            with m.Elif(last):
                m.d.sync += [want.eq(want - 1), awake.eq(want == 1)]
        with m.If(~awake & selected & (count == 7)):
            m.d.sync += [selected.eq(0), sent.eq(1)]

    def _header(self, here: Signal, awake: Signal, align: int) -> list[object]:
        """The bits of command and address in the order in which they are sent."""
        command = Mux(awake, ChipCommand.DUAL_READ.value, ChipCommand.RELEASE.value)
        address = Cat(Const(0, align), here)
        return [command[7 - bit] for bit in range(8)] + [
            address[ADDRESS_BITS - 1 - bit] for bit in range(ADDRESS_BITS)
        ]


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
        read = FlashCommand.DUAL_READ << ADDRESS_BITS | self.chip.offset
        header = Array(read >> 31 - bit & 1 for bit in range(32))
        release = Array(FlashCommand.RELEASE >> 7 - bit & 1 for bit in range(8))
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
