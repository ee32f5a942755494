"""An asynchronous serial line: 8 data bits, no parity, one stop bit."""

from __future__ import annotations

from dataclasses import dataclass

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import stream, wiring
from amaranth.lib.cdc import FFSynchronizer
from amaranth.lib.wiring import In, Out

from weft.hdl.control.control import ADDRESS_BITS
from weft.hdl.isa.memmap import ERRORS, Reg, Status

MIN_DIVISOR = 4


def check_divisor(divisor: int) -> int:
    """`divisor`, if a line can run at it; else raises `ValueError`."""
    if not isinstance(divisor, int) or not MIN_DIVISOR <= divisor < 1 << 16:
        raise ValueError(f"a bit takes from {MIN_DIVISOR} to 65535 clock cycles, not {divisor}")
    return divisor


class Receiver(wiring.Component):
    """Bytes from a serial line.

    Bits are sampled once, in their middle; a start bit must be low there. Next to a sender whose clock is off by 2 %,
    every divisor works.

    Parameters
    ----------
    divisor : int
        Clock cycles in a bit, 4 to 65535.

    Members
    -------
    rx : In(1)
        The line, asynchronous to the clock; 1 when idle.
    byte : Out(stream of 8 bits, always ready)
    error : Out(1)
        For one cycle: a byte was dropped, as its stop bit was low.
    """

    def __init__(self, divisor: int) -> None:
        self.divisor = check_divisor(divisor)
        super().__init__(
            {"rx": In(1, init=1), "byte": Out(stream.Signature(8, always_ready=True)), "error": Out(1)}
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        line = Signal(init=1)
        m.submodules.synchroniser = FFSynchronizer(self.rx, line, init=1)
        timer = Signal(range(self.divisor))
        position = Signal(range(10))  # 0: start bit, 9: stop bit
        busy, broken = Signal(), Signal()
        m.d.sync += [self.byte.valid.eq(0), self.error.eq(0)]
        with m.If(~busy):
            # After a low stop bit the next start bit is a falling edge again.
            m.d.sync += [broken.eq(broken & ~line), busy.eq(~line & ~broken), position.eq(0)]
            m.d.sync += timer.eq((self.divisor - 3) // 2)  # two cycles of the start bit are over by then
        with m.Elif(timer != 0):
            m.d.sync += timer.eq(timer - 1)
        with m.Else():
            m.d.sync += [timer.eq(self.divisor - 1), position.eq(position + 1)]
            with m.If(position == 0):
                m.d.sync += busy.eq(~line)
            with m.Elif(position == 9):
                # Half a bit early, so that a fast sender's next start bit is seen.
                m.d.sync += [busy.eq(0), broken.eq(~line), self.byte.valid.eq(line), self.error.eq(~line)]
            with m.Else():
                m.d.sync += self.byte.payload.eq(Cat(self.byte.payload, line)[1:])
        return m


class Transmitter(wiring.Component):
    """Bytes onto a serial line, without a pause between bytes that are there in time.

    Parameters
    ----------
    divisor : int
        Clock cycles in a bit, 4 to 65535.

    Members
    -------
    tx : Out(1)
        The line; 1 when idle.
    byte : In(stream of 8 bits)
    """

    def __init__(self, divisor: int) -> None:
        self.divisor = check_divisor(divisor)
        super().__init__({"tx": Out(1, init=1), "byte": In(stream.Signature(8))})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        timer = Signal(range(self.divisor))
        left = Signal(range(11))  # bits after this one, and this one
        shift = Signal(9, init=0x1FF)
        over = Signal()
        m.d.comb += [over.eq(timer == 0), self.byte.ready.eq(over & (left <= 1)), self.tx.eq(shift[0])]
        with m.If(~over):
            m.d.sync += timer.eq(timer - 1)
        with m.Elif(left > 1):
            m.d.sync += [timer.eq(self.divisor - 1), left.eq(left - 1), shift.eq(Cat(shift[1:], 1))]
        with m.Elif(self.byte.valid):
            m.d.sync += [timer.eq(self.divisor - 1), left.eq(10), shift.eq(Cat(0, self.byte.payload))]
        with m.Else():
            m.d.sync += left.eq(0)
        return m


SIGNS = ("alive", "busy", "error")


@dataclass(frozen=True)
class Led:
    """An LED: the platform's resource with its number, a member of it or none, and the signs that it shows, any of
    them."""

    resource: str
    number: int
    shows: tuple[str, ...]
    member: str = ""


def lights() -> wiring.Signature:
    """Signs, as they come from a board's top component: 1 is on.

    Members
    -------
    alive : Out(1)
        Goes on and off once in a second or two.
    busy : Out(1)
        A program runs, or has run in the last tenth of a second or so.
    error : Out(1)
        The last program that the host looked at has failed, or does.
    """
    return wiring.Signature(dict.fromkeys(SIGNS, Out(1)))


def blinking(clock: float) -> int:
    """Bits of a counter at a clock in Hz that comes round in one to two seconds."""
    return max(round(clock).bit_length(), 5)


class Lights(wiring.Component):
    """Makes the signs from what the host reads of the status register: it always looks whether a program is done.

    Parameters
    ----------
    clock : float
        Hz.

    Members
    -------
    address : In(ADDRESS_BITS)
        Of the register that is read; stands until it is answered.
    answered : In(1)
        `word` is what was read.
    word : In(32)
    lights : Out(lights())
    """

    def __init__(self, clock: float) -> None:
        self.bits = blinking(clock)
        super().__init__(
            {"address": In(ADDRESS_BITS), "answered": In(1), "word": In(32), "lights": Out(lights())}
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        shown, word = self.lights, self.word
        counter, recent = Signal(self.bits), Signal()
        m.d.sync += counter.eq(counter + 1)
        m.d.comb += shown.alive.eq(counter[-1])
        # A sixteenth of the blinking: long enough to be seen.
        with m.If(counter[: self.bits - 4] == 0):
            m.d.sync += [recent.eq(0), shown.busy.eq(recent)]
        with m.If(self.answered & (self.address == Reg.STATUS)):
            m.d.sync += shown.error.eq((word & (ERRORS & ~Status.STOPPED)) != 0)
            with m.If((word & Status.BUSY) != 0):
                m.d.sync += [recent.eq(1), shown.busy.eq(1)]
        return m
