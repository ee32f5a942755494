"""Timing parameters of a board's memories for the cycle models; `weft.boards` fills them in."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Sdram:
    """An SDRAM chip, its controller, and the bridge between controller and core; times in clock cycles.

    Parameters
    ----------
    rcd, rp, ras, rc, rrd, rfc, wr, refresh : int
        Timings of the chip, see `weft.boards.sdram.chip.SdramTiming`.
    cas_latency : int
        CAS latency of the chip.
    read_latency : int
        From the decision to read a unit until its first half arrives in the controller.
    row_bits, column_bits : int
        log2 of the chip's rows per bank, and of its 16-bit words per row.
    unit_bytes : int
        Bytes of one read or write command.
    read_words : int
        Bus words that may be in flight at once.
    piece_bytes, page_bytes : int
        The bridge splits bursts into pieces at multiples of `piece_bytes`; none crosses a multiple of `page_bytes`.
    pieces, commands : int
        Pieces in flight in each direction, in the bridge and in the arbiter behind it.
    phase : int
        Cycles between the last due refresh and the start of the program; arbitrary on a real board.
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
    """A flash chip that programs read one bus word at a time; times in clock cycles.

    Parameters
    ----------
    window : int
        Bus address of its first byte; all reads at or above it go to flash.
    first, end : int
        Range of bytes in the chip that may hold programs.
    jump : int
        Cycles from a command until its first word, unless the command continues the previous read.
    word : int
        Cycles between consecutive words. The controller prefetches the next word, so reading on costs no `jump`.
    page : int
        Bytes; the controller does not prefetch across multiples of this.
    """

    window: int
    first: int
    end: int
    jump: int
    word: int
    page: int
