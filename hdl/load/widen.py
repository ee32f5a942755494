"""The widener: words of the bus that hold two values of 4 bits a byte, as twice as many words of bytes."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, Value, signed
from amaranth.lib import stream, wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.isa.config import Config
from weft.hdl.isa.int4 import FACTOR_PLACES, GROUP


class Widener(wiring.Component):
    """Passes bus words on as they are, or each as two words: those of the values in its lower and in its upper half.

    The low nibble of a byte is the first of its two values, which are signed. Words pass in the cycle they come in.
    `narrow` may change only between words, behind both parts of the one before.

    With `blocks`, words are in groups. The first word of a group has factors and does not pass; it takes a cycle. Each
    of the `GROUP` words that come of the others is multiplied by the next one of the factors, which are used in turn.

    Parameters
    ----------
    config : Config

    Members
    -------
    narrow : In(1)
        The word at the input holds values of 4 bits.
    blocks : In(1)
        It belongs to a group, too, or is the first one of a group. Only where LOAD has blocks.
    wanted : In(1)
        With `blocks`: words of the run are still to come, so that the next group's factors may be taken.
    beat : In(stream of bus words)
    wide : Out(stream of bus words)
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        word = stream.Signature(config.widths.bus)
        super().__init__(
            {"narrow": In(1), "beat": In(word), "wide": Out(word)}
            | ({"blocks": In(1), "wanted": In(1)} if config.blocks else {})
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        upper = Signal()  # half of the word: the lower one has been taken
        word, half = self.beat.payload, self.config.widths.bus // 2
        chosen = Mux(upper, word[half:], word[:half])
        halved = self.narrow & self.wide.valid & self.wide.ready
        factors, widened = (
            self._groups(m, halved, chosen) if self.config.blocks else (0, self._widened(chosen))
        )
        whole = self.wide.ready & (upper | ~self.narrow)
        m.d.comb += [
            self.wide.valid.eq(self.beat.valid & ~factors),
            self.wide.payload.eq(Mux(self.narrow, widened, word)),
            self.beat.ready.eq(Mux(factors, self.wanted, whole) if self.config.blocks else whole),
        ]
        with m.If(halved):
            m.d.sync += upper.eq(~upper)
        return m

    def _groups(self, m: Module, halved: Value, chosen: Value) -> tuple[Value, Value]:
        """Keep factors and use them in turn. Returns whether the word at the input has some, and the values in half a
        word as bytes."""
        left = Signal(range(GROUP + 1))  # words of the group that are still to come
        begin = Signal(init=1)  # there are none; in a register, as all of LOAD waits for it
        kept = Signal(self.config.widths.bus)
        first = Signal()
        m.d.comb += first.eq(self.blocks & begin)
        with m.If(first & self.wanted & self.beat.valid):
            m.d.sync += [left.eq(GROUP), begin.eq(0), kept.eq(self.beat.payload)]
        with m.Elif(halved & self.blocks):
            m.d.sync += [left.eq(left - 1), begin.eq(left == 1), kept.eq(kept.rotate_right(8))]
        nibbles = [chosen[at : at + 4].as_signed() for at in range(0, len(chosen), 4)]
        products = Cat(*(self._multiplied(m, nibble, kept[:8].as_signed()) for nibble in nibbles))
        return first, Mux(self.blocks, products, self._widened(chosen))

    @staticmethod
    def _multiplied(m: Module, value: Value, factor: Value) -> Value:
        """A value of 4 bits times a factor, rounded and saturated to a byte.

        It is the sum of two adders' results, one for each half of the value. A multiplier block would be far from the
        bus on the chip, and without a register in it it would take most of the cycle.
        """
        low, high = Signal(signed(11)), Signal(signed(12))
        half = 1 << FACTOR_PLACES - 1
        m.d.comb += [
            low.eq(Mux(value[0], factor, 0) + (Mux(value[1], factor, 0) << 1)),
            high.eq(Mux(value[2], factor, 0) - (Mux(value[3], factor, 0) << 1)),
        ]
        rounded = Signal(signed(12 - FACTOR_PLACES + 1))
        m.d.comb += rounded.eq((low + (high << 2) + half) >> FACTOR_PLACES)
        within = rounded[7:].all() | ~rounded[7:].any()
        return Mux(within, rounded[:8], Cat((~rounded[-1]).replicate(7), rounded[-1]))

    @staticmethod
    def _widened(values: Value) -> Value:
        """Signed values of 4 bits as bytes."""
        nibbles = [values[at : at + 4] for at in range(0, len(values), 4)]
        return Cat(*(Cat(nibble, nibble[-1].replicate(4)) for nibble in nibbles))
