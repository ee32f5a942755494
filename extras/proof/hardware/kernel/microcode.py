"""Properties of MICROCODE, which loads micro-operations into the kernel engine's memory."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, Value

from weft.extras.proof.hardware.cuts import CutBench
from weft.extras.proof.hardware.property import Induction, proves
from weft.extras.proof.hardware.smallest import KERNEL_SMALLEST
from weft.hdl.isa import Microcode
from weft.hdl.isa.kernel import MICRO_BITS, MICRO_OPS
from weft.hdl.vector.kernel_sequence import KernelSequence
from weft.hdl.vector.vec_streams import is_kind, view


@proves("vector/kernel_sequence", "microcode", Induction(2), KERNEL_SMALLEST, cover=16)
class MicrocodeBench(CutBench):
    """Each micro-operation of MICROCODE is written once, to its entry of the memory, and nothing else is; the unit
    reports when all of them are written.

    The inputs are free. Assumed: no instruction comes while words are written, and there are 1 to `MICRO_OPS` words, as
    the checker guarantees. KERNEL may come at any other time.
    """

    UNIT = KernelSequence

    def watch(self, m: Module) -> None:
        dut = self.dut
        self.free_inputs(m)
        code = view(Microcode, dut.payload)
        loads = Signal(name="loads")
        m.d.comb += loads.eq(dut.load & is_kind(Microcode, dut.payload))
        fields = Signal(Microcode.layout())
        written = Signal(range(MICRO_OPS + 1))
        on, last = Signal(name="on"), Signal(name="last_word")
        self.assume(~loads | ((code.count >= 1) & (code.count <= MICRO_OPS)))
        self.assume(~(on & dut.load))
        m.d.comb += last.eq(on & (written == fields.count - 1))
        loaded = Signal(name="was_last")
        m.d.sync += loaded.eq(last)
        with m.If(loads):
            m.d.sync += [on.eq(1), written.eq(0), fields.eq(code)]
        with m.Elif(on):
            m.d.sync += [written.eq(written + 1), on.eq(~last)]
        word = self._word(m, fields, written)
        bits = (self.config.kernel - 1).bit_length()
        enable, stored = self.peek("store__en"), self.peek("store__data")
        address = self.peek("store__addr")
        self.claim("each word once", enable == on)
        self.claim("its word", ~on | (stored == word))
        self.claim("its place", ~on | (address == (fields.entry + written)[:bits]))
        self.claim("all of them are there", dut.loaded == loaded)
        self._claim_registers(fields, written, on)
        self.cover("the last of seven", last & (fields.count == MICRO_OPS) & (address == 3) & stored.all())
        self.cover("loaded", dut.loaded)

    def _word(self, m: Module, fields: Value, written: Signal) -> Signal:
        word = Signal(MICRO_BITS, name="word")
        with m.Switch(written):
            for index in range(MICRO_OPS):
                with m.Case(index):
                    m.d.comb += word.eq(fields[f"op{index}"])
        return word

    def _claim_registers(self, fields: Value, written: Signal, on: Signal) -> None:
        """Claim the words that are left, and their number."""
        words = self.peek("words")
        left = self.peek("left#0")
        self.claim("how many are left", left == Mux(on, fields.count - written, 0))
        for index in range(MICRO_OPS):
            word = words.word_select((index - written)[: MICRO_OPS.bit_length()], MICRO_BITS)
            there = on & (written <= index)
            self.claim(f"word {index}", ~there | (word == fields[f"op{index}"]))
        self.claim("some", ~on | ((written < fields.count) & (fields.count <= MICRO_OPS)))
