"""What the cycle model asks of a board's SDRAM: plain numbers, which `weft.boards` fills in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Sdram:
    """An SDRAM chip, its controller and the bridge between that and a core; times in clock cycles.

    Parameters
    ----------
    rcd, rp, ras, rc, rrd, rfc, wr, refresh : int
        Timings of the chip, as `weft.boards.sdram.chip.SdramTiming` has them.
    cas_latency : int
        Of the chip.
    read_latency : int
        From the decision to read a unit to its first half in the controller.
    row_bits, column_bits : int
        Of the chip: log2 of rows in a bank, and of words of 16 bits in a row.
    unit_bytes : int
        Bytes of one read or write command.
    read_words : int
        Words of the bus that may be on their way.
    piece_bytes, page_bytes : int
        Bursts are cut at multiples of the former, and do not cross multiples of the latter.
    pieces, commands : int
        Such parts of bursts that the bridge, and the arbiter behind it, have under way in each direction.
    phase : int
        Cycles from when a refresh was last due to the start of a program, which nobody chooses.
    """

    rcd: int
    rp: int
    ras: int
    rc: int
    rrd: int
    rfc: int
    wr: int
    refresh: int
    cas_latency: int
    read_latency: int
    row_bits: int
    column_bits: int
    unit_bytes: int
    read_words: int
    piece_bytes: int
    page_bytes: int
    pieces: int
    commands: int
    phase: int = 0


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
