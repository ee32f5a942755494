"""Properties of STORE's bus: bursts, their words, and signals after memory has confirmed them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from amaranth.hdl import Cat, Fragment, Module, Mux, Signal
from amaranth.lib import wiring

from weft.extras.proof.hardware.pipelines import implies
from weft.extras.proof.hardware.property import Bench, Bounded, Property
from weft.extras.proof.hardware.smallest import SMALLEST
from weft.extras.proof.hardware.streams import (
    Channel,
    Order,
    assume_answers,
    assume_stable,
    count,
    stable,
    within,
)
from weft.hdl.bus.axi import BurstSplitter
from weft.hdl.isa.config import Config
from weft.hdl.store import _TAG, BURSTS, Packer, StoreUnit


def _create_ports(unit: wiring.Component, name: str) -> Any:
    """Return the ports of a unit without the unit."""
    Fragment.get(unit, None)  # or Amaranth warns that it is not used
    return unit.signature.create(path=(name,))


class _OpenUnit(StoreUnit):
    """Bus of STORE alone, whose bursts and words come from the bench instead of the splitter and the packer."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.splitter: Any = _create_ports(BurstSplitter(config, tag=_TAG), "splitter")
        self.packer: Any = _create_ports(Packer(config), "packer")
        self.finishing = Signal(name="finishing")

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.d.comb += self.finishing.eq(self._bus(m, self.splitter, self.packer))
        return m


class BusBench(Bench):
    """Bursts and their words pass in order, words after their burst, and no more bursts than can be counted. An
    instruction is signalled, in order and at once, when memory has confirmed all bursts up to its last one.

    Memory confirms at any time. Assumed: bursts and words stay until they are taken; memory confirms only bursts that
    it got. Masks are not 0 here, so that every signal is visible.
    """

    UNIT = _OpenUnit

    def watch(self, m: Module) -> None:
        dut, bus = self.dut, self.dut.bus
        m.d.comb += [
            bus.request.ready.eq(self.free(1, "request_ready")),
            bus.beat.ready.eq(self.free(1, "beat_ready")),
            bus.confirmed.eq(self.free(1, "confirmed")),
        ]
        burst, beat = dut.splitter, dut.packer.beat
        inputs = {"valid": burst.request.valid, "payload": burst.request.payload.as_value()}
        inputs |= {
            "last": burst.last,
            "tag": burst.tag,
            "word_valid": beat.valid,
            "word": beat.payload.as_value(),
        }
        for name, value in inputs.items():
            m.d.comb += value.eq(self.free(len(value), f"given_{name}"))
        request = burst.request
        whole = Cat(request.payload.as_value(), burst.last, burst.tag)
        assume_stable(m, self, Channel(request.valid, request.ready, whole), "burst")
        assume_stable(m, self, beat, "word")
        self._claim_passing(m)
        self._claim_signals(m)

    def _claim_passing(self, m: Module) -> None:
        """Claim that bursts and words pass, and that words wait for their burst."""
        bus, burst, beat = self.dut.bus, self.dut.splitter, self.dut.packer.beat
        # A request may be withdrawn, as there is room only by the count of a cycle ago: the manager has registers.
        stable(m, self, bus.beat, "beat")
        self.send = bus.request.valid & bus.request.ready
        sent = bus.beat.valid & bus.beat.ready & bus.beat.payload.last
        self.claim("bursts pass once", self.send == (burst.request.valid & burst.request.ready))
        same = bus.request.payload.as_value() == burst.request.payload.as_value()
        self.claim("as they come", implies(bus.request.valid, same))
        self.claim("words pass once", (bus.beat.valid & bus.beat.ready) == (beat.valid & beat.ready))
        self.claim(
            "unchanged", implies(bus.beat.valid, bus.beat.payload.as_value() == beat.payload.as_value())
        )
        ahead = count(m, "bursts_ahead", 2 * BURSTS, self.send, sent)
        self.claim("words of bursts that were asked for", bus.beat.valid == (beat.valid & (ahead != 0)))

    def _claim_signals(self, m: Module) -> None:
        """Claim that a signal comes when memory has confirmed all bursts up to the last one of the instruction."""
        dut, bus, burst = self.dut, self.dut.bus, self.dut.splitter
        owed = assume_answers(m, self, "owed", asked=self.send, answer=bus.confirmed, limit=2 * BURSTS)
        self.claim("no more bursts than it counts", owed <= BURSTS)
        mask = burst.tag[1:]
        self.assume(mask.any())
        ends = self.send & burst.tag[0] & burst.last
        pop = dut.signal.any()
        order = Order(m, self, push=ends, i=mask[:1], pop=pop, o=dut.signal[:1], most=2)
        need, begins = Signal(range(2 * BURSTS), name="need"), ends & ~order.watched
        m.d.sync += need.eq(Mux(begins, owed + 1 - bus.confirmed, need - (bus.confirmed & (need != 0))))
        first = order.watched & (order.ahead == 0)
        self.claim("a signal of what is confirmed", implies(first & pop, need == 0))
        within(m, self, first & (need == 0) & ~pop, 2, "a signal")
        self.cover("behind another", pop & order.watched & (order.ahead == 1) & (need != 0))


def properties() -> Iterator[Property]:
    yield BusBench.proves(
        "store/store", "bursts and signals", Bounded(14), SMALLEST.replace(queue_depth=1), cover=16
    )
