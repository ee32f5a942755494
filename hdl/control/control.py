"""AXI4-Lite subordinate with the registers of `memmap`, and the state of a run."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Cat, Const, Module, Mux, Signal, Value
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.control.counters import SETTLING_CYCLES, WORDS
from weft.hdl.control.descriptors import read_beats
from weft.hdl.control.fetch import COUNTS, ParityCounts
from weft.hdl.isa import BASES
from weft.hdl.isa.config import Config
from weft.hdl.isa.memmap import (
    FAULT_FIELDS,
    LISTED_AT_DESCRIPTOR,
    MAGIC,
    SIZE,
    START_LIST,
    VERSION,
    WATCHDOG_BITS,
    WATCHDOG_CYCLES,
    Reg,
    Status,
    base_register,
)
from weft.hdl.isa.program_lists import BASE_WORD, MAX_LIST_PROGRAMS, PROGRAM_WORD
from weft.hdl.lib.ports import BusFault

_CAUSES = {
    "bus_error": Status.BUS_ERROR,
    "opcode_error": Status.OPCODE_ERROR,
    "expired": Status.WATCHDOG,
    "stopped": Status.STOPPED,
    "parity_error": Status.PARITY_ERROR,
}
"""Causes that stop a run, with their status bits."""


class RunState(wiring.Component):
    """State of a run, from `start` to the first cycle with `finished`; it is done when the counters have settled.

    Parameters
    ----------
    stops : bool
        True if errors, the host and the watchdog stop a run. If False, `stop` is always 0, errors only set status bits,
        and the inputs `asked`, `moves` and `limit` are ignored.
    unit : int
        Cycles per unit of `limit`, a power of two.

    Members
    -------
    start : In(1)
        A run starts; only while `busy` is 0.
    finished : In(1)
        No activity of the run is left.
    bus_error, opcode_error, parity_error : In(1)
        An error occurs in this cycle.
    asked : In(1)
        The host requests a stop; ignored outside of a run.
    moves : In(1)
        The run makes progress.
    limit : In(8)
        Limit of the watchdog in units of `unit`, or 0 to turn it off. A new limit applies after the next progress.
    stop : Out(1)
        Nothing new may begin. 1 from the cycle of a bus or parity error, or the cycle after another cause, to the end
        of the run.
    running : Out(1)
        1 from the cycle after `start` through the first cycle with `finished`.
    busy : Out(1)
        1 from the cycle after `start` until the run is done.
    irq : Out(1)
        1 from the end of the run, or from the expiry of the watchdog, until the next start.
    status : Out(7)
        See `weft.hdl.isa.memmap.Status`.
    """

    def __init__(self, *, stops: bool = True, unit: int = WATCHDOG_CYCLES) -> None:
        self.stops, self.unit = stops, unit
        super().__init__(
            {
                "start": In(1),
                "finished": In(1),
                "bus_error": In(1),
                "opcode_error": In(1),
                "parity_error": In(1),
                "asked": In(1),
                "moves": In(1),
                "limit": In(WATCHDOG_BITS),
                "stop": Out(1),
                "running": Out(1),
                "busy": Out(1),
                "irq": Out(1),
                "status": Out(max(Status).bit_length()),
            }
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        done = Signal()
        settle = Signal(range(SETTLING_CYCLES + 1))
        seen = {name: Signal(name=f"{name}_seen") for name in _CAUSES}
        bits = {Status.BUSY: self.busy, Status.DONE: done} | {
            _CAUSES[name]: flag for name, flag in seen.items()
        }
        m.d.comb += [self.status[bit.bit_length() - 1].eq(flag) for bit, flag in bits.items()]
        with m.If(self.start):
            m.d.sync += [self.busy.eq(1), self.running.eq(1), done.eq(0), settle.eq(SETTLING_CYCLES)]
            m.d.sync += [flag.eq(0) for flag in seen.values()]
        with m.Elif(self.running):
            m.d.sync += self.running.eq(~self.finished)
        with m.Elif(self.busy):
            m.d.sync += settle.eq(settle - 1)
            with m.If(settle == 0):
                m.d.sync += [self.busy.eq(0), done.eq(1)]
        causes: dict[str, Value] = {
            name: getattr(self, name) for name in ("bus_error", "opcode_error", "parity_error")
        }
        if self.stops:
            causes |= {"stopped": self.asked & self.running, "expired": self._expires(m)}
            # These errors come from registers and stop the run in the same cycle, so that no instruction begins that
            # waits for the failed one.
            at_once = self.bus_error | self.parity_error
            m.d.comb += self.stop.eq(self.running & (at_once | Cat(*seen.values()).any()))
        for name, condition in causes.items():
            with m.If(condition):
                m.d.sync += seen[name].eq(1)
        m.d.comb += self.irq.eq(done | seen["expired"])
        return m

    def _expires(self, m: Module) -> Value:
        """Return 1 in the cycle in which the watchdog expires.

        A free-running counter measures the units, so the first unit may be short, and one more is added to the limit.
        """
        cycle = Signal(range(self.unit))
        left = Signal(WATCHDOG_BITS + 1)
        moved = Signal()  # registered because `moves` arrives late in the cycle
        ends = cycle.all()
        m.d.sync += [cycle.eq(cycle + 1), moved.eq(self.moves)]
        with m.If(self.start | moved):
            m.d.sync += left.eq(Mux(self.limit.any(), self.limit + 1, 0))
        with m.Elif(ends & left.any()):
            m.d.sync += left.eq(left - 1)
        return self.running & ends & (left == 1) & ~moved


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
"""Flat ports of an AXI4-Lite subordinate with 32 bits of data. The low two address bits are ignored."""


def fault_word(fault: Any) -> Value:
    """Return the value of the register FAULT, whose fields are members of `fault`."""
    word: Value = Const(0, 0)
    for name, (low, width) in FAULT_FIELDS.items():
        word = Cat(word, Const(0, low - len(word)), getattr(fault, name)[:width])
    return word


def parity_port(config: Config) -> dict[str, wiring.Member]:
    """Return the member that a `Control` has with `parity` only."""
    return {"parity": In(COUNTS.size)} if config.parity else {}


def list_ports(config: Config) -> dict[str, wiring.Member]:
    """Return the members that a `Control` has with `descriptors` only."""
    if not config.descriptors:
        return {}
    return {
        "listed": Out(1),
        "list": Out(32),
        "taken": In(read_beats(config)),
        "words": In(config.widths.bus),
        "done": In(range(MAX_LIST_PROGRAMS + 1)),
        "reads": In(1),
    }


def connect_state(m: Module, state: RunState, control: Any) -> None:
    """Connect the members that the `Control` of a core and its `RunState` have in common."""
    for name, member in state.signature.members.items():
        if hasattr(control, name):
            outer, inner = getattr(control, name), getattr(state, name)
            m.d.comb += outer.eq(inner) if member.flow is Out else inner.eq(outer)


def connect_parity(m: Module, counts: ParityCounts, control: Any) -> None:
    """Connect the counts of parity errors to a core's `Control`."""
    m.d.comb += [
        counts.clear.eq(control.start),
        control.parity.eq(counts.counts),
        control.parity_error.eq(counts.error),
    ]


