"""The serial line's receiver and transmitter, against senders whose clocks are off."""

from __future__ import annotations

import itertools
import random
from typing import Any

import cocotb
import pytest
from amaranth.hdl import Module
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, ReadOnly, RisingEdge, Timer
from cocotb.utils import get_sim_time
from support.serial_models import CYCLE, Listener, send_byte
from support.unit_bench import stream_put

from weft.boards.link.uart import Receiver, Transmitter, check_divisor
from weft.sim.rtl.bench import bench_parameters, run_bench


class Both(wiring.Component):
    """A receiver and a transmitter that have nothing to do with each other."""

    def __init__(self, divisor: int) -> None:
        self.receiver, self.transmitter = Receiver(divisor), Transmitter(divisor)
        super().__init__(
            {
                "rx": In(1),
                "received": Out(8),
                "valid": Out(1),
                "error": Out(1),
                "tx": Out(1),
                "send": In(self.transmitter.byte.signature.flip()),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.receiver, m.submodules.transmitter = self.receiver, self.transmitter
        wiring.connect(m, wiring.flipped(self.send), self.transmitter.byte)
        m.d.comb += [
            self.receiver.rx.eq(self.rx),
            self.received.eq(self.receiver.byte.payload),
            self.valid.eq(self.receiver.byte.valid),
            self.error.eq(self.receiver.error),
            self.tx.eq(self.transmitter.tx),
        ]
        return m


class Bench:
    """The received bytes and errors of `dut`."""

    def __init__(self, dut: Any) -> None:
        self.dut = dut
        self.divisor = bench_parameters()["divisor"]
        self.bit = self.divisor * CYCLE
        self.received, self.errors = bytearray(), 0
        dut.rx.value = 1
        dut.send__valid.value = 0
        dut.rst.value = 0
        cocotb.start_soon(Clock(dut.clk, CYCLE, "ps").start())
        cocotb.start_soon(self._watch())

    async def _watch(self) -> None:
        while True:
            await ReadOnly()
            if self.dut.valid.value:
                self.received.append(int(self.dut.received.value))
            self.errors += int(self.dut.error.value)
            await RisingEdge(self.dut.clk)


@cocotb.test()
async def bench_receiver(dut: Any) -> None:
    """Bytes with and without pauses, from senders up to 2 % too fast or too slow."""
    bench = Bench(dut)
    await ClockCycles(dut.clk, 20)
    for drift in (0.98, 0.99, 1.0, 1.01, 1.02):
        sent = bytes([0x00, 0xFF, 0x55, 0xAA]) + random.randbytes(60)
        bench.received.clear()
        await Timer(random.randrange(1, 4 * CYCLE), "ps")
        for byte in sent:
            await send_byte(dut.rx, byte, round(bench.bit * drift))
            if random.random() < 0.3:
                await Timer(random.randrange(1, 3 * bench.bit), "ps")
        await Timer(2 * bench.bit, "ps")
        assert bench.received == sent, f"at {drift}"
    assert bench.errors == 0


@cocotb.test()
async def bench_noise(dut: Any) -> None:
    """Low stop bits are errors, and cost their byte only; short pulses are no bytes."""
    bench = Bench(dut)
    await ClockCycles(dut.clk, 20)
    for number in range(1, 21):
        byte = random.randrange(256)
        await send_byte(dut.rx, byte, bench.bit, stop=0)
        await Timer(random.choice([0, 1, 25]) * bench.bit + 1, "ps")  # a break goes on
        dut.rx.value = 1
        await Timer(bench.bit, "ps")
        assert (bench.errors, len(bench.received)) == (number, number - 1)
        dut.rx.value = 0
        await Timer(bench.bit // 4 - CYCLE // 2, "ps")
        dut.rx.value = 1
        await Timer(bench.bit, "ps")
        await send_byte(dut.rx, byte, bench.bit)
        await Timer(bench.bit, "ps")
        assert (bench.errors, len(bench.received)) == (number, number)
        assert bench.received[-1] == byte


@cocotb.test()
async def bench_transmitter(dut: Any) -> None:
    """Bytes that are there in time leave without a pause; between others the line is high."""
    bench = Bench(dut)
    await ClockCycles(dut.clk, 20)
    times: list[float] = []
    listener = Listener(dut.tx, bench.bit, lambda byte: times.append(get_sim_time("ps")))
    assert dut.tx.value == 1
    sent = random.randbytes(100)
    for at, byte in enumerate(sent):
        if at > 50:
            await ClockCycles(dut.clk, random.randrange(30 * bench.divisor))
        await stream_put(dut, "send", byte)
    await Timer(12 * bench.bit, "ps")
    assert listener.bytes == sent
    assert listener.errors == 0
    assert {late - early for early, late in itertools.pairwise(times[:50])} == {10 * bench.bit}
    assert dut.tx.value == 1


@pytest.mark.drawn(1)
@pytest.mark.parametrize("divisor", [4, 5, 8, 33])
def test_uart(divisor: int) -> None:
    run_bench(Both(divisor), parameters={"divisor": divisor})


@pytest.mark.parametrize("divisor", [3, 65536, 8.5])
def test_divisors_outside_the_limits_are_refused(divisor: Any) -> None:
    with pytest.raises(ValueError, match=f"from 4 to 65535 clock cycles, not {divisor}"):
        check_divisor(divisor)
