"""A serial line for benches, independent of the hardware: a sender, a receiver, and noise."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import cocotb
from cocotb.triggers import FallingEdge, Timer

CYCLE = 2000
"""Picoseconds of a clock cycle of the benches."""


async def send_byte(pin: Any, byte: int, bit: int, *, stop: int = 1) -> None:
    """Send a byte in bits of `bit` picoseconds."""
    for level in (0, *((byte >> k) & 1 for k in range(8)), stop):
        pin.value = level
        await Timer(bit, "ps")


async def send_bytes(pin: Any, payload: bytes, bit: int) -> None:
    for byte in payload:
        await send_byte(pin, byte, bit)


class Listener:
    """Receiver of the bytes on `pin`, which calls `heard` for each, if given.

    Attributes
    ----------
    bytes : bytearray
    errors : int
        Stop bits that were low.
    """

    def __init__(self, pin: Any, bit: int, heard: Callable[[int], None] | None = None) -> None:
        self.pin, self.bit, self.heard = pin, bit, heard
        self.bytes, self.errors = bytearray(), 0
        cocotb.start_soon(self._run())

    async def _run(self) -> None:
        while True:
            await FallingEdge(self.pin)
            await Timer(self.bit + self.bit // 2, "ps")
            byte = 0
            for k in range(8):
                byte |= int(self.pin.value) << k
                await Timer(self.bit, "ps")
            self.errors += not self.pin.value
            self.bytes.append(byte)
            if self.heard:
                self.heard(byte)


def disturb(payload: bytes, rate: float, rng: Any = random) -> bytes:
    """Return `payload` with bytes lost, inserted, repeated, changed and cut off, each in a share `rate` of bytes."""
    out = bytearray()
    for at, byte in enumerate(payload):
        if rng.random() >= rate:
            out.append(byte)
            continue
        kind = rng.randrange(6)
        if kind == 1:
            out += bytes([rng.randrange(256), byte])
        elif kind == 2:
            out += bytes([byte]) * 2
        elif kind == 3:
            out.append(byte ^ 1 << rng.randrange(8))
        elif kind == 4:
            out.append(rng.choice([0x7E, 0x7D, 0x5E, 0x5D]))
        elif kind == 5 and rng.random() < 0.1:
            return bytes(out) + disturb(payload[at + rng.randrange(1, 40) :], rate, rng)
    return bytes(out)
