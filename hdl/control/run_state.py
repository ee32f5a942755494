"""The state of a run: started, stopped, done, and why; with the watchdog."""

from __future__ import annotations

from amaranth.hdl import Cat, Module, Mux, Signal, Value
from amaranth.lib import wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.control.counters import SETTLING
from weft.hdl.isa.memmap import WATCHDOG_BITS, WATCHDOG_CYCLES, Status

_CAUSES = {
    "bus_error": Status.BUS_ERROR,
    "opcode_error": Status.OPCODE_ERROR,
    "expired": Status.WATCHDOG,
    "stopped": Status.STOPPED,
    "parity_error": Status.PARITY_ERROR,
}
"""What ends a run early."""


class RunState(wiring.Component):
    """A run goes from `start` to the first cycle in which `finished` is 1; it is done when counters have settled.

    Parameters
    ----------
    stops : bool
        Runs are stopped at errors, at the host's wish, and by the watchdog. Else `stop` is always 0, errors are only
        kept, and the inputs `asked`, `moves` and `limit` are ignored.
    unit : int
        Cycles of a unit of the watchdog, a power of two.

    Members
    -------
    start : In(1)
        A run starts; only while `busy` is 0.
    finished : In(1)
        Nothing of the run is left.
    bus_error, opcode_error, parity_error : In(1)
        Such an error, in this cycle.
    asked : In(1)
        The host wants the run to stop. Ignored when there is none.
    moves : In(1)
        The run has made progress.
    limit : In(8)
        Of the watchdog, in units of `unit`; 0: it is off. A new one counts from the next progress on.
    stop : Out(1)
        Nothing new may begin: from the cycle of a bus or parity error, or the one after another cause, to the end of
        the run.
    running : Out(1)
        From the cycle after `start` to that in which `finished` is seen, not included.
    busy : Out(1)
        From the cycle after `start` until the run is done.
    irq : Out(1)
        The run is done, or the watchdog has expired; until the next start.
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
        settle = Signal(range(SETTLING + 1))
        seen = {name: Signal(name=f"{name}_seen") for name in _CAUSES}
        bits = {Status.BUSY: self.busy, Status.DONE: done} | {
            _CAUSES[name]: flag for name, flag in seen.items()
        }
        m.d.comb += [self.status[bit.bit_length() - 1].eq(flag) for bit, flag in bits.items()]
        with m.If(self.start):
            m.d.sync += [self.busy.eq(1), self.running.eq(1), done.eq(0), settle.eq(SETTLING)]
            m.d.sync += [flag.eq(0) for flag in seen.values()]
        with m.Elif(self.running):
            m.d.sync += self.running.eq(~self.finished)
        with m.Elif(self.busy):
            m.d.sync += settle.eq(settle - 1)
            with m.If(settle == 0):
                m.d.sync += [self.busy.eq(0), done.eq(1)]
        happens: dict[str, Value] = {
            name: getattr(self, name) for name in ("bus_error", "opcode_error", "parity_error")
        }
        if self.stops:
            happens |= {"stopped": self.asked & self.running, "expired": self._expires(m)}
            # These errors are known from registers, and what waits for their instruction must not begin.
            at_once = self.bus_error | self.parity_error
            m.d.comb += self.stop.eq(self.running & (at_once | Cat(*seen.values()).any()))
        for name, condition in happens.items():
            with m.If(condition):
                m.d.sync += seen[name].eq(1)
        m.d.comb += self.irq.eq(done | seen["expired"])
        return m

    def _expires(self, m: Module) -> Value:
        """Whether the watchdog expires in this cycle. Its units are those of a counter that never stops, so the first
        one may be short, and one more is waited for."""
        cycle = Signal(range(self.unit))
        left = Signal(WATCHDOG_BITS + 1)
        moved = Signal()  # a register, as what moves is known late in a cycle
        ends = cycle.all()
        m.d.sync += [cycle.eq(cycle + 1), moved.eq(self.moves)]
        with m.If(self.start | moved):
            m.d.sync += left.eq(Mux(self.limit.any(), self.limit + 1, 0))
        with m.Elif(ends & left.any()):
            m.d.sync += left.eq(left - 1)
        return self.running & ends & (left == 1) & ~moved