class Control(wiring.Component):
    """Registers of the pipelined core, with a `RunState`.

    A start during a run is ignored. Responses are always OKAY. With `descriptors`, arriving descriptor words are
    written to their registers, with priority over writes of the host.

    Parameters
    ----------
    config : Config

    Members
    -------
    s_axi_* : AXI4-Lite subordinate
    irq : Out(1)
    start : Out(1)
        For one cycle, a run starts.
    running, stop : Out(1)
        See `RunState`.
    finished : In(1)
        Fetch has stopped, the queues are empty and all units are idle.
    bus_error, opcode_error, moves : In(1)
        See `RunState`.
    fault : In(BusFault)
        The first bus error since `start`.
    parity_error : In(1), parity : In(8 * len(ParityMemory))
        See `weft.hdl.control.fetch.ParityCounts`; `parity` exists with the configuration parameter `parity` only.
    program : Out(32)
    bases : Out(ArrayLayout(32, BASES))
    counter : In(range(WORDS)), counter_value : In(32)
        Index and value from `Counters`.
    listed : Out(1), list : Out(32)
        With `start`: the run is the list at address `list`. With `descriptors` only.
    taken, words, done, reads
        See `weft.hdl.control.descriptors.Descriptors`. With `descriptors` only.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
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
                "program": Out(32),
                "bases": Out(data.ArrayLayout(32, BASES)),
                "counter": In(range(WORDS)),
                "counter_value": In(32),
            }
            | parity_port(config)
            | list_ports(config)
        )

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.state = state = RunState()
        connect_state(m, state, self)
        self._write(m, state)
        self._read(m, state)
        return m

    def _write(self, m: Module, state: RunState) -> None:
        write_address = Signal(_WORD_BITS)
        word = Signal(32)
        strobe = Signal(4)
        has_address = Signal()
        has_data = Signal()
        m.d.comb += [self.s_axi_awready.eq(~has_address), self.s_axi_wready.eq(~has_data)]
        with m.If(self.s_axi_awvalid & self.s_axi_awready):
            m.d.sync += [has_address.eq(1), write_address.eq(self.s_axi_awaddr[2:])]
        with m.If(self.s_axi_wvalid & self.s_axi_wready):
            m.d.sync += [has_data.eq(1), word.eq(self.s_axi_wdata), strobe.eq(self.s_axi_wstrb)]
        with m.If(self.s_axi_bready):
            m.d.sync += self.s_axi_bvalid.eq(0)
        # The start pulse is registered, so that everything that it starts sees the written registers.
        asked = Signal()
        limit = Signal(WATCHDOG_BITS)
        m.d.comb += [state.asked.eq(asked), state.limit.eq(limit)]
        m.d.sync += [self.start.eq(0), asked.eq(0)]
        with m.If(has_address & has_data & ~self.s_axi_bvalid):
            m.d.sync += [has_address.eq(0), has_data.eq(0), self.s_axi_bvalid.eq(1)]
            registers = {Reg.PROGRAM >> 2: self.program}
            registers |= {base_register(index) >> 2: self.bases[index] for index in range(BASES)}
            starts: Value = word[0]
            if self._config.descriptors:
                registers |= {Reg.LIST >> 2: self.list}
                starts = word[0] | word[START_LIST.bit_length() - 1]
            with m.Switch(write_address):
                with m.Case(Reg.CONTROL >> 2):
                    m.d.sync += [
                        # `busy` is 1 only from the cycle after `start` on.
                        self.start.eq(starts & strobe[0] & ~state.busy & ~self.start),
                        asked.eq(word[1] & strobe[0]),
                    ]
                    if self._config.descriptors:
                        m.d.sync += self.listed.eq(word[START_LIST.bit_length() - 1])
                with m.Case(Reg.WATCHDOG >> 2), m.If(strobe[0]):
                    m.d.sync += limit.eq(word)
                for number, register in registers.items():
                    with m.Case(number):
                        for lane in range(4):
                            with m.If(strobe[lane]):
                                m.d.sync += register.word_select(lane, 8).eq(word.word_select(lane, 8))
        if self._config.descriptors:
            # After the assignments above, so that a descriptor has priority over the host.
            self._take(m)

    def _take(self, m: Module) -> None:
        """Copy arriving descriptor words to their registers."""
        places = {PROGRAM_WORD: self.program} | {
            BASE_WORD + index: self.bases[index] for index in range(BASES)
        }
        for number, register in places.items():
            beat, at = divmod(4 * number, self._config.bus_bytes)
            with m.If(self.taken[beat]):
                m.d.sync += register.eq(self.words[8 * at : 8 * at + 32])

    def _read(self, m: Module, state: RunState) -> None:
        read_address = Signal(_WORD_BITS)
        value_at_address = Signal(32)  # of registers other than counters
        values: dict[int, Any] = {
            Reg.MAGIC: MAGIC,
            Reg.VERSION: VERSION,
            Reg.CONFIG: self._config.digest,
            Reg.STATUS: state.status,
            Reg.PROGRAM: self.program,
            Reg.FAULT_ADDRESS: self.fault.address,
            Reg.FAULT: fault_word(self.fault),
            Reg.WATCHDOG: state.limit,
            Reg.PARITY: self.parity if self._config.parity else 0,
        }
        values |= {base_register(index): self.bases[index] for index in range(BASES)}
        if self._config.descriptors:
            values |= {Reg.LIST: self.list, Reg.LISTED: self.done | self.reads << LISTED_AT_DESCRIPTOR}
        with m.Switch(read_address):
            for register, value in values.items():
                with m.Case(register >> 2):
                    m.d.comb += value_at_address.eq(value)
        with m.If(self.s_axi_rready):
            m.d.sync += self.s_axi_rvalid.eq(0)
        in_counters = Signal()
        passes = Signal()  # `Counters` presents the word at this address
        m.d.comb += [
            in_counters.eq((read_address >= _COUNTERS) & (read_address < _COUNTERS + WORDS)),
            passes.eq(self.counter == (read_address - _COUNTERS)[: len(self.counter)]),
        ]
        with m.FSM():
            with m.State("IDLE"):
                m.d.comb += self.s_axi_arready.eq(1)
                m.d.sync += read_address.eq(self.s_axi_araddr[2:])
                with m.If(self.s_axi_arvalid):
                    m.next = "ANSWER"
            with m.State("ANSWER"), m.If(~self.s_axi_rvalid & (passes | ~in_counters)):
                m.d.sync += [
                    self.s_axi_rdata.eq(Mux(in_counters, self.counter_value, value_at_address)),
                    self.s_axi_rvalid.eq(1),
                ]
                m.next = "IDLE"
