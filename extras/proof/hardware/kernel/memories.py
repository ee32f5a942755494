"""Properties of the kernel engine's memories."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from amaranth.hdl import Cat, Module, Signal

from weft.extras.proof.hardware.pipelines import ago, implies
from weft.extras.proof.hardware.property import Bench, Invariant, Property
from weft.extras.proof.hardware.smallest import KERNEL_SMALLEST
from weft.hdl.isa.kernel import MICRO_BITS, REGISTERS, STRIP_ROWS
from weft.hdl.vector.kernel import KernelLanes
from weft.hdl.vector.kernel_sequence import KernelSequence


class MemoryBench(Bench):
    """A unit with free inputs, and one watched address of each of its memories, which may be any address.

    A read returns, in the cycle after its address, the word that was last written there since the reset.

    Parameters
    ----------
    unit : type
        Class of the unit.
    memories : mapping of str to (int, int, tuple of int)
        By submodule: bits of a word, bits of an address, and which bits of a word are watched.
    """

    def __init__(self, unit: Any, memories: Mapping[str, tuple[int, int, Sequence[int]]]) -> None:
        super().__init__(unit(KERNEL_SMALLEST))
        self.memories = memories

    def watch(self, m: Module) -> None:
        self.free_inputs(m)
        for name, memory in self.memories.items():
            self._memory(m, name, *memory)

    def _memory(self, m: Module, name: str, width: int, size: int, bits: Sequence[int]) -> None:
        watched = self.constant(m, size, f"watched_{name}")
        enable, word = self.peek(f"{name}.store__en"), self.peek(f"{name}.store__data")
        writes = enable & (self.peek(f"{name}.store__addr") == watched)
        content = Signal(len(bits), name=f"content_{name}", reset_less=True)
        known = Signal(name=f"known_{name}")
        with m.If(writes):
            m.d.sync += [content.eq(Cat(word[bit] for bit in bits)), known.eq(1)]
        asked = known & (self.peek(f"{name}.fetch__addr") == watched)
        read = ago(m, asked, 1, f"asked_{name}", reset=True)
        expected = ago(m, content, 1, f"expected_{name}")
        word = self.peek(f"{name}.fetch__data")
        right = Cat(word[bit] for bit in bits) == expected
        self.claim(f"{name} reads what was written", implies(read, right))
        self.cover(f"{name} reads what was written", read & expected[0] & ~expected[-1])


_ENTRY = (STRIP_ROWS - 1).bit_length()
_REGISTER = (REGISTERS - 1).bit_length()


def properties() -> Iterator[Property]:
    config, lanes = KERNEL_SMALLEST, KERNEL_SMALLEST.lanes
    micro = (MICRO_BITS, (config.kernel - 1).bit_length(), range(MICRO_BITS))
    register = (32 * lanes, _ENTRY + _REGISTER, (0, 32 * lanes - 1))
    predicate = (lanes, _ENTRY, range(lanes))
    yield MemoryBench.proves(
        "vector/kernel_sequence",
        "memory of micro-operations",
        Invariant(),
        KernelSequence,
        {"memory": micro},
        claim="A read returns the micro-operation that was written last to its entry.",
        part=True,
    )
    yield MemoryBench.proves(
        "vector/kernel_lanes",
        "registers",
        Invariant(),
        KernelLanes,
        {"register_a_copy": register, "register_b_copy": register, "predicates": predicate},
        claim="A read of a register, or of a predicate, returns the value that was written to it last. The "
        "first and last bit of a register are watched.",
        part=True,
    )
