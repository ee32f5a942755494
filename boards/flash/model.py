"""Simulation model of the SPI flash chip, which checks the controller against the data sheets' rules."""

from __future__ import annotations

import enum

from amaranth.hdl import Cat, Const, Instance, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from weft.boards.flash.chip import HEADER_CLOCKS, FlashCommand, SpiFlash, spi_flash_pads


def broken_rules(rules: type[enum.IntEnum], violation: int) -> list[str]:
    """Return the names of the rules whose bits are set in `ChipModel.violation`."""
    return [rule.name for rule in rules if violation >> rule & 1]


class ChipModel(wiring.Component):
    """Base class of models of memory chips.

    Parameters
    ----------
    pads : Signature
        Pads, seen from the controller.
    rules : type
        Enumeration of rules, from 0 on.
    others : Member
        Further members.

    Members
    -------
    pads : In(pads)
    violation : Out(len(rules))
        Rules broken since reset, one bit each.
    """

    def __init__(self, pads: wiring.Signature, rules: type[enum.IntEnum], **others: wiring.Member) -> None:
        super().__init__({"pads": In(pads), "violation": Out(len(rules)), **others})

    def _report_violation(self, m: Module, rule: enum.IntEnum, condition: Value) -> None:
        with m.If(condition):
            m.d.sync += self.violation[rule].eq(1)


FLASH_ARGUMENT = "flash"
"""Simulator argument ``+flash=PATH``: file with the chip's contents from `SpiFlash.offset` on."""
ARRAY_VERILOG = """
module weft_flash_array #(parameter BITS = 24, START = 0) (input [BITS-1:0] address, output [7:0] data);
    reg [7:0] bytes [0:(1 << BITS) - 1];
    string path;
    integer file, count;
    wire [31:0] place = 32'(address) - START;
    assign data = place < count ? bytes[address] : 8'hFF;
    initial begin
        count = 0;
        if ($value$plusargs("flash=%s", path)) begin
            file = $fopen(path, "rb");
            count = $fread(bytes, file, START);
            $fclose(file);
        end
    end
endmodule
"""
"""Array of a chip model without `contents`, to be added to the design's Verilog. `FLASH_ARGUMENT` names the file with
the bytes from `START` on."""


class Rule(enum.IntEnum):
    """Rules for the controller; the value is the bit in `SpiFlashModel.violation`."""

    ASLEEP = 0
    """Command other than `FlashCommand.RELEASE` before the chip is awake, including its wake-up time."""
    DESELECT = 1
    """Chip selected again too soon."""
    COMMAND = 2
    """Command that this model does not implement, or that ends before its last bit."""
    UNDRIVEN = 3
    """Bit of command or address that the controller does not drive."""
    CONTENTION = 4
    """Pad driven by controller and chip at the same time."""


