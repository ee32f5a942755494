"""Properties of parity: `weft.hdl.lib.arithmetic`, memories with parity, and the counts of words that changed."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from weft.extras.proof.hardware.pipelines import ago, implies, settled
from weft.extras.proof.hardware.property import Bench, CutBench, Induction, proves
from weft.extras.proof.hardware.smallest import SMALLEST
from weft.hdl.control.fetch import ParityCounts
from weft.hdl.isa.memmap import ParityMemory
from weft.hdl.isa.operands import READ_LATENCY
from weft.hdl.lib.arithmetic import Coding
from weft.hdl.memory import Accumulator, Scratchpad
from weft.hdl.sequential.core import Scratchpad as SequentialScratchpad

_CHECKED = SMALLEST.replace(parity=1)
_MOST = 255
"""Maximum of a count."""


class _Coder(wiring.Component):
    """Encoder and decoder of a word, with changes of bits between them."""

    def __init__(self, group: int, groups: int) -> None:
        self.group, self.coding = group, Coding(_CHECKED, group)
        width = group * groups
        stored = self.coding.width(width)
        super().__init__(
            {
                "word": In(width),
                "flips": In(stored),
                "stored": Out(stored),
                "read": Out(width),
                "wrong": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        word, changed = self.coding.decode(self.stored ^ self.flips)
        m.d.comb += [
            self.stored.eq(self.coding.encode(self.word)),
            self.read.eq(word),
            self.wrong.eq(changed),
        ]
        return m


def _split_groups(word: Value, size: int) -> list[Value]:
    """Return the groups of a word in memory, each of `size` bits and a parity bit."""
    return [word[at : at + size + 1] for at in range(0, len(word), size + 1)]


def has_odd_group(word: Value, size: int) -> Value:
    """Return whether a group has an odd number of bits that are 1."""
    return Cat(group.xor() for group in _split_groups(word, size)).any()


@proves("lib/parity", {"3 groups of 8 bits": (8, 3), "2 groups of 32 bits": (32, 2)}, Induction(1))
class CodingBench(Bench, unit=_Coder):
    """A word comes out of memory as it went in, but for bits that have changed there. It is wrong exactly where an odd
    number of bits of a group has changed: each bit that changes alone is seen, and no error is invented.

    Nothing is assumed: any bits may change.
    """

    def watch(self, m: Module) -> None:
        dut, size = self.dut, self.dut.group
        data = Cat(group[:size] for group in _split_groups(dut.flips, size))
        self.claim("bits come out as they went in but those that changed", dut.read == dut.word ^ data)
        self.claim(
            "wrong where an odd number of bits of a group changed",
            dut.wrong == has_odd_group(dut.flips, size),
        )
        alone = (dut.flips != 0) & ((dut.flips & (dut.flips - 1)[: len(dut.flips)]) == 0)
        self.claim("each bit that changes alone is seen", implies(alone, dut.wrong))
        self.claim("nothing is seen where nothing changed", dut.flips.any() | ~dut.wrong)
        self.claim("a memory of zeros is right", dut.word.any() | ~dut.stored.any())
        # From registers, as ABC searches no netlist without them.
        masked = ago(m, dut.flips.any() & ~dut.wrong, 1, "hidden")
        both = ago(m, Cat(group.xor() for group in _split_groups(dut.flips, size))[:2].all(), 1, "both")
        self.cover("two bits of a group hide each other", masked)
        self.cover("two groups are wrong", both)


class _BanksBench(CutBench):
    """Memory gets words with the right parity only, and a word that is read is wrong exactly where the parity of a
    requested word is. The error is reported in the cycle after the word stands at the output.

    Each read returns any word: any bits may have changed. A word stands at its bank's port two cycles after its
    request, at the memory's output a cycle later, and an error is reported in the cycle after that. Nothing is assumed.
    """

    GROUP: int
    """Number of bits that share a parity bit."""

    def asks(self, bank: int) -> Value:
        """Return whether a word of a bank is requested in this cycle."""
        raise NotImplementedError

    def watch(self, m: Module) -> None:
        dut = self.dut
        begun = settled(m, 1, "begun")  # ports of memories read once after a reset
        due: list[Value] = []
        self.outputs: list[Value] = []
        for bank, memory in enumerate(self.memories):
            (read,), (write,) = memory.read_ports, memory.write_ports
            self.claim(f"bank {bank} gets words that are right", ~has_odd_group(write.data, self.GROUP))
            asked = ago(m, self.asks(bank), 1, f"asked{bank}", reset=True)
            wanted = read.en == (asked & ~self.blocked(read, write))
            self.claim(f"bank {bank} is read where it is asked", implies(begun, wanted))
            due.append(ago(m, read.en, 1, f"read{bank}", reset=True) & has_odd_group(read.data, self.GROUP))
            data = Cat(group[: self.GROUP] for group in _split_groups(read.data, self.GROUP))
            self.outputs.append(ago(m, data, 1, f"output{bank}"))
            self.cover(f"a word of bank {bank} is wrong", due[-1])
        self.claim("wrong", dut.wrong == ago(m, Cat(due).any(), 2, "due", reset=True))
        self.claim_readers(m)

    def blocked(self, read: Any, write: Any) -> Value:
        """Return whether a bank must not be read in this cycle."""
        return Const(0)

    def claim_readers(self, m: Module) -> None:
        """Claim that readers get the words without their parity."""
        raise NotImplementedError

    def _claim_reader(self, m: Module, name: str, address: Value, data: Value, depth: int) -> None:
        bank = ago(m, address // depth, READ_LATENCY, f"bank_of_{name}".replace(" ", "_"), reset=True)
        self.claim(f"{name} gets the word", data == Array(self.outputs)[bank])


@proves("memory/scratchpad", "parity", Induction(6), _CHECKED, readers=2, writers=2)
class ScratchpadBench(_BanksBench, unit=Scratchpad):
    """Memory gets words with the right parity only, and what is read is wrong exactly where the parity of a word that
    was asked for is; it is reported in the cycle after the word stands at the output.

    The pipelined core's scratchpad.
    """

    GROUP = 8

    def asks(self, bank: int) -> Value:
        ports, depth = self.dut.read, _CHECKED.scratchpad_depth
        return Cat(port.valid & (port.address // depth == bank) for port in ports).any()

    def claim_readers(self, m: Module) -> None:
        for index, port in enumerate(self.dut.read):
            self._claim_reader(m, f"reader {index}", port.address, port.data, _CHECKED.scratchpad_depth)


@proves("memory/accumulator", "parity", Induction(6), _CHECKED)
class AccumulatorBench(_BanksBench, unit=Accumulator):
    """Memory gets words with the right parity only, and what is read is wrong exactly where the parity of a word that
    was asked for is; it is reported in the cycle after the word stands at the output.

    The accumulator, whose banks are read by a reader, and for rows that are added to.
    """

    GROUP = 32

    def asks(self, bank: int) -> Value:
        read, write, depth = self.dut.read, self.dut.write, _CHECKED.accumulator_depth
        adds = write.valid & ~write.overwrite & (write.address // depth == bank)
        return adds | read.valid & (read.address // depth == bank)

    def blocked(self, read: Any, write: Any) -> Value:
        """Return whether the row is being written."""
        return write.en & (write.addr == read.addr)

    def claim_readers(self, m: Module) -> None:
        port = self.dut.read
        self._claim_reader(m, "the reader", port.address, port.data, _CHECKED.accumulator_depth)


@proves("sequential/scratchpad", "parity", Induction(4), _CHECKED)
class SequentialBench(CutBench, unit=SequentialScratchpad):
    """Memory gets words with the right parity only, and a vector is wrong exactly where its own is, in the cycle after
    the read.

    The sequential core's scratchpad, of which each read returns any word. Nothing is assumed.
    """

    def watch(self, m: Module) -> None:
        dut = self.dut
        (memory,) = self.memories
        (read,), (write,) = memory.read_ports, memory.write_ports
        groups = _split_groups(read.data, 8)
        self.claim("memory gets words that are right", ~has_odd_group(write.data, 8))
        self.claim("the vector", dut.vector == Cat(group[:8] for group in groups))
        due = ago(m, dut.read, 1, "read", reset=True) & has_odd_group(read.data, 8)
        self.claim("wrong in the cycle after a read", dut.wrong == due)
        self.cover("wrong", due)


@proves("control/parity_counts", "counts", Induction(2))
class CountsBench(Bench, unit=ParityCounts):
    """A count has the words that were wrong since it was cleared, up to the cycle before, at most 255; an error is
    reported in the cycle after a word was wrong.

    Nothing is assumed.
    """

    def watch(self, m: Module) -> None:
        dut = self.dut
        wrong = ago(m, dut.wrong, 1, "wrong", reset=True)
        self.claim("error", dut.error == wrong.any())
        for memory in ParityMemory:
            name = memory.name.lower()
            count = Signal(range(_MOST + 1), name=f"count_{name}")
            m.d.sync += count.eq(Mux(dut.clear, 0, count + (wrong[memory] & (count != _MOST))))
            self.claim(f"count of {name}", dut.counts[memory] == count)
            self.cover(f"two of {name}", count == 2)
