"""Properties of `weft.hdl.vector.softmax`: vectors of scores meet their limits, exponents, sums and addresses."""

from __future__ import annotations

from collections.abc import Iterator

from amaranth.hdl import Array, Cat, Const, Module, Mux, Signal, Value

from weft.extras.proof.hardware.pipelines import ago, connect_all, implies, latch
from weft.extras.proof.hardware.property import Bench, Induction, Property
from weft.extras.proof.hardware.smallest import SMALLEST
from weft.hdl.isa.config import Config
from weft.hdl.vector.probabilities import PROBABILITY, sum_latency, tree_stages
from weft.hdl.vector.requantise import LATENCY
from weft.hdl.vector.softmax import ALIGNED, TOTAL, WRITTEN, SoftmaxPipe, vector_layout
from weft.hdl.vector.vec_softmax import CHOSEN

_SHORT_ENTRY = 3
"""Cycles from a grant to its scores: fewer than in the vector unit, because induction covers all of them."""
_UNIT_ENTRY = CHOSEN - 1 + LATENCY
"""Cycles from a grant to its scores in the vector unit."""


class PipeBench(Bench, unit=SoftmaxPipe, drives=("begin", "push", "valid", "last", "index")):
    """The pipeline with free inputs, and one or two lane groups.

    Assumed: lane groups are granted in order, at any pace, and the scores of each come `entry` cycles later; a vector
    begins with its first group, and is pushed with its last. Cycles of claims count from the push.
    """

    def __init__(self, config: Config, entry: int = _SHORT_ENTRY) -> None:
        super().__init__(config, entry)
        self.entry = entry
        groups, stages = config.groups, tree_stages(config)
        assert groups <= 2
        self.peak_cycle = entry + 3 + stages
        self.ends = self.peak_cycle + groups - 1
        self.event = self.ends + sum_latency(config) - TOTAL

    def watch(self, m: Module) -> None:
        dut, config = self.dut, self.config
        granted, place, last = self.free(1, "granted"), Signal(1, name="place"), config.groups - 1
        if last:
            m.d.sync += place.eq(place + granted)
        self.begins, self.pushed = granted & (place == 0), granted & (place == last)
        arrives, late = (
            ago(m, value, self.entry, name, reset=True)
            for name, value in (("arrives", granted), ("number", place))
        )
        m.d.comb += [
            dut.begin.eq(self.begins),
            dut.push.eq(self.pushed),
            dut.valid.eq(arrives),
            dut.index.eq(late),
            dut.last.eq(late == last),
        ]
        self.place, self.arrives = place, arrives
        connect_all(m, dut)
        self.since = [self.pushed]
        for cycle in range(1, self.event + WRITTEN + 1):
            self.since.append(ago(m, self.since[-1], 1, f"pushed{cycle}", reset=True))
        self._watch(m)

    def _watch(self, m: Module) -> None:
        raise NotImplementedError

    def _claim_level(self, name: str, words: int, first: int, last: int, more: Value | None = None) -> None:
        """Claim the number of words in a tap: words of vectors that came between `first` and `last` cycles ago."""
        bits = max(words - 1, 1).bit_length()
        inside: Value = Const(0) if more is None else more
        for cycle in range(first, last + 1):
            inside = inside + self.since[cycle]
        to, of = (self.peek(f"{name}.{place}__addr") for place in ("store", "fetch"))
        self.claim(f"words in {name}", (to - of)[:bits] == inside[:bits])


