"""The AXI4-Lite subordinate: registers of `memmap`, starting, and the status of a program."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.control.counters import SETTLING, WORDS
from weft.hdl.isa import BASES
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import MAGIC, SIZE, VERSION, Reg, base_register

ADDRESS_BITS = (SIZE - 1).bit_length()
_WORD_BITS = ADDRESS_BITS - 2
_COUNTERS = Reg.COUNTER >> 2

AXI_LITE = {
    "s_axi_awaddr": In(ADDRESS_BITS),
    "s_axi_awprot": In(3),
    "s_axi_awvalid": In(1),
    "s_axi_awready": Out(1),
    "s_axi_wdata": In(32),
    "s_axi_wstrb": In(4),
    "s_axi_wvalid": In(1),
    "s_axi_wready": Out(1),
    "s_axi_bresp": Out(2),
    "s_axi_bvalid": Out(1),
    "s_axi_bready": In(1),
    "s_axi_araddr": In(ADDRESS_BITS),
    "s_axi_arprot": In(3),
    "s_axi_arvalid": In(1),
    "s_axi_arready": Out(1),
    "s_axi_rdata": Out(32),
    "s_axi_rresp": Out(2),
    "s_axi_rvalid": Out(1),
    "s_axi_rready": In(1),
}
"""The ports of an AXI4-Lite subordinate with 32 bits of data, flat. The low two address bits are ignored."""


def run_status(m: Module, control: Any) -> tuple[Signal, Signal]:
    """The run state of a `Control` or of the sequential core's: drives its `running` and `irq`.

    Returns whether a run is on, up to the time when the counters have settled, and the value of STATUS.
    """
    busy, done, bus_error, opcode_error = (
        Signal(name=name) for name in ("busy", "done", "bus_error_seen", "opcode_error_seen")
    )
    settle = Signal(range(SETTLING + 1))
    status = Signal(4)
    m.d.comb += [status.eq(busy | done << 1 | bus_error << 2 | opcode_error << 3), control.irq.eq(done)]
    with m.If(control.start):
        m.d.sync += [busy.eq(1), control.running.eq(1), done.eq(0), bus_error.eq(0), opcode_error.eq(0)]
        m.d.sync += settle.eq(SETTLING)
    with m.Elif(control.running):
        m.d.sync += control.running.eq(~control.finished)
    with m.Elif(busy):
        m.d.sync += settle.eq(settle - 1)
        with m.If(settle == 0):
            m.d.sync += [busy.eq(0), done.eq(1)]
    with m.If(control.bus_error):
        m.d.sync += bus_error.eq(1)
    with m.If(control.opcode_error):
        m.d.sync += opcode_error.eq(1)
    return busy, status


class Control(wiring.Component):
    """Register file and run state.

    A run goes from `start` to the first cycle in which `finished` is 1; it is reported as done when the
    counters have settled. Writing 1 to CONTROL during that time is ignored. Responses are always OKAY.

    Parameters
    ----------
    config : Config

    Members
    -------
    s_axi_* : AXI4-Lite subordinate
    irq : Out(1)
        The DONE bit: from the end of a program to the next start.
    start : Out(1)
        For one cycle, the program starts.
    running : Out(1)
        From the cycle after `start` to the cycle in which `finished` is seen, not included.
    finished : In(1)
        Fetch has stopped, the queues are empty and all units idle.
    bus_error, opcode_error : In(1)
        Set the status bits of these names.
    program : Out(32)
    bases : Out(ArrayLayout(32, BASES))
    counter : In(range(WORDS)), counter_value : In(32)
        What passes in `Counters`.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        super().__init__(
            {
                **AXI_LITE,
                "irq": Out(1),
                "start": Out(1),
                "running": Out(1),
                "finished": In(1),
                "bus_error": In(1),
                "opcode_error": In(1),
                "program": Out(32),
                "bases": Out(data.ArrayLayout(32, BASES)),
                "counter": In(range(WORDS)),
                "counter_value": In(32),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        busy, status = run_status(m, self)
        self._write(m, busy)
        self._read(m, status)
        return m

    def _write(self, m: Module, busy: Signal) -> None:
        address, word, strobe = Signal(_WORD_BITS), Signal(32), Signal(4)
        has_address, has_data = Signal(), Signal()
        m.d.comb += [self.s_axi_awready.eq(~has_address), self.s_axi_wready.eq(~has_data)]
        with m.If(self.s_axi_awvalid & self.s_axi_awready):
            m.d.sync += [has_address.eq(1), address.eq(self.s_axi_awaddr[2:])]
        with m.If(self.s_axi_wvalid & self.s_axi_wready):
            m.d.sync += [has_data.eq(1), word.eq(self.s_axi_wdata), strobe.eq(self.s_axi_wstrb)]
        with m.If(self.s_axi_bready):
            m.d.sync += self.s_axi_bvalid.eq(0)
        # The start pulse is a register: everything it starts sees settled values.
        m.d.sync += self.start.eq(0)
        with m.If(has_address & has_data & ~self.s_axi_bvalid):
            m.d.sync += [has_address.eq(0), has_data.eq(0), self.s_axi_bvalid.eq(1)]
            registers = {Reg.PROGRAM >> 2: self.program}
            registers |= {base_register(index) >> 2: self.bases[index] for index in range(BASES)}
            with m.Switch(address):
                with m.Case(Reg.CONTROL >> 2):
                    m.d.sync += self.start.eq(word[0] & strobe[0] & ~busy & ~self.start)
                for number, register in registers.items():
                    with m.Case(number):
                        for lane in range(4):
                            with m.If(strobe[lane]):
                                m.d.sync += register.word_select(lane, 8).eq(word.word_select(lane, 8))

    def _read(self, m: Module, status: Signal) -> None:
        address = Signal(_WORD_BITS)
        simple = Signal(32)
        values: dict[int, Any] = {
            Reg.MAGIC: MAGIC,
            Reg.VERSION: VERSION,
            Reg.CONFIG: self._config.digest,
            Reg.STATUS: status,
            Reg.PROGRAM: self.program,
        }
        values |= {base_register(index): self.bases[index] for index in range(BASES)}
        with m.Switch(address):
            for register, value in values.items():
                with m.Case(register >> 2):
                    m.d.comb += simple.eq(value)
        with m.If(self.s_axi_rready):
            m.d.sync += self.s_axi_rvalid.eq(0)
        in_counters, passes = Signal(), Signal()
        m.d.comb += [
            in_counters.eq((address >= _COUNTERS) & (address < _COUNTERS + WORDS)),
            passes.eq(self.counter == (address - _COUNTERS)[: len(self.counter)]),
        ]
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += self.s_axi_arready.eq(1)
                m.d.sync += address.eq(self.s_axi_araddr[2:])
                with m.If(self.s_axi_arvalid):
                    m.next = "ANSWER"
            with m.State("ANSWER"), m.If(~self.s_axi_rvalid & (passes | ~in_counters)):
                m.d.sync += [
                    self.s_axi_rdata.eq(Mux(in_counters, self.counter_value, simple)),
                    self.s_axi_rvalid.eq(1),
                ]
                m.next = "IDLE"
