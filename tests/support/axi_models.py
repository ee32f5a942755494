"""Helpers for benches with third-party AXI models: random pauses, changing idle payloads, protocol checks."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any, ClassVar

import cocotb
from cocotb.triggers import FallingEdge, ReadOnly, RisingEdge
from cocotb.types import LogicArray


def pauses(rate: float) -> Iterator[bool]:
    """Yield endless random pauses, in `rate` of all cycles, for a channel's ``set_pause_generator``."""
    return (random.random() < rate for _ in itertools.count())


def channels(model: Any) -> tuple[Any, ...]:
    """Return the five channels of a cocotbext AXI memory or master."""
    write, read = model.write_if, model.read_if
    return write.aw_channel, write.w_channel, write.b_channel, read.ar_channel, read.r_channel


class Steady:
    """Checker that the manager of `dut`, ports ``axi__*``, keeps a valid payload stable until ready.

    Call `check` once a cycle.
    """

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


class IdlePayloads:
    """Driver that changes every payload without VALID in each cycle, on ports ``m_axi_*`` and ``s_axi_*`` of `dut`.  It
    checks that no output follows: outputs depend on inputs only through registers.

    Parameters
    ----------
    dut : cocotb handle
        After its reset, so that no VALID and READY that it drives is unknown.
    unknown : bool
        Drive X, in simulators that have it, instead of random values.
    """

    SENT: ClassVar = {
        "m_axi_r": ("id", "data", "resp", "last"),
        "m_axi_b": ("id", "resp"),
        "s_axi_aw": ("addr", "prot"),
        "s_axi_w": ("data", "strb"),
        "s_axi_ar": ("addr", "prot"),
    }
    DRIVEN = (
        *(f"m_axi_{name}" for name in ("awvalid", "wvalid", "bready", "arvalid", "rready")),
        *(f"s_axi_{name}" for name in ("awready", "wready", "bvalid", "arready", "rvalid")),
        "irq",
    )

    def __init__(self, dut: Any, *, unknown: bool) -> None:
        self.dut, self.unknown = dut, unknown
        cocotb.start_soon(self._change())

    async def _change(self) -> None:
        dut = self.dut
        while True:
            await FallingEdge(dut.clk)
            before = {name: str(getattr(dut, name).value) for name in self.DRIVEN}
            assert set(before.values()) <= {"0", "1"}, f"unknown: {before}"
            for channel, names in self.SENT.items():
                if not int(getattr(dut, f"{channel}valid").value):
                    for name in names:
                        self._scribble(f"{channel}{name}")
            await ReadOnly()
            after = {name: str(getattr(dut, name).value) for name in self.DRIVEN}
            assert before == after, "an output follows a payload without VALID"

    def _scribble(self, name: str) -> None:
        signal = getattr(self.dut, name, None)
        if signal is not None:
            width = len(signal)
            signal.value = LogicArray("X" * width) if self.unknown else random.getrandbits(width)


class Beats:
    """Counter of data beats on the bus of `dut`, ports ``m_axi_*``."""

    def __init__(self, dut: Any) -> None:
        self._dut = dut
        self.clear()
        cocotb.start_soon(self._count())

    def clear(self) -> None:
        self.read = self.written = 0

    async def _count(self) -> None:
        dut = self._dut
        while True:
            await FallingEdge(dut.clk)
            self.read += int(dut.m_axi_rvalid.value) & int(dut.m_axi_rready.value)
            self.written += int(dut.m_axi_wvalid.value) & int(dut.m_axi_wready.value)


async def check_errors(dut: Any) -> None:
    """Check that every response other than OKAY on ``axi__*`` sets `error` for one cycle, a cycle later."""
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
