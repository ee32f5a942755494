"""Shared by benches of memories: random commands with their effect on a bytearray, and a driver of a memory port."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import cocotb
from cocotb.clock import Clock
from cocotb.triggers import ReadOnly, RisingEdge

PAGE = 4096


@dataclass(frozen=True)
class Burst:
    """A command of a memory port, with its words: (data, strobe) to write, or the expected words of a read."""

    write: bool
    address: int
    words: list[Any]

    @property
    def payload(self) -> int:
        return self.write | self.address << 1 | len(self.words) << 33


def burst(
    contents: bytearray, width: int, write: bool, address: int, beats: int, *, full: bool = False
) -> Burst:
    """Return a command, carried out on `contents`; addresses wrap around."""
    words: list[Any] = []
    for beat in range(beats):
        at = (address + beat * width) % len(contents)
        if not write:
            words.append(int.from_bytes(contents[at : at + width], "little"))
            continue
        data = random.randbytes(width)
        strobe = (1 << width) - 1 if full or random.random() < 0.5 else random.getrandbits(width)
        for byte in range(width):
            if strobe >> byte & 1:
                contents[at + byte] = data[byte]
        words.append((int.from_bytes(data, "little"), strobe))
    return Burst(write, address, words)


def move_bursts(bursts: list[Burst], base: int, size: int) -> list[Burst]:
    """Return `bursts` with their addresses wrapped to `size`, plus `base`."""
    return [Burst(each.write, base + each.address % size, each.words) for each in bursts]


def random_bursts(contents: bytearray, width: int, count: int, *, longest: int = 256) -> list[Burst]:
    """Draw commands all over `contents` and beyond, of all lengths, often at a page's end or at the last address."""
    bursts: list[Burst] = []
    for _ in range(count):
        beats = min(random.choice((1, 2, random.randint(1, 16), random.randint(1, longest))), PAGE // width)
        page = random.randrange(2 * len(contents)) // PAGE * PAGE
        first = random.randrange(PAGE // width)
        if random.random() < 0.2:
            first = PAGE // width - beats
        address = page + first * width
        if bursts and random.random() < 0.4:
            address = bursts[-1].address
        beats = min(beats, PAGE // width - address % PAGE // width)
        bursts.append(burst(contents, width, random.random() < 0.5, address, beats))
    return bursts


class MemoryDriver:
    """Driver of the memory port `name` of `dut`.

    Parameters
    ----------
    stall : float
        Share of cycles in which each channel pauses.
    patience : int
        Cycles without a transfer after which the memory counts as hung.
    """

    def __init__(
        self, dut: Any, width: int, *, name: str = "bus", stall: float = 0.0, patience: int = 3000
    ) -> None:
        self.dut, self.width, self.stall, self.patience = dut, width, stall, patience
        self.port = {
            member: getattr(dut, f"{name}__{member}")
            for member in (
                *(f"{channel}__{part}" for channel in ("command", "write") for part in ("valid", "payload", "ready")),
                "read__valid", "read__payload", "read__ready", "written",
            )
        }  # fmt: skip
        self.first_cycle = self.last_cycle = self.cycle = 0
        for channel in ("command", "write"):
            self.port[f"{channel}__valid"].value = 0
        self.port["read__ready"].value = 0

    def pauses(self, channel: str) -> bool:
        """Return whether `channel` pauses in this cycle; a bench may replace it."""
        return random.random() < self.stall

    async def run(self, bursts: list[Burst]) -> None:
        """Carry out `bursts` and compare what is read; returns when all are reported. `first_cycle` is then the first
        command's cycle, and `last_cycle` that of the last word read or write report."""
        port, clk = self.port, self.dut.clk
        commands = [burst.payload for burst in bursts]
        writes = [data | strobe << 8 * self.width for b in bursts if b.write for data, strobe in b.words]
        reads = [word for b in bursts if not b.write for word in b.words]
        sizes = [len(b.words) for b in bursts if b.write]  # of writes that are not reported
        total = sum(sizes)
        streams = {"command": commands, "write": writes}
        sent = dict.fromkeys(streams, 0)
        done, confirmed, quiet = 0, 0, 0
        needed = 0
        offered = dict.fromkeys(streams, False)
        self.first_cycle = 0
        while done < len(reads) or confirmed < len(sizes) or sent["command"] < len(commands):
            for channel, values in streams.items():
                if not offered[channel]:
                    more = sent[channel] < len(values) and not self.pauses(channel)
                    port[f"{channel}__valid"].value = more
                    if more:
                        port[f"{channel}__payload"].value = values[sent[channel]]
                    offered[channel] = more
            accepts = not self.pauses("read")
            port["read__ready"].value = accepts
            await ReadOnly()
            move_bursts = False
            for channel in streams:
                if offered[channel] and port[f"{channel}__ready"].value:
                    if channel == "command" and not sent["command"]:
                        self.first_cycle = self.cycle
                    sent[channel] += 1
                    offered[channel] = False
                    move_bursts = True
            if accepts and port["read__valid"].value:
                assert done < len(reads), "a word was read that nobody asked for"
                got = int(port["read__payload"].value)
                assert got == reads[done], f"word {done} of {len(reads)}: {got:#x}, not {reads[done]:#x}"
                done += 1
                move_bursts = True
                self.last_cycle = self.cycle
            if port["written"].value:
                assert confirmed < len(sizes), "a write was reported that was not asked for"
                needed += sizes[confirmed]
                assert sent["write"] >= needed, "a write was reported before its words came"
                confirmed += 1
                move_bursts = True
                self.last_cycle = self.cycle
            quiet = 0 if move_bursts else quiet + 1
            assert quiet < self.patience, (
                f"nothing moves: {sent} of {len(commands)} and {total}, {done} of {len(reads)} words read, "
                f"{confirmed} of {len(sizes)} writes reported"
            )
            await RisingEdge(clk)
            self.cycle += 1
        for channel in streams:
            port[f"{channel}__valid"].value = 0
        port["read__ready"].value = 0


_clock: Any = None


async def reset(dut: Any) -> None:
    """Start the clock, once a test, and reset for a few cycles."""
    global _clock
    if _clock is None or _clock.done():
        _clock = cocotb.start_soon(Clock(dut.clk, 2, "ns").start())
    dut.rst.value = 1
    for _ in range(3):
        await RisingEdge(dut.clk)
    dut.rst.value = 0
