"""Properties of `weft.hdl.vector.probabilities`: exponents, probabilities and sums of vectors, and their table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value, signed
from amaranth.lib import data

from weft.extras.proof.hardware.pipelines import ago, implies, settled
from weft.extras.proof.hardware.property import Bench, Induction, Property
from weft.extras.proof.hardware.smallest import SMALLEST
from weft.hdl.vector.probabilities import (
    PEAK,
    PEAK_BITS,
    PROBABILITY,
    Exp2Table,
    Probabilities,
    sum_latency,
    sum_width,
    tree_stages,
)
from weft.hdl.vector.requantise import SCORE_BITS

_OCTAVE = 128
_REACH = 2048
"""Smallest distance with probability 0."""
_FRACTION = 7
_LOOKS = 3
"""Cycles from an exponent to the index of an entry."""
_LOOKED_UP = 2
"""Cycles from an index to its entry."""
_COLUMN = data.StructLayout({"y": signed(SCORE_BITS), "valid": 1})


class ProbabilitiesBench(Bench, unit=Probabilities, drives=("index", "last")):
    """From any scores, at any pace and with any limits, follow the exponent of each vector, whether a column has an
    entry of the table, and the entry's index, by their definition and in the documented cycle. A column has no entry if
    it is masked or too far below the exponent.

    There are one or two lane groups. Assumed: groups come in order, at any pace, and the last group of a vector is
    marked. Each group may have another limit. The model stores the scores and masks of each vector, and computes their
    results by the definition of `weft.hdl.isa.Softmax` a cycle after the vector's last group. Cycles of claims count
    from there.
    """

    def watch(self, m: Module) -> None:
        dut, config = self.dut, self.config
        assert config.groups <= 2
        self.stages = tree_stages(config)
        self._near = [self.peek(f"near_{lane}") for lane in range(config.lanes)]
        groups, last = config.groups, config.groups - 1
        # A cycle after a group: its scores, and its columns within the limit.
        came = ago(m, dut.valid, 1, "came", reset=True)
        place = Signal(1, name="place")  # of the group that comes next
        m.d.comb += [dut.index.eq(place), dut.last.eq(place == last)]
        if groups > 1:
            m.d.sync += place.eq(place + dut.valid)
        number = ago(m, place, 1, "number")
        columns = [self._column(m, lane, number) for lane in range(config.lanes)]
        self._split_score(m, columns, came)
        complete = Signal(name="complete")
        m.d.comb += complete.eq(came & (number == last))
        self.claim("the limit is used", dut.used == complete)
        whole = self._gather(m, columns, came & ~complete, complete)
        self._claim_exponents(m, whole, complete)
        self._claim_entries(m, whole)

    def _column(self, m: Module, lane: int, number: Value) -> data.View:
        column = Signal(_COLUMN, name=f"column{lane}")
        place = number * self.config.lanes + lane
        m.d.comb += [
            column.y.eq(ago(m, self.dut.scores[lane], 1, f"y{lane}")),
            column.valid.eq(place < self.dut.limit),
        ]
        return column

    def _split_score(self, m: Module, columns: list[Any], came: Value) -> None:
        """Claim the exponent of each score alone, and its distance below that."""
        there = ago(m, came, 1, "split", reset=True)
        for lane, column in enumerate(columns):
            split = ago(m, _split_score(column), 1, f"split{lane}")
            self.claim(f"score of lane {lane}", implies(there, self._score(f"score_{lane}") == split))

    def _score(self, name: str) -> Signal:
        return self.peek(name)

    def _gather(self, m: Module, columns: list[Any], early: Value, complete: Value) -> list[Any]:
        """Return the columns of the vector in the cycle in which it is complete.

        `early` marks its first group, if that is not the last.
        """
        groups = self.config.groups
        if groups == 1:
            self.pending, stored = Const(0, 1), []
        else:
            self.pending = Signal(name="pending")
            stored = [
                Signal(_COLUMN, name=f"kept{lane}", reset_less=True) for lane in range(self.config.lanes)
            ]
            m.d.sync += self.pending.eq(Mux(early, 1, Mux(complete, 0, self.pending)))
            for keeps, column in zip(stored, columns, strict=True):
                with m.If(early):
                    m.d.sync += keeps.eq(column)
            before = ago(m, self.dut.index[0], 1, "index", reset=True)
            self.claim("groups in order", self.pending == before)
        self.stored = stored
        return [*stored, *columns]

    def _delay(self, m: Module, complete: Value) -> list[Value]:
        """Return, for each number of cycles from 0, whether a vector was complete that long ago."""
        flags = [complete]
        for cycle in range(sum_latency(self.config) + self.stages + 4):
            flags.append(ago(m, flags[-1], 1, f"complete{cycle}", reset=True))
        return flags

    def _claim_exponents(self, m: Module, whole: list[Any], complete: Value) -> None:
        """Claim the exponent, which is valid when it is reported, for all groups.

        Until then, the largest exponent so far is stored, and scores wait.
        """
        dut, groups, stages = self.dut, self.config.groups, self.stages
        self.since = since = self._delay(m, complete)
        self.peak_cycle = 2 + stages  # cycles after a complete vector
        self.exponent = Signal(signed(PEAK_BITS), name="exponent")
        m.d.comb += self.exponent.eq(_largest([_exponent(column) for column in whole]))
        self.claim("found in its cycle", dut.found == since[self.peak_cycle])
        for group in range(groups):
            due = ago(m, self.exponent, self.peak_cycle + group, f"exponent{group}").as_signed()
            self.claim(f"exponent, group {group}", implies(since[self.peak_cycle + group], dut.peak == due))
        self.cover("an exponent", dut.found & (dut.peak == -3))
        self.cover("a vector without valid columns", dut.found & (dut.peak == PEAK))
        self.claim("it ends with the last group", dut.ends == since[self.peak_cycle + groups - 1])
        self._claim_waiting(m)
        if groups == 1:
            return
        so_far: Value = Signal(signed(PEAK_BITS), name="so_far", init=PEAK)
        m.d.comb += so_far.eq(
            Mux(self.pending, _largest([_exponent(column) for column in self.stored]), PEAK)
        )
        for cycle in range(stages + 1):
            later = Signal(signed(PEAK_BITS), name=f"so_far{cycle}", init=PEAK)
            m.d.sync += later.eq(so_far)
            so_far = later
        self.claim("largest one so far", self.peek("peak_so_far") == so_far)

    def _claim_waiting(self, m: Module) -> None:
        """Claim the number of groups that wait in memory, and the oldest one if others may come much later."""
        since, stages, groups, pending = self.since, self.stages, self.config.groups, self.pending
        bits = (groups + stages + 3).bit_length()
        inside: Value = ago(m, pending, 1, "pending", reset=True)
        for cycle in range(2, 3 + stages):
            inside = inside + Mux(since[cycle], groups, 0)
        if groups > 1:
            inside = inside + since[3 + stages]
        to, of = (self.peek(name) for name in ("store__addr", "read_at"))
        self.claim("groups that wait", (to - of)[:bits] == inside)
        if groups > 1:
            alone = pending & ago(m, pending, 1, "still", reset=True)
            alone &= ~Cat(*since[: 5 + stages]).any()
            word = self.peek("fetch__data")
            stored = Cat(*(_split_score(column) for column in self.stored))
            self.claim("a group that waits", implies(alone, word == stored))

    def _claim_entries(self, m: Module, whole: list[Any]) -> None:
        """Claim the indices that are looked up, three cycles after the exponent, and the cycles of probabilities."""
        dut, config, lanes = self.dut, self.config, self.config.lanes
        bits = (config.table_depth - 1).bit_length()
        index = self.peek("table.index")
        shift = (_REACH // config.table_depth).bit_length() - 1
        looks, comes = self.peak_cycle + _LOOKS, self.peak_cycle + PROBABILITY
        for group in range(config.groups):
            for lane in range(lanes):
                column, name = whole[group * lanes + lane], f"{group * lanes + lane}"
                distance = Signal(PEAK_BITS + _FRACTION + 2, name=f"distance{name}")
                m.d.comb += distance.eq(self.exponent * _OCTAVE - column.y)
                counts = column.valid & (distance < _REACH)
                place = ago(m, (distance >> shift)[:bits], looks + group, f"place{name}")
                near = ago(m, counts, looks + group, f"counts{name}")
                here = self.since[looks + group]
                self.claim(f"column {name} has an entry", implies(here, self._near[lane] == near))
                entry = index.word_select(lane, bits)
                self.claim(f"entry of column {name}", implies(here & near, entry == place))
                self.cover(f"an entry of column {name}", here & near & (entry == 77))
        came = [self.since[comes + group] for group in range(config.groups)]
        self.claim("probabilities come in their cycles", dut.p_valid == Cat(*came).any())
        self.claim("which group", dut.p_index == (came[-1] if config.groups > 1 else 0))


class SumBench(Bench, unit=Probabilities):
    """Probabilities are the entries that were looked up, or 0 where a column has none. The sum of a vector comes in its
    cycle. Bytes that fill the table reach it.

    The outputs of the table are free. `ProbabilitiesBench` claims the cycles, and the order of groups.
    """

    def watch(self, m: Module) -> None:
        dut, config, stages = self.dut, self.config, tree_stages(self.config)
        entries = self.peek("table.p")
        for lane in range(config.lanes):
            near = ago(m, self.peek(f"near_{lane}"), PROBABILITY - _LOOKS, f"near{lane}", reset=True)
            entry = ago(m, entries.word_select(lane, 8), PROBABILITY - _LOOKS - _LOOKED_UP, f"entry{lane}")
            there = settled(m, PROBABILITY - _LOOKS, f"settled{lane}")
            self.claim(f"probability of lane {lane}", implies(there, dut.p[lane] == Mux(near, entry, 0)))
        for name in ("start", "fill", "byte"):
            self.claim(f"the table's {name}", self.peek(f"table.{name}") == getattr(dut, f"table_{name}"))
        width = sum_width(config)
        group = Signal(width, name="sum_of_group")
        m.d.comb += group.eq(sum(dut.p[lane] for lane in range(config.lanes)))
        total: Value = Const(0)
        for number in range(config.groups):
            total = total + ago(m, group, stages + 1 + number, f"sum{number}")
        last = dut.p_valid & (dut.p_index == config.groups - 1)
        whole: Value = last
        if config.groups > 1:
            first = dut.p_valid & ~last
            whole = last & ago(m, first, 1, "first", reset=True)
            came = ago(m, first, stages + 1, "first_came", reset=True)
            due = Mux(came, ago(m, group, stages + 1, "first_sum"), 0)
            # The second group follows the first one at once.
            so_far = self.peek("so_far")
            self.claim("the sum so far", so_far == due)
            self.assume(~ago(m, first, 1, "begun", reset=True) | last)
        here = ago(m, whole, stages + 1, "whole", reset=True)
        self.claim("the sum of a vector", implies(here, dut.total == total))
        self.cover("the sum of a vector", here & (dut.total == 255 + 9))


class TableBench(Bench, unit=Exp2Table):
    """Bytes fill the entries from 0 on, and every lane reads the byte that was written last to the entry of its index.

    One entry, which may be any, is watched: two cycles after its index, lanes get the byte that was written to it last,
    unless a byte was written during the read.
    """

    def watch(self, m: Module) -> None:
        dut, config = self.dut, self.dut.config
        bits = (config.table_depth - 1).bit_length()
        watched = self.constant(m, bits, "watched")
        # Entries are filled in their order, from 0 on after `start`.
        following = Signal(bits, name="following")
        m.d.sync += following.eq(Mux(dut.start, 0, following + dut.fill))
        stored = Signal(8, reset_less=True)
        known = Signal()
        with m.If(dut.fill & (following == watched)):
            m.d.sync += [stored.eq(dut.byte), known.eq(1)]
        # Contents of entries: without them, induction starts from unreachable states.
        self.claim("the entry that is next", self.peek("entry") == following)
        for pair in range(0, config.lanes, 2):
            words = Array(self.peek(f"copy_{pair}[{entry}]") for entry in range(config.table_depth))
            self.claim(f"the entry in copy {pair}", implies(known, words[watched] == stored))
        for lane in range(config.lanes):
            reads = known & ~dut.fill & (dut.index[lane] == watched)
            read = ago(m, reads, _LOOKED_UP, f"read{lane}", reset=True)
            due = ago(m, stored, _LOOKED_UP, f"due{lane}")
            self.claim(f"reads what was written, lane {lane}", implies(read, dut.p[lane] == due))
            self.cover(f"a later entry, lane {lane}", read & (watched == 2) & (due == 9))


def _exponent(column: Any) -> Value:
    """Return ``ceil(y / 128)`` if the column is valid, else the minimum."""
    up = (column.y + (_OCTAVE - 1)) >> _FRACTION
    return Mux(column.valid, up, PEAK)


def _split_score(column: Any) -> Value:
    """Return the stored form of a score."""
    return Cat(_exponent(column)[:PEAK_BITS], (-column.y)[:_FRACTION], column.valid)


def _largest(values: list[Value]) -> Value:
    largest = values[0]
    for value in values[1:]:
        largest = Mux(value > largest, value, largest)
    return largest


def properties() -> Iterator[Property]:
    for n, name in ((2, "one lane group"), (4, "two lane groups")):
        config = SMALLEST.replace(n=n, lanes=2, probability_bits=8, table_depth=256)
        yield ProbabilitiesBench.proves(
            "vector/probabilities", f"entries of {name}", Induction(12), config, cover=17, proven=("table",)
        )
        config = SMALLEST.replace(n=n, lanes=2, probability_bits=8, table_depth=256)
        yield SumBench.proves(
            "vector/probabilities", f"sums of {name}", Induction(8), config, cover=17, proven=("table",)
        )
    config = SMALLEST.replace(n=4, lanes=4, probability_bits=8, table_depth=256)
    yield TableBench.proves("vector/probabilities", "table of 256", Induction(6), config)
