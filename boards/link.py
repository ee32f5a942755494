"""The board's end of the link: carries out the requests of a host on memory and registers."""

from __future__ import annotations

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from weft.boards.frames import (
    ANSWER,
    PAYLOAD,
    REQUEST_BYTES,
    REQUEST_FIELDS,
    Identity,
    Operation,
    carries,
)
from weft.boards.framing import Deframer, Framer, check_buffer
from weft.boards.port import memory_port
from weft.boards.uart import Receiver, Transmitter, check_divisor
from weft.hdl.control.control import AXI_LITE
from weft.hdl.isa.config import Config

BUFFER = 2048
_REGISTER = 4


class Link(wiring.Component):
    """Memory and registers of a core on a serial line, see `weft.boards.frames`.

    Bus words and registers are read and written one by one: each takes as long as its bytes on the line, and the
    memory is free in between. The answer to a write comes when the memory has reported it.

    Parameters
    ----------
    config : Config
    divisor : int
        Clock cycles in a bit of the line, see `weft.boards.uart`.
    board : str
        Name of the board, at most 16 bytes of ASCII.
    memory_bytes : int
        Size of the memory.
    clock : int
        Frequency of the clock in hertz.
    buffer : int
        Bytes of requests that can wait, a power of two from 1024 on.

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
    ) -> None:
        self.config, self.divisor, self.buffer = config, check_divisor(divisor), check_buffer(buffer)
        self.identity = Identity(board, config.digest, memory_bytes, clock, buffer).encode()
        super().__init__(
            {
                "rx": In(1, init=1),
                "tx": Out(1, init=1),
                "memory": Out(memory_port(config.bus_bytes)),
                "registers": In(wiring.Signature(AXI_LITE)),
                "reset": Out(1),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.receiver = receiver = Receiver(self.divisor)
        m.submodules.transmitter = transmitter = Transmitter(self.divisor)
        m.submodules.deframer = deframer = Deframer(self.buffer)
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
        align = (self.config.bus_bytes - 1).bit_length()
        request = Signal(data.StructLayout(REQUEST_FIELDS))
        # Counted down and up in place.
        left, at = request.size[:9], request.address[: (PAYLOAD - 1).bit_length()]
        operation = Value.cast(request.operation)[:3]
        index = Signal(range(REQUEST_BYTES))
        starts = Signal(8)
        writes, registers, memory, effective = Signal(), Signal(), Signal(), Signal()
        # Registers: they hold from the cycle after CHECK on.
        m.d.sync += [
            writes.eq(carries(operation)),
            memory.eq((operation == Operation.READ_MEMORY) | (operation == Operation.WRITE_MEMORY)),
            registers.eq(
                (operation == Operation.READ_REGISTERS)
                | (operation == Operation.WRITE_REGISTERS)
                | (operation == Operation.START)
            ),
        ]

        # A word of the bus, or a register in the bytes that come in last and go out first.
        word, strobe = Signal(self.config.widths.bus), Signal(self.config.bus_bytes)
        lane = Signal(align)
        first = Signal()
        offset, last_lane, inside = Signal(align), Signal(), Signal()
        m.d.comb += [
            offset.eq(Mux(registers, at[:2], at[:align])),
            last_lane.eq(Mux(registers, lane == _REGISTER - 1, lane == self.config.bus_bytes - 1)),
            inside.eq((left != 0) & ~(first & (lane < offset))),
        ]
        step, issue, loaded, done = Signal(), Signal(), Signal(), Signal()
        self._bus(m, request, word, strobe, issue=issue, memory=memory, writes=writes, done=done)
        with m.If(step):
            m.d.sync += [
                word.eq(Cat(word, deframer.byte.payload)[8:]),
                strobe.eq(Cat(strobe, inside)[1:]),
                lane.eq(Mux(last_lane, 0, lane + 1)),
                left.eq(left - inside),
            ]
        with m.Elif(loaded):
            m.d.sync += word.eq(
                Mux(registers, Cat(self.registers.s_axi_rdata, word[32:]), self.memory.read.payload)
            )
        following = [at.eq(at + Mux(registers, _REGISTER, self.config.bus_bytes)), first.eq(0)]

        out, answering = framer.byte, Signal()
        m.d.comb += self.reset.eq(answering & (operation == Operation.RESET))
        reads = Signal()
        m.d.comb += reads.eq(~writes & (operation != Operation.RESET) & (left != 0))
        identity = Signal(8)
        with m.Switch(Cat(lane, at[align:])):
            for number, byte in enumerate(self.identity):
                with m.Case(number):
                    m.d.comb += identity.eq(byte)
        with m.FSM():
            with m.State("REQUEST"):
                m.d.comb += deframer.byte.ready.eq(1)
                m.d.sync += [lane.eq(0), first.eq(1)]
                with m.If(deframer.byte.valid):
                    m.d.sync += [
                        request.eq(Cat(request, deframer.byte.payload)[8:]),
                        index.eq(index + 1),
                    ]
                    with m.If(index == REQUEST_BYTES - 1):
                        m.next = "CHECK"
            with m.State("CHECK"):
                start = operation == Operation.START
                same = request.address[24:] == starts
                m.d.sync += effective.eq(~start | same)
                with m.If(start & same):
                    m.d.sync += starts.eq(starts + 1)
                m.next = "SEQUENCE"
                with m.If(carries(operation) & (left != 0)):
                    m.next = "FILL"

            with m.State("FILL"):
                m.d.comb += [step.eq(~inside | deframer.byte.valid), deframer.byte.ready.eq(inside)]
                with m.If(step & last_lane):
                    m.next = "WRITE"
            with m.State("WRITE"):
                m.d.comb += issue.eq(effective)
                m.next = "WRITING"
            with m.State("WRITING"), m.If(done | ~effective):
                m.d.sync += following
                m.next = "SEQUENCE"
                with m.If(left != 0):
                    m.next = "FILL"

            with m.State("SEQUENCE"):
                m.d.comb += answering.eq(1)
                m.d.comb += [out.valid.eq(1), out.payload.data.eq(request.sequence)]
                with m.If(out.ready):
                    m.next = "OPERATION"
            with m.State("OPERATION"):
                m.d.comb += answering.eq(1)
                m.d.comb += [out.valid.eq(1), out.payload.data.eq(Cat(operation, Const(ANSWER >> 3, 5)))]
                with m.If(out.ready):
                    m.next = "STARTS"
            with m.State("STARTS"):
                m.d.comb += answering.eq(1)
                m.d.comb += [out.valid.eq(1), out.payload.data.eq(starts), out.payload.last.eq(~reads)]
                with m.If(out.ready):
                    m.next = "REQUEST"
                    with m.If(reads):
                        m.next = "READ"

            with m.State("READ"):
                m.d.comb += issue.eq(memory | registers)
                m.next = "READING"
            with m.State("READING"), m.If(done | ~(memory | registers)):
                m.d.comb += loaded.eq(1)
                m.next = "DRAIN"
            with m.State("DRAIN"):
                identify = operation == Operation.IDENTIFY
                m.d.comb += [
                    out.valid.eq(inside),
                    out.payload.data.eq(Mux(identify, identity, word[:8])),
                    out.payload.last.eq(left == 1),
                    step.eq(~inside | out.ready),
                ]
                with m.If(step & last_lane):
                    m.d.sync += following
                    m.next = "READ"
                with m.If(step & inside & out.payload.last):
                    m.next = "REQUEST"

    def _bus(
        self,
        m: Module,
        request: data.View,
        word: Signal,
        strobe: Signal,
        *,
        issue: Value,
        memory: Value,
        writes: Value,
        done: Signal,
    ) -> None:
        """One access to memory or registers, from `issue` to `done`; a word that was read stands with `done`."""
        port, axi = self.memory, self.registers
        align = (self.config.bus_bytes - 1).bit_length()
        m.d.comb += [
            port.command.payload.write.eq(writes),
            port.command.payload.address.eq(Cat(Const(0, align), request.address[align:])),
            port.command.payload.beats.eq(1),
            port.write.payload.data.eq(word),
            port.write.payload.strobe.eq(strobe),
            port.read.ready.eq(1),
            axi.s_axi_awaddr.eq(request.address),
            axi.s_axi_araddr.eq(request.address),
            axi.s_axi_wdata.eq(word[-8 * _REGISTER :]),
            axi.s_axi_wstrb.eq(strobe[-_REGISTER:]),
            axi.s_axi_bready.eq(1),
            axi.s_axi_rready.eq(1),
            done.eq(port.written | port.read.valid | axi.s_axi_bvalid | axi.s_axi_rvalid),
        ]
        for valid, ready, asked in (
            (port.command.valid, port.command.ready, memory),
            (port.write.valid, port.write.ready, memory & writes),
            (axi.s_axi_awvalid, axi.s_axi_awready, ~memory & writes),
            (axi.s_axi_wvalid, axi.s_axi_wready, ~memory & writes),
            (axi.s_axi_arvalid, axi.s_axi_arready, ~memory & ~writes),
        ):
            m.d.sync += valid.eq(Mux(issue, asked, valid & ~ready))
