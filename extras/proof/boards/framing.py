"""Properties of `weft.boards.link.framing`: bytes to frames, and frames to requests."""

from __future__ import annotations

from amaranth.hdl import Module, Mux, Signal, Value

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
from weft.boards.link.framing import Deframer, Framer, _Phase
from weft.extras.proof.hardware.pipelines import ago, implies
from weft.extras.proof.hardware.property import Bench, CutBench, Induction, Invariant, proves
from weft.extras.proof.hardware.streams import assume_stable, stable, within

_BUFFER = 1024
_BYTE_CYCLES = 10
"""Cycles of a byte at least, see `Deframer`."""
_OPERATION, _SIZE = 1, 2
"""Bytes of a request's header."""


@proves("boards/framing", "frames", Invariant(), cover=60)
class FramerBench(Bench, unit=Framer):
    """A frame has an end on both sides. Between them are the bytes of the body and four more, in order. Bytes that mean
    an end or an escape are escaped, and no others.

    The line is unconstrained. Assumed: a byte of a body is kept until it is taken. Nothing is claimed of the value of
    the CRC: tests compare it with `zlib`'s.
    """

    def watch(self, m: Module) -> None:
        line, byte = self.dut.line, self.dut.byte
        assume_stable(m, self, byte, "byte")
        stable(m, self, line, "line")
        goes, taken = line.valid & line.ready, byte.valid & byte.ready
        is_end, is_escape = line.payload == END, line.payload == ESC
        escaped, inside = Signal(name="escaped"), Signal(name="inside")
        whole = goes & ~is_end & ~is_escape
        m.d.sync += [escaped.eq(Mux(goes, is_escape, escaped)), inside.eq(inside ^ (goes & is_end))]
        shown = line.payload ^ Mux(escaped, FLIP, 0)
        special = (shown == END) | (shown == ESC)
        self.claim("escapes are followed by what they stand for", implies(escaped & line.valid, special))
        self.claim("nothing outside of frames", implies(line.valid & ~inside, is_end))
        held, last, body = Signal(8, name="held_byte"), Signal(name="last"), Signal(name="body")
        owed, left = Signal(name="owed"), Signal(range(CRC_BYTES + 1), name="left")
        with m.If(taken):
            m.d.sync += [held.eq(byte.payload.data), last.eq(byte.payload.last), owed.eq(1)]
        with m.Elif(whole):
            m.d.sync += [owed.eq(0), left.eq(Mux(left != 0, left - 1, Mux(last, CRC_BYTES, 0)))]
        with m.If(goes & is_end):
            m.d.sync += [body.eq(~inside), last.eq(0)]
        self.claim("one byte at a time", ~taken | inside & ~owed & (left == 0) & ~last)
        coming = line.valid & inside & ~is_end & ~is_escape
        self.claim(
            "bytes of the body, once and in order", implies(coming & (left == 0), owed & (shown == held))
        )
        ends = line.valid & inside & is_end
        self.claim("an end after four bytes", implies(ends, last & ~owed & (left == 0) & ~escaped))
        self.claim("something comes", left <= CRC_BYTES)
        waits = ~line.valid & (inside & (owed | last) | byte.valid)
        within(m, self, waits, 11, "goes on")
        self.cover("an escape", escaped & whole)


