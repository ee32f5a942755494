"""Asynchronous serial line (8 data bits, no parity, one stop bit), and signals for LEDs."""

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
    """Return `divisor` if a line can run at it; raise `ValueError` if not."""
    if not isinstance(divisor, int) or not MIN_DIVISOR <= divisor < 1 << 16:
        raise ValueError(f"a bit takes from {MIN_DIVISOR} to 65535 clock cycles, not {divisor}")
    return divisor


class Receiver(wiring.Component):
    """Receiver of bytes from a serial line.

    Bits are sampled once, in their middle, where a start bit must be low. Any divisor tolerates a sender whose clock is
    off by 2 %.

    Parameters
    ----------
    divisor : int
        Clock cycles per bit, 4 to 65535.

    Members
    -------
    rx : In(1)
        Line, asynchronous to the clock; 1 when idle.
    byte : Out(stream of 8 bits, always ready)
    error : Out(1)
        High for one cycle when a byte is dropped because its stop bit was low.
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
        busy = Signal()
        broken = Signal()  # the stop bit was low, and the line is still low
        m.d.sync += [self.byte.valid.eq(0), self.error.eq(0)]
        with m.If(~busy):
            # After a low stop bit, wait for a high line before the next start bit.
            m.d.sync += [broken.eq(broken & ~line), busy.eq(~line & ~broken), position.eq(0)]
            m.d.sync += timer.eq((self.divisor - 3) // 2)  # half a bit less two cycles that have passed
        with m.Elif(timer != 0):
            m.d.sync += timer.eq(timer - 1)
        with m.Else():
            m.d.sync += [timer.eq(self.divisor - 1), position.eq(position + 1)]
            with m.If(position == 0):
                m.d.sync += busy.eq(~line)
            with m.Elif(position == 9):
                # Stop half a bit early, so that a fast sender's next start bit is seen.
                m.d.sync += [busy.eq(0), broken.eq(~line), self.byte.valid.eq(line), self.error.eq(~line)]
            with m.Else():
                m.d.sync += self.byte.payload.eq(Cat(self.byte.payload, line)[1:])
        return m


class Transmitter(wiring.Component):
    """Transmitter of bytes on a serial line, without a pause between bytes that arrive in time.

    Parameters
    ----------
    divisor : int
        Clock cycles per bit, 4 to 65535.

    Members
    -------
    tx : Out(1)
        Line; 1 when idle.
    byte : In(stream of 8 bits)
    """

    def __init__(self, divisor: int) -> None:
        self.divisor = check_divisor(divisor)
        super().__init__({"tx": Out(1, init=1), "byte": In(stream.Signature(8))})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        timer = Signal(range(self.divisor))
        left = Signal(range(11))  # bits left, including the current one
        shift = Signal(9, init=0x1FF)
        over = Signal()
        m.d.comb += [over.eq(timer == 0), self.byte.ready.eq(over & (left <= 1)), self.tx.eq(shift[0])]
        with m.If(~over):
            m.d.sync += timer.eq(timer - 1)
        # `shift` fills with ones, which become the stop bit.
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
    """LED of a board: the platform's resource with its number, the signs of which any turns it on, and an optional
    member of the resource."""

    resource: str
    number: int
    shows: tuple[str, ...]
    member: str = ""


def lights() -> wiring.Signature:
    """Return the signature of signs for LEDs, seen from a board's top component; 1 is on.

    Members
    -------
    alive : Out(1)
        Blinks with a period of one to two seconds.
    busy : Out(1)
        A program is running, or ran in the last tenth of a second or so.
    error : Out(1)
        The last program whose status the host read has failed.
    """
    return wiring.Signature(dict.fromkeys(SIGNS, Out(1)))


def blink_counter_bits(clock: float) -> int:
    """Return the width of a counter that overflows every one to two seconds at a clock in Hz."""
    return max(round(clock).bit_length(), 5)


class Lights(wiring.Component):
    """Generator of the signs, from the host's reads of the status register. Hosts poll it while a program runs.

    Parameters
    ----------
    clock : float
        Frequency in Hz.

    Members
    -------
    address : In(ADDRESS_BITS)
        Address of the register that is read, stable until the answer.
    answered : In(1)
        `word` is the register's value.
    word : In(32)
    lights : Out(lights())
    """

    def __init__(self, clock: float) -> None:
        self.bits = blink_counter_bits(clock)
        super().__init__(
            {"address": In(ADDRESS_BITS), "answered": In(1), "word": In(32), "lights": Out(lights())}
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        shown, word = self.lights, self.word
        counter = Signal(self.bits)
        recent = Signal()  # busy was set in the current sixteenth of the period
        m.d.sync += counter.eq(counter + 1)
        m.d.comb += shown.alive.eq(counter[-1])
        # A sixteenth of the blink period is long enough to be seen.
        with m.If(counter[: self.bits - 4] == 0):
            m.d.sync += [recent.eq(0), shown.busy.eq(recent)]
        # A program that the host stopped is no error.
        with m.If(self.answered & (self.address == Reg.STATUS)):
            m.d.sync += shown.error.eq((word & (ERRORS & ~Status.STOPPED)) != 0)
            with m.If((word & Status.BUSY) != 0):
                m.d.sync += [recent.eq(1), shown.busy.eq(1)]
        return m
