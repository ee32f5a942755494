"""Properties of the kernel engine's memories, and of MICROCODE, which loads micro-operations into one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value

from weft.extras.proof.hardware.pipelines import ago, implies, was
from weft.extras.proof.hardware.property import Bench, CutBench, Induction, Invariant, proves
from weft.extras.proof.hardware.smallest import KERNEL_SMALLEST
from weft.hdl.isa import Microcode
from weft.hdl.isa.kernel import MICRO_BITS, MICRO_OPS
from weft.hdl.vector.kernel import KernelLanes
from weft.hdl.vector.kernel_sequence import KernelSequence
from weft.hdl.vector.vec_streams import is_kind, view

_LANES = KERNEL_SMALLEST.lanes
_ENDS = (0, 32 * _LANES - 1)
"""The watched bits of a register: all bits of a word take the same way."""


@proves(
    "vector/kernel_sequence",
    "memory of micro-operations",
    Invariant(),
    KernelSequence,
    {"memory": range(MICRO_BITS)},
    claim="A read returns the micro-operation that was written last to its entry.",
    part=True,
)
@proves(
    "vector/kernel_lanes",
    "registers",
    Invariant(),
    KernelLanes,
    {"register_a_copy": _ENDS, "register_b_copy": _ENDS, "predicates": range(_LANES)},
    claim="A read of a register, or of a predicate, returns the value that was written to it last. The first "
    "and last bit of a register are watched.",
    part=True,
)
class MemoryBench(Bench):
    """A unit with free inputs, and one watched address of each of its memories, which may be any address.

    A read returns, in the cycle after its address, the word that was last written there since the reset.

    Parameters
    ----------
    unit : type
        Class of the unit.
    memories : mapping of str to sequence of int
        By submodule: which bits of a word are watched.
    """

    def __init__(self, unit: Any, memories: Mapping[str, Sequence[int]]) -> None:
        super().__init__(unit(KERNEL_SMALLEST))
        self.memories = memories

    def watch(self, m: Module) -> None:
        for name, bits in self.memories.items():
            self._claim_memory(m, name, bits)

    def _claim_memory(self, m: Module, name: str, bits: Sequence[int]) -> None:
        address, word = self.peek(f"{name}.store__addr"), self.peek(f"{name}.store__data")
        watched = self.constant(m, len(address), f"watched_{name}")
        content = Signal(len(bits), name=f"content_{name}", reset_less=True)
        known = Signal(name=f"known_{name}")
        with m.If(self.peek(f"{name}.store__en") & (address == watched)):
            m.d.sync += [content.eq(Cat(word[bit] for bit in bits)), known.eq(1)]
        asked = known & (self.peek(f"{name}.fetch__addr") == watched)
        read = ago(m, asked, 1, f"asked_{name}", reset=True)
        expected = ago(m, content, 1, f"expected_{name}")
        word = self.peek(f"{name}.fetch__data")
        right = Cat(word[bit] for bit in bits) == expected
        self.claim(f"{name} reads what was written", implies(read, right))
        self.cover(f"{name} reads what was written", read & expected[0] & ~expected[-1])


@proves("vector/kernel_sequence", "microcode", Induction(2), KERNEL_SMALLEST, cover=16)
class MicrocodeBench(CutBench, unit=KernelSequence):
    """Each micro-operation of MICROCODE is written once, to its entry of the memory, and nothing else is; the unit
    reports when all of them are written.

    The inputs are free. Assumed: no instruction comes while words are written, and there are 1 to `MICRO_OPS` words, as
    the checker guarantees. KERNEL may come at any other time.
    """

    def watch(self, m: Module) -> None:
        dut = self.dut
        code = view(Microcode, dut.payload)
        loads = Signal(name="loads")
        m.d.comb += loads.eq(dut.load & is_kind(Microcode, dut.payload))
        fields = Signal(Microcode.layout())
        written = Signal(range(MICRO_OPS + 1))
        on, last = Signal(name="on"), Signal(name="last_word")
        self.assume(~loads | ((code.count >= 1) & (code.count <= MICRO_OPS)))
        self.assume(~(on & dut.load))
        m.d.comb += last.eq(on & (written == fields.count - 1))
        loaded = was(m, last, "was_last")
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
