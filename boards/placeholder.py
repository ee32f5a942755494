"""What stands in for a board's top component: the systolic array, fed from the serial line."""

from amaranth.hdl import Cat, Module, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from weft.boards.board import Memory
from weft.hdl.array import Array
from weft.hdl.config import Config


class Placeholder(wiring.Component):
    """An array whose every input is a bit that the serial line shifted in, and whose results are all on it.

    Parameters are those of a board's top component: configuration, part, memory, cycles a bit.
    """

    rx: In(1)  # type: ignore[valid-type]
    tx: Out(1)  # type: ignore[valid-type]

    def __init__(self, config: Config, part: str, memory: Memory, divisor: int) -> None:
        self.config = config
        super().__init__()

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.array = array = Array(self.config)
        inputs = Cat(array.a, array.b, array.swap, array.latch)
        bits = Signal(len(inputs))
        row = Signal(array.c.shape().size)
        m.d.comb += inputs.eq(bits)
        m.d.sync += [
            bits.eq(Cat(self.rx, bits)),
            row.eq((row >> 1) ^ array.c.as_value()),
            self.tx.eq(row[0]),
        ]
        return m
