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
from weft.extras.proof.hardware.pipelines import latch, was
from weft.extras.proof.hardware.property import Bench, Bounded, Invariant, Property
from weft.extras.proof.hardware.streams import WatchedItem, assume_stable, transfer, within

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


class Chip:
    """One bank of a chip, which may be any, and the rules of its data sheet.

    After a reset of the controller the bank may be open, and its last command may have been in the cycle before.

    Parameters
    ----------
    m, bench
    operation, bank, address : value
        The command of this cycle.
    cycles : SdramCycles
    cas_latency : int
    forget : value
        The chip must be initialised again: what was done before does not count.
    """

    def __init__(
        self, m: Module, bench: Bench, *, operation: Value, bank: Value, address: Value, cycles: SdramCycles,
        cas_latency: int, forget: Value,
    ) -> None:  # fmt: skip
        self.number = number = bench.constant(m, range(BANKS), "watched_bank")
        self.is_open = is_open = Signal(name="bank_is_open", init=1)
        self.row = row = Signal(13, name="bank_row")
        self.m, self.cycles = m, cycles
        self.bench, self.operation, self.address = bench, operation, address
        here = bank == number
        self.activate = activate = (operation == ACTIVATE) & here
        self.precharge = precharge = (operation == PRECHARGE) & (here | address[10])
        with m.If(activate):
            m.d.sync += [is_open.eq(1), row.eq(address)]
        with m.If(precharge):
            m.d.sync += is_open.eq(0)
        self._bank(here)
        self._columns(cas_latency)
        self._initialisation(bank, cas_latency, forget)

    def _bank(self, here: Value) -> None:
        m, claim, cycles, operation = self.m, self.bench.claim, self.cycles, self.operation
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

    def _columns(self, cas_latency: int) -> None:
        m, claim, operation = self.m, self.bench.claim, self.operation
        column = (operation == READ) | (operation == WRITE)
        columns, reads = (
            since(m, column, 2, "column"),
            since(m, operation == READ, cas_latency + 3, "any_read"),
        )
        claim("a burst is not cut short", ~column | (columns >= 2))
        claim("rows are not closed by the way", ~column | ~self.address[10])
        # The two words read are on the pads `cas_latency` and one more cycles later; then the chip needs a cycle to
        # let go of them.
        claim("data pads are driven from one side", ~(operation == WRITE) | (reads >= cas_latency + 3))
        self.bench.cover("write after read", (operation == WRITE) & (reads == cas_latency + 3))
        self.bench.cover("consecutive bursts", (operation == READ) & (columns == 2))

    def _initialisation(self, bank: Value, cas_latency: int, forget: Value) -> None:
        m, claim, cycles, operation = self.m, self.bench.claim, self.cycles, self.operation
        refreshed = since(m, operation == REFRESH, cycles.rfc, "refresh")
        mode_set = since(m, operation == MODE, cycles.mrd, "mode")
        powered = since(m, operation != operation, cycles.power_up, "power_up")
        refreshes = Signal(range(REFRESHES + 1), name="refreshes")
        self.initialised = Signal(name="initialised")
        with m.If(operation == REFRESH):
            m.d.sync += refreshes.eq(refreshes + (refreshes != REFRESHES))
        with m.If(operation == MODE):
            m.d.sync += self.initialised.eq(1)
        with m.If(forget):
            m.d.sync += [refreshes.eq(0), self.initialised.eq(0)]
        command = operation != NOP
        claim("tRFC", ~command | (refreshed >= cycles.rfc))
        claim("tMRD", ~command | (mode_set >= cycles.mrd))
        claim("power up", ~command | (powered >= cycles.power_up))
        claim("no burst is stopped", operation != STOP)
        claim("refreshes before the mode", ~(operation == MODE) | (refreshes == REFRESHES))
        rows = (operation == ACTIVATE) | (operation == READ) | (operation == WRITE)
        claim("the mode before rows", ~rows | self.initialised)
        # Bursts of 2 words in sequence, for reads and writes.
        mode = 0b001 | cas_latency << 4
        claim("mode", ~(operation == MODE) | ((self.address == mode) & (bank == 0)))


