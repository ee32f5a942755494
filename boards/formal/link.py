"""Properties of the boards' serial link: lines, frames and their check."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from amaranth.hdl import Module, Mux, Signal, Value

from weft.boards.framing import Deframer
from weft.hdl.formal.property import Bench, Property
from weft.hdl.formal.streams import stable, within

END, ESC, FLIP = 0x7E, 0x7D, 0x20
POLYNOMIAL, RESIDUE = 0xEDB88320, 0xDEBB20E3
"""Of CRC-32 as IEEE 802.3 has it, least significant bit first; and what the register holds, before it is inverted, when
a message and its CRC have gone through it."""
HEADER, CHECK = 8, 4
"""Bytes of a request's header, and of the CRC behind it."""


class Crc32:
    """CRC-32 by its definition, a bit a cycle, of bytes with eight cycles and more from one to the next."""

    def __init__(self, m: Module, *, clear: Value, start: Value, byte: Value) -> None:
        self.register = register = Signal(32, init=(1 << 32) - 1, name="crc_register")
        bits, left = Signal(8, name="crc_bits"), Signal(range(9), name="crc_left")
        self.bits, self.left = bits, left
        self.busy = left != 0
        with m.If(self.busy):
            feedback = register[0] ^ bits[0]
            m.d.sync += [
                register.eq((register >> 1) ^ Mux(feedback, POLYNOMIAL, 0)),
                bits.eq(bits >> 1),
                left.eq(left - 1),
            ]
        with m.Elif(start):
            m.d.sync += [bits.eq(byte), left.eq(8)]
        with m.If(clear):
            m.d.sync += register.eq((1 << 32) - 1)


class Frame:
    """What a frame is: bytes between two that are `END`, escaped as RFC 1662 has it; a header, the payload that it
    tells of, and the CRC-32 of both."""

    def __init__(self, m: Module, line: Any, error: Value, overflow: Value) -> None:
        value = line.payload
        escaped, bad = Signal(name="frame_escaped"), Signal(name="frame_bad")
        self.bad = bad
        self.end = line.valid & (value == END)
        escape = line.valid & (value == ESC) & ~escaped
        self.taken = taken = line.valid & ~self.end & ~escape
        self.byte = byte = value ^ Mux(escaped, FLIP, 0)
        header, check = Signal(range(HEADER + 1), name="frame_header"), Signal(range(CHECK + 1), name="frame_check")
        left, carries = Signal(9, name="frame_left"), Signal(name="frame_carries")
        self.header, self.check, self.left, self.carries = header, check, left, carries
        in_header, in_payload = header != HEADER, (header == HEADER) & (left != 0)
        self.body = taken & (in_header | in_payload)
        self.crc = crc = Crc32(m, clear=self.end, start=taken, byte=byte)
        complete = (header == HEADER) & (left == 0) & (check == CHECK)
        self.good = self.end & complete & ~bad & ~escaped & (crc.register == RESIDUE)
        with m.If(line.valid):
            m.d.sync += escaped.eq(escape)
        with m.If(taken & in_header):
            m.d.sync += header.eq(header + 1)
            with m.Switch(header):
                with m.Case(1):
                    m.d.sync += [carries.eq(byte[0]), bad.eq(bad | (byte > 7))]
                with m.Case(2):
                    m.d.sync += left.eq(Mux(carries, byte, 0))
                with m.Case(3):
                    # No payload has 512 bytes or more.
                    m.d.sync += [left[8].eq(carries & byte[0]), bad.eq(bad | (carries & (byte > 1)))]
        with m.Elif(taken & in_payload):
            m.d.sync += left.eq(left - 1)
        with m.Elif(taken):
            m.d.sync += [check.eq(check + (check != CHECK)), bad.eq(bad | (check == CHECK))]
        with m.If(overflow | error):
            m.d.sync += bad.eq(1)
        with m.If(self.end):
            m.d.sync += [header.eq(0), left.eq(0), check.eq(0), bad.eq(0)]


