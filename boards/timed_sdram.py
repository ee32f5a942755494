"""What the cycle model is told of a board's SDRAM."""

from __future__ import annotations

from weft.boards.axi_bridge import PIECE_BYTES
from weft.boards.family import Fabric
from weft.boards.port import PAGE
from weft.boards.sdram import READ_WORDS, read_latency
from weft.boards.sdram_chip import COLUMN_BITS, ROW_BITS, SdramTiming
from weft.boards.sdram_eye import CAS_LATENCY, best_eye
from weft.boards.sdram_schedule import UNIT
from weft.sim.sdram import Sdram


def timed_sdram(clock: float, fabric: Fabric) -> Sdram:
    """Chip, controller and bridge as `weft.boards.top.Top` has them at a clock in Hz.

    Raises `weft.boards.board.BoardError` if the SDRAM cannot run at that clock.
    """
    cycles = SdramTiming().cycles(clock)
    pieces, commands = fabric.queues
    return Sdram(
        rcd=cycles.rcd,
        rp=cycles.rp,
        ras=cycles.ras,
        rc=cycles.rc,
        rrd=cycles.rrd,
        rfc=cycles.rfc,
        wr=cycles.wr,
        refresh=cycles.refresh,
        cas_latency=CAS_LATENCY,
        read_latency=read_latency(CAS_LATENCY, best_eye(clock).capture),
        row_bits=ROW_BITS,
        column_bits=COLUMN_BITS,
        unit_bytes=UNIT,
        read_words=READ_WORDS,
        piece_bytes=PIECE_BYTES,
        page_bytes=PAGE,
        pieces=pieces,
        commands=commands,
    )