class SchedulerBench(Bench, drives=("restart",)):
    """A scheduler whose segments lie within a row, and stay until they are taken; it is not restarted."""

    def __init__(
        self,
        about: str,
        cycles: SdramCycles,
        *,
        cas_latency: int = 3,
        word_units: int = 1,
        row_bits: int = 2,
        column_bits: int = 3,
    ) -> None:
        self.about = about
        self.cycles, self.cas_latency, self.word_units = cycles, cas_latency, word_units
        self.refreshed_within = max(cycles.ras, cycles.wr + 1) + cycles.rp + 4
        self.starting = (
            cycles.power_up + cycles.rp + REFRESHES * cycles.rfc + cycles.mrd + cycles.ras + cycles.wr + 8
        )
        self.slowest = self.refreshed_within + cycles.rfc + cycles.rcd + 20
        super().__init__(
            Scheduler(
                cycles,
                word_units=word_units,
                row_bits=row_bits,
                column_bits=column_bits,
                cas_latency=cas_latency,
            )
        )

    def watch(self, m: Module) -> None:
        dut, segment = self.dut, self.dut.segment.payload
        assume_stable(m, self, dut.segment, "segment")
        units = 1 << len(segment.unit)
        self.assume(~dut.segment.valid | (segment.unit + segment.more < units))
        if "rules" in self.about:
            self._chip(m)
        if "units" in self.about:
            self._segments(m)
        if "refreshes" in self.about:
            self._claim_refreshes(m)
        if "progress" in self.about:
            self._claim_progress(m)

    def _chip(self, m: Module) -> Chip:
        dut = self.dut
        return Chip(
            m, self, operation=Value.cast(dut.operation), bank=dut.bank, address=dut.address, cycles=self.cycles,
            cas_latency=self.cas_latency, forget=dut.restart,
        )  # fmt: skip

    def _segments(self, m: Module) -> None:
        """Claim that the units of a segment, and no others, are read or written, in order and at their places.

        The watched segment may be any, so the claim about its last unit holds for the segments before it, too.
        Therefore `ends` may be taken from the scheduler.
        """
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
        dut, operation = self.dut, Value.cast(self.dut.operation)
        follows, last = Signal(name="follows"), Signal(name="follows_last")
        wanted = Signal(dut.layout, name="wanted")
        unit = was(m, dut.read | dut.write, "any_unit")
        m.d.sync += [follows.eq(issue), wanted.eq(item), last.eq(ends)]
        column = Signal(12, name="wanted_column")
        m.d.comb += column.eq(wanted.unit << 1)
        self.claim("commands for units", unit == ((operation == READ) | (operation == WRITE)))
        self.claim("command", ~follows | (operation == Mux(wanted.write, WRITE, READ)))
        self.claim("bank", ~follows | (dut.bank == wanted.bank))
        self._claim_row(m, follows, wanted)
        self.claim(
            "column", ~follows | ((dut.address[:10] == column[:10]) & (dut.address[11:] == column[10:]))
        )
        self.claim("written", ~follows | (dut.written == (wanted.write & wanted.last & last)))
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
        activated = (Value.cast(dut.operation) == ACTIVATE) & (dut.bank == number)
        m.d.comb += row.eq(Mux(activated, dut.address, before))
        m.d.sync += before.eq(row)
        self.claim("row", ~(follows & (dut.bank == number)) | (row == wanted.row))
        # Help for the proof: the unit knows the row, and opens that of its segment before it reads or writes.
        rows = Array(self.peek(f"row{bank}") for bank in range(BANKS))
        is_open = Array(self.peek(f"open{bank}") for bank in range(BANKS))
        bank, now, now_valid = (self.peek("now.bank"), self.peek("now.row"), self.peek("now_valid"))
        self.claim("rows known", ~is_open[number] | (rows[number] == row))
        self.claim("row of the segment", ~now_valid | (rows[bank] == now))
        self.claim("bank of the segment", ~(now_valid & self.peek("run")) | is_open[bank])

    def _claim_refreshes(self, m: Module) -> None:
        """Claim a refresh at the beginning of each interval.

        So there are as many refreshes as required, and two are never further apart than an interval and that part of
        it.
        """
        cycles, operation = self.cycles, Value.cast(self.dut.operation)
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

    def _claim_progress(self, m: Module) -> None:
        """Claim that a segment does not wait while data and room are available."""
        dut, inside, operation = self.dut, Signal(range(4), name="inside"), Value.cast(self.dut.operation)
        issue = dut.read | dut.write
        m.d.sync += inside.eq(
            inside + (dut.segment.valid & dut.segment.ready) - (issue & (self.peek("now.more") == 0))
        )
        awake = latch(m, operation == MODE, 1, 1, "chip_is_awake")
        within(m, self, (inside != 0) & awake & dut.have & dut.room & ~issue, self.slowest, "a unit")
        within(m, self, ~awake & ~dut.restart, self.starting, "the mode")
        self.cover("a unit of a segment", issue)


def cycles_at(megahertz: float) -> SdramCycles:
    """The default timings at a clock, but for those that take very many cycles: power-up, and the time between
    refreshes, which is as short as the controller allows."""
    cycles = SdramTiming().cycles(megahertz * 1e6)
    pause = cycles.ras + cycles.wr + cycles.rp + cycles.rfc + cycles.rcd + 8
    return replace(cycles, power_up=cycles.rc + 2, refresh=pause + 1)


_ABOUT = {
    "rules": "The commands that the chip gets keep every rule of its data sheet.",
    "units": "All units of each segment are read or written, in order, at their places, and no others.",
    "refreshes": "Each interval between refreshes begins with a refresh.",
    "progress": "A segment whose data and room are at hand comes to its next unit in a bounded number of cycles.",
}


def properties() -> Iterator[Property]:
    for megahertz, cas_latency, word_units in ((100, 3, 1), (50, 2, 1), (25, 2, 4)):
        # Where waits are long, an invariant for refreshes is not found in minutes: the faults of these are not asked of
        # the properties at other clocks.
        short = megahertz == 25
        for about in _ABOUT if short else ("rules", "units"):
            cycles = cycles_at(megahertz)
            yield SchedulerBench.proves(
                "boards/sdram_schedule",
                f"{about} at {megahertz} MHz",
                Bounded(_PROGRESS_CYCLES) if about == "progress" else Invariant(),
                about,
                cycles,
                claim=_ABOUT[about],
                cover=180,
                part=not short,
                cas_latency=cas_latency,
                word_units=word_units,
            )