class WayBench(PipeBench):
    """One vector, which may be any, is watched on its way, with the addresses of its state, its probabilities and its
    alignment, and whether it is the last one.
    """

    def _watch(self, m: Module) -> None:
        dut, config, since = self.dut, self.config, self.since
        mark = self.free(1, "mark")
        layout = vector_layout(config)
        written = self.event + WRITTEN
        age, vector = Signal(range(written + 2), name="age"), Signal(layout, name="watched")
        with m.If(age != 0):
            m.d.sync += age.eq(Mux(age == written, 0, age + 1))
        with m.Elif(mark & self.pushed):
            m.d.sync += [age.eq(1), vector.eq(dut.vector)]
        groups = config.groups
        out = self.ends + PROBABILITY
        for cycles, *names in (
            (out, "dst"),
            (self.event, "state", "fresh"),
            (self.event + ALIGNED, "alignment", "end"),
            (written, "state"),
        ):
            tap, words = f"tap_{names[0]}_{cycles}", cycles // groups + 2
            self._claim_level(tap, words, 1, cycles)
            content = Cat(*(Value.cast(vector[name]) for name in names))
            self._claim_tap(m, tap, words, content, mark & self.pushed, age, cycles)
        self.claim("the watched vector was pushed", (age == 0) | Array(since)[age])
        # Its probabilities.
        comes = dut.p_valid & (dut.p_index == groups - 1)
        self.claim("a vector of probabilities for each, and no other", comes == since[out])
        self.claim("no other groups", dut.p_valid == Cat(*since[out - groups + 1 : out + 1]).any())
        self.claim("which group", dut.p_index == (since[out] if groups > 1 else 0))
        self.claim("where it goes", implies(age == out, dut.dst == vector.dst))
        # Its row state.
        valid, address = self._state("valid", 1), self._state("address", len(dut.row))
        self.claim("each updates a state", valid == since[self.event])
        place = Mux(dut.dividing, dut.row, vector.state)
        self.claim("the state of its row", implies(age == self.event, address == place))
        self.claim("the row to divide for", implies(dut.dividing, address == dut.row))
        fresh = implies(age == self.event, self._state("fresh", 1) == vector.fresh)
        self.claim("whether that starts anew", fresh)
        self.claim("each writes a state", self._state("written", 1) == since[written])
        back = self._state("write_address", len(dut.row))
        self.claim("where it was read", implies(age == written, back == vector.state))
        # Its alignment.
        aligned, alignment = self.event + ALIGNED, dut.alignment_write
        self.claim("an alignment for each, and no other", alignment.valid == since[aligned])
        there = age == aligned
        self.claim("where that goes", implies(there, alignment.address == vector.alignment))
        self.claim("the last one has ended", implies(there, dut.ended == vector.end))
        self.claim("nothing else has", implies(dut.ended, since[aligned]))
        self.cover("a vector's write", (age == written) & (back == 3) & since[written - groups])
        self.cover("the last one", there & dut.ended & (alignment.address == 5))

    def _claim_tap(
        self, m: Module, tap: str, words: int, content: Value, pushed: Value, age: Value, cycles: int
    ) -> None:
        """Claim the place of the watched vector in a tap, for `cycles` cycles: induction needs it."""
        bits = max(words - 1, 1).bit_length()
        to = self.peek(f"{tap}.store__addr")
        at = latch(m, (age == 0) & pushed, to, bits, f"{tap}_at")
        later: Value = Const(1)
        for cycle in range(1, cycles):
            later = later + (self.since[cycle] & (cycle < age))
        there = (age != 0) & (age <= cycles)
        word = Array(self.peek(f"{tap}.ram[{place}]") for place in range(1 << bits))[at]
        self.claim(f"place in {tap}", implies(there, (to - at)[:bits] == later[:bits]))
        self.claim(f"word in {tap}", implies(there, word == content))

    def _state(self, name: str, width: int) -> Signal:
        return self.peek(f"states.{name}")


