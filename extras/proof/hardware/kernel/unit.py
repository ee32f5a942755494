"""Properties of the connections of the kernel engine: inside it, and with the vector unit."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import data

from weft.extras.proof.hardware.pipelines import ago, flag, implies, latch
from weft.extras.proof.hardware.property import CutBench, Induction, proves
from weft.extras.proof.hardware.smallest import KERNEL_SMALLEST
from weft.extras.proof.hardware.streams import Order
from weft.extras.proof.hardware.walks import claim_slots, skid_slots
from weft.hdl.isa import Kernel, Microcode
from weft.hdl.vector.kernel import KernelEngine
from weft.hdl.vector.kernel_sequence import request_layout
from weft.hdl.vector.vec import VecUnit
from weft.hdl.vector.vec_streams import is_one_of, results_layout, view


@proves("vector/vec", "the kernel engine's share", Induction(3), KERNEL_SMALLEST, cover=32, part=True)
class ShareBench(CutBench, unit=VecUnit):
    """KERNEL and MICROCODE go to the kernel engine once, when no other instruction is in the unit, and no other one
    comes before its end. Meanwhile the engine has the ports and the writer. Its vectors are written to their addresses,
    and its signal comes after the last one.

    The inputs are free; nothing is assumed.
    """

    def watch(self, m: Module) -> None:
        dut = self.dut
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
        due = flag(m, taken & wanted, ends, "due")
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


_MOST = 3
"""Slots between the sequence and the lanes: two in the skid buffer, and the slot that reads."""


@proves(
    "vector/kernel",
    "the way of slots",
    Induction(2),
    KERNEL_SMALLEST,
    cover=32,
    proven=("sequence", "lanes", "skid"),
)
class EngineBench(CutBench, unit=KernelEngine):
    """Instructions are taken one at a time. Each slot of the sequence comes to the lanes once, in order, in the cycle
    in which its read is granted. Results are passed on, and the end comes with the last result or with the last word of
    a MICROCODE.

    The inputs are free: reads are refused, and instructions end, at any time. A slot, which may be any, is followed
    from the sequence to the cycle of its read.
    """

    def watch(self, m: Module) -> None:
        self._claim_instructions(m)
        self._claim_slots(m)
        self._claim_connections()

    def _claim_instructions(self, m: Module) -> None:
        """Claim that there is one instruction at a time, whose fields stay until the next one comes."""
        dut = self.dut
        taken, active = Signal(name="taken"), Signal(name="is_active")
        payload = dut.instruction.payload
        m.d.comb += taken.eq(dut.instruction.valid & ~active)
        m.d.sync += active.eq(taken | active & ~dut.finish)
        fields = {
            "mask": (payload.signal, dut.mask),
            "source": (payload.source, self.peek("lanes.source")),
            "tail": (view(Kernel, payload).tail, self.peek("lanes.tail")),
        }
        for name, (value, register) in fields.items():
            field = latch(m, taken, value, len(value), f"field_{name}")
            self.claim(name, register == field)
        self.claim("active", dut.active == active)
        self.claim("one at a time", dut.instruction.ready == ~active)
        self.claim("taken", self.peek("sequence.load") == taken)
        word = self.peek("sequence.payload")
        self.claim("the sequence's instruction", word == Value.cast(payload))
        self.cover("another one", taken & (dut.mask == 3) & (self.peek("lanes.tail") == 2))

    def _claim_slots(self, m: Module) -> None:
        dut = self.dut
        layout = request_layout(self.config)
        valid, word = self.peek("request_valid"), self.peek("request")
        request = data.View(layout, word)
        refused = (request.ask_scratchpad & ~dut.scratchpad.ready) | (
            request.ask_accumulator & ~dut.accumulator.ready
        )
        granted = valid & ~refused
        comes = self.peek("sequence.valid") & self.peek("sequence.ready")
        slot = self.peek("sequence.slot")
        order = Order(m, self, i=(comes, slot), o=(granted, word), most=_MOST)
        claim_slots(self, order, [(valid, word), *skid_slots(self)], "slot")
        for name, port in (("scratchpad", dut.scratchpad), ("accumulator", dut.accumulator)):
            asks = valid & request[f"ask_{name}"]
            self.claim(f"reads of the {name}", port.valid == asks)
            address = request.address[: len(port.address)]
            self.claim(f"where in the {name}", implies(asks, port.address == address))
        self.claim("a read waits", dut.stall_port == (valid & refused))
        issued = self.peek("lanes.issue")
        issue = data.View(request.issue.shape(), issued)
        self.claim("to the lanes when it reads", issue.valid == (granted & request.issue.valid))
        same = Value.cast(issue)[1:] == Value.cast(request.issue)[1:]
        self.claim("as it is", same)
        self.cover("a read waits", dut.stall_port & (request.address == 5))

    def _claim_connections(self) -> None:
        dut = self.dut
        layout = results_layout(self.config)
        results = data.View(layout, self.peek("results"))
        loaded = self.peek("sequence.loaded")
        self.claim("the end", dut.results.end == (results.end | loaded))
        for name in ("write", "index", "dst", "bytes"):
            self.claim(f"results: {name}", Value.cast(dut.results[name]) == Value.cast(results[name]))
        inputs = {"vectors": dut.vectors, "rows": dut.rows, "entries": Value.cast(dut.entries)}
        for name, value in inputs.items():
            self.claim(f"{name} to the lanes", self.peek(f"lanes.{name}") == value)
        for name, value in {"group": dut.group, "index": Value.cast(dut.index), "table": dut.table}.items():
            self.claim(f"{name} of the lanes", self.peek(f"lanes.{name}") == value)
