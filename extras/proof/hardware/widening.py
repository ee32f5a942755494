"""Properties of `weft.hdl.load.transpose`: values of 4 bits become bytes."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value

from weft.extras.proof.hardware.pipelines import ago, implies, was
from weft.extras.proof.hardware.property import Bench, Induction, Invariant, proves
from weft.extras.proof.hardware.streams import assume_stable, stable
from weft.hdl.isa.config import Config
from weft.hdl.isa.encoding import FACTOR_FRACTION_BITS, GROUP_WORDS
from weft.hdl.load.transpose import Widener

_BYTES = 4
"""Bytes of a word of the bus."""


def bytes_of(values: Value) -> Value:
    """Return signed values of 4 bits as bytes, the low nibble first."""
    nibbles = [values[at : at + 4].as_signed() for at in range(0, len(values), 4)]
    return Cat(*((nibble + Const(0, 8))[:8] for nibble in nibbles))


@proves("load/widen", "values of 4 bits", Invariant(), Config(n=2, lanes=2, bus_bytes=_BYTES, int4=1))
class WidenBench(Bench, unit=Widener):
    """A word passes unchanged, or as the bytes of its lower and then of its upper half, for all codes; none is lost.

    Assumed: beats stay until they are taken; `narrow` is constant while a word or its second half waits.
    """

    def watch(self, m: Module) -> None:
        dut = self.dut
        beat, wide = dut.beat, dut.wide
        second = Signal()  # the first half has left
        before = was(m, dut.narrow)
        holds = was(m, beat.valid & ~beat.ready)
        assume_stable(m, self, beat, "beat")
        self.assume(implies(holds, dut.narrow == before))
        with m.If(wide.valid & wide.ready & dut.narrow):
            m.d.sync += second.eq(~second)

        half = beat.payload.word_select(second, 4 * _BYTES)
        expected = Mux(dut.narrow, bytes_of(half), beat.payload)
        self.claim("a word for every beat", wide.valid == beat.valid)
        self.claim("payload", implies(wide.valid, wide.payload == expected))
        last = ~dut.narrow | second
        self.claim("a beat is taken with its last word", beat.ready == (wide.ready & last))
        stable(m, self, wide, "output")
        self.cover("second half", second & wide.valid & wide.ready & (wide.payload == 0xF8_07_00_FF))


_BLOCKS = Config(n=_BYTES, lanes=2, bus_bytes=_BYTES, int4=2)


@proves(
    "load/widen",
    "blocks",
    Invariant(),
    _BLOCKS,
    values=False,
    cover=48,
    claim="The first word of a group is taken where it is wanted and does not pass, and the 32 words of 16 "
    "beats do; others pass as without blocks.",
)
@proves(
    "load/widen",
    "values of blocks",
    Induction(6),
    _BLOCKS,
    values=True,
    claim="Each of a group's words is multiplied by the next of its factors in turn, rounded and saturated, "
    "for all codes and factors.",
)
class BlocksBench(Bench, unit=Widener):
    """The widener with blocks.

    Assumed: beats stay until they are taken; with `blocks` values are narrow; `narrow` and `blocks` are constant while
    a word waits and within a word, and `blocks` within a group. Factors are in the group's first word: value k
    multiplies the words k, k + N, ... of the group. With `values`, the bench claims the words, else the handshakes.
    """

    def __init__(self, config: Config, *, values: bool) -> None:
        super().__init__(config)
        self.values = values

    def watch(self, m: Module) -> None:
        dut = self.dut
        beat, wide = dut.beat, dut.wide
        word = Signal(range(GROUP_WORDS))  # of the group: words that have left
        inside = Signal()
        second = Signal()
        factors = Signal(8 * _BYTES, reset_less=True)
        self._assume(m, inside, second)
        heading = dut.blocks & ~inside
        passes = wide.valid & wide.ready
        with m.If(passes & dut.narrow):
            m.d.sync += second.eq(~second)
        with m.If(heading & beat.valid & beat.ready):
            m.d.sync += [inside.eq(1), word.eq(0), factors.eq(beat.payload)]
        with m.Elif(passes & inside):
            m.d.sync += [word.eq(word + 1), inside.eq(word != GROUP_WORDS - 1)]

        if self.values:
            self._claim_registers(m, inside, second, word, factors)
            self._claim_payload(word)
            return
        self.claim("factors do not pass", wide.valid == (beat.valid & ~heading))
        whole = wide.ready & (second | ~dut.narrow)
        self.claim("a beat is taken with its last word", implies(~heading, beat.ready == whole))
        self.claim(
            "factors are taken if they are wanted", implies(heading & beat.valid, beat.ready == dut.wanted)
        )
        self.claim("groups have whole beats", implies(inside, word[0] == second))
        self.cover(
            "a second group", heading & wide.ready & beat.valid & ago(m, inside, 1, "was_inside", reset=True)
        )

    def _claim_payload(self, word: Value) -> None:
        """Claim the words. The proof is cut at the registers that `_claim_registers` claims."""
        dut, wide = self.dut, self.dut.wide
        payload = dut.beat.payload
        values = payload.word_select(self.peeks["upper"], 4 * _BYTES)
        products = self._multiply(values, self.peeks["kept"][:8].as_signed())
        narrow = Mux(dut.blocks, products, bytes_of(values))
        self.claim("payload", implies(wide.valid, wide.payload == Mux(dut.narrow, narrow, payload)))
        self.cover(
            "a factor of the second turn", wide.valid & dut.blocks & (word == _BYTES) & (wide.payload != 0)
        )

    def _assume(self, m: Module, inside: Value, second: Value) -> None:
        dut, beat = self.dut, self.dut.beat
        before = Signal(2)
        holds = was(m, beat.valid & ~beat.ready)
        m.d.sync += [before.eq(Cat(dut.narrow, dut.blocks))]
        assume_stable(m, self, beat, "beat")
        self.assume(implies(holds, Cat(dut.narrow, dut.blocks) == before))
        self.assume(implies(second, dut.narrow))
        self.assume(implies(dut.blocks, dut.narrow))
        self.assume(implies(inside, dut.blocks))

    def _claim_registers(self, m: Module, inside: Value, second: Value, word: Value, factors: Value) -> None:
        """Claim the unit's registers: the next factor, number ``word mod N``, is in the lowest byte."""
        beat = self.dut.beat
        waits = was(m, beat.valid & ~beat.ready)
        self.claim("a beat waits for its second half", implies(second, waits))
        rotated = Mux(word[0], factors.rotate_right(8), factors)
        rotated = Mux(word[1], rotated.rotate_right(16), rotated)
        self.claim("kept", implies(inside, self.peek("kept") == rotated))
        self.claim("left", implies(inside, self.peek("left") == GROUP_WORDS - word))
        self.claim("begin", self.peek("begin") == ~inside)
        self.claim("upper", self.peek("upper") == second)
        self.claim("groups have whole beats", implies(inside, word[0] == second))

    @staticmethod
    def _multiply(values: Value, factor: Value) -> Value:
        """Return the products of `weft.hdl.isa.encoding.times`."""
        results = []
        for at in range(0, len(values), 4):
            rounded = (
                values[at : at + 4].as_signed() * factor + (1 << FACTOR_FRACTION_BITS - 1)
            ) >> FACTOR_FRACTION_BITS
            results.append(Mux(rounded > 127, 127, Mux(rounded < -128, -128, rounded))[:8])
        return Cat(*results)
