"""Memories as their ports: proofs of what is around a memory do not need what it holds."""

from __future__ import annotations

from amaranth.hdl import Elaboratable, Fragment, Module, Value
from amaranth.lib.memory import Memory

from weft.extras.proof.hardware.pipelines import connect_all
from weft.extras.proof.hardware.property import Bench


class CutMemories:
    """A platform of Amaranth on which a read of a memory returns any value in every cycle.

    What is proven of a unit on it holds whatever its memories hold. That a read returns what was written last is a
    property of Amaranth's memories then, and not proven.
    """

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.cut: list[Memory] = []
        """The memories, in the order in which the unit is elaborated: their ports are to be looked at."""

    def get_memory(self, memory: Memory) -> Module:
        """Called by `Memory` when it is elaborated."""
        m = Module()
        self.cut.append(memory)
        for port in memory.read_ports:
            value = Value.cast(port.data)
            read = self._bench.free(len(value), f"read_{len(self._bench.inputs)}")
            m.d.comb += value.eq(read)
        return m


class CutBench(Bench):
    """A bench of a unit whose memories are cut.

    All outputs of the unit are connected, whichever of them are claimed anything of, so that benches have the same
    netlist of it: each is shown the faults that others do not see.
    """

    def middle(self) -> Elaboratable | Fragment:
        cutting = CutMemories(self)
        self.memories = cutting.cut
        return Fragment.get(self.dut, cutting)

    def free_inputs(self, m: Module, *but: str) -> None:
        super().free_inputs(m, *but)
        connect_all(m, self.dut, "outputs")
