"""The AXI4-Lite subordinate of the sequential core, which keeps registers in the processor's data memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.control.control import ADDRESS_BITS, AXI_LITE, RunState, connect_state, fault_word, parity_port
from weft.hdl.control.counters import WORDS
from weft.hdl.isa import BASES
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import MAGIC, VERSION, Counter, Reg, Status
from weft.hdl.lib.ports import BusFault

_WORD_BITS = ADDRESS_BITS - 2
_COUNTERS = Reg.COUNTER >> 2
PROGRAM = Reg.PROGRAM >> 2
"""Word of data memory with the program's address."""
BASE = Reg.BASE >> 2
"""Word of data memory with the first base register."""
REGISTERS = 16
"""Words of data memory that are accessible from the bus."""


class Control(wiring.Component):
    """AXI4-Lite subordinate of the sequential core: registers, and the run state of `weft.hdl.control.control.Control`.

    Responses are always OKAY.

    Parameters
    ----------
    config : Config
    counted : sequence of Counter
        The counters that are implemented; the others read 0.
    stops : bool
        See `weft.hdl.control.control.RunState`. Without it FAULT_ADDRESS, FAULT and WATCHDOG read 0.

    Members
    -------
    s_axi_* : AXI4-Lite subordinate
    irq, start, running, stop, finished, bus_error, opcode_error, moves, fault, parity_error, parity, counter,
    counter_value
        As in `weft.hdl.control.control.Control`.
    failed : Out(1)
        There was an error on the bus since the last start.
    counter_complete : In(1)
        `counter_value` of `weft.hdl.control.counters.Counters` is complete.
    write_valid, write_ready, write_address, write_data, write_strobe
    read_valid, read_ready, read_address, read_data
        To data memory, see `weft.hdl.sequential.processor.Processor`.
    """

    def __init__(
        self, config: Config, counted: Sequence[Counter] = tuple(Counter), *, stops: bool = True
    ) -> None:
        self.config, self.counted, self.stops = config, counted, stops
        super().__init__(
            {
                **AXI_LITE,
                "irq": Out(1),
                "start": Out(1),
                "running": Out(1),
                "stop": Out(1),
                "finished": In(1),
                "bus_error": In(1),
                "opcode_error": In(1),
                "moves": In(1),
                "fault": In(BusFault),
                "parity_error": In(1),
                "failed": Out(1),
                "counter": In(range(WORDS)),
                "counter_value": In(32),
                "counter_complete": In(1),
                "write_valid": Out(1),
                "write_ready": In(1),
                "write_address": Out(range(REGISTERS)),
                "write_data": Out(32),
                "write_strobe": Out(4),
                "read_valid": Out(1),
                "read_ready": In(1),
                "read_address": Out(range(REGISTERS)),
                "read_data": In(32),
            }
            | parity_port(config)
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.state = state = RunState(stops=self.stops)
        connect_state(m, state, self)
        m.d.comb += self.failed.eq(state.status[Status.BUS_ERROR.bit_length() - 1])
        self._write(m, state)
        self._read(m, state)
        return m

    def _write(self, m: Module, state: RunState) -> None:
        """Accept address and data together. READY is a register: it is 1 after the write to data memory, if any."""
        address = self.s_axi_awaddr[2:]
        both = Signal()
        kept_write = Signal()
        takes = Signal()
        taken = Signal()
        m.d.sync += taken.eq(takes)
        m.d.comb += [
            both.eq(self.s_axi_awvalid & self.s_axi_wvalid & ~self.s_axi_bvalid & ~taken),
            kept_write.eq((address == PROGRAM) | (address >= BASE) & (address < BASE + BASES)),
            takes.eq(both & (~kept_write | self.write_ready)),
            self.write_valid.eq(both & kept_write),
            self.write_address.eq(address),
            self.write_data.eq(self.s_axi_wdata),
            self.write_strobe.eq(self.s_axi_wstrb),
            self.s_axi_awready.eq(taken),
            self.s_axi_wready.eq(taken),
        ]
        low = taken & self.s_axi_wstrb[0]
        chosen = low & (address == Reg.CONTROL >> 2)
        # `busy` is 1 only from the cycle after `start` on.
        m.d.sync += self.start.eq(chosen & self.s_axi_wdata[0] & ~state.busy & ~self.start)
        if self.stops:
            m.d.comb += state.asked.eq(chosen & self.s_axi_wdata[1])
            with m.If(low & (address == Reg.WATCHDOG >> 2)):
                m.d.sync += state.limit.eq(self.s_axi_wdata)
        with m.If(self.s_axi_bready):
            m.d.sync += self.s_axi_bvalid.eq(0)
        with m.If(taken):
            m.d.sync += self.s_axi_bvalid.eq(1)

    def _read(self, m: Module, state: RunState) -> None:
        address = Signal(_WORD_BITS)
        simple = Signal(32)
        in_counters = Signal()
        passes = Signal()
        kept_read = Signal()
        values: dict[int, Any] = {
            Reg.MAGIC: MAGIC,
            Reg.VERSION: VERSION,
            Reg.CONFIG: self.config.digest,
            Reg.STATUS: state.status,
        }
        if self.stops:
            values |= {
                Reg.FAULT_ADDRESS: self.fault.address,
                Reg.FAULT: fault_word(self.fault),
                Reg.WATCHDOG: state.limit,
            }
        if self.config.parity:
            values[Reg.PARITY] = self.parity
        with m.Switch(address):
            for register, value in values.items():
                with m.Case(register >> 2):
                    m.d.comb += simple.eq(value)
        m.d.comb += [
            in_counters.eq(address[1:].matches(*((_COUNTERS >> 1) + counter for counter in self.counted))),
            kept_read.eq((address == PROGRAM) | (address >= BASE) & (address < BASE + BASES)),
            passes.eq(self.counter_complete & (self.counter == (address - _COUNTERS)[: len(self.counter)])),
            self.read_address.eq(address),
        ]
        with m.If(self.s_axi_rready):
            m.d.sync += self.s_axi_rvalid.eq(0)
        # KEPT waits one cycle for data memory; CHOOSE waits for a counter to pass, or for a grant of data memory.
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += self.s_axi_arready.eq(~self.s_axi_rvalid)
                m.d.sync += address.eq(self.s_axi_araddr[2:])
                with m.If(self.s_axi_arvalid & self.s_axi_arready):
                    m.next = "CHOOSE"
            with m.State("CHOOSE"):
                m.d.comb += self.read_valid.eq(kept_read)
                m.d.sync += self.s_axi_rdata.eq(Mux(in_counters, self.counter_value, simple))
                with m.If(kept_read & self.read_ready):
                    m.next = "KEPT"
                with m.Elif(~kept_read & (passes | ~in_counters)):
                    m.d.sync += self.s_axi_rvalid.eq(1)
                    m.next = "IDLE"
            with m.State("KEPT"):
                m.d.sync += [self.s_axi_rdata.eq(self.read_data), self.s_axi_rvalid.eq(1)]
                m.next = "IDLE"
