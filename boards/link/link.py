"""The board's end of the link: carries out the requests of a host on memory and registers."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, ResetInserter, Signal, Value
from amaranth.lib import data, stream, wiring
from amaranth.lib.crc.catalog import CRC64_XZ
from amaranth.lib.wiring import In, Out

from weft.boards.bus.port import memory_port
from weft.boards.link.frames import (
    ANSWER,
    CHECK_BYTES,
    CHECKED,
    FLASH_STATE,
    INVERSE,
    REQUEST_BYTES,
    REQUEST_FIELDS,
    Feature,
    Identity,
    Operation,
    carries,
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
    """`bits`, if a check can take so many in a cycle; else raises `ValueError`."""
    if bits not in (1, 2, 4):
        raise ValueError(f"a check takes 1, 2 or 4 bits in a cycle, not {bits}")
    return bits


def inner_host() -> wiring.Signature:
    """A second host, inside the FPGA, seen from there.

    Members
    -------
    request : Out(stream of 8 bits)
        Headers and payloads, of up to a page of `CHECKED` bytes. Between some of them is a pause, in which the link
        looks whether the host on the line has one.
    answer : In(stream of StructLayout({"data": 8, "last": 1}))
        Headers and payloads.
    state : Out(8)
        `Identity.flash`.
    """
    return wiring.Signature({"request": Out(stream.Signature(8)), "answer": In(_ANSWER), "state": Out(8)})


class _Progress:
    """The request that is carried out, and how far it is.

    Bytes left and address are counted in its own fields. Its kind: it `writes`, and goes to `memory` or `registers`;
    `effective` is 0 for a start that has been made before. A bus word, or in its last bytes a register, comes in and
    goes out at `lane`; bytes that are not `inside` the request are passed over. `step` moves a byte, `issue` and `done`
    are an access, `loaded` takes what it has read. A check takes a byte in pieces of `checks` bits, the one at `piece`
    next; `crc` are the lowest eight bits of its result, which `shift` moves down by a piece. Memory that is filled is
    written with bytes that the link makes, `fills`.
    """

    def __init__(self, config: Config, checks: int, last: Operation) -> None:
        self.align = (config.bus_bytes - 1).bit_length()
        self.request = Signal(data.StructLayout(REQUEST_FIELDS))
        self.left = self.request.size[: CHECKED.bit_length()]
        self.address = self.request.address[: (CHECKED - 1).bit_length()]
        self.operation = Value.cast(self.request.operation)[: int(last).bit_length()]
        self.starts = Signal(8)
        self.writes, self.registers, self.memory, self.effective = Signal(), Signal(), Signal(), Signal()
        self.word, self.strobe = Signal(config.widths.bus), Signal(config.bus_bytes, name="strobe")
        self.lane = Signal(self.align)
        self.first = Signal()
        self.offset, self.last_lane, self.inside = Signal(self.align), Signal(), Signal(name="inside")
        self.step, self.issue, self.loaded, self.done = Signal(), Signal(), Signal(), Signal()
        self.check, self.take, self.shift = Signal(name="check"), Signal(name="take"), Signal(name="shift")
        self.checks = checks
        self.piece, self.crc = Signal(range(8 // checks)), Signal(8)
        self.fills = Signal(name="fills")


class Link(wiring.Component):
    """Memory and registers of a core on a serial line, see `weft.boards.link.frames`.

    Bus words and registers are read and written one by one: each takes as long as its bytes on the line, and the
    memory is free in between. The answer to a write comes when the memory has reported it.

    Parameters
    ----------
    config : Config
    divisor : int
        Clock cycles in a bit of the line, see `weft.boards.link.uart`.
    board : str
        Name of the board, at most `NAME_BYTES` bytes of ASCII.
    memory_bytes : int
        Size of the memory.
    clock : int
        Frequency of the clock in hertz.
    buffer : int
        Bytes of requests that can wait, a power of two from 1024 on.
    inner : bool
        Whether there is a second host.
    calibrated : bool
        Whether the board looks for the phase of its SDRAM's clock.
    fills : bool
        Whether it carries out `Operation.FILL_MEMORY`, for memory that is too large to be tested over the line.
    checks : int
        Bits of memory that a check takes in a cycle: 1, 2 or 4.

    Members
    -------
    rx : In(1), tx : Out(1)
        The line, asynchronous; 1 when idle.
    memory : Out(memory_port(config.bus_bytes))
        Bursts of one word.
    registers : In(Signature(AXI_LITE))
        The core's registers, see `weft.hdl.control.control`, as an AXI4-Lite manager.
    reset : Out(1)
        The host asks for a reset of the core: high for 20 bits of the line and more, in which the link accesses neither
        registers nor memory. Whoever else is on the memory port must come to rest by itself.
    inner : In(inner_host())
        With `inner` only.
    calibration : In(calibration_layout())
        `Identity.calibration`; with `calibrated` only.
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
        self.two, self.fills, self.checks = inner, fills, check_piece(checks)
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
        if self.two:
            received, out = stream.Signature(8).create(), _ANSWER.create()
        self._kind(m, at)
        self._word(m, at, received.payload)
        answering, reads = Signal(name="answering"), Signal(name="reads")
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
        if self.two:
            self._turns(m, deframer, framer, received, out, fsm.ongoing("REQUEST") & (index == 0))

    def _turns(
        self, m: Module, deframer: Deframer, framer: Framer, received: Any, out: Any, between: Value
    ) -> None:
        """Both hosts by turns: `between` two requests, whose turn it is changes until one has a byte."""
        turn = Signal(name="turn")
        # Registers both ways, as the FSMs of link and inner host are long paths by themselves.
        m.submodules.inner_request = request = SkidBuffer(8)
        m.submodules.inner_answer = answer = SkidBuffer(_ANSWER_BYTE)
        wiring.connect(m, wiring.flipped(self.inner.request), request.i)
        wiring.connect(m, answer.o, wiring.flipped(self.inner.answer))
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
    def _kind(m: Module, at: _Progress) -> None:
        """What the request asks for, in registers: they hold from the cycle after CHECK on."""
        operation = at.operation
        m.d.sync += [
            at.writes.eq(carries(operation) | (operation == Operation.FILL_MEMORY)),
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
        """The word that is taken from bytes, or gives them, and its access."""
        registers = at.registers
        m.d.comb += [
            at.offset.eq(Mux(registers, at.address[:2], at.address[: at.align])),
            at.last_lane.eq(Mux(registers, at.lane == _REGISTER - 1, at.lane == self.config.bus_bytes - 1)),
            at.inside.eq((at.left != 0) & ~(at.first & (at.lane < at.offset))),
        ]
        self._bus(m, at)
        byte = Mux(at.fills, self._filling(at), received) if self.fills else received
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
    def _filling(at: _Progress) -> Value:
        """The byte at `lane` of what memory is filled with, see `weft.boards.link.frames.filling`."""
        address = Cat(at.lane, at.request.address[at.align :])
        inverse = at.request.size[INVERSE] ^ address[2]
        return Cat(address[3:], Const(0, 3)).word_select(address[:2], 8) ^ inverse.replicate(8)

    def _following(self, at: _Progress) -> list[Any]:
        """Go on to the word behind this one."""
        return [
            at.address.eq(at.address + Mux(at.registers, _REGISTER, self.config.bus_bytes)),
            at.first.eq(0),
        ]

    def _identity(self, m: Module, at: _Progress) -> Signal:
        """The byte of `identity` that is due."""
        identity = Signal(8)
        with m.Switch(Cat(at.lane, at.address[at.align :])):
            for number, byte in enumerate(self.identity):
                value: Any = byte
                if self.two and number == FLASH_STATE:
                    value = self.inner.state | byte
                elif number > FLASH_STATE:
                    value = self.calibration.as_value().word_select(number - FLASH_STATE - 1, 8)
                with m.Case(number):
                    m.d.comb += identity.eq(value)
        return identity

    @staticmethod
    def _check(m: Module, at: _Progress, clear: Signal) -> None:
        """The CRC of a check, a piece a cycle; it begins behind `clear`."""
        m.submodules.crc = crc = ResetInserter(clear)(CRC64_XZ(data_width=at.checks).create())
        m.d.comb += [
            crc.valid.eq(at.take | at.shift),
            # The opposite of what the register expects shifts it: its next byte comes to its foot.
            crc.data.eq(Mux(at.shift, ~crc.crc[: at.checks], at.word[:8].word_select(at.piece, at.checks))),
            at.crc.eq(crc.crc[:8]),
        ]
        with m.If(crc.valid):
            m.d.sync += at.piece.eq(at.piece + 1)

    @staticmethod
    def _receive(m: Module, at: _Progress, received: Any, index: Signal) -> None:
        """States in which a request comes in, and is looked at."""
        with m.State("REQUEST"):
            m.d.comb += received.ready.eq(1)
            m.d.sync += [at.lane.eq(0), at.first.eq(1)]
            with m.If(received.valid):
                m.d.sync += [at.request.eq(Cat(at.request, received.payload)[8:]), index.eq(index + 1)]
                with m.If(index == REQUEST_BYTES - 1):
                    m.next = "CHECK"
        with m.State("CHECK"):
            start = at.operation == Operation.START
            same = at.request.address[24:] == at.starts
            m.d.sync += at.effective.eq((~start | same) & (at.operation != Operation.RESET))
            with m.If(start & same):
                m.d.sync += at.starts.eq(at.starts + 1)
            m.next = "SEQUENCE"
            with m.If((carries(at.operation) | (at.operation == Operation.FILL_MEMORY)) & (at.left != 0)):
                m.next = "FILL"

    def _write(self, m: Module, at: _Progress, received: Any) -> None:
        """States in which words are written as their bytes come in, or are made."""
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
            m.d.sync += self._following(at)
            m.next = "SEQUENCE"
            with m.If(at.left != 0):
                m.next = "FILL"

    @staticmethod
    def _answer(m: Module, at: _Progress, out: Any, answering: Signal, reads: Signal) -> None:
        """States in which an answer begins; if nothing is read, that is all of it."""
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
        """States in which words are read, and their bytes go out."""
        accesses = at.memory | at.registers
        with m.State("READ"):
            m.d.comb += at.issue.eq(accesses)
            m.next = "READING"
        with m.State("READING"), m.If(at.done | ~accesses):
            m.d.comb += at.loaded.eq(1)
            m.next = "DRAIN"
        with m.State("DRAIN"):
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
                m.d.sync += self._following(at)
                m.next = "READ"
            with m.If(at.step & at.inside & out.payload.last):
                m.next = "REQUEST"
                with m.If(at.check):
                    m.next = "RESULT"

    @staticmethod
    def _result(m: Module, at: _Progress, out: Any, index: Signal) -> None:
        """States in which the bytes of a check's CRC go out."""
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
        """One access to memory or registers, from `issue` to `done`; a word that was read stands with `done`."""
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
        for valid, ready, asked in (
            (port.command.valid, port.command.ready, at.memory),
            (port.write.valid, port.write.ready, at.memory & at.writes),
            (axi.s_axi_awvalid, axi.s_axi_awready, ~at.memory & at.writes),
            (axi.s_axi_wvalid, axi.s_axi_wready, ~at.memory & at.writes),
            (axi.s_axi_arvalid, axi.s_axi_arready, ~at.memory & ~at.writes),
        ):
            m.d.sync += valid.eq(Mux(issue, asked, valid & ~ready))
