"""Properties of SDRAM chips for controller and model: timings, commands, pads, mode register."""

import dataclasses
import enum
import math
from dataclasses import dataclass

from amaranth.hdl import unsigned
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

BANKS = 4
A_BITS = 13
"""Number of address pads, which allows for up to 8192 rows."""
ROW_BITS, COLUMN_BITS = 13, 9
"""Address bits of the boards' chips, which have 32 MB."""
ALL_BANKS = 1 << 10
"""Address bit that makes a precharge apply to all banks. In reads and writes it closes the row, which is not used
here."""
INIT_REFRESHES = 8
"""Refreshes between power-up and setting the mode register."""


@dataclass(frozen=True)
class SdramTiming:
    """Timings of a single-data-rate SDRAM, in nanoseconds.

    Each default is the slowest value in the data sheets of ISSI IS42S16160G-7, Alliance AS4C16M16SA-7 and
    AS4C32M16SB-7, Winbond W9825G6KH-6 and Micron MT48LC16M16A2-7E, so that any of these chips works.

    Parameters
    ----------
    rcd : float
        Activate to read or write (tRCD).
    rp : float
        Precharge to activate, refresh or mode register (tRP).
    ras, rc : float
        Activate to precharge (tRAS) and to the next activate (tRC) of the same bank.
    rrd : float
        Activate to activate of another bank (tRRD).
    rfc : float
        Refresh to the next command (tRFC).
    wr : float
        Last word written to precharge (tWR, tDPL).
    mrd : float
        Mode register to the next command (tMRD).
    refresh : float
        Between refreshes, on average (tREFI): 64 ms / 8192.
    power_up : float
        Stable clock and power to the first command.
    cl2, cl3 : float
        Shortest clock cycle with a CAS latency of 2 and 3.
    access2, access3 : float
        Longest time from clock edge to data with a CAS latency of 2 and 3 (tAC).
    output_hold : float
        Shortest time from clock edge to the end of the previous data (tOH).
    release : float
        Longest time from clock edge to released data pads (tHZ).
    setup, hold : float
        Set-up and hold time of commands (tCMS, tCMH), addresses (tAS, tAH), masks and data (tDS, tDH).
    """

    rcd: float = 21.0
    rp: float = 21.0
    ras: float = 42.0
    rc: float = 66.0
    rrd: float = 15.0
    rfc: float = 70.0
    wr: float = 15.0
    mrd: float = 15.0
    refresh: float = 7812.5
    power_up: float = 200_000.0
    cl2: float = 10.0
    cl3: float = 7.0
    access2: float = 6.0
    access3: float = 5.4
    output_hold: float = 2.5
    release: float = 6.0
    setup: float = 1.5
    hold: float = 1.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not value > 0:
                raise ValueError(f"SDRAM timing {field.name!r} must be more than 0 ns, not {value}")

    def cycles(self, clock: float) -> "SdramCycles":
        """Return the timings in cycles of `clock` Hz, rounded up; the refresh interval is rounded down."""
        up = {
            name: math.ceil(getattr(self, name) * clock * 1e-9 - 1e-6)
            for name in ("rcd", "rp", "ras", "rc", "rrd", "rfc", "wr", "mrd", "power_up")
        }
        return SdramCycles(**up, refresh=math.floor(self.refresh * clock * 1e-9 + 1e-6))

    def check_clock(self, clock: float, cas_latency: int) -> None:
        """Raise `ValueError` if the chip cannot run at `clock` Hz with `cas_latency`."""
        if cas_latency not in (2, 3):
            raise ValueError(f"the CAS latency of an SDRAM must be 2 or 3, not {cas_latency}")
        if not self.fits(clock, cas_latency):
            raise ValueError(
                f"with a CAS latency of {cas_latency} the SDRAM runs at up to "
                f"{1e3 / self.shortest_cycle(cas_latency):.0f} MHz, not {clock / 1e6:g} MHz"
            )

    def shortest_cycle(self, cas_latency: int) -> float:
        """Return the shortest clock cycle in ns for a CAS latency of 2 or 3."""
        return self.cl2 if cas_latency == 2 else self.cl3

    def fits(self, clock: float, cas_latency: int) -> bool:
        """Return whether the chip runs at `clock` Hz with a CAS latency of 2 or 3."""
        return clock * self.shortest_cycle(cas_latency) <= 1e9 * (1 + 1e-6)

    def access_time(self, cas_latency: int) -> float:
        """Return the time in ns from clock edge to data for a CAS latency of 2 or 3."""
        return self.access2 if cas_latency == 2 else self.access3


@dataclass(frozen=True)
class SdramCycles:
    """Timings of `SdramTiming` in clock cycles."""

    rcd: int
    rp: int
    ras: int
    rc: int
    rrd: int
    rfc: int
    wr: int
    mrd: int
    power_up: int
    refresh: int


