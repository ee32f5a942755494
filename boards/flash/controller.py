"""Controllers that read SPI flash: a read-only memory port, and a byte stream."""

from __future__ import annotations

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from weft.boards.bus.port import MAX_BEATS, PAGE, Command
from weft.boards.flash.chip import HEADER_CLOCKS, FlashCommand, SpiFlash, spi_flash_pads
from weft.boards.flash.chip import FlashCommand as ChipCommand

COUNT_BITS = 6
PAD_CYCLES = 3
"""Cycles from a clock pulse to the bits that follow it: a register in the pad, the chip, and a register in the pad.

The chip changes its outputs at the falling edge, which is the end of a cycle. They have the whole next cycle.
"""
ADDRESS_BITS = 24


class SpiFlashReader(wiring.Component):
    """Read-only memory port that reads words with `FlashCommand.DUAL_READ`, two bits per cycle.

    The chip stays selected after a command, and the next word is prefetched. A command that continues at the next word
    needs no new header, except at the start of a `PAGE`. Any other command costs a header.

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
        Read commands; addresses are taken modulo 2**24.
    read : Out(stream.Signature(8 * bus_bytes))
    idle : Out(1)
        All requested words are read.
    pads : Out(spi_flash_pads())
    """

    def __init__(self, bus_bytes: int, chip: SpiFlash, clock: float) -> None:
        if bus_bytes not in (1, 2, 4, 8, 16):
            raise ValueError(f"a word of SPI flash has 1, 2, 4, 8 or 16 bytes, not {bus_bytes}")
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

        # `count` is the clock's number within the header or word. While deselected, it counts the pause.
        count = Signal(COUNT_BITS)
        selected = Signal()
        in_data = Signal()
        awake = Signal()
        # Words left; before the chip is awake, turns of `count`.
        want = Signal(MAX_BEATS.bit_length(), init=turns)
        align = (self.bus_bytes - 1).bit_length()
        here = Signal(ADDRESS_BITS - align)  # word address of the next word
        in_page = (PAGE // self.bus_bytes - 1).bit_length()
        shift = Signal(8 * self.bus_bytes)
        full = Signal()
        paused = Signal()
        run = Signal()
        last = Signal()
        coming = Signal(PAD_CYCLES)
        ending = Signal(PAD_CYCLES)
        asked = Signal()
        hit = Signal()
        taken = Signal()
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
        # Bits arrive `PAD_CYCLES` cycles after their clock pulse; `ending` marks the last bits of a word.
        m.d.sync += [
            coming.eq(Cat(run & in_data, coming)),
            ending.eq(Cat(run & in_data & last, ending)),
        ]
        with m.If(run):
            m.d.sync += [count.eq(count + 1), paused.eq(in_data & last)]
            # The first data bits follow the header's last clock, so that clock counts as the word's first.
            with m.If(~in_data & (count == HEADER_CLOCKS - 2)):
                m.d.sync += [in_data.eq(1), count.eq(word_start)]
        with m.If(coming[-1]):
            m.d.sync += shift.eq(Cat(pads.dq_i, shift))
        with m.If(ending[-1]):
            m.d.sync += full.eq(1)
        # The clock pauses after each word until the word is taken.
        with m.If(taken):
            m.d.sync += [full.eq(0), paused.eq(0), count.eq(word_start), want.eq(want - 1)]
            m.d.sync += here[:in_page].eq(here[:in_page] + 1)
            # `here` wraps within its page, but the prefetched word is in the next page: force a new header.
            with m.If(here[:in_page].all()):
                m.d.sync += selected.eq(0)
        with m.If(asked):
            m.d.sync += want.eq(self.command.payload.beats)
        # Deselect the chip and start a new header at the requested address.
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
        """Select the chip after the pause. After a reset, first send the command that wakes it, followed by a long
        pause."""
        sent = Signal()
        with m.If(~selected & (want != 0)):
            m.d.sync += count.eq(count + 1)
            with m.If(awake | ~sent):
                m.d.sync += selected.eq(last)
            with m.Elif(last):
                m.d.sync += [want.eq(want - 1), awake.eq(want == 1)]
        # The wake-up command has 8 bits and ends with deselection.
        with m.If(~awake & selected & (count == 7)):
            m.d.sync += [selected.eq(0), sent.eq(1)]

    def _header(self, here: Signal, awake: Signal, align: int) -> list[object]:
        command = Mux(awake, ChipCommand.DUAL_READ.value, ChipCommand.RELEASE.value)
        address = Cat(Const(0, align), here)
        return [command[7 - bit] for bit in range(8)] + [
            address[ADDRESS_BITS - 1 - bit] for bit in range(ADDRESS_BITS)
        ]


CLOCK_DIVISOR = 4
"""Cycles per cycle of the chip's clock."""
READ_AHEAD = 2
"""Bytes that are in progress or wait to be taken, at most."""
_TURN = 64
"""Unit of the wake-up time in clocks of the chip; longer than a header."""


class SpiFlashStream(wiring.Component):
    """Byte stream from `SpiFlash.offset` on, read with `FlashCommand.DUAL_READ`, two bits per `CLOCK_DIVISOR` cycles.

    The chip is woken first.

    Parameters
    ----------
    chip : SpiFlash
    clock : float
        Frequency in Hz.

    Members
    -------
    byte : Out(stream of 8 bits)
    stop : In(1)
        Deselect the chip permanently.
    pads : Out(spi_flash_pads())
        All pads except the clock's have a register. ``clk`` is the chip's clock itself: high in the second half of
        `CLOCK_DIVISOR` cycles, in which no other pad changes.
    """

    def __init__(self, chip: SpiFlash, clock: float) -> None:
        if clock / CLOCK_DIVISOR > chip.fastest:
            raise ValueError(
                f"an SPI flash chip is read at up to {chip.fastest / 1e6:g} MHz, not {clock / CLOCK_DIVISOR / 1e6:g}"
            )
        self.chip, self.clock = chip, clock
        super().__init__({"byte": Out(stream.Signature(8)), "stop": In(1), "pads": Out(spi_flash_pads())})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        chip, pads = self.chip, self.pads
        wake_clocks = 8 + max(
            chip.cycles(time, self.clock / CLOCK_DIVISOR) for time in (chip.release, chip.deselect)
        )
        turns = -(-wake_clocks // _TURN)
        at = Signal(range(_TURN))
        turn = Signal(range(turns + 1))
        awake = turn == turns
        selected = Signal()
        reading = Signal()
        wanted = Signal()
        phase = Signal(range(CLOCK_DIVISOR))
        run = Signal()
        # Pads change at a tick, which is the end of the chip's clock period.
        tick = phase == CLOCK_DIVISOR - 1
        m.d.sync += phase.eq(phase + 1)
        m.d.comb += selected.eq(~self.stop & (awake | ((turn == 0) & (at < 8))))
        with m.If(tick):
            m.d.sync += [
                pads.cs.eq(selected),
                pads.dq_o.eq(self._header_bit(at, awake)),
                pads.dq_oe.eq(selected & ~reading & ~at[5]),
                run.eq(selected & (~reading | wanted)),
            ]
            with m.If(~reading):
                m.d.sync += at.eq(at + 1)
                # The first data bits follow the header's last clock, so that clock belongs to the first byte.
                m.d.sync += reading.eq(awake & (at == HEADER_CLOCKS - 2))
                with m.If(~awake & at.all()):
                    m.d.sync += turn.eq(turn + 1)
        m.d.comb += pads.clk.eq(run & (phase >= CLOCK_DIVISOR // 2))
        self._assemble_bytes(m, phase, reading, wanted)
        return m

    def _header_bit(self, at: Signal, awake: Value) -> Value:
        """Return the bit to send at a clock: of the command that wakes the chip, or of the read command."""
        read = FlashCommand.DUAL_READ << ADDRESS_BITS | self.chip.offset
        header = Array(read >> 31 - bit & 1 for bit in range(32))
        release = Array(FlashCommand.RELEASE >> 7 - bit & 1 for bit in range(8))
        return Mux(awake, header[at[:5]], release[at[:3]])

    def _assemble_bytes(self, m: Module, phase: Signal, reading: Value, wanted: Signal) -> None:
        """Assemble bytes from bits, and set `wanted` while there is room for more."""
        pads, byte = self.pads, self.byte
        sent = Signal(range(4))
        got = Signal(range(4))
        out = Signal(range(READ_AHEAD + 1))
        shift = Signal(8)
        full = Signal()
        coming = Signal(3)
        begins = Signal()
        taken = byte.valid & byte.ready
        tick = phase == CLOCK_DIVISOR - 1
        m.d.comb += [
            wanted.eq(reading & ((sent != 0) | (out != READ_AHEAD))),
            begins.eq(tick & wanted & (sent == 0)),
        ]
        m.d.sync += out.eq(out + begins - taken)
        with m.If(tick):
            m.d.sync += [coming.eq(Cat(wanted, coming)), sent.eq(sent + wanted)]
        # A clock that is requested now is sent in the next period of `CLOCK_DIVISOR` cycles. After its register it
        # falls at the start of phase 1. The bits that follow have three cycles until the pads' registers take them,
        # and stay valid for one more.
        with m.If((phase == 0) & coming[-1]):
            m.d.sync += [shift.eq(Cat(pads.dq_i, shift)), got.eq(got + 1), full.eq(got == 3)]
        with m.Elif(full & ~byte.valid):
            m.d.sync += [full.eq(0), byte.payload.eq(shift), byte.valid.eq(1)]
        with m.If(taken):
            m.d.sync += byte.valid.eq(0)
