"""What the cycle model asks of a board's SPI flash: plain numbers, which `weft.boards` fills in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class TimedFlash:
    """A chip beside the RAM that is only read, a word of the bus at a time; times in clock cycles.

    Parameters
    ----------
    window : int
        Address of its first byte; reads from there on go to it.
    first, end : int
        The bytes of the chip that programs may lie in.
    jump : int
        From when its controller takes a command to its first word.
    word : int
        From when a word is taken to the next one, which is read ahead: a command for that costs no jump.
    page : int
        Bytes; nothing is read ahead across a multiple of these.
    """

    window: int
    first: int
    end: int
    jump: int
    word: int
    page: int
