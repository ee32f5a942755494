"""Hardware that converts between bytes and frames, see `weft.boards.link.frames`; and CRC-64 for hosts."""

from __future__ import annotations

import enum

import numpy as np
from amaranth.hdl import Module, Mux, ResetInserter, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.crc.catalog import CRC32_ISO_HDLC
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from weft.boards.link.frames import (
    CRC_BYTES,
    END,
    ESC,
    FLIP,
    PAYLOAD,
    REQUEST_BYTES,
    Operation,
    carries_payload,
)

_SIZE = 2
"""First byte of the size in a request's header."""


def check_buffer(size: int) -> int:
    """Return `size` if it is a valid buffer size; raise `ValueError` if not."""
    if size & (size - 1) or not 2 * (REQUEST_BYTES + PAYLOAD) <= size <= 1 << 15:
        raise ValueError(f"the link's buffer is a power of two from 1024 to 32768 bytes, not {size}")
    return size


class _Phase(enum.IntEnum):
    """Part of a request that the next byte belongs to."""

    HEADER = 0
    PAYLOAD = 1
    CRC = 2
    COMPLETE = 3


class _Crc(wiring.Component):
    """CRC-32 with one bit per cycle. A byte on the line takes at least 40 cycles.

    ``byte`` is accepted when ``start`` is 1. It is in ``held`` again, after a full rotation, when ``busy`` returns to
    0.
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "clear": In(1),
                "start": In(1),
                "byte": In(8),
                "check": In(1),
                "busy": Out(1),
                "held": Out(8),
                "crc": Out(8),
                "match": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        # The CRC is cleared by its reset, because its `start` input would cost a multiplexer.
        crc = CRC32_ISO_HDLC(data_width=1).create()
        m.submodules.processor = ResetInserter(self.clear)(crc)
        left = Signal(range(9))
        m.d.comb += [
            crc.valid.eq(self.busy),
            # Feeding the inverse of the expected bit shifts the register, so its next byte moves to the low end.
            crc.data.eq(Mux(self.check, ~crc.crc[0], self.held[0])),
            self.busy.eq(left != 0),
            self.crc.eq(crc.crc[:8]),
            self.match.eq(crc.match_detected),
        ]
        with m.If(self.busy):
            m.d.sync += [left.eq(left - 1), self.held.eq(self.held.rotate_right(1))]
        with m.Elif(self.start):
            m.d.sync += [left.eq(8), self.held.eq(self.byte)]
        return m


class Deframer(wiring.Component):
    """Receiver of requests, with a buffer for requests until they are complete and taken.

    A request for which the buffer has no room is dropped like a damaged one.

    Parameters
    ----------
    buffer : int
        Bytes of the buffer, a power of two.
    last : Operation
        Requests with a higher operation are dropped.

    Members
    -------
    line : In(stream of 8 bits, always ready)
        At most one byte in 10 cycles.
    error : In(1)
        The line lost a byte.
    byte : Out(stream of 8 bits)
        Headers and payloads of undamaged requests, without CRC, as many bytes as their header defines.
    """

    def __init__(self, buffer: int, last: Operation = max(Operation)) -> None:
        self.buffer, self.last = check_buffer(buffer), last
        super().__init__(
            {
                "line": In(stream.Signature(8, always_ready=True)),
                "error": In(1),
                "byte": Out(stream.Signature(8)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.crc32 = crc = _Crc()
        line = self.line
        escaped = Signal()
        bad = Signal()
        is_end = Signal()
        is_escape = Signal()
        taken = Signal()
        wanted = Signal()
        complete = Signal()
        byte = Signal(8)
        # `bad` accumulates errors of the frame, `escaped` would be an escape cut off by the end.
        good = complete & ~bad & ~escaped & crc.match
        m.d.comb += [
            is_end.eq(line.valid & (line.payload == END)),
            is_escape.eq((line.payload == ESC) & ~escaped),
            taken.eq(line.valid & ~is_end & ~is_escape),
            byte.eq(line.payload ^ Mux(escaped, FLIP, 0)),
            crc.byte.eq(byte),
            crc.start.eq(taken),
            crc.clear.eq(is_end),
        ]
        over = self._buffer(m, store=taken & wanted, byte=byte, commit=is_end & good, drop=is_end & ~good)
        wrong = self._fields(m, taken=taken, byte=byte, end=is_end, wanted=wanted, complete=complete)
        # A frame that is bad in any byte is dropped at its end.
        with m.If(line.valid):
            m.d.sync += escaped.eq(is_escape & ~is_end)
        with m.If(is_end):
            m.d.sync += bad.eq(0)
        with m.Elif(over | wrong | self.error):
            m.d.sync += bad.eq(1)
        return m

    def _fields(
        self, m: Module, *, taken: Value, byte: Value, end: Value, wanted: Signal, complete: Signal
    ) -> Value:
        """Follow the parts of a request; return whether the byte is invalid at its position."""
        wrong = Signal()
        phase = Signal(_Phase)
        index = Signal(range(max(REQUEST_BYTES, CRC_BYTES)))
        left = Signal(range(2 * PAYLOAD))
        payload = Signal()
        m.d.comb += [
            wanted.eq((phase == _Phase.HEADER) | (phase == _Phase.PAYLOAD)),
            complete.eq(phase == _Phase.COMPLETE),
            wrong.eq(taken & complete),
        ]
        with m.If(end):
            m.d.sync += [phase.eq(_Phase.HEADER), index.eq(0)]
        with m.Elif(taken & (phase == _Phase.PAYLOAD)):
            m.d.sync += left.eq(left - 1)
            with m.If(left == 1):
                m.d.sync += phase.eq(_Phase.CRC)
        with m.Elif(taken & (phase == _Phase.CRC)):
            m.d.sync += index.eq(index + 1)
            with m.If(index == CRC_BYTES - 1):
                m.d.sync += phase.eq(_Phase.COMPLETE)
        with m.Elif(taken & (phase == _Phase.HEADER)):
            m.d.sync += index.eq(index + 1)
            with m.Switch(index):
                with m.Case(1):
                    m.d.sync += payload.eq(carries_payload(byte))
                    m.d.comb += wrong.eq(byte > self.last)
                with m.Case(_SIZE):
                    m.d.sync += left[:8].eq(byte)
                with m.Case(_SIZE + 1):
                    # Only requests without payload may have larger sizes.
                    m.d.sync += left[8].eq(byte[0])
                    m.d.comb += wrong.eq(payload & (byte[1:] != 0))
                with m.Case(REQUEST_BYTES - 1):
                    m.d.sync += index.eq(0)
                    m.d.sync += phase.eq(Mux(payload & (left != 0), _Phase.PAYLOAD, _Phase.CRC))
        return wrong

    def _buffer(self, m: Module, *, store: Value, byte: Value, commit: Value, drop: Value) -> Value:
        """Store bytes in a ring buffer; return whether a byte finds no room."""
        m.submodules.memory = memory = Memory(shape=8, depth=self.buffer, init=[])
        write = memory.write_port()
        read = memory.read_port()
        at = Signal(range(self.buffer))
        end = Signal(range(self.buffer))
        first = Signal(range(self.buffer))
        following = Signal.like(at)
        full = Signal()
        m.d.comb += [
            following.eq(at + 1),
            full.eq(following == first),
            write.addr.eq(at),
            write.data.eq(byte),
            write.en.eq(store),
            read.addr.eq(first),
            self.byte.payload.eq(read.data),
        ]
        # Bytes from `first` to `end` belong to complete requests. Bytes from `end` to `at` belong to the current
        # request, and are kept or dropped at its end.
        with m.If(commit):
            m.d.sync += end.eq(at)
        with m.If(drop):
            m.d.sync += at.eq(end)
        with m.Elif(store & ~full):
            m.d.sync += at.eq(following)
        # The memory's data follow one cycle after the address, so there is a byte in every other cycle.
        m.d.sync += self.byte.valid.eq(first != end)
        with m.If(self.byte.valid & self.byte.ready):
            m.d.sync += [first.eq(first + 1), self.byte.valid.eq(0)]
        return store & full


class Framer(wiring.Component):
    """Transmitter that converts bodies to frames on a line.

    Members
    -------
    byte : In(stream of StructLayout({"data": 8, "last": 1}))
        Bodies of at least one byte.
    line : Out(stream of 8 bits)
    """

    def __init__(self) -> None:
        super().__init__(
            {
                "byte": In(stream.Signature(data.StructLayout({"data": 8, "last": 1}))),
                "line": Out(stream.Signature(8)),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.crc32 = crc = _Crc()
        line = self.line
        special = Signal()
        escaped = Signal()
        final = Signal()
        last = Signal()
        index = Signal(range(CRC_BYTES))  # bytes of the CRC sent so far
        m.d.comb += [
            special.eq((crc.held == END) | (crc.held == ESC)),
            crc.check.eq(last),
            crc.byte.eq(Mux(last, crc.crc, self.byte.payload.data)),
        ]
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += [line.payload.eq(END), line.valid.eq(self.byte.valid), crc.clear.eq(1)]
                m.d.sync += [last.eq(0), index.eq(0)]
                with m.If(line.valid & line.ready):
                    m.next = "TAKE"
            with m.State("TAKE"):
                m.d.comb += [crc.start.eq(last | self.byte.valid), self.byte.ready.eq(~last)]
                m.d.sync += final.eq(self.byte.payload.last)
                with m.If(crc.start):
                    m.next = "SEND"
            # The byte in `crc.held` is sent once its CRC is computed. A special byte is sent in two steps.
            with m.State("SEND"):
                escape = special & ~escaped
                m.d.comb += line.valid.eq(~crc.busy)
                m.d.comb += line.payload.eq(Mux(escape, ESC, crc.held ^ Mux(escaped, FLIP, 0)))
                with m.If(line.valid & line.ready):
                    m.d.sync += escaped.eq(escape)
                    with m.If(~escape):
                        m.d.sync += [last.eq(last | final), index.eq(index + last)]
                        m.next = "TAKE"
                        with m.If(index == CRC_BYTES - 1):
                            m.next = "END"
            with m.State("END"):
                m.d.comb += [line.payload.eq(END), line.valid.eq(1)]
                with m.If(line.ready):
                    m.next = "IDLE"
        return m


_POLYNOMIAL = 0xC96C5795D7870F42
_ONES = np.uint64((1 << 64) - 1)


def _table() -> np.ndarray:
    table = np.arange(256, dtype=np.uint64)
    for _ in range(8):
        table = table >> np.uint64(1) ^ (table & np.uint64(1)) * np.uint64(_POLYNOMIAL)
    return table


_TABLE = _table()


def crc64(blocks: np.ndarray) -> np.ndarray:
    """Return the CRC-64/XZ of each row.

    Parameters
    ----------
    blocks : np.ndarray
        Shape (count, bytes), uint8.

    Returns
    -------
    np.ndarray
        Shape (count,), uint64.
    """
    # All rows are processed in parallel, a byte of each at a time.
    crc = np.full(len(blocks), _ONES)
    for column in np.ascontiguousarray(blocks.T):
        crc = _TABLE[(crc.astype(np.uint8)) ^ column] ^ crc >> np.uint64(8)
    return crc ^ _ONES
