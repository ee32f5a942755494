"""Bytes to frames and back, in hardware: see `weft.boards.link.frames`."""

from __future__ import annotations

import enum

import numpy as np
from amaranth.hdl import Module, Mux, ResetInserter, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.crc.catalog import CRC32_ISO_HDLC
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from weft.boards.link.frames import CRC_BYTES, END, ESC, FLIP, PAYLOAD, REQUEST_BYTES, Operation, carries

_SIZE = 2
"""Byte of a request's header where its size starts."""


def check_buffer(size: int) -> int:
    """`size`, if a buffer can have it; else raises `ValueError`."""
    if size & (size - 1) or not 2 * (REQUEST_BYTES + PAYLOAD) <= size <= 1 << 15:
        raise ValueError(f"the link's buffer is a power of two from 1024 to 32768 bytes, not {size}")
    return size


class _Phase(enum.IntEnum):
    """What the next byte of a request belongs to."""

    HEADER = 0
    PAYLOAD = 1
    CRC = 2
    COMPLETE = 3


class _Crc(wiring.Component):
    """A CRC-32 that takes a bit a cycle: a byte of the line takes 40 cycles and more.

    ``byte`` is taken when ``start`` is 1, and stands rotated to its old place when ``busy`` is 0 again.
    """

    def __init__(self) -> None:
        super().__init__(
            {"clear": In(1), "start": In(1), "byte": In(8), "check": In(1), "busy": Out(1), "held": Out(8),
             "crc": Out(8), "match": Out(1)}
        )  # fmt: skip

    def elaborate(self, platform: object) -> Module:
        m = Module()
        # Cleared by its reset: `start` would cost a multiplexer.
        crc = CRC32_ISO_HDLC(data_width=1).create()
        m.submodules.crc = ResetInserter(self.clear)(crc)
        left = Signal(range(9))
        m.d.comb += [
            crc.valid.eq(self.busy),
            # The opposite of what the register expects shifts it: its next byte comes to its foot.
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
    """Requests from a line, in a buffer until they are undamaged and until they are wanted.

    A request that finds no room is dropped as a damaged one is.

    Parameters
    ----------
    buffer : int
        Bytes of the buffer, a power of two.
    last : Operation
        What has a higher number is no request.

    Members
    -------
    line : In(stream of 8 bits, always ready)
        At most a byte in 10 cycles.
    error : In(1)
        The line lost a byte.
    byte : Out(stream of 8 bits)
        Headers and payloads of undamaged requests, without CRC: as many bytes as their header tells.
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
        m.submodules.crc = crc = _Crc()
        line = self.line
        escaped = Signal()
        bad = Signal()
        is_end, is_escape, taken = Signal(), Signal(), Signal()
        wanted, complete = Signal(), Signal()
        byte = Signal(8)
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
        """Follows the parts of a request; returns whether the byte cannot be part of any."""
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
                    m.d.sync += payload.eq(carries(byte))
                    m.d.comb += wrong.eq(byte > self.last)
                with m.Case(_SIZE):
                    m.d.sync += left[:8].eq(byte)
                with m.Case(_SIZE + 1):
                    # Larger sizes are for requests without payload.
                    m.d.sync += left[8].eq(byte[0])
                    m.d.comb += wrong.eq(payload & (byte[1:] != 0))
                with m.Case(REQUEST_BYTES - 1):
                    m.d.sync += index.eq(0)
                    m.d.sync += phase.eq(Mux(payload & (left != 0), _Phase.PAYLOAD, _Phase.CRC))
        return wrong

    def _buffer(self, m: Module, *, store: Value, byte: Value, commit: Value, drop: Value) -> Value:
        """A ring of bytes; returns whether a byte found no room."""
        m.submodules.memory = memory = Memory(shape=8, depth=self.buffer, init=[])
        write, read = memory.write_port(), memory.read_port()
        at, end, first = (Signal(range(self.buffer), name=name) for name in ("at", "end", "first"))
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
        with m.If(commit):
            m.d.sync += end.eq(at)
        with m.If(drop):
            m.d.sync += at.eq(end)
        with m.Elif(store & ~full):
            m.d.sync += at.eq(following)
        # The memory answers a cycle after its address, so every other cycle has a byte.
        m.d.sync += self.byte.valid.eq(first != end)
        with m.If(self.byte.valid & self.byte.ready):
            m.d.sync += [first.eq(first + 1), self.byte.valid.eq(0)]
        return store & full


class Framer(wiring.Component):
    """Bodies to frames on a line.

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
        m.submodules.crc = crc = _Crc()
        line = self.line
        special, escaped, final, last = Signal(), Signal(), Signal(), Signal()
        index = Signal(range(CRC_BYTES))  # bytes of the CRC that were sent
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
    """The CRC of each row.

    Parameters
    ----------
    blocks : np.ndarray
        Shape (count, bytes), uint8.

    Returns
    -------
    np.ndarray
        Shape (count,), uint64.
    """
    crc = np.full(len(blocks), _ONES)
    for column in np.ascontiguousarray(blocks.T):
        crc = _TABLE[(crc.astype(np.uint8)) ^ column] ^ crc >> np.uint64(8)
    return crc ^ _ONES
