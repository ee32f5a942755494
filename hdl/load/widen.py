"""The widener: words of the bus that hold two values of 4 bits a byte, as twice as many words of bytes."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.isa.config import Config


class Widener(wiring.Component):
    """Passes bus words on as they are, or each as two words: those of the values in its lower and in its upper half.

    The low nibble of a byte is the first of its two values, which are signed. Words pass in the cycle they come in.
    `narrow` may change only between words, behind both parts of the one before.

    Parameters
    ----------
    config : Config

    Members
    -------
    narrow : In(1)
        The word at the input holds values of 4 bits.
    beat : In(stream of bus words)
    wide : Out(stream of bus words)
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        word = stream.Signature(config.widths.bus)
        super().__init__({"narrow": In(1), "beat": In(word), "wide": Out(word)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        upper = Signal()  # half of the word: the lower one has been taken
        word, half = self.beat.payload, self.config.widths.bus // 2
        chosen = Mux(upper, word[half:], word[:half])
        m.d.comb += [
            self.wide.valid.eq(self.beat.valid),
            self.wide.payload.eq(Mux(self.narrow, self._widened(chosen), word)),
            self.beat.ready.eq(self.wide.ready & (upper | ~self.narrow)),
        ]
        with m.If(self.narrow & self.wide.valid & self.wide.ready):
            m.d.sync += upper.eq(~upper)
        return m

    @staticmethod
    def _widened(values: Value) -> Value:
        """Signed values of 4 bits as bytes."""
        nibbles = [values[at : at + 4] for at in range(0, len(values), 4)]
        return Cat(*(Cat(nibble, nibble[-1].replicate(4)) for nibble in nibbles))