class Operation(enum.IntEnum):
    """Commands. Bit 0 is `ras`, bit 1 `cas` and bit 2 `we`; 1 means that the pad is low."""

    NOP = 0b000
    ACTIVATE = 0b001
    READ = 0b010
    REFRESH = 0b011
    STOP = 0b100
    PRECHARGE = 0b101
    WRITE = 0b110
    MODE = 0b111


# Annotations must be real objects here: `data.Struct` reads them.
class ModeRegister(data.Struct):
    """Mode register, as the mode command takes it from the address pads."""

    burst: unsigned(3)  # type: ignore[valid-type]
    """log2 of the burst length."""
    interleaved: unsigned(1)  # type: ignore[valid-type]
    cas_latency: unsigned(3)  # type: ignore[valid-type]
    reserved: unsigned(2)  # type: ignore[valid-type]
    single_write: unsigned(1)  # type: ignore[valid-type]
    reserved_high: unsigned(3)  # type: ignore[valid-type]


def sdram_pads() -> wiring.Signature:
    """Return the signature of a 16-bit chip's pads without its clock, seen from the controller.

    All are active high. Names and meanings are those of the SDRAM resources of amaranth-boards, which invert `cs`,
    `ras`, `cas` and `we` at the pad. Bit i of ``dqm`` masks byte i of ``dq``. ``dq_oe`` enables ``dq_o`` in this cycle.
    """
    return wiring.Signature(
        {
            "clk_en": Out(1),
            "cs": Out(1),
            "ras": Out(1),
            "cas": Out(1),
            "we": Out(1),
            "ba": Out(2),
            "a": Out(A_BITS),
            "dqm": Out(2),
            "dq_o": Out(16),
            "dq_oe": Out(1),
            "dq_i": In(16),
        }
    )


ARRAY_VERILOG = """
module weft_sdram_array #(parameter BITS = 24) (
    input clk, input [BITS-1:0] address, input [1:0] write, input [15:0] write_data, output [15:0] read_data
);
    reg [15:0] words [0:(1 << BITS) - 1];
    reg [15:0] zeros, ones, together;
    reg [BITS-1:0] low, high, joined;
    reg [3:0] lost;
    reg [31:0] garbage;
    integer count;
    wire [BITS-1:0] driven = (address & ~low) | high;
    wire [BITS-1:0] at = &(driven | ~joined) ? driven : driven & ~joined;
    wire dead = lost[address[BITS-1:BITS-2]];
    wire [15:0] cell_data = dead ? 16'h5AA5 : words[at];
    wire [15:0] pads = (cell_data & ~zeros) | ones;
    assign read_data = &(pads | ~together) ? pads : pads & ~together;
    always @(posedge clk) begin
        if (write[0] && !dead) words[at][7:0] <= write_data[7:0];
        if (write[1] && !dead) words[at][15:8] <= write_data[15:8];
    end
    initial begin
        if (!$value$plusargs("sdram_zeros=%h", zeros)) zeros = 0;
        if (!$value$plusargs("sdram_ones=%h", ones)) ones = 0;
        if (!$value$plusargs("sdram_together=%h", together)) together = 0;
        if (!$value$plusargs("sdram_low=%h", low)) low = 0;
        if (!$value$plusargs("sdram_high=%h", high)) high = 0;
        if (!$value$plusargs("sdram_joined=%h", joined)) joined = 0;
        if (!$value$plusargs("sdram_lost=%h", lost)) lost = 0;
        if ($value$plusargs("sdram_garbage=%h", garbage)) begin
            for (count = 0; count < (1 << BITS); count = count + 1) begin
                garbage = garbage * 32'd1664525 + 32'd1013904223;
                words[count] = garbage[31:16];
            end
        end
    end
endmodule
"""
"""Array of a large chip, to be added to the design's Verilog. Amaranth would take minutes to write its initial zeros.
The simulator arguments are those of `ArrayFaults`."""


@dataclass(frozen=True)
class ArrayFaults:
    """Defects of a simulated chip. Address lines are numbered as in the model: columns, rows, then banks.

    Attributes
    ----------
    zeros, ones, together : int
        Masks of data pads that always read 0, always read 1, or are shorted. Shorted pads all read 0 if one of them
        does.
    low, high, joined : int
        Masks of address lines with these defects.
    lost : int
        Mask of banks that lose their contents.
    garbage : int or None
        Seed of the contents at power-on; None for zeros.
    """

    zeros: int = 0
    ones: int = 0
    together: int = 0
    low: int = 0
    high: int = 0
    joined: int = 0
    lost: int = 0
    garbage: int | None = None

    def arguments(self) -> list[str]:
        """Return the arguments for the simulator's command line."""
        return [f"+sdram_{name}={value:x}" for name, value in vars(self).items() if value is not None]
