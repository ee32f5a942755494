"""Properties of `weft.hdl.lib`'s queues."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from amaranth.hdl import Module

from weft.extras.proof.hardware.property import Bench, Property
from weft.extras.proof.hardware.streams import Order, stable, within
from weft.hdl.lib.queues import BlockFifo, SkidBuffer

_WIDTH = 3
"""Of words: no queue looks at them."""


class QueueBench(Bench):
    """A queue with streams `i` and `o` that has room for `most` words, takes one if there are less than `takes`, and
    shows the first one after at most `latency` cycles."""

    def __init__(self, dut: Any, *, most: int, takes: int, latency: int) -> None:
        super().__init__(dut)
        self.most, self.takes, self.latency = most, takes, latency

    def watch(self, m: Module) -> None:
        i, o = self.dut.i, self.dut.o
        self.free_inputs(m)
        stable(m, self, o, "output")
        push, pop = i.valid & i.ready, o.valid & o.ready
        order = Order(m, self, push=push, i=i.payload, pop=pop, o=o.payload, most=self.most)
        self.claim("takes while there is room", i.ready | (order.inside >= self.takes))
        within(m, self, (order.inside != 0) & ~o.valid, self.latency, "output comes")


def _block_fifo(depth: int) -> Bench:
    return QueueBench(BlockFifo(_WIDTH, depth), most=depth + 1, takes=depth, latency=1)


def properties() -> Iterator[Property]:
    claim = "Words come out once, unchanged and in the order they went in, and stand until they are taken."
    yield Property(
        "lib/skid_buffer", "order", claim, lambda: QueueBench(SkidBuffer(_WIDTH), most=2, takes=2, latency=0)
    )
    for depth in (2, 4):
        yield Property(
            "lib/block_fifo",
            f"order of {depth}",
            claim,
            partial(_block_fifo, depth),
        )
