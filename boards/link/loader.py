"""Copies a program from the board's flash to its memory when the FPGA starts: a host of the link, inside the FPGA."""

from __future__ import annotations

import numpy as np
from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from weft.boards.flash.chip import SpiFlash, spi_flash_pads
from weft.boards.flash.controller import ADDRESS_BITS, SpiFlashStream
from weft.boards.flash.image import FlashImageError
from weft.boards.link.frames import ANSWER_BYTES, CHECK_BYTES, CHECKED, REQUEST_BYTES, FlashState, Operation
from weft.boards.link.framing import crc64
from weft.boards.link.link import inner_host

MAGIC = b"weft cp1"
MORE, OVER = 0xA5, 0x5A
"""All bits of the one are others than those of the other."""


def copied_bytes(size: int) -> int:
    """Bytes of the image of so many bytes."""
    return len(MAGIC) + -(-size // CHECKED) * (1 + CHECKED + CHECK_BYTES) + 1


def copied_image(content: bytes, room: int, where: str) -> bytes:
    """The image of what memory is to hold from its address 0 on, in at most `room` bytes of what `where` names.

    Raises `FlashImageError` if it has no room.
    """
    if (size := copied_bytes(len(content))) > room:
        raise FlashImageError(
            f"the program's code and constants take {size:,} bytes, and {where} has room for {room:,}"
        )
    pages = np.frombuffer(content + bytes(-len(content) % CHECKED), np.uint8).reshape(-1, CHECKED)
    records = (
        bytes([MORE]) + page.tobytes() + int(crc).to_bytes(CHECK_BYTES, "little")
        for page, crc in zip(pages, crc64(pages), strict=True)
    )
    return MAGIC + b"".join(records) + bytes([OVER])


class Loader(wiring.Component):
    """Reads an image as `weft.boards.link.loader` describes it. Each page is written to memory by one request, and
    checked by another, which reads it again; the first one that is not as it should be is the last.

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
        `FlashState.DAMAGED`.
    ready : In(1)
        Memory can be used; before that, nothing is written.
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
        checks, wrong, state = Signal(), Signal(), Signal(FlashState, init=FlashState.COPYING)
        index = Signal(range(max(len(MAGIC), REQUEST_BYTES, 16)))
        count, page = Signal(range(CHECKED)), Signal(ADDRESS_BITS - (CHECKED - 1).bit_length())
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
                        with m.Case(MORE):
                            m.next = "HEADER"
                        with m.Case(OVER):
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
                    with m.If(count == CHECKED - 1):
                        m.next = "WRITTEN"
            with m.State("WRITTEN"):
                m.d.comb += answer.ready.eq(1)
                with m.If(answer.valid & answer.payload.last):
                    m.d.sync += checks.eq(1)
                    m.next = "HEADER"
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
        """The bytes of a request's header: sequence number, operation, size, address."""
        operation = Mux(checks, Const(Operation.CHECK_MEMORY, 8), Const(Operation.WRITE_MEMORY, 8))
        address = Cat(Const(0, (CHECKED - 1).bit_length()), page, Const(0, 32 - ADDRESS_BITS))
        header = Cat(Const(0, 8), operation, Const(CHECKED, 16), address)
        return Array(header[at : at + 8] for at in range(0, 8 * REQUEST_BYTES, 8))
