"""Properties of `weft.boards`' SDRAM scheduler: it keeps the rules of the chips' data sheets.

The rules are written here from the data sheets that `weft.boards.sdram.chip.SdramTiming` names, in terms of the
commands that the chip sees and of nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from amaranth.hdl import Array, Module, Mux, Signal, Value

from weft.boards.sdram.chip import BANKS, SdramCycles, SdramTiming
from weft.boards.sdram.schedule import Scheduler
from weft.extras.proof.hardware.pipelines import latch, was, wire
from weft.extras.proof.hardware.property import Bench, Bounded, Invariant, Property
from weft.extras.proof.hardware.streams import WatchedItem, assume_stable, count, transfer, within

NOP, ACTIVATE, READ, REFRESH, STOP, PRECHARGE, WRITE, MODE = range(8)
"""Commands by the pads that are low: 1 for RAS, 2 for CAS, 4 for WE."""
_PROGRESS_CYCLES = 80
"""Length of the proof of progress: the chip is initialised within 33 cycles, and a unit follows within 30."""
REFRESHES = 8
"""Refreshes that a chip needs before its mode register is set; some data sheets are content with 2."""


def since(m: Module, event: Value, most: int, name: str) -> Signal:
    """Return the number of cycles since `event`, at most `most`.

    A reset counts as an event, because earlier commands to the chip are unknown.
    """
    count = Signal(range(most + 1), name=f"since_{name}")
    m.d.sync += count.eq(Mux(event, 1, count + (count != most)))
    return count


class _SchedulerBench(Bench, drives=("restart",)):
    """A scheduler whose segments lie within a row, and stay until they are taken; it is not restarted."""

    def __init__(self, cycles: SdramCycles, cas_latency: int, word_units: int) -> None:
        self.cycles, self.cas_latency, self.word_units = cycles, cas_latency, word_units
        self.refreshed_within = max(cycles.ras, cycles.wr + 1) + cycles.rp + 4
        sizes = {"word_units": word_units, "row_bits": 2, "column_bits": 3}
        super().__init__(Scheduler(cycles, cas_latency=cas_latency, **sizes))

    def watch(self, m: Module) -> None:
        segment = self.dut.segment.payload
        self.operation = Value.cast(self.dut.operation)
        assume_stable(m, self, self.dut.segment, "segment")
        units = 1 << len(segment.unit)
        self.assume(~self.dut.segment.valid | (segment.unit + segment.more < units))


class RulesBench(_SchedulerBench):
    """The commands that the chip gets keep every rule of its data sheet.

    One bank of the chip, which may be any, is watched. After a reset of the controller it may be open, and its last
    command may have been in the cycle before. With a restart the chip must be initialised again.
    """

    def watch(self, m: Module) -> None:
        super().watch(m)
        operation, address = self.operation, self.dut.address
        self.is_open = is_open = Signal(name="bank_is_open", init=1)
        here = self.dut.bank == self.constant(m, range(BANKS), "watched_bank")
        self.activate = activate = (operation == ACTIVATE) & here
        self.precharge = precharge = (operation == PRECHARGE) & (here | address[10])
        with m.If(activate):
            m.d.sync += is_open.eq(1)
        with m.If(precharge):
            m.d.sync += is_open.eq(0)
        self._claim_bank(m, here)
        self._claim_columns(m)
        self._claim_initialisation(m)

    def _claim_bank(self, m: Module, here: Value) -> None:
        claim, cycles, operation = self.claim, self.cycles, self.operation
        activated = since(m, self.activate, max(cycles.rc, cycles.ras, cycles.rcd), "activate")
        precharged = since(m, self.precharge, cycles.rp, "precharge")
        any_activated = since(m, operation == ACTIVATE, cycles.rrd, "any_activate")
        written = since(m, (operation == WRITE) & here, cycles.wr + 1, "write")
        read = since(m, (operation == READ) & here, 2, "read")
        column = ((operation == READ) | (operation == WRITE)) & here
        whole = (operation == REFRESH) | (operation == MODE)
        claim("an open bank is not activated", ~self.activate | ~self.is_open)
        claim("tRC", ~self.activate | (activated >= cycles.rc))
        claim("tRP", ~(self.activate | whole) | (precharged >= cycles.rp))
        claim("tRRD", ~(operation == ACTIVATE) | (any_activated >= cycles.rrd))
        claim("tRAS", ~self.precharge | (activated >= cycles.ras))
        claim("tRCD", ~column | (activated >= cycles.rcd))
        claim("only open rows are read and written", ~column | self.is_open)
        claim("banks are closed before a refresh", ~whole | ~self.is_open)
        # The second word of a burst is written a cycle after the command.
        claim("tWR", ~self.precharge | (written >= cycles.wr + 1))
        claim("a closing row does not end a read", ~self.precharge | (read >= 2))

    def _claim_columns(self, m: Module) -> None:
        claim, operation, cas_latency = self.claim, self.operation, self.cas_latency
        column = (operation == READ) | (operation == WRITE)
        columns = since(m, column, 2, "column")
        reads = since(m, operation == READ, cas_latency + 3, "any_read")
        claim("a burst is not cut short", ~column | (columns >= 2))
        claim("rows are not closed by the way", ~column | ~self.dut.address[10])
        # The two words read are on the pads `cas_latency` and one more cycles later; then the chip needs a cycle to
        # let go of them.
        claim("data pads are driven from one side", ~(operation == WRITE) | (reads >= cas_latency + 3))
        self.cover("write after read", (operation == WRITE) & (reads == cas_latency + 3))
        self.cover("consecutive bursts", (operation == READ) & (columns == 2))

    def _claim_initialisation(self, m: Module) -> None:
        dut, claim, cycles, operation = self.dut, self.claim, self.cycles, self.operation
        refreshed = since(m, operation == REFRESH, cycles.rfc, "refresh")
        mode_set = since(m, operation == MODE, cycles.mrd, "mode")
        powered = since(m, operation != operation, cycles.power_up, "power_up")
        refreshes = Signal(range(REFRESHES + 1), name="refreshes")
        initialised = Signal(name="initialised")
        with m.If(operation == REFRESH):
            m.d.sync += refreshes.eq(refreshes + (refreshes != REFRESHES))
        with m.If(operation == MODE):
            m.d.sync += initialised.eq(1)
        with m.If(dut.restart):
            m.d.sync += [refreshes.eq(0), initialised.eq(0)]
        command = operation != NOP
        claim("tRFC", ~command | (refreshed >= cycles.rfc))
        claim("tMRD", ~command | (mode_set >= cycles.mrd))
        claim("power up", ~command | (powered >= cycles.power_up))
        claim("no burst is stopped", operation != STOP)
        claim("refreshes before the mode", ~(operation == MODE) | (refreshes == REFRESHES))
        rows = (operation == ACTIVATE) | (operation == READ) | (operation == WRITE)
        claim("the mode before rows", ~rows | initialised)
        # Bursts of 2 words in sequence, for reads and writes.
        mode = 0b001 | self.cas_latency << 4
        claim("mode", ~(operation == MODE) | ((dut.address == mode) & (dut.bank == 0)))


class UnitsBench(_SchedulerBench):
    """All units of each segment are read or written, in order, at their places, and no others.

    The watched segment may be any, so the claim about its last unit holds for the segments before it, too. Therefore
    `ends` may be taken from the scheduler.
    """

    def watch(self, m: Module) -> None:
        super().watch(m)
        dut = self.dut
        issue = dut.read | dut.write
        ends = issue & (self.peek("now.more") == 0)
        segments = WatchedItem(m, self, "segments", push=transfer(dut.segment), pop=ends, most=2, shown=issue)
        current, item = segments.oldest, Signal(dut.layout, name="item")
        with m.If(current & issue):
            m.d.sync += [item.unit.eq(item.unit + 1), item.more.eq(item.more - 1)]
        with m.If(segments.starts):
            m.d.sync += item.eq(dut.segment.payload)
        self.claim("read or write", ~current | Mux(item.write, ~dut.read, ~dut.write))
        self.claim("a segment ends with its last unit", ~current | (ends == (issue & (item.more == 0))))
        self.claim("what is written is there", ~dut.write | dut.have)
        first = (item.unit & (self.word_units - 1)) == 0
        self.claim("the first unit of a word", ~current | (dut.reserve == (dut.read & first)))
        self.claim("there is room for a word that is read", ~dut.reserve | dut.room)
        self.claim("not both", ~(dut.read & dut.write))
        self.cover("three units of a segment", current & ends & (item.unit == 2) & item.write)
        self._claim_commands(m, item, current & issue, ends)
        self._claim_registers(item, segments)

    def _claim_commands(self, m: Module, item: Any, issue: Value, ends: Value) -> None:
        """Claim the command in the cycle after a unit of `item` is read or written."""
        dut, operation = self.dut, self.operation
        wanted = Signal(dut.layout, name="wanted")
        m.d.sync += wanted.eq(item)
        unit, follows = was(m, dut.read | dut.write, "any_unit"), was(m, issue, "follows")
        column = wire(m, wanted.unit << 1, 12)
        self.claim("commands for units", unit == ((operation == READ) | (operation == WRITE)))
        self.claim("command", ~follows | (operation == Mux(wanted.write, WRITE, READ)))
        self.claim("bank", ~follows | (dut.bank == wanted.bank))
        self._claim_row(m, follows, wanted)
        right = (dut.address[:10] == column[:10]) & (dut.address[11:] == column[10:])
        self.claim("column", ~follows | right)
        written = wanted.write & wanted.last & was(m, ends, "follows_last")
        self.claim("written", ~follows | (dut.written == written))
        self.claim("written is a write", ~dut.written | (operation == WRITE))

    def _claim_registers(self, item: Any, segments: WatchedItem) -> None:
        """Claim that the segment is in one of two registers: the proof needs this invariant."""
        watched, ahead = segments.watched, segments.ahead
        now, following = self.peek("now"), self.peek("next")
        now_valid, next_valid = self.peek("now_valid"), self.peek("next_valid")
        first = watched & now_valid & (ahead == 0)
        self.claim("segments inside", segments.inside == now_valid + next_valid)
        self.claim("the first", ~first | (Value.cast(item) == now))
        second = next_valid & (ahead == now_valid) & (Value.cast(item) == following)
        self.claim("the second", ~watched | first | second)

    def _claim_row(self, m: Module, follows: Value, wanted: Any) -> None:
        """Claim that the row that is read or written in one bank, which may be any, is the segment's."""
        dut = self.dut
        number = self.constant(m, range(BANKS), "watched_bank")
        row, before = Signal(13, name="bank_row"), Signal(13, name="bank_row_before")
        activated = (self.operation == ACTIVATE) & (dut.bank == number)
        m.d.comb += row.eq(Mux(activated, dut.address, before))
        m.d.sync += before.eq(row)
        self.claim("row", ~(follows & (dut.bank == number)) | (row == wanted.row))
        # Help for the proof: the unit knows the row, and opens that of its segment before it reads or writes.
        rows = Array(self.peek(f"row{bank}") for bank in range(BANKS))
        is_open = Array(self.peek(f"open{bank}") for bank in range(BANKS))
        bank, now, now_valid = (self.peek(name) for name in ("now.bank", "now.row", "now_valid"))
        self.claim("rows known", ~is_open[number] | (rows[number] == row))
        self.claim("row of the segment", ~now_valid | (rows[bank] == now))
        self.claim("bank of the segment", ~(now_valid & self.peek("run")) | is_open[bank])


