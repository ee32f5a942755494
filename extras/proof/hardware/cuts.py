"""Benches without the contents of memories: reads return any value."""

from __future__ import annotations

from amaranth.hdl import Elaboratable, Fragment, Module, Value
from amaranth.lib.memory import Memory

from weft.extras.proof.hardware.pipelines import connect_all
from weft.extras.proof.hardware.property import Bench


class CutMemories:
    """Amaranth platform on which a read of a memory returns any value in every cycle.

    Properties that are proven with it hold for any contents of memories. They do not cover that a read returns the word
    that was written last, which is a property of Amaranth's memories.
    """

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.cut: list[Memory] = []
        """The memories, in the order of elaboration. Benches use their ports."""

    def get_memory(self, memory: Memory) -> Module:
        """Return the replacement of a memory; `Memory` calls this when it is elaborated."""
        m = Module()
        self.cut.append(memory)
        for port in memory.read_ports:
            value = Value.cast(port.data)
            read = self._bench.free(len(value), f"read_{len(self._bench.inputs)}")
            m.d.comb += value.eq(read)
        return m


class CutBench(Bench):
    """Bench of a unit whose memories are cut.

    All outputs of the unit are connected, so all benches have an equal netlist of it, and share mutants.
    """

    def middle(self) -> Elaboratable | Fragment:
        cutting = CutMemories(self)
        self.memories = cutting.cut
        return Fragment.get(self.dut, cutting)

    def free_inputs(self, m: Module, *but: str) -> None:
        super().free_inputs(m, *but)
        connect_all(m, self.dut, "outputs")