class MeetBench(PipeBench):
    """Each lane group of scores is masked by the limit of its vector, and each row state is updated with the exponent
    and the sum of its vector. The parts are connected.
    """

    def _watch(self, m: Module) -> None:
        dut, config, since, groups = self.dut, self.config, self.since, self.config.groups
        pending = self.place if groups > 1 else Const(0)
        words = (self.entry + 1) // groups + 3
        self._claim_level("limits", words, 1, self.entry + 1, pending)
        limit = Signal.like(dut.limit, name="limit_of")
        content = latch(m, self.begins, dut.limit, dut.limit.shape(), "kept")
        m.d.comb += limit.eq(Mux(self.begins, dut.limit, content))
        alone = pending & ~Cat(*since[1 : self.entry + 2]).any()
        self.claim("a limit that waits", implies(alone, self.peek("limits.o") == content))
        there = ago(m, self.arrives, 1, "there", reset=True)
        used = self.peek("probabilities.limit")
        due = ago(m, limit, self.entry + 1, "due")
        self.claim("the limit of each group's vector", implies(there, used == due))
        self.cover("the limit of a second vector", there & (due == 1) & ago(m, used == 2, 1, "two"))

        wait = self.event + TOTAL - 1 - self.peak_cycle
        peak_words = (groups + sum_latency(config)) // groups + 2
        self._claim_level("peaks", peak_words, self.peak_cycle + 1, self.event + TOTAL - 1)
        peak = ago(m, self.peek("probabilities.peak"), wait, "peak")
        here = since[self.event + TOTAL - 1]
        self.claim("the exponent of each", implies(here, self.peek("states.peak") == peak))
        self.cover("the exponent of a vector", here & (peak == 5) & since[self.event + TOTAL - 1 - groups])


class ConnectedBench(PipeBench):
    """Inputs and outputs of probabilities and row states are those of the pipeline, in the same cycle."""

    def _watch(self, m: Module) -> None:
        dut, config = self.dut, self.config
        total = self.peek("probabilities.total")
        self.claim("the sum of a vector", self.peek("states.total") == total)
        self.claim("whether states are kept", self.peek("states.final") == dut.final)
        self.claim("sums to divide by", dut.sum == self.peek("states.sum"))
        self.claim("the state of the row", implies(dut.dividing, self.peek("states.address") == dut.row))
        for name in ("valid", "last", "index", "scores", "table_start", "table_fill", "table_byte"):
            value = Value.cast(getattr(dut, name))
            port = self.peek(f"probabilities.{name}")
            self.claim(f"{name} goes in", port == value)
        for name in ("p_valid", "p_index") if config.groups > 1 else ("p_valid",):
            value = Value.cast(getattr(dut, name))
            self.claim(f"{name} comes out", self.peek(f"probabilities.{name}") == value)
        for lane, p in enumerate(dut.p):
            self.claim(f"p comes out {lane}", self.peek(f"probabilities.p_{lane}") == p)
        alignment = Value.cast(dut.alignment_write.data)
        self.claim("its alignment", self.peek("states.alignment").as_unsigned() == alignment.as_unsigned())
        self.cover("scores", dut.valid & (dut.scores[0] == -7))


_PATH_CLAIM = (
    "For each vector of scores whose lane groups were granted, and for nothing else, its probabilities leave after a "
    "fixed number of cycles with its address, the state of its row is read and written back, and its alignment "
    "goes to its own address; the instruction ends with its last vector."
)


def properties() -> Iterator[Property]:
    unit, proven = "vector/softmax", ("probabilities", "states")
    small = SMALLEST.replace(probability_bits=8, table_depth=256)
    for lanes, groups in ((1, "two lane groups"), (2, "one lane group")):
        arguments = small.replace(lanes=lanes), _SHORT_ENTRY
        name = f"the way of vectors of {groups}"
        yield WayBench.proves(
            unit, name, Induction(18), *arguments, claim=_PATH_CLAIM, cover=24, proven=proven
        )
        name = f"what meets vectors of {groups}"
        yield MeetBench.proves(unit, name, Induction(16), *arguments, cover=24, part=True, proven=proven)
        name = f"parts of {groups}"
        yield ConnectedBench.proves(unit, name, Induction(2), *arguments, cover=12, part=True, proven=proven)
    # The short entry above detects faults sooner.
    yield WayBench.proves(
        unit,
        "the way of vectors in the unit",
        Induction(28),
        small.replace(lanes=1),
        _UNIT_ENTRY,
        claim=f"{_PATH_CLAIM} With as many cycles from a grant to its scores as there are in the vector unit.",
        cover=32,
        part=True,
        proven=proven,
    )