class RefreshesBench(_SchedulerBench):
    """Each interval between refreshes begins with a refresh.

    So there are as many refreshes as required, and two are never further apart than an interval and that part of it.
    """

    def watch(self, m: Module) -> None:
        super().watch(m)
        cycles, operation = self.cycles, self.operation
        awake = latch(m, operation == MODE, 1, 1, "chip_is_awake")
        at = Signal(range(cycles.refresh))
        done = Signal(name="refreshed")
        counts = Signal()
        # Help for the proof: the unit's timer runs as this one does.
        interval = self.peek("interval")
        self.claim("timer", at + interval == cycles.refresh - 1)
        over = at == cycles.refresh - 1
        m.d.sync += at.eq(Mux(over, 0, at + 1))
        with m.If(over):
            m.d.sync += [done.eq(0), counts.eq(awake)]
        with m.Elif(operation == REFRESH):
            m.d.sync += done.eq(1)
        with m.If(self.dut.restart):
            m.d.sync += counts.eq(0)
        self.claim("a refresh in time", ~counts | done | (at < self.refreshed_within))
        self.cover("a refresh later", counts & done)


class ProgressBench(_SchedulerBench):
    """A segment whose data and room are at hand comes to its next unit in a bounded number of cycles."""

    def watch(self, m: Module) -> None:
        super().watch(m)
        dut, cycles, issue = self.dut, self.cycles, self.dut.read | self.dut.write
        # A unit waits at most for a refresh, and for the row to be opened after it.
        slowest = self.refreshed_within + cycles.rfc + cycles.rcd + 20
        initialisation = cycles.power_up + cycles.rp + REFRESHES * cycles.rfc + cycles.mrd
        ends = issue & (self.peek("now.more") == 0)
        inside = count(m, "inside", 4, transfer(dut.segment), ends)
        awake = latch(m, self.operation == MODE, 1, 1, "chip_is_awake")
        within(m, self, (inside != 0) & awake & dut.have & dut.room & ~issue, slowest, "a unit")
        within(m, self, ~awake & ~dut.restart, initialisation + cycles.ras + cycles.wr + 8, "the mode")
        self.cover("a unit of a segment", issue)


