"""Properties of the connection of the kernel engine's sequence and lanes."""

from __future__ import annotations

from amaranth.hdl import Module, Signal, Value
from amaranth.lib import data

from weft.extras.proof.hardware.cuts import CutBench
from weft.extras.proof.hardware.pipelines import implies, latch
from weft.extras.proof.hardware.property import Induction, proves
from weft.extras.proof.hardware.smallest import KERNEL_SMALLEST
from weft.extras.proof.hardware.streams import Order
from weft.extras.proof.hardware.walks import claim_slots, skid_slots
from weft.hdl.isa import Kernel
from weft.hdl.vector.kernel import KernelEngine
from weft.hdl.vector.kernel_sequence import request_layout
from weft.hdl.vector.vec_streams import results_layout, view

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
class EngineBench(CutBench):
    """Instructions are taken one at a time. Each slot of the sequence comes to the lanes once, in order, in the cycle
    in which its read is granted. Results are passed on, and the end comes with the last result or with the last word of
    a MICROCODE.

    The inputs are free: reads are refused, and instructions end, at any time. A slot, which may be any, is followed
    from the sequence to the cycle of its read.
    """

    UNIT = KernelEngine

    def watch(self, m: Module) -> None:
        self.free_inputs(m)
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
        order = Order(m, self, push=comes, i=slot, pop=granted, o=word, most=_MOST)
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
