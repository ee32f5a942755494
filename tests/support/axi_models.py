"""What benches with outside AXI models share: random pauses on their channels."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any, ClassVar

from cocotb.triggers import ReadOnly, RisingEdge


def pauses(rate: float) -> Iterator[bool]:
    """Endless random pauses, in `rate` of all cycles, for a channel's ``set_pause_generator``."""
    return (random.random() < rate for _ in itertools.count())


def channels(model: Any) -> tuple[Any, ...]:
    """The five channels of a cocotbext AXI memory or master."""
    write, read = model.write_if, model.read_if
    return write.aw_channel, write.w_channel, write.b_channel, read.ar_channel, read.r_channel


class Steady:
    """Holds the manager of `dut`, ports ``axi__*``, to AXI's rule: what it offers does not change until it is taken.
    `check` is called once a cycle."""

    FIELDS: ClassVar = {
        "ar": ("araddr", "arlen", "arid"),
        "aw": ("awaddr", "awlen"),
        "w": ("wdata", "wstrb", "wlast"),
    }

    def __init__(self, dut: Any) -> None:
        self.dut = dut
        self.held: dict[str, list[int]] = {}

    def check(self) -> None:
        for channel, names in self.FIELDS.items():
            valid = bool(getattr(self.dut, f"axi__{channel}valid").value)
            values = [int(getattr(self.dut, f"axi__{name}").value) for name in names]
            if channel in self.held:
                assert valid, f"{channel}valid fell before {channel}ready"
                assert values == self.held[channel]
            self.held.pop(channel, None)
            if valid and not getattr(self.dut, f"axi__{channel}ready").value:
                self.held[channel] = values


async def check_errors(dut: Any) -> None:
    """Every response other than OKAY on ``axi__*`` is reported, once: `error` is 1 in the cycle after it."""
    for channel in ("r", "b"):
        getattr(dut, f"axi__{channel}valid").value = 0
        getattr(dut, f"axi__{channel}id").value = 0
    dut.rst.value = 0
    for channel in ("r", "b"):
        for response in range(4):
            await RisingEdge(dut.clk)
            getattr(dut, f"axi__{channel}resp").value = response
            getattr(dut, f"axi__{channel}valid").value = 1
            await RisingEdge(dut.clk)
            getattr(dut, f"axi__{channel}valid").value = 0
            for expected in (response != 0, False):
                await ReadOnly()
                assert bool(dut.error.value) == expected
                await RisingEdge(dut.clk)
