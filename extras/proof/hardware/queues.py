"""Properties of `weft.hdl.lib`'s queues."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from amaranth.hdl import Module

from weft.extras.proof.hardware.property import Bench, Property
from weft.extras.proof.hardware.streams import queue
from weft.hdl.lib.queues import BlockFifo, SkidBuffer

_WORD_BITS = 3
"""Queues do not look at words, so few bits suffice."""


class QueueBench(Bench):
    """A queue with streams `i` and `o`; see `weft.extras.proof.hardware.streams.queue`."""

    def __init__(self, dut: Any, *, most: int, takes: int, latency: int) -> None:
        super().__init__(dut)
        self.most, self.takes, self.latency = most, takes, latency

    def watch(self, m: Module) -> None:
        self.free_inputs(m)
        queue(m, self, self.dut.i, self.dut.o, most=self.most, takes=self.takes, latency=self.latency)


def _block_fifo(depth: int) -> Bench:
    return QueueBench(BlockFifo(_WORD_BITS, depth), most=depth + 1, takes=depth, latency=1)


def properties() -> Iterator[Property]:
    claim = "Words come out once, unchanged and in the order in which they went in; the output is stable."
    yield Property(
        "lib/skid_buffer",
        "order",
        claim,
        lambda: QueueBench(SkidBuffer(_WORD_BITS), most=2, takes=2, latency=0),
    )
    for depth in (2, 4):
        yield Property(
            "lib/block_fifo",
            f"order of {depth}",
            claim,
            partial(_block_fifo, depth),
        )