def cycles_at(megahertz: float) -> SdramCycles:
    """The default timings at a clock, but for those that take very many cycles: power-up, and the time between
    refreshes, which is as short as the controller allows."""
    cycles = SdramTiming().cycles(megahertz * 1e6)
    pause = cycles.ras + cycles.wr + cycles.rp + cycles.rfc + cycles.rcd + 8
    return replace(cycles, power_up=cycles.rc + 2, refresh=pause + 1)


def properties() -> Iterator[Property]:
    for megahertz, cas_latency, word_units in ((100, 3, 1), (50, 2, 1), (25, 2, 4)):
        # Where waits are long, an invariant for refreshes is not found in minutes: the faults of these are not asked of
        # the properties at other clocks.
        short = megahertz == 25
        benches: dict[str, type[Bench]] = {"rules": RulesBench, "units": UnitsBench}
        if short:
            benches |= {"refreshes": RefreshesBench, "progress": ProgressBench}
        for name, bench in benches.items():
            method = Bounded(_PROGRESS_CYCLES) if bench is ProgressBench else Invariant()
            title, arguments = f"{name} at {megahertz} MHz", (cycles_at(megahertz), cas_latency, word_units)
            yield bench.proves("boards/sdram_schedule", title, method, *arguments, cover=180, part=not short)
