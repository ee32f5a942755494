"""Properties of the kernel engine's memories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from amaranth.hdl import Cat, Module, Signal

from weft.extras.proof.hardware.pipelines import ago, implies
from weft.extras.proof.hardware.property import Bench, Invariant, proves
from weft.extras.proof.hardware.smallest import KERNEL_SMALLEST
from weft.hdl.isa.kernel import MICRO_BITS
from weft.hdl.vector.kernel import KernelLanes
from weft.hdl.vector.kernel_sequence import KernelSequence

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
        self.free_inputs(m)
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