class SpiFlashModel(ChipModel):
    """SPI flash chip, asleep at first, behind the registers in the FPGA's pads.

    Parameters
    ----------
    chip : SpiFlash
    clock : float
        Frequency of `sync` in Hz, for the timings.
    contents : bytes, optional
        Contents from the first byte on, repeated. Without it, the design's Verilog needs `ARRAY_VERILOG`.
    levels : bool
        ``clk`` is the chip's clock itself. Otherwise it requests one pulse per cycle.

    Members
    -------
    pads : In(spi_flash_pads())
    violation : Out(len(Rule))
        Rules broken since reset, one bit each; see `weft.boards.flash.model.broken_rules`.
    """

    def __init__(
        self, chip: SpiFlash, clock: float, contents: bytes | None = None, *, levels: bool = False
    ) -> None:
        self.chip, self.clock, self.contents, self.levels = chip, clock, contents, levels
        super().__init__(spi_flash_pads(), Rule)

    def elaborate(self, platform: object) -> Module:
        m = Module()
        cs = Signal()
        sampled_clk = Signal()
        dq_o = Signal()
        dq_oe = Signal()
        pads = self.pads
        m.d.sync += [cs.eq(pads.cs), sampled_clk.eq(pads.clk), dq_o.eq(pads.dq_o), dq_oe.eq(pads.dq_oe)]
        bits = Signal(7)  # clocks so far, saturating at 127
        command = Signal(8)
        address = Signal(24)
        pair = Signal(2)
        drives = Signal()
        data = Signal(2)
        # Both edges of a pulse are in one cycle, so at the falling edge this pulse is not yet counted in `bits`.
        rises, falls = self._edges(m, sampled_clk) if self.levels else (sampled_clk, sampled_clk)
        pulse = cs & rises
        taken = Cat(dq_o, command)[:8]
        with m.If(~cs):
            m.d.sync += [bits.eq(0), drives.eq(0), pair.eq(0)]
        with m.Elif(rises):
            m.d.sync += bits.eq(bits + (bits != 127))
            with m.If(bits < 8):
                m.d.sync += command.eq(taken)
            with m.Elif(bits < 32):
                m.d.sync += address.eq(Cat(dq_o, address))
        # Data change with the falling edge, at the end of the cycle.
        before = HEADER_CLOCKS - (0 if self.levels else 1)
        reads = cs & falls & (bits >= before) & (command == FlashCommand.DUAL_READ)
        byte = self._byte(m, address)
        with m.If(reads):
            m.d.sync += [drives.eq(1), pair.eq(pair + 1), data.eq(byte.word_select(~pair, 2))]
            with m.If(pair == 3):
                m.d.sync += address.eq(address + 1)
        m.d.sync += pads.dq_i.eq(Mux(cs & drives, data, Const(0b01, 2)))
        self._rules(m, cs, pulse, bits, taken, command, dq_oe, drives)
        return m

    @staticmethod
    def _edges(m: Module, clk: Signal) -> tuple[Value, Value]:
        clk_was = Signal()
        m.d.sync += clk_was.eq(clk)
        return clk & ~clk_was, clk_was & ~clk

    def _rules(
        self,
        m: Module,
        cs: Value,
        pulse: Value,
        bits: Signal,
        taken: Value,
        command: Signal,
        dq_oe: Signal,
        drives: Signal,
    ) -> None:
        # `high` counts the cycles of deselection, `slept` those since the end of the wake-up command.
        chip, clock = self.chip, self.clock
        released, least = chip.cycles(chip.release, clock), chip.cycles(chip.deselect, clock)
        high = Signal(8, init=255)
        slept = Signal(32)
        woken = Signal()
        cs_was = Signal()
        m.d.sync += [cs_was.eq(cs), high.eq(Mux(cs, 0, high + (high != 255)))]
        complete = pulse & (bits == 7)
        with m.If(cs_was & ~cs & (command == FlashCommand.RELEASE) & (bits == 8)):
            m.d.sync += [woken.eq(1), slept.eq(0)]
        with m.Elif(slept != released):
            m.d.sync += slept.eq(slept + 1)
        awake = woken & (slept == released)
        known = Cat(taken == code.value for code in FlashCommand).any()
        # The chip was deselected in the middle of a command or its address.
        cut = cs_was & ~cs & ((bits < 8) | (command == FlashCommand.DUAL_READ) & (bits < HEADER_CLOCKS))
        self._report_violation(m, Rule.ASLEEP, complete & ~awake & (taken != FlashCommand.RELEASE))
        self._report_violation(m, Rule.DESELECT, cs & ~cs_was & (high < least))
        self._report_violation(m, Rule.COMMAND, complete & ~known | cut)
        self._report_violation(m, Rule.UNDRIVEN, pulse & (bits < 32) & ~dq_oe)
        self._report_violation(m, Rule.CONTENTION, cs & drives & dq_oe)

    def _byte(self, m: Module, address: Signal) -> Value:
        bits = (self.chip.size - 1).bit_length()
        if self.contents is None:
            byte = Signal(8)
            m.submodules.array = Instance(
                "weft_flash_array",
                p_BITS=bits,
                p_START=self.chip.offset,
                i_address=address[:bits],
                o_data=byte,
            )
            return byte
        # Higher address bits are ignored, so the contents repeat.
        depth = 1 << (len(self.contents) - 1).bit_length()
        m.submodules.array = memory = Memory(shape=8, depth=depth, init=list(self.contents))
        port = memory.read_port(domain="comb")
        m.d.comb += port.addr.eq(address)
        return port.data