@proves("boards/framing", "requests", Induction(2), _BUFFER, cover=60)
class DeframerBench(CutBench, unit=Deframer):
    """Bytes of requests are stored without escapes, and come out after their request ends undamaged, as many as its
    header says; all others are dropped.

    The buffer returns any bytes. The bench counts the bytes of the current request. Assumed: at most one byte comes in
    `_BYTE_CYCLES` cycles.
    """

    def watch(self, m: Module) -> None:
        dut, line = self.dut, self.dut.line
        pause = Signal(range(_BYTE_CYCLES), name="pause")
        m.d.sync += pause.eq(Mux(line.valid, _BYTE_CYCLES - 1, Mux(pause == 0, 0, pause - 1)))
        self.assume(~line.valid | (pause == 0))
        escaped = Signal(name="expected_escaped")
        is_end = line.valid & (line.payload == END)
        is_escape = line.valid & (line.payload == ESC) & ~escaped
        taken = line.valid & ~is_end & ~is_escape
        m.d.sync += escaped.eq(Mux(line.valid, is_escape, escaped))
        byte = line.payload ^ Mux(escaped, FLIP, 0)
        wanted, complete, wrong = self._request(m, taken, byte, is_end)
        (memory,) = self.memories
        (_read,), (write,) = memory.read_ports, memory.write_ports
        self.claim("wanted bytes are stored", write.en == (taken & wanted))
        self.claim("as they were before they were escaped", implies(write.en, write.data == byte))
        bits = (_BUFFER - 1).bit_length()
        at, end, first = (self.peek(name) for name in ("at", "end", "first"))
        self.claim("each at its place", implies(write.en, write.addr == at))
        pending, whole = Signal(bits, name="pending"), Signal(bits, name="whole")
        full = (pending + whole)[:bits] == _BUFFER - 1
        bad = Signal(name="expected_bad")
        over = write.en & full
        m.d.sync += bad.eq(~is_end & (bad | wrong | over | self.dut.error))
        good = is_end & complete & ~bad & ~escaped & self.peek("crc32.match")
        gone = dut.byte.valid & dut.byte.ready
        m.d.sync += [
            pending.eq(Mux(is_end, 0, pending + (write.en & ~full))),
            whole.eq(whole + Mux(good, pending, 0) - gone),
        ]
        self.claim("what is pending", (at - end)[:bits] == pending)
        self.claim("what is whole", (end - first)[:bits] == whole)
        self.claim("no more than there is room for", pending + whole < _BUFFER)
        self.claim("bad", self.peek("bad") == bad)
        self.claim("escaped", self.peek("escaped") == escaped)
        self.claim("bytes of undamaged requests alone", ~dut.byte.valid | (whole != 0))
        within(m, self, (whole != 0) & ~dut.byte.valid, 1, "a byte")
        self.cover(
            "a damaged request is dropped", ago(m, is_end & bad & (pending != 0), 1, "dropped", reset=True)
        )
        self.cover("a size is bad", wrong)

    def _request(self, m: Module, taken: Value, byte: Value, end: Value) -> tuple[Value, Value, Value]:
        """Count the bytes of a request; returns whether the next one is of its header or payload, whether it is
        complete, and whether the byte that comes cannot be part of any."""
        payload, size = Signal(name="has_payload"), Signal(range(2 * PAYLOAD), name="size")
        count = Signal(range(REQUEST_BYTES + 2 * PAYLOAD + CRC_BYTES), name="count")
        body = Mux(count < REQUEST_BYTES, REQUEST_BYTES, REQUEST_BYTES + Mux(payload, size, 0))
        complete = count == body + CRC_BYTES
        m.d.sync += count.eq(Mux(end, 0, count + (taken & ~complete)))
        with m.If(taken & (count == _OPERATION)):
            m.d.sync += payload.eq(carries_payload(byte))
        for half in range(2):
            with m.If(taken & (count == _SIZE + half)):
                m.d.sync += size[8 * half : 8 * half + 8].eq(byte)
        wrong = taken & (
            complete
            | (count == _OPERATION) & (byte > max(Operation))
            | (count == _SIZE + 1) & payload & (byte[1:] != 0)
        )
        self._phases(count, size, payload, body)
        return count < body, complete, wrong

    def _phases(self, count: Signal, size: Signal, payload: Signal, body: Value) -> None:
        """Claim where the unit is in a request, as induction needs it: none of this is promised to users."""
        phase, index = self.peek("phase"), self.peek("index")
        left = self.peek("left")
        header, comes, done = count < REQUEST_BYTES, count < body, count == body + CRC_BYTES
        state = Mux(header, _Phase.HEADER, Mux(comes, _Phase.PAYLOAD, Mux(done, _Phase.COMPLETE, _Phase.CRC)))
        self.claim("phase", phase == state)
        self.claim("count", count <= body + CRC_BYTES)
        self.claim("place in the header", ~header | (index == count))
        self.claim("place in the payload", header | ~comes | (index == 0))
        self.claim("place in the CRC", header | comes | done | (index == (count - body)[: len(index)]))
        self.claim("payload", (count <= _OPERATION) | (self.peek("payload") == payload))
        self.claim("low byte of the size", ~header | (count <= _SIZE) | (left[:8] == size[:8]))
        self.claim("size", ~header | (count <= _SIZE + 1) | (left == size))
        self.claim("bytes left", header | ~comes | (left == (REQUEST_BYTES + size - count)[: len(left)]))
