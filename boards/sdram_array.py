"""The cells of a simulated SDRAM chip, with what may be wrong with them and with the wires that lead to them."""

from __future__ import annotations

from dataclasses import dataclass

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
"""The array of a large chip, to add to the Verilog of a design that has one: as a memory of Amaranth it would take
minutes to write out its initial zeros. Its arguments on the simulator's command line are those of `ArrayFaults`."""


@dataclass(frozen=True)
class ArrayFaults:
    """What is wrong with a chip. Address lines are counted as the model has them: columns, rows, then banks.

    Attributes
    ----------
    zeros, ones, together : int
        Masks of data pads that always read 0, always read 1, or are shorted: all are 0 if one is.
    low, high, joined : int
        The same of address lines.
    lost : int
        Mask of banks that keep nothing.
    garbage : int or None
        Seed of what is in memory when it is switched on; None: zeros.
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
        """For the simulator's command line."""
        return [f"+sdram_{name}={value:x}" for name, value in vars(self).items() if value is not None]
