"""Where kernels keep what they work on: in the last 128 N words of data memory, of which the last 80 N are theirs.

Registers and predicates have 8 rows of N lanes each, so that the address of a lane is a number of a block, of a row and
of a lane side by side. The staged vector is the same for all rows; in the row behind it is the immediate number.
"""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Signal, Value
from amaranth.lib import data

from weft.hdl.isa.kernel import REGISTERS, STRIP_ROWS, MicroOp
from weft.hdl.sequential.micro import PART_BITS, Part

ROW_BITS = (STRIP_ROWS - 1).bit_length()
_BLOCKS = 2 * REGISTERS
_PREDICATES, _STAGED = 6, 7
"""Numbers of blocks; registers have those from `REGISTERS` on."""


def last_words(n: int) -> tuple[int, int]:
    """Words at the end of data memory in which blocks are numbered, and how many of them, the last ones, they take."""
    return _BLOCKS * STRIP_ROWS * n, (_BLOCKS - _PREDICATES) * STRIP_ROWS * n


def immediate(n: int, depth: int) -> int:
    """The word of data memory that holds the immediate number."""
    return depth - last_words(n)[0] + (_STAGED * STRIP_ROWS + 1) * n


class Operation:
    """What the processor knows of the micro-operation under way, and the addresses that it makes of that.

    Parameters
    ----------
    m : Module
    n : int
        Lanes.
    bits : int
        Of an address of data memory.
    given, word : Value
        In this cycle the first word of a micro-operation is given: its bits up to `end`.
    """

    def __init__(self, m: Module, n: int, bits: int, given: Value, word: Value) -> None:
        self.lane_bits, self.bits = (n - 1).bit_length(), bits
        fields = MicroOp.layout()
        names = ("a_memory", "a", "b_immediate", "b", "swap", "d_memory", "d")
        self.kept = Signal(data.StructLayout({name: fields[name].width for name in names}), name="operation")
        for name in names:
            place = fields[name]
            with m.If(given):
                m.d.sync += self.kept[name].eq(word[place.offset : place.offset + place.width])

    def address(self, m: Module, operand: Value, index: Value) -> Value:
        """The address of a `Lane` of this number."""
        lanes, op = self.lane_bits, self.kept
        lane, row = Signal(lanes, name="lane"), Signal(ROW_BITS, name="lane_row")
        block = Signal((_BLOCKS - 1).bit_length(), name="lane_block")
        m.d.comb += [lane.eq(index[:lanes]), row.eq(index[lanes : lanes + ROW_BITS])]
        staged = [block.eq(_STAGED), row.eq(0)]
        with m.Switch(operand[1 : 1 + PART_BITS]):
            for part, memory, register in ((Part.FIRST, op.a_memory, op.a), (Part.RESULT, op.d_memory, op.d)):
                with m.Case(part):
                    m.d.comb += block.eq(Cat(register, 1))
                    with m.If(memory):
                        m.d.comb += staged
            with m.Case(Part.SECOND):
                m.d.comb += [
                    block.eq(Cat(op.b, 1)),
                    lane.eq(index[:lanes] ^ (Const(1) << op.swap)[1 : lanes + 1]),
                ]
                with m.If(op.b_immediate):
                    m.d.comb += [block.eq(_STAGED), row.eq(1), lane.eq(0)]
            with m.Case(Part.PREDICATE):
                m.d.comb += block.eq(_PREDICATES)
            with m.Default():
                m.d.comb += staged
        address = Cat(lane, row, block)
        return Cat(address, Const(-1, self.bits - len(address)) if self.bits > len(address) else Const(0, 0))
