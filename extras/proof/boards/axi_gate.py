"""Properties of the gate in an AXI4 port, behind which a core is reset at any time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value

from weft.boards.bus.axi_gate import AxiGate
from weft.extras.proof.hardware.property import Bench, Property
from weft.extras.proof.hardware.smallest import SMALLEST

_CHANNELS = {
    "ar": ("id", "addr", "len", "size", "burst", "lock", "cache", "prot", "qos"),
    "aw": ("id", "addr", "len", "size", "burst", "lock", "cache", "prot", "qos"),
    "w": ("data", "strb", "last"),
}


class _Gate(Bench):
    """A gate with a manager behind it.

    Assumed of those who close it: it stays closed until it is idle. Assumed of the manager: what it offers stays until
    it is taken, as long as it is not reset, which may be in any cycle in which the gate is closed and idle.
    """

    def manager(self, m: Module) -> Signal:
        """Assume so; returns whether the gate was closed in the cycle before."""
        port = self.dut.port
        for name, members in _CHANNELS.items():
            payload = Cat(getattr(port, name + member) for member in members)
            waits, before = Signal(name=f"{name}_offered"), Signal(len(payload), name=f"{name}_was")
            valid = getattr(port, f"{name}valid")
            m.d.sync += [waits.eq(valid & ~getattr(port, f"{name}ready")), before.eq(payload)]
            free = self.dut.close & self.dut.idle
            self.assume(~waits | free | (valid & (payload == before)))
        closed, idle = Signal(name="closed_before"), Signal(name="idle_before")
        m.d.sync += [closed.eq(self.dut.close), idle.eq(self.dut.idle)]
        self.assume(~closed | idle | self.dut.close)
        return closed


class AxiGateBench(_Gate):
    """A gate that is closed at any time, with few bursts under way, of four words at most.

    Assumed of memory: it answers what it was asked for, a write when it has its words. Nothing is assumed of the
    manager's words: it may offer fewer than it owes, or more.
    """

    def __init__(self, writes: int, outstanding: int) -> None:
        self.outstanding = outstanding
        super().__init__(AxiGate(SMALLEST, writes=writes, outstanding=outstanding))

    def watch(self, m: Module) -> None:
        dut, memory = self.dut, self.dut.memory
        self.free_inputs(m)
        closed = self.manager(m)
        for name in ("ar", "aw"):
            self.assume(getattr(dut.port, f"{name}len") < 4)
        waits = {name: self._stays(m, name) for name in _CHANNELS}
        for name in ("ar", "aw"):
            self.claim(f"no {name} once closed", ~(dut.close & getattr(memory, f"{name}valid")) | waits[name])
            self.cover(f"{name} waits while closed", dut.close & waits[name])
        reads = self._reads(m)
        words, writes = self._writes(m)
        quiet = Signal()
        offered = memory.arvalid | memory.awvalid | memory.wvalid
        m.d.sync += quiet.eq(~(reads.any() | words.any() | writes.any() | offered))
        self.claim("idle where closed and nothing is owed", dut.idle == (closed & quiet))
        filled = Signal()
        m.d.sync += filled.eq(dut.close & memory.wvalid & ~dut.port.wvalid | filled & ~dut.idle)
        self.cover("idle behind words of its own", dut.idle & filled)

    def _stays(self, m: Module, name: str) -> Signal:
        """Claim that what memory is offered stays until it takes it; returns whether it stood there before."""
        memory: Any = self.dut.memory
        payload = Cat(getattr(memory, name + member) for member in _CHANNELS[name])
        waits, before = Signal(name=f"{name}_waits"), Signal(len(payload), name=f"{name}_before")
        valid = getattr(memory, f"{name}valid")
        m.d.sync += [waits.eq(valid & ~getattr(memory, f"{name}ready")), before.eq(payload)]
        self.claim(f"{name} stays", ~waits | (valid & (payload == before)))
        return waits

    def _reads(self, m: Module) -> Signal:
        """Bursts that memory owes words of."""
        memory = self.dut.memory
        owed = Signal(range(2 * self.outstanding), name="reads_owed")
        m.d.sync += owed.eq(
            owed + (memory.arvalid & memory.arready) - (memory.rvalid & memory.rready & memory.rlast)
        )
        self.assume(~memory.rvalid | owed.any())
        self.claim("reads bounded", owed < self.outstanding)
        return owed

    def _writes(self, m: Module) -> tuple[Signal, Signal]:
        """Words that memory is owed, of bursts that it was offered, and writes whose answer it owes."""
        memory = self.dut.memory
        first, stood = Signal(name="aw_first"), Signal(name="aw_stood")
        m.d.sync += stood.eq(memory.awvalid & ~memory.awready)
        m.d.comb += first.eq(memory.awvalid & ~stood)
        word = memory.wvalid & memory.wready
        words, bursts, writes = (
            Signal(range(8 * self.outstanding), name=name)
            for name in ("words_owed", "bursts_owed", "answers_owed")
        )
        m.d.sync += [
            words.eq(words + Mux(first, memory.awlen + 1, 0) - word),
            bursts.eq(bursts + first - (word & memory.wlast)),
            writes.eq(writes + first - (memory.bvalid & memory.bready)),
        ]
        self.assume(~memory.bvalid | (writes > bursts))
        self.claim("no word without a burst", ~memory.wvalid | words.any())
        self.claim("the last word of each burst", words.any() == bursts.any())
        self.claim("a word for each burst at least", words >= bursts)
        self.claim("writes bounded", writes < self.outstanding)
        return words, writes


class AxiGatePassing(_Gate):
    """A gate that is closed and opened at any time, in front of any memory."""

    def __init__(self) -> None:
        super().__init__(AxiGate(SMALLEST, writes=2, outstanding=4))

    def watch(self, m: Module) -> None:
        dut = self.dut
        self.free_inputs(m)
        closed = self.manager(m)
        for name, members in _CHANNELS.items():
            taken, reaches, same = self._sides(name, [item for item in members if item != "last"])
            self.claim(f"{name} passed on", ~taken | (reaches & same))
            if name == "w":
                self.claim("its own words have no bytes", ~reaches | taken | ~dut.memory.wstrb.any())
                self.claim("its own words while it is closed", ~reaches | taken | closed)
            else:
                self.claim(f"{name} of the manager only", ~reaches | taken)
            self.cover(f"{name} passes", taken & ~closed)
        for name, members in {"r": ("id", "data", "resp", "last"), "b": ("id", "resp")}.items():
            taken, reaches, same = self._sides(name, members)
            self.claim(f"{name} passed on", ~reaches | dut.close | (taken & same))
            self.claim(f"{name} of memory only", ~taken | reaches)
            self.cover(f"{name} passes", taken)

    def _sides(self, name: str, members: Iterable[str]) -> tuple[Value, Value, Value]:
        """Whether a transfer of a channel takes place on the manager's and on memory's side, and whether both have the
        same there."""
        port, memory = self.dut.port, self.dut.memory
        taken, reaches = (
            getattr(side, f"{name}valid") & getattr(side, f"{name}ready") for side in (port, memory)
        )
        return (
            taken,
            reaches,
            Cat(getattr(port, name + item) == getattr(memory, name + item) for item in members).all(),
        )


def properties() -> Iterator[Property]:
    yield Property(
        "boards/axi_gate",
        "closing",
        "Whenever the gate is closed and the manager reset behind it, memory sees whole bursts: what it is offered "
        "stays, each write has all its words, the last of them marked, no new burst begins, and the gate is idle when "
        "nothing is owed on either side, and only then.",
        partial(AxiGateBench, 2, 4),
        cover=16,
    )
    yield Property(
        "boards/axi_gate",
        "passing on",
        "What is taken on one side is at that moment offered on the other one, with the same payload: all but words "
        "without bytes, for writes whose words a closed gate does not wait for, and answers that it takes itself.",
        AxiGatePassing,
    )
