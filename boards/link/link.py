"""The board's end of the link: carries out a host's requests on memory and registers."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, ResetInserter, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.crc.catalog import CRC64_XZ
from amaranth.lib.wiring import In, Out

from weft.boards.bus.port import memory_port
from weft.boards.link.frames import (
    ANSWER,
    CHECK_BLOCK,
    CHECK_BYTES,
    FLASH_STATE,
    INVERSE,
    REQUEST_BYTES,
    REQUEST_FIELDS,
    Feature,
    Identity,
    Operation,
    carries_payload,
)
from weft.boards.link.framing import Deframer, Framer, check_buffer
from weft.boards.link.uart import Receiver, Transmitter, check_divisor
from weft.boards.sdram.calibration import calibration_layout
from weft.hdl.control.control import AXI_LITE
from weft.hdl.isa.config import Config
from weft.hdl.lib.queues import SkidBuffer

BUFFER = 2048
_REGISTER = 4
_ANSWER_BYTE = data.StructLayout({"data": 8, "last": 1})
_ANSWER = stream.Signature(_ANSWER_BYTE)


def check_piece(bits: int) -> int:
    """Return `bits` if a check can process that many per cycle; raise `ValueError` if not."""
    if bits not in (1, 2, 4):
        raise ValueError(f"a check takes 1, 2 or 4 bits in a cycle, not {bits}")
    return bits


def inner_host() -> wiring.Signature:
    """Return the signature of a second host inside the FPGA, seen from that host.

    Members
    -------
    request : Out(stream of 8 bits)
        Headers and payloads, of up to a page of `CHECK_BLOCK` bytes. Pauses between requests let the link serve the
        host on the line.
    answer : In(stream of StructLayout({"data": 8, "last": 1}))
        Headers and payloads.
    state : Out(8)
        `Identity.flash`.
    """
    return wiring.Signature({"request": Out(stream.Signature(8)), "answer": In(_ANSWER), "state": Out(8)})


class _Progress:
    """Current request and its progress.

    The fields of `request` count bytes left and the address. Kind: `writes`, and `memory` or `registers`. `effective`
    is 0 for a start that was made before.

    A bus word, or in its last bytes a register, is filled and drained at `lane`. Bytes that are not `inside` the
    request are skipped. `step` moves a byte, `issue` and `done` delimit an access, and `loaded` takes the word that was
    read.

    A check processes a byte in pieces of `checks` bits; the next is at `piece`. `crc` are the lowest eight bits of the
    result, which `shift` moves down by a piece. For `fills`, the link generates the bytes to write.
    """

    def __init__(self, config: Config, checks: int, last: Operation) -> None:
        self.align = (config.bus_bytes - 1).bit_length()
        # The header shifts in here; afterwards its size and address count down and up.
        self.request = Signal(data.StructLayout(REQUEST_FIELDS))
        self.left = self.request.size[: CHECK_BLOCK.bit_length()]
        self.address = self.request.address[: (CHECK_BLOCK - 1).bit_length()]
        self.operation = Value.cast(self.request.operation)[: int(last).bit_length()]
        self.starts = Signal(8)
        self.writes = Signal()
        self.registers = Signal()
        self.memory = Signal()
        self.effective = Signal()
        self.word = Signal(config.widths.bus)
        self.strobe = Signal(config.bus_bytes)
        self.lane = Signal(self.align)
        self.first = Signal()
        self.offset = Signal(self.align)
        self.last_lane = Signal()
        self.inside = Signal()
        self.step = Signal()
        self.issue = Signal()
        self.loaded = Signal()
        self.done = Signal()
        self.check = Signal()
        self.take = Signal()
        self.shift = Signal()
        self.checks = checks
        self.piece = Signal(range(8 // checks))
        self.crc = Signal(8)
        self.fills = Signal()


class Link(wiring.Component):
    """Memory and registers of a core on a serial line, see `weft.boards.link.frames`.

    Bus words and registers are accessed one by one. Each access takes as long as its bytes on the line, and the memory
    is free in between. A write is answered when memory has reported it.

    Parameters
    ----------
    config : Config
    divisor : int
        Clock cycles per bit of the line, see `weft.boards.link.uart`.
    board : str
        Name of the board, at most `NAME_BYTES` bytes of ASCII.
    memory_bytes : int
        Size of the memory.
    clock : int
        Frequency of the clock in hertz.
    buffer : int
        Bytes of requests that can wait, a power of two from 1024 on.
    inner : bool
        There is a second host.
    calibrated : bool
        The board calibrates the phase of its SDRAM's clock.
    fills : bool
        Support `Operation.FILL_MEMORY`, for memory too large to be tested over the line.
    checks : int
        Bits of memory that a check processes per cycle: 1, 2 or 4.

    Members
    -------
    rx : In(1), tx : Out(1)
        Asynchronous serial line; 1 when idle.
    memory : Out(memory_port(config.bus_bytes))
        Bursts of one word.
    registers : In(Signature(AXI_LITE))
        AXI4-Lite manager for the core's registers, see `weft.hdl.control.control`.
    reset : Out(1)
        Reset request for the core, for at least 20 bit times. The link then accesses neither registers nor memory.
        Other users of the memory port must become idle by themselves.
    inner : In(inner_host())
        Only with `inner`.
    calibration : In(calibration_layout())
        `Identity.calibration`; only with `calibrated`.
    """

    def __init__(
        self,
        config: Config,
        divisor: int,
        *,
        board: str = "",
        memory_bytes: int = 0,
        clock: int = 0,
        buffer: int = BUFFER,
        inner: bool = False,
        calibrated: bool = False,
        fills: bool = False,
        checks: int = 1,
    ) -> None:
        self.config, self.divisor, self.buffer = config, check_divisor(divisor), check_buffer(buffer)
        self.has_inner_host, self.fills, self.checks = inner, fills, check_piece(checks)
        self.last = Operation.FILL_MEMORY if fills else Operation.RESET
        features = Feature.FILLS if fills else Feature.NONE
        identity = Identity(board, config.digest, memory_bytes, clock, buffer, features=features).encode()
        self.identity = identity[: None if calibrated else FLASH_STATE + 1]
        super().__init__(
            {
                "rx": In(1, init=1),
                "tx": Out(1, init=1),
                "memory": Out(memory_port(config.bus_bytes)),
                "registers": In(wiring.Signature(AXI_LITE)),
                "reset": Out(1),
                **({"inner": In(inner_host())} if inner else {}),
                **({"calibration": In(calibration_layout())} if calibrated else {}),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.receiver = receiver = Receiver(self.divisor)
        m.submodules.transmitter = transmitter = Transmitter(self.divisor)
        m.submodules.deframer = deframer = Deframer(self.buffer, self.last)
        m.submodules.framer = framer = Framer()
        wiring.connect(m, receiver.byte, deframer.line)
        wiring.connect(m, framer.line, transmitter.byte)
        m.d.comb += [
            receiver.rx.eq(self.rx),
            self.tx.eq(transmitter.tx),
            deframer.error.eq(receiver.error),
        ]
        self._requests(m, deframer, framer)
        return m

    def _requests(self, m: Module, deframer: Deframer, framer: Framer) -> None:
        at = _Progress(self.config, self.checks, self.last)
        received: Any = deframer.byte
        out: Any = framer.byte
        if self.has_inner_host:
            # The FSM uses streams of its own, which `_alternate` connects to either host.
            received = stream.Signature(8).create(path=("received",))
            out = _ANSWER.create(path=("out",))
        self._decode(m, at)
        self._word(m, at, received.payload)
        answering = Signal()
        reads = Signal()
        m.d.comb += self.reset.eq(answering & (at.operation == Operation.RESET))
        m.d.comb += reads.eq(~at.writes & (at.left != 0))
        identity = self._identity(m, at)
        index = Signal(range(REQUEST_BYTES))
        self._check(m, at, answering)
        with m.FSM() as fsm:
            self._receive(m, at, received, index)
            self._write(m, at, received)
            self._answer(m, at, out, answering, reads)
            self._read(m, at, out, identity)
            self._result(m, at, out, index)
        if self.has_inner_host:
            self._alternate(m, deframer, framer, received, out, fsm.ongoing("REQUEST") & (index == 0))

    def _alternate(
        self, m: Module, deframer: Deframer, framer: Framer, received: Any, out: Any, between: Value
    ) -> None:
        """Alternate between the two hosts: `between` requests, the turn changes until a host has a byte."""
        turn = Signal(name="turn")
        # Registers in both directions, because the FSMs of link and inner host have long paths of their own.
        m.submodules.inner_request = request = SkidBuffer(8)
        m.submodules.inner_answer = answer = SkidBuffer(_ANSWER_BYTE)
        wiring.connect(m, wiring.flipped(self.inner.request), request.i)
        wiring.connect(m, answer.o, wiring.flipped(self.inner.answer))
        # The turn changes every cycle until a host has a byte, and stays there until its request is answered.
        with m.If(between & ~received.valid):
            m.d.sync += turn.eq(~turn)
        m.d.comb += [
            received.valid.eq(Mux(turn, request.o.valid, deframer.byte.valid)),
            received.payload.eq(Mux(turn, request.o.payload, deframer.byte.payload)),
            request.o.ready.eq(received.ready & turn),
            deframer.byte.ready.eq(received.ready & ~turn),
            answer.i.valid.eq(out.valid & turn),
            framer.byte.valid.eq(out.valid & ~turn),
            out.ready.eq(Mux(turn, answer.i.ready, framer.byte.ready)),
            answer.i.payload.eq(out.payload),
            framer.byte.payload.eq(out.payload),
        ]

    @staticmethod
    def _decode(m: Module, at: _Progress) -> None:
        """Decode the request into registers, which are valid from the cycle after CHECK on."""
        operation = at.operation
        m.d.sync += [
            at.writes.eq(carries_payload(operation) | (operation == Operation.FILL_MEMORY)),
            at.fills.eq(operation == Operation.FILL_MEMORY),
            at.check.eq(operation == Operation.CHECK_MEMORY),
            at.memory.eq(
                (operation == Operation.READ_MEMORY)
                | (operation == Operation.WRITE_MEMORY)
                | (operation == Operation.CHECK_MEMORY)
                | (operation == Operation.FILL_MEMORY)
            ),
            at.registers.eq(
                (operation == Operation.READ_REGISTERS)
                | (operation == Operation.WRITE_REGISTERS)
                | (operation == Operation.START)
            ),
        ]

    def _word(self, m: Module, at: _Progress, received: Value) -> None:
        """Assemble a word from bytes or take it apart, and connect its access."""
        registers = at.registers
        m.d.comb += [
            at.offset.eq(Mux(registers, at.address[:2], at.address[: at.align])),
            at.last_lane.eq(Mux(registers, at.lane == _REGISTER - 1, at.lane == self.config.bus_bytes - 1)),
            at.inside.eq((at.left != 0) & ~(at.first & (at.lane < at.offset))),
        ]
        self._bus(m, at)
        byte = Mux(at.fills, self._fill_byte(at), received) if self.fills else received
        # Words shift in from the high end and out of the low end, a byte per step. Registers occupy the low bytes when
        # read, and the high bytes when written.
        with m.If(at.step):
            m.d.sync += [
                at.word.eq(Cat(at.word, byte)[8:]),
                at.strobe.eq(Cat(at.strobe, at.inside)[1:]),
                at.lane.eq(Mux(at.last_lane, 0, at.lane + 1)),
                at.left.eq(at.left - at.inside),
            ]
        with m.Elif(at.loaded):
            m.d.sync += at.word.eq(
                Mux(registers, Cat(self.registers.s_axi_rdata, at.word[32:]), self.memory.read.payload)
            )

    @staticmethod
    def _fill_byte(at: _Progress) -> Value:
        """Return the byte at `lane` of the fill pattern, see `weft.boards.link.frames.fill_pattern`."""
        # The low half of an 8-byte word is its number, the high half the inverse of it.
        address = Cat(at.lane, at.request.address[at.align :])
        inverse = at.request.size[INVERSE] ^ address[2]
        return Cat(address[3:], Const(0, 3)).word_select(address[:2], 8) ^ inverse.replicate(8)

    def _advance(self, at: _Progress) -> list[Any]:
        """Return the assignments that advance to the next word."""
        return [
            at.address.eq(at.address + Mux(at.registers, _REGISTER, self.config.bus_bytes)),
            at.first.eq(0),
        ]

    def _identity(self, m: Module, at: _Progress) -> Signal:
        identity = Signal(8)
        with m.Switch(Cat(at.lane, at.address[at.align :])):
            for number, byte in enumerate(self.identity):
                value: Any = byte
                if self.has_inner_host and number == FLASH_STATE:
                    value = self.inner.state | byte
                elif number > FLASH_STATE:
                    value = self.calibration.as_value().word_select(number - FLASH_STATE - 1, 8)
                with m.Case(number):
                    m.d.comb += identity.eq(value)
        return identity

    @staticmethod
    def _check(m: Module, at: _Progress, clear: Signal) -> None:
        """Compute the CRC of a check, one piece per cycle, starting after `clear`."""
        m.submodules.crc64 = crc = ResetInserter(clear)(CRC64_XZ(data_width=at.checks).create())
        m.d.comb += [
            crc.valid.eq(at.take | at.shift),
            # Feeding the inverse of the expected bits shifts the register, so its next byte moves to the low end.
            crc.data.eq(Mux(at.shift, ~crc.crc[: at.checks], at.word[:8].word_select(at.piece, at.checks))),
            at.crc.eq(crc.crc[:8]),
        ]
        with m.If(crc.valid):
            m.d.sync += at.piece.eq(at.piece + 1)

    @staticmethod
    def _receive(m: Module, at: _Progress, received: Any, index: Signal) -> None:
        with m.State("REQUEST"):
            m.d.comb += received.ready.eq(1)
            m.d.sync += [at.lane.eq(0), at.first.eq(1)]
            with m.If(received.valid):
                m.d.sync += [at.request.eq(Cat(at.request, received.payload)[8:]), index.eq(index + 1)]
                with m.If(index == REQUEST_BYTES - 1):
                    m.next = "CHECK"
        # One cycle for the comparison with `starts`, and for `_decode`.
        with m.State("CHECK"):
            start = at.operation == Operation.START
            is_next = at.request.address[24:] == at.starts
            m.d.sync += at.effective.eq((~start | is_next) & (at.operation != Operation.RESET))
            with m.If(start & is_next):
                m.d.sync += at.starts.eq(at.starts + 1)
            m.next = "SEQUENCE"
            with m.If(
                (carries_payload(at.operation) | (at.operation == Operation.FILL_MEMORY)) & (at.left != 0)
            ):
                m.next = "FILL"

    def _write(self, m: Module, at: _Progress, received: Any) -> None:
        """Add the states that write words from received or generated bytes."""
        # A word is filled lane by lane. Lanes before the first byte and after the last are skipped with strobe 0.
        with m.State("FILL"):
            m.d.comb += [
                at.step.eq(~at.inside | received.valid | at.fills),
                received.ready.eq(at.inside & ~at.fills),
            ]
            with m.If(at.step & at.last_lane):
                m.next = "WRITE"
        with m.State("WRITE"):
            m.d.comb += at.issue.eq(at.effective)
            m.next = "WRITING"
        with m.State("WRITING"), m.If(at.done | ~at.effective):
            m.d.sync += self._advance(at)
            m.next = "SEQUENCE"
            with m.If(at.left != 0):
                m.next = "FILL"

    @staticmethod
    def _answer(m: Module, at: _Progress, out: Any, answering: Signal, reads: Signal) -> None:
        """Add the states that send an answer's header. Without data to read, this is the whole answer."""
        with m.State("SEQUENCE"):
            m.d.comb += answering.eq(1)
            m.d.comb += [out.valid.eq(1), out.payload.data.eq(at.request.sequence)]
            with m.If(out.ready):
                m.next = "OPERATION"
        with m.State("OPERATION"):
            m.d.comb += answering.eq(1)
            m.d.comb += [out.valid.eq(1), out.payload.data.eq(at.operation | ANSWER)]
            with m.If(out.ready):
                m.next = "STARTS"
        with m.State("STARTS"):
            m.d.comb += answering.eq(1)
            m.d.comb += [out.valid.eq(1), out.payload.data.eq(at.starts), out.payload.last.eq(~reads)]
            with m.If(out.ready):
                m.next = "REQUEST"
                with m.If(reads):
                    m.next = "READ"

    def _read(self, m: Module, at: _Progress, out: Any, identity: Signal) -> None:
        accesses = at.memory | at.registers
        with m.State("READ"):
            m.d.comb += at.issue.eq(accesses)
            m.next = "READING"
        with m.State("READING"), m.If(at.done | ~accesses):
            m.d.comb += at.loaded.eq(1)
            m.next = "DRAIN"
        with m.State("DRAIN"):
            # A check consumes bytes in pieces instead of sending them.
            identify = at.operation == Operation.IDENTIFY
            last = 8 // at.checks - 1
            m.d.comb += [
                out.valid.eq(at.inside & ~at.check),
                out.payload.data.eq(Mux(identify, identity, at.word[:8])),
                out.payload.last.eq(at.left == 1),
                at.take.eq(at.inside & at.check),
                at.step.eq(~at.inside | Mux(at.check, at.piece == last, out.ready)),
            ]
            with m.If(at.step & at.last_lane):
                m.d.sync += self._advance(at)
                m.next = "READ"
            with m.If(at.step & at.inside & out.payload.last):
                m.next = "REQUEST"
                with m.If(at.check):
                    m.next = "RESULT"

    @staticmethod
    def _result(m: Module, at: _Progress, out: Any, index: Signal) -> None:
        with m.State("RESULT"):
            last = index == CHECK_BYTES - 1
            m.d.comb += [out.valid.eq(1), out.payload.data.eq(at.crc), out.payload.last.eq(last)]
            with m.If(out.ready):
                m.d.sync += index.eq(index + 1)
                m.next = "SHIFT"
        with m.State("SHIFT"):
            m.d.comb += at.shift.eq(1)
            with m.If(at.piece == 8 // at.checks - 1):
                m.next = "RESULT"
                with m.If(index == 0):
                    m.next = "REQUEST"

    def _bus(self, m: Module, at: _Progress) -> None:
        """Connect one access to memory or registers, from `issue` to `done`. A word that was read is valid with
        `done`."""
        port, axi, request, issue = self.memory, self.registers, at.request, at.issue
        m.d.comb += [
            port.command.payload.write.eq(at.writes),
            port.command.payload.address.eq(Cat(Const(0, at.align), request.address[at.align :])),
            port.command.payload.beats.eq(1),
            port.write.payload.data.eq(at.word),
            port.write.payload.strobe.eq(at.strobe),
            port.read.ready.eq(1),
            axi.s_axi_awaddr.eq(request.address),
            axi.s_axi_araddr.eq(request.address),
            axi.s_axi_wdata.eq(at.word[-8 * _REGISTER :]),
            axi.s_axi_wstrb.eq(at.strobe[-_REGISTER:]),
            axi.s_axi_bready.eq(1),
            axi.s_axi_rready.eq(1),
            at.done.eq(port.written | port.read.valid | axi.s_axi_bvalid | axi.s_axi_rvalid),
        ]
        # Each channel's valid is set by `issue` and stays until its ready. All channels of an access start together.
        for valid, ready, asked in (
            (port.command.valid, port.command.ready, at.memory),
            (port.write.valid, port.write.ready, at.memory & at.writes),
            (axi.s_axi_awvalid, axi.s_axi_awready, ~at.memory & at.writes),
            (axi.s_axi_wvalid, axi.s_axi_wready, ~at.memory & at.writes),
            (axi.s_axi_arvalid, axi.s_axi_arready, ~at.memory & ~at.writes),
        ):
            m.d.sync += valid.eq(Mux(issue, asked, valid & ~ready))