class DeframerBench(Bench):
    """A receiver of requests with a small buffer, behind a line that has at most a byte in 10 cycles, and none in the
    cycle in which it says that it lost one.

    The bytes on the line are any. One byte, any one, of what is inside frames is watched.
    """

    BUFFER = 16

    def __init__(self) -> None:
        dut = Deframer(1024)
        dut.buffer = self.BUFFER  # less than a link wants: the proof needs all states of the memory
        super().__init__(dut)

    def watch(self, m: Module) -> None:
        self.free_inputs(m)
        dut, line = self.dut, self.dut.line
        quiet = Signal(range(10))
        m.d.sync += quiet.eq(Mux(line.valid, 9, quiet - (quiet != 0)))
        self.assume(~line.valid | ((quiet == 0) & ~dut.error))
        stable(m, self, dut.byte, "byte")
        known, tentative = Signal(range(self.BUFFER + 1)), Signal(range(self.BUFFER + 1))
        overflow = Signal()
        frame = Frame(m, line, dut.error, overflow)
        pop = dut.byte.valid & dut.byte.ready
        m.d.comb += overflow.eq(frame.body & (known + tentative == self.BUFFER - 1))
        m.d.sync += [
            known.eq(known + Mux(frame.good, tentative, 0) - pop),
            tentative.eq(Mux(frame.end, 0, tentative + (frame.body & ~overflow))),
        ]
        self.claim("nothing but whole and undamaged requests", ~dut.byte.valid | (known != 0))
        within(m, self, (known != 0) & ~dut.byte.valid, 2, "request comes")
        self.cover("request", frame.good)
        self._byte(m, frame, stored=frame.body & ~overflow, pop=pop, known=known, tentative=tentative)
        self._help(frame)

    def _byte(self, m: Module, frame: Frame, *, stored: Value, pop: Value, known: Signal, tentative: Signal) -> None:
        mark = self.free(1, "mark")
        watched, kept = Signal(), Signal()
        word, ahead, place = Signal(8), Signal.like(known), Signal(range(self.BUFFER))
        at, end, first = (self.peek(name, len(place)) for name in ("at", "end", "first"))
        out = watched & kept & pop & (ahead == 0)
        with m.If(watched & pop):
            m.d.sync += ahead.eq(ahead - 1)
        with m.If(frame.good):
            m.d.sync += kept.eq(watched)
        with m.If(out | (frame.end & ~frame.good & watched & ~kept)):
            m.d.sync += watched.eq(0)
        with m.If(mark & stored & ~watched):
            m.d.sync += [watched.eq(1), kept.eq(0), word.eq(frame.byte), place.eq(at)]
            m.d.sync += ahead.eq(known + tentative - pop)
        self.claim("order", ~out | (self.dut.byte.payload == word))
        # Help for the proof: what the unit's pointers mean.
        size = self.BUFFER
        self.claim("bytes known", known == (end - first)[: len(place)])
        self.claim("bytes of the frame", tentative == (at - end)[: len(place)])
        self.claim("room", known + tentative < size)
        self.claim("place", ~watched | (place == (first + ahead)[: len(place)]))
        self.claim("position", ~watched | Mux(kept, ahead < known, (ahead >= known) & (ahead < known + tentative)))

    def _help(self, frame: Frame) -> None:
        """Help for the proof: how far the unit is in a frame, and that both have the same CRC."""
        phase, index, left = self.peek("phase", 2), self.peek("index", 3), self.peek("left", 9)
        for number, place in enumerate(
            (
                (frame.header != HEADER) & (frame.header == index) & (frame.check == 0),
                (frame.header == HEADER) & (frame.left != 0) & (frame.left == left) & (frame.check == 0),
                (frame.header == HEADER) & (frame.left == 0) & (frame.check == index) & (frame.check != CHECK),
                (frame.header == HEADER) & (frame.left == 0) & (frame.check == CHECK),
            )
        ):
            self.claim(f"phase {number}", (phase != number) | place)
        self.claim("bad", self.peek("bad", 1) == frame.bad)
        self.claim("carries", (frame.header < 2) | (self.peek("payload", 1) == frame.carries))
        self.claim("size", (frame.header < 3) | ~frame.carries | (left[:8] == frame.left[:8]))
        self.claim("upper bit of the size", (frame.header < 4) | ~frame.carries | (left[8] == frame.left[8]))
        self.claim("no size yet", Mux(frame.header < 3, frame.left == 0, (frame.header > 3) | ~frame.left[8]))
        self.claim("no size", (frame.header < 3) | frame.carries | (frame.left == 0))
        crc = frame.crc
        self.claim("crc", self.peek("crc.crc", 32) == ~crc.register)
        self.claim("bits left", self.peek("crc.left", 4) == crc.left)
        bits = (self.peek("crc.held", 8) ^ crc.bits) << (8 - crc.left)[:4]
        self.claim("bits", bits[:8] == 0)


def properties() -> Iterator[Property]:
    yield Property(
        "boards/framing",
        "requests",
        "Whatever comes over the line, all bytes of undamaged requests come out once, in order, and no others.",
        DeframerBench,
        cover=200,
    )
