"""Copy of a program from the board's flash to memory at start-up, by a host of the link inside the FPGA."""

from __future__ import annotations

import numpy as np
from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from weft.boards.errors import FlashImageError
from weft.boards.flash.chip import SpiFlash, spi_flash_pads
from weft.boards.flash.controller import ADDRESS_BITS, SpiFlashStream
from weft.boards.link.frames import (
    ANSWER_BYTES,
    CHECK_BLOCK,
    CHECK_BYTES,
    REQUEST_BYTES,
    FlashState,
    Operation,
)
from weft.boards.link.framing import crc64
from weft.boards.link.link import inner_host

# An image is `MAGIC`, then for each page `PAGE_MARKER`, `CHECK_BLOCK` bytes and their CRC, then `END_MARKER`.
MAGIC = b"weft cp1"
PAGE_MARKER, END_MARKER = 0xA5, 0x5A
"""Markers before a page and at the end of an image. They differ in every bit."""


def copy_image_bytes(size: int) -> int:
    """Return the size in bytes of the image of `size` bytes."""
    return len(MAGIC) + -(-size // CHECK_BLOCK) * (1 + CHECK_BLOCK + CHECK_BYTES) + 1


def build_copy_image(content: bytes, room: int, storage: str) -> bytes:
    """Return the image for `content`, which is to be copied to address 0 of memory.

    Raises `FlashImageError` if the image exceeds `room` bytes of `storage`, its name in messages.
    """
    if (size := copy_image_bytes(len(content))) > room:
        raise FlashImageError(
            f"the program's code and constants take {size:,} bytes, and {storage} has room for {room:,}"
        )
    pages = np.frombuffer(content + bytes(-len(content) % CHECK_BLOCK), np.uint8).reshape(-1, CHECK_BLOCK)
    records = (
        bytes([PAGE_MARKER]) + page.tobytes() + int(crc).to_bytes(CHECK_BYTES, "little")
        for page, crc in zip(pages, crc64(pages), strict=True)
    )
    return MAGIC + b"".join(records) + bytes([END_MARKER])


class Loader(wiring.Component):
    """Hardware that copies the image of `build_copy_image` from flash to memory.

    Each page is written to memory by one request and checked by another, which reads it back. The copy stops after the
    first wrong page.

    Parameters
    ----------
    chip : SpiFlash
    clock : float
        Frequency in Hz.

    Members
    -------
    link : Out(inner_host())
    flash : Out(spi_flash_pads())
        See `weft.boards.flash.controller.SpiFlashStream`.
    damaged : Out(1)
        The state is `FlashState.DAMAGED`.
    ready : In(1)
        Memory is usable. Before that, nothing is written.
    """

    def __init__(self, chip: SpiFlash, clock: float) -> None:
        self.chip, self.clock = chip, clock
        super().__init__(
            {
                "link": Out(inner_host()),
                "flash": Out(spi_flash_pads()),
                "damaged": Out(1),
                "ready": In(1, init=1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.reader = reader = SpiFlashStream(self.chip, self.clock)
        byte, have, take = reader.byte.payload, reader.byte.valid, reader.byte.ready
        wiring.connect(m, reader.pads, wiring.flipped(self.flash))
        request, answer = self.link.request, self.link.answer
        checks = Signal()  # the request is the page's check, not its write
        wrong = Signal()
        state = Signal(FlashState, init=FlashState.COPYING)
        index = Signal(range(max(len(MAGIC), REQUEST_BYTES, 16)))
        count = Signal(range(CHECK_BLOCK))
        page = Signal(ADDRESS_BITS - (CHECK_BLOCK - 1).bit_length())
        header = self._header(checks, page)
        m.d.comb += [
            self.link.state.eq(state),
            self.damaged.eq(state == FlashState.DAMAGED),
            reader.stop.eq(state != FlashState.COPYING),
        ]
        with m.FSM():
            with m.State("MAGIC"):
                m.d.comb += take.eq(have)
                with m.If(have):
                    m.d.sync += index.eq(index + 1)
                    with m.If(byte != Array(MAGIC)[index[:3]]):
                        m.d.sync += state.eq(FlashState.EMPTY)
                        m.next = "END"
                    with m.Elif(index == len(MAGIC) - 1):
                        m.next = "MARKER"
            with m.State("MARKER"):
                m.d.comb += take.eq(have)
                m.d.sync += [index.eq(0), checks.eq(0), wrong.eq(0)]
                with m.If(have):
                    m.next = "END"
                    with m.Switch(byte):
                        with m.Case(PAGE_MARKER):
                            m.next = "HEADER"
                        with m.Case(END_MARKER):
                            m.d.sync += state.eq(FlashState.COPIED)
                        with m.Default():
                            m.d.sync += state.eq(FlashState.DAMAGED)
            with m.State("HEADER"):
                m.d.comb += [request.valid.eq(self.ready), request.payload.eq(header[index[:3]])]
                with m.If(request.ready & request.valid):
                    m.d.sync += index.eq(index + 1)
                    with m.If(index == REQUEST_BYTES - 1):
                        m.d.sync += index.eq(0)
                        m.next = "PAGE"
                        with m.If(checks):
                            m.next = "CHECKED"
            with m.State("PAGE"):
                m.d.comb += [request.valid.eq(have), request.payload.eq(byte), take.eq(have & request.ready)]
                with m.If(take):
                    m.d.sync += count.eq(count + 1)
                    with m.If(count == CHECK_BLOCK - 1):
                        m.next = "WRITTEN"
            with m.State("WRITTEN"):
                m.d.comb += answer.ready.eq(1)
                with m.If(answer.valid & answer.payload.last):
                    m.d.sync += checks.eq(1)
                    m.next = "HEADER"
            # Compare the answer's CRC with the image's, byte by byte, after skipping the answer's header.
            with m.State("CHECKED"):
                crc = index >= ANSWER_BYTES
                differs = wrong | crc & (byte != answer.payload.data)
                m.d.comb += [answer.ready.eq(have | ~crc), take.eq(have & answer.valid & crc)]
                with m.If(answer.valid & answer.ready):
                    m.d.sync += [index.eq(index + 1), wrong.eq(differs)]
                    with m.If(answer.payload.last):
                        m.d.sync += page.eq(page + 1)
                        m.next = "MARKER"
                        with m.If(differs):
                            m.d.sync += state.eq(FlashState.DAMAGED)
                            m.next = "END"
            with m.State("END"):
                pass
        return m

    @staticmethod
    def _header(checks: Value, page: Value) -> Array:
        """Return the bytes of a request's header: sequence number, operation, size, address."""
        operation = Mux(checks, Const(Operation.CHECK_MEMORY, 8), Const(Operation.WRITE_MEMORY, 8))
        address = Cat(Const(0, (CHECK_BLOCK - 1).bit_length()), page, Const(0, 32 - ADDRESS_BITS))
        header = Cat(Const(0, 8), operation, Const(CHECK_BLOCK, 16), address)
        return Array(header[at : at + 8] for at in range(0, 8 * REQUEST_BYTES, 8))
