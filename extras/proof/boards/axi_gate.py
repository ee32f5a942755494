"""Properties of the gate in an AXI4 port that lets a core be reset at any time."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, Value

from weft.boards.bus.axi import AxiGate
from weft.extras.proof.hardware.pipelines import flag, was
from weft.extras.proof.hardware.property import Bench, Invariant, proves
from weft.extras.proof.hardware.smallest import SMALLEST
from weft.extras.proof.hardware.streams import (
    assume_answers,
    assume_stable,
    axi_channel,
    count,
    stable,
    transfer,
)

_OUTSTANDING = 4
_FROM_MANAGER = ("ar", "aw", "w")


class _GateBench(Bench, unit=AxiGate):
    """A gate between a memory and a manager.

    Assumed: a gate stays closed until it is idle. The manager keeps what it offers until it is taken, but for a reset,
    which may come in any cycle in which the gate is closed and idle.
    """

    def assume_manager(self, m: Module) -> Signal:
        """State the assumptions; return whether the gate was closed in the cycle before."""
        for name in _FROM_MANAGER:
            resets = self.dut.close & self.dut.idle
            assume_stable(m, self, axi_channel(self.dut.port, name), f"port_{name}", unless=resets)
        closed = was(m, self.dut.close, "closed_before")
        idle = was(m, self.dut.idle, "idle_before")
        self.assume(~closed | idle | self.dut.close)
        return closed


@proves("boards/axi_gate", "closing", Invariant(), SMALLEST, cover=16, writes=2, outstanding=_OUTSTANDING)
class AxiGateBench(_GateBench):
    """Whenever the gate is closed and the manager is reset, memory sees whole bursts: its inputs are stable, each write
    has all its words, the last of them marked, and no new burst begins. The closed gate is idle exactly when nothing is
    owed on either side.

    A gate that is closed at any time, with few bursts under way, of at most four words.

    Assumed: memory answers only requests, and a write when it has its words. Nothing is assumed of the number of the
    manager's words.
    """

    def watch(self, m: Module) -> None:
        dut, memory = self.dut, self.dut.memory
        closed = self.assume_manager(m)
        for name in ("ar", "aw"):
            self.assume(getattr(dut.port, f"{name}len") < 4)
        waits = {name: stable(m, self, axi_channel(memory, name), name) for name in _FROM_MANAGER}
        for name in ("ar", "aw"):
            self.claim(f"no {name} once closed", ~(dut.close & getattr(memory, f"{name}valid")) | waits[name])
            self.cover(f"{name} waits while closed", dut.close & waits[name])
        reads = self._reads(m)
        words, writes = self._writes(m)
        offered = memory.arvalid | memory.awvalid | memory.wvalid
        quiet = was(m, ~(reads.any() | words.any() | writes.any() | offered))
        self.claim("idle where closed and nothing is owed", dut.idle == (closed & quiet))
        filled = flag(m, dut.close & memory.wvalid & ~dut.port.wvalid, dut.idle)
        self.cover("idle after words of its own", dut.idle & filled)

    def _reads(self, m: Module) -> Signal:
        """Return the number of bursts whose words memory owes."""
        memory = self.dut.memory
        asked, answered = transfer(axi_channel(memory, "ar")), transfer(axi_channel(memory, "r"))
        answers = {"answer": memory.rvalid, "taken": answered & memory.rlast}
        owed = assume_answers(m, self, "reads_owed", asked=asked, limit=2 * _OUTSTANDING, **answers)
        self.claim("reads bounded", owed < _OUTSTANDING)
        return owed

    def _writes(self, m: Module) -> tuple[Signal, Signal]:
        """Return the number of words that memory waits for, and of writes that it has to answer."""
        memory, limit = self.dut.memory, 8 * _OUTSTANDING
        first = memory.awvalid & ~was(m, memory.awvalid & ~memory.awready, "aw_stood")
        word = transfer(axi_channel(memory, "w"))
        words = count(m, "words_owed", limit, Mux(first, memory.awlen + 1, 0), word)
        bursts = count(m, "bursts_owed", limit, first, word & memory.wlast)
        writes = count(m, "answers_owed", limit, first, transfer(axi_channel(memory, "b")))
        self.assume(~memory.bvalid | (writes > bursts))
        self.claim("no word without a burst", ~memory.wvalid | words.any())
        self.claim("the last word of each burst", words.any() == bursts.any())
        self.claim("a word for each burst at least", words >= bursts)
        self.claim("writes bounded", writes < _OUTSTANDING)
        return words, writes


@proves("boards/axi_gate", "passing on", Invariant(), SMALLEST, writes=2, outstanding=_OUTSTANDING)
class AxiGatePassing(_GateBench):
    """A transfer on one side is in the same cycle a transfer on the other side, with an equal payload. A closed gate
    adds words without bytes to writes whose words it does not wait for, and takes answers itself.

    A gate that is closed and opened at any time, with an unconstrained memory.
    """

    def watch(self, m: Module) -> None:
        dut = self.dut
        closed = self.assume_manager(m)
        for name in _FROM_MANAGER:
            # A closed gate ends bursts with words of its own, and marks the last one itself.
            taken, reaches, same = self._sides(name, but=("last",))
            self.claim(f"{name} passed on", ~taken | (reaches & same))
            if name == "w":
                self.claim("its own words have no bytes", ~reaches | taken | ~dut.memory.wstrb.any())
                self.claim("its own words while it is closed", ~reaches | taken | closed)
            else:
                self.claim(f"{name} of the manager only", ~reaches | taken)
            self.cover(f"{name} passes", taken & ~closed)
        for name in ("r", "b"):
            taken, reaches, same = self._sides(name)
            self.claim(f"{name} passed on", ~reaches | dut.close | (taken & same))
            self.claim(f"{name} of memory only", ~taken | reaches)
            self.cover(f"{name} passes", taken)

    def _sides(self, name: str, but: tuple[str, ...] = ()) -> tuple[Value, Value, Value]:
        """Return whether the manager and memory transfer a word of a channel, and whether their payloads are equal."""
        port, memory = (axi_channel(side, name, but) for side in (self.dut.port, self.dut.memory))
        return transfer(port), transfer(memory), port.payload == memory.payload
