"""The kernel engine's memories: what is read is what was written."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from amaranth.hdl import Cat, Elaboratable, Module, Signal

from weft.extras.proof.hardware.kernel.arithmetic import KERNEL_SMALLEST
from weft.extras.proof.hardware.pipelines import ago, implies
from weft.extras.proof.hardware.property import Bench, Property
from weft.hdl.isa.kernel import MICRO_BITS, REGISTERS, STRIP_ROWS
from weft.hdl.vector.kernel import KernelLanes
from weft.hdl.vector.kernel_sequence import KernelSequence


class MemoryBench(Bench):
    """A unit in free inputs, and one address of each of its memories, any one, which is watched: what was written to it
    last, since the last reset, is what is read in the cycle behind its address.

    Parameters
    ----------
    dut : component
    memories : sequence of (str, int, int, tuple of int)
        Of each what is read of it, the bits of a word and of an address, and which bits of the word are watched.
    """

    def __init__(self, dut: Elaboratable, memories: Sequence[tuple[str, int, int, Sequence[int]]]) -> None:
        super().__init__(dut)
        self.memories = memories

    def watch(self, m: Module) -> None:
        self.free_inputs(m)
        for number, memory in enumerate(self.memories):
            self._memory(m, number, *memory)

    def _memory(self, m: Module, number: int, name: str, width: int, size: int, bits: Sequence[int]) -> None:
        place = f"#{number}"
        watched = self.constant(m, size, f"watched{number}")
        enable = self.peek(f"store__en{place}", 1)
        word, address = (
            self.peek(f"store__data{place}", width),
            self.peek(f"store__addr{place}", size),
        )
        kept, known = Signal(len(bits), name=f"kept{number}", reset_less=True), Signal(name=f"known{number}")
        with m.If(enable & (address == watched)):
            m.d.sync += [kept.eq(Cat(word[bit] for bit in bits)), known.eq(1)]
        asked = known & (self.peek(f"fetch__addr{place}", size) == watched)
        read = ago(m, asked, 1, f"asked{number}", reset=True)
        due = ago(m, kept, 1, f"due{number}")
        found = self.peek(name, width)
        same = Cat(found[bit] for bit in bits) == due
        self.claim(f"{name} reads what was written", implies(read, same))
        self.cover(f"{name} reads what was written", read & due[0] & ~due[-1])


_ENTRY = (STRIP_ROWS - 1).bit_length()
_REGISTER = (REGISTERS - 1).bit_length()


def _micro() -> Bench:
    entries = (KERNEL_SMALLEST.kernel - 1).bit_length()
    return MemoryBench(
        KernelSequence(KERNEL_SMALLEST), [("fetch__data", MICRO_BITS, entries, range(MICRO_BITS))]
    )


def _registers() -> Bench:
    lanes = KERNEL_SMALLEST.lanes
    width = 32 * lanes
    memories: list[tuple[str, int, int, Sequence[int]]] = [
        (name, width, _ENTRY + _REGISTER, (0, width - 1)) for name in ("register_a", "register_b")
    ]
    memories.append(("fetch__data#0", lanes, _ENTRY, range(lanes)))
    return MemoryBench(KernelLanes(KERNEL_SMALLEST), memories)


def properties() -> Iterator[Property]:
    yield Property(
        "vector/kernel_sequence",
        "memory of micro-operations",
        "A read returns the micro-operation that was written last to its entry.",
        _micro,
        part=True,
    )
    yield Property(
        "vector/kernel_lanes",
        "registers",
        "A read of a register, or of a predicate, returns what was written to it last; of a register its first and "
        "last bit are watched.",
        _registers,
        part=True,
    )
