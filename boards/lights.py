"""What a board's LEDs show: that it is alive, that it computes, and that something went wrong."""

from __future__ import annotations

from dataclasses import dataclass

from amaranth.hdl import Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.control.control import ADDRESS_BITS
from weft.hdl.isa.memmap import ERRORS, Reg, Status

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
