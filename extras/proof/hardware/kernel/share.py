"""Properties of the vector unit with the kernel engine: distribution of instructions, ports and the writer."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, Value

from weft.extras.proof.hardware.cuts import CutBench
from weft.extras.proof.hardware.pipelines import ago, implies, latch
from weft.extras.proof.hardware.property import Induction, proves
from weft.extras.proof.hardware.smallest import KERNEL_SMALLEST
from weft.hdl.isa import Kernel, Microcode
from weft.hdl.vector.vec import VecUnit
from weft.hdl.vector.vec_streams import is_one_of, results_layout


@proves("vector/vec", "the kernel engine's share", Induction(3), KERNEL_SMALLEST, cover=32, part=True)
class ShareBench(CutBench):
    """KERNEL and MICROCODE go to the kernel engine once, when no other instruction is in the unit, and no other one
    comes before its end. Meanwhile the engine has the ports and the writer. Its vectors are written to their addresses,
    and its signal comes after the last one.

    The inputs are free; nothing is assumed.
    """

    UNIT = VecUnit

    def watch(self, m: Module) -> None:
        dut = self.dut
        self.free_inputs(m)
        self.active = self.peek("kernel.active")
        reader = self.peek("reader.active")
        instruction = dut.instruction
        wanted, taken = Signal(name="for_the_engine"), Signal(name="taken")
        m.d.comb += [
            wanted.eq(is_one_of((Kernel, Microcode), instruction.payload)),
            taken.eq(instruction.valid & instruction.ready),
        ]
        to_engine = self.peek("kernel.instruction__valid")
        self.claim("one of them at a time", ~(self.active & reader))
        self.claim("its instructions", (to_engine & ~self.active) == (taken & wanted))
        self.claim("alone", implies(taken & wanted, ~reader))
        others = self.peek("reader.instruction__valid") & self.peek("reader.instruction__ready")
        self.claim("others are not its", others == (taken & ~wanted))
        ends = Signal(name="ends")
        m.d.comb += ends.eq(self._peek_results().end)
        due = Signal(name="due")
        m.d.sync += due.eq((taken & wanted) | (due & ~ends))
        self.claim("from its start to its end", self.active == due)
        self.claim("busy", implies(due | reader, dut.busy))
        last = latch(m, taken, wanted, 1, "last_was_its")
        self.claim("which was the last one", self.peek("kernel_last") == last)
        mask = Mux(last, self.peek("kernel.mask"), self.peek("reader.signal"))
        signalled = ago(m, Mux(ends, mask, 0), 2, "mask", reset=True)
        self.claim("what it signals when it is written", dut.signal == signalled)
        self._claim_ports()
        self._claim_writes(m)
        self.cover("it signals", dut.signal.any() & last)

    def _peek_results(self) -> Value:
        layout = results_layout(self.config)
        return layout(self.peek("writer.results"))

    def _claim_ports(self) -> None:
        """Claim that the engine has the ports while it is active."""
        for name in ("scratchpad", "accumulator"):
            port = getattr(self.dut, name)
            asks, other = (self.peek(f"{unit}.{name}__valid") for unit in ("kernel", "reader"))
            address = self.peek(f"kernel.{name}__address")
            self.claim(f"{name} asked", port.valid == (asks | other))
            self.claim(f"{name} where", implies(self.active & asks, port.address == address))
            self.claim(f"{name} granted", self.peek(f"kernel.{name}__ready") == port.ready)

    def _claim_writes(self, m: Module) -> None:
        """Claim that only the engine's results are written while it is active."""
        layout = results_layout(self.config)
        own = layout(self.peek("kernel.results"))
        there = self._peek_results()
        self.claim("its results", implies(self.active, Value.cast(own) == Value.cast(there)))
        written = ago(m, self.active & own.write, 1, "own_write", reset=True)
        place = ago(m, own.dst, 1, "own_place", reset=True)
        self.claim("are written", implies(written, self.dut.write.valid & (self.dut.write.address == place)))
        self.cover("are written", written & (place == 5))
