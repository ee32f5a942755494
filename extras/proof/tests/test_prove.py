"""Verdicts on a counter with known properties."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from amaranth.hdl import Module, Signal, signed
from amaranth.lib import wiring
from amaranth.lib.memory import Memory
from amaranth.lib.wiring import In, Out

from weft.extras.proof.engine.netlist import NetlistError
from weft.extras.proof.engine.prove import Outcome, Result, prove
from weft.extras.proof.hardware.pipelines import ago, latch, was, watch_cycle
from weft.extras.proof.hardware.property import Bench, Bounded, Induction, Invariant, Method, Property, proves
from weft.extras.proof.hardware.registry import of_module


class Counter(wiring.Component):
    """Counts `step`, at most one in two cycles, from 0 to 9 and wraps to 0."""

    def __init__(self) -> None:
        super().__init__({"step": In(1), "value": Out(4)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        hidden = Signal(4)
        m.d.comb += self.value.eq(hidden)
        with m.If(self.step):
            m.d.sync += hidden.eq(hidden + 1)
            with m.If(hidden == 9):
                m.d.sync += hidden.eq(0)
        return m


class CounterBench(Bench):
    def __init__(self, watch: Callable[[CounterBench, Module], None]) -> None:
        super().__init__(Counter())
        self._watch = watch

    def watch(self, m: Module) -> None:
        self._watch(self, m)


def of(
    watch: Callable[[CounterBench, Module], None], method: Method = Invariant(), seconds: float = 60
) -> Result:
    return prove(
        Property("counter", "test", "What a test says.", lambda: CounterBench(watch), method), seconds
    )


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path / "cache"))


def below(limit: int) -> Callable[[CounterBench, Module], None]:
    def watch(bench: CounterBench, m: Module) -> None:
        bench.claim("below the limit", bench.dut.value < limit)
        bench.claim("always true", bench.dut.value >= 0)
        bench.cover("nine", bench.dut.value == 9)

    return watch


@pytest.mark.parametrize("method", [Invariant(), Induction(2), Bounded(14)], ids=repr)
def test_true_properties_are_proven(method: Method) -> None:
    result = of(below(10), method)
    assert result.outcome is (Outcome.BOUNDED if isinstance(method, Bounded) else Outcome.PROVEN)
    assert result.good
    assert result.covers == {"nine": 9}
    assert result.claims == ["always true", "below the limit"]


@pytest.mark.parametrize("method", [Invariant(), Induction(12), Bounded(14)], ids=repr)
def test_false_properties_fail(method: Method) -> None:
    result = of(below(9), method)
    assert result.outcome is Outcome.FAILED
    assert not result.good
    assert result.how == "below the limit in cycle 9, see trace.vcd"
    assert (Path(result.folder) / "trace.vcd").read_text().startswith("$")


def test_a_bound_proves_nothing_beyond_it() -> None:
    assert of(below(9), Bounded(9)).outcome is Outcome.BOUNDED
    assert of(below(9), Bounded(10)).outcome is Outcome.FAILED


def test_induction_that_does_not_close() -> None:
    """The unreachable 15 wraps to 0; 12 is not below 12 and follows 11."""
    result = of(below(12), Induction(1))
    assert result.outcome is Outcome.UNDECIDED
    assert not result.folder
    assert of(below(12)).outcome is Outcome.PROVEN


def test_assumptions_hold_and_may_be_too_strong() -> None:
    def watch(bench: CounterBench, m: Module) -> None:
        bench.assume(bench.dut.value < 5)
        bench.claim("below five", bench.dut.value < 5)
        bench.cover("four", bench.dut.value == 4)
        bench.cover("seven", bench.dut.value == 7)

    result = of(watch)
    assert result.outcome is Outcome.VACUOUS
    assert not result.good
    assert result.covers == {"four": 4, "seven": None}
    assert result.how == "not reached in 24 cycles: seven"


def test_a_reset_comes_at_any_time() -> None:
    def watch(bench: CounterBench, m: Module) -> None:
        before = Signal(4, reset_less=True)
        m.d.sync += before.eq(bench.dut.value)
        bench.claim("by one", (bench.dut.value == before) | (bench.dut.value == (before + 1) % 10))

    assert of(watch).outcome is Outcome.FAILED


def test_constants_are_any_and_stay() -> None:
    def watch(bench: CounterBench, m: Module) -> None:
        limit = bench.constant(m, 4, "limit")
        before = Signal(4, reset_less=True)
        later = Signal(reset_less=True)
        m.d.sync += [before.eq(limit), later.eq(1)]
        bench.claim("the same", ~later | (before == limit))
        for value in (0, 9, 15):
            bench.cover(f"is {value}", limit == value)

    assert of(watch).outcome is Outcome.PROVEN


def test_signals_inside() -> None:
    def watch(bench: CounterBench, m: Module) -> None:
        bench.claim("the same", bench.peek("hidden") == bench.dut.value)

    assert of(watch).outcome is Outcome.PROVEN


@pytest.mark.parametrize(
    ("path", "message"),
    [("hiden", "no signal 'dut.hiden'"), ("hidden.low", "'hidden.low' has no field 'low'")],
)
def test_missing_signals(path: str, message: str) -> None:
    def watch(bench: CounterBench, m: Module) -> None:
        bench.claim("any", bench.peek(path) == 0)

    with pytest.raises(NetlistError, match=message):
        of(watch)


class Twins(wiring.Component):
    """Two registers of one name: the first follows `i`, the second its complement."""

    def __init__(self) -> None:
        super().__init__({"i": In(1), "o": Out(1)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        first, second = (Signal(name="kept") for _ in range(2))
        m.d.sync += [first.eq(self.i), second.eq(~self.i)]
        m.d.comb += self.o.eq(first & second)
        return m


class TwinsBench(Bench):
    def __init__(self, number: int) -> None:
        super().__init__(Twins())
        self.number = number

    def watch(self, m: Module) -> None:
        before, later = Signal(), Signal()
        m.d.sync += [before.eq(self.dut.i), later.eq(1)]
        self.claim("kept", ~later | (self.peek(f"kept#{self.number}") == before))


class Signed(wiring.Component):
    """A signed register of the input."""

    def __init__(self) -> None:
        super().__init__({"i": In(3)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        number = Signal(signed(3))
        m.d.sync += number.eq(self.i)
        return m


class SignedBench(Bench, unit=Signed):
    def watch(self, m: Module) -> None:
        number = self.peek("number")
        self.claim("sign", (number < 0) == number[-1])
        with self.during(number != 0):
            self.claim_registers({"number": was(m, self.dut.i, "i_before")}, "{} while it is not 0")
        self.claim_equal("low bits", number[:2], number)


def test_signals_have_the_shape_that_the_unit_gives_them() -> None:
    claims = ["low bits", "number while it is not 0", "sign"]
    result = prove(SignedBench.proves("signed", "test", Induction(2)))
    assert (result.outcome, result.claims) == (Outcome.PROVEN, claims)


@proves("twins", "one", Induction(1), 0)
@proves("twins", {"two": 0, "three": (1,)}, Invariant(), claim="A claim.")
class Registered(TwinsBench):
    """Claim by default."""


def test_benches_register_their_properties() -> None:
    items = list(of_module(sys.modules[__name__]))
    assert [(item.name, item.claim) for item in items] == [
        ("one", "Claim by default."),
        ("two", "A claim."),
        ("three", "A claim."),
    ]
    assert [item.bench.args for item in items] == [(0,), (0,), (1,)]  # type: ignore[attr-defined]


def test_a_module_may_list_properties_and_register_others(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules[__name__]
    listed = TwinsBench.proves("twins", "listed", Induction(1), 0, claim="A claim.")
    monkeypatch.setattr(module, "properties", lambda: [listed], raising=False)
    assert [item.name for item in of_module(module)] == ["listed", "one", "two", "three"]


def test_signals_of_one_name() -> None:
    outcomes = [
        prove(Property("twins", "test", "What a test says.", partial(TwinsBench, number))).outcome
        for number in range(2)
    ]
    assert outcomes == [Outcome.PROVEN, Outcome.FAILED]
    with pytest.raises(NetlistError, match=r"no signal .dut\.kept#2"):
        prove(Property("twins", "test", "What a test says.", partial(TwinsBench, 2)))


class Crowded(wiring.Component):
    """Counter in a submodule named like a signal, with `more` other signals before it."""

    def __init__(self, more: int) -> None:
        super().__init__({"step": In(1), "value": Out(4)})
        self._more = more

    def elaborate(self, platform: object) -> Module:
        m = Module()
        crowd = [Signal(4, name="counter") for _ in range(self._more)]
        counter = Signal(4)
        m.d.sync += [signal.eq(self.step) for signal in crowd]
        m.submodules.counter = inner = Counter()
        m.d.comb += [inner.step.eq(self.step), counter.eq(inner.value), self.value.eq(counter)]
        return m


class CrowdedBench(Bench):
    def watch(self, m: Module) -> None:
        self.claim("the counter's register", self.peek("counter.hidden") == self.dut.value)


@pytest.mark.parametrize("more", [0, 3])
def test_other_signals_change_no_path(more: int) -> None:
    item = Property("crowded", "test", "A test's claim.", lambda: CrowdedBench(Crowded(more)))
    assert prove(item).outcome is Outcome.PROVEN


def test_a_path_to_several_signals_is_refused() -> None:
    class Ambiguous(CrowdedBench):
        def watch(self, m: Module) -> None:
            super().watch(m)
            self.claim("one of three", self.peek("counter") == 0)

    with pytest.raises(NetlistError, match=r"several signals 'dut\.counter': append #0"):
        prove(Property("crowded", "test", "A test's claim.", lambda: Ambiguous(Crowded(2))))


class Table(wiring.Component):
    """A memory of four words, written only at ``place``."""

    def __init__(self) -> None:
        super().__init__({"place": In(2), "word": In(2), "read": Out(2)})

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules.table = table = Memory(shape=2, depth=4, init=[])
        store, fetch = table.write_port(), table.read_port(domain="comb")
        m.d.comb += [store.en.eq(1), store.addr.eq(self.place), store.data.eq(self.word)]
        m.d.comb += [fetch.addr.eq(self.place), self.read.eq(fetch.data)]
        return m


class TableBench(Bench, unit=Table):
    """A word of the memory is
    the word that was written last.

    Writes are unconstrained.
    """

    def __init__(self, offset: int) -> None:
        super().__init__()
        self.offset = offset

    def watch(self, m: Module) -> None:
        watched = self.constant(m, 2, "watched")
        here = self.dut.place == watched
        content = latch(m, here, self.dut.word, 2, "content")
        known = latch(m, here, 1, 1, "known")
        word = self.peek_word("table", watched + self.offset, 4)
        self.claim("the word", ~known | (word == content))
        age, (read,) = watch_cycle(m, self, 2, (self.dut.read, 2, "read"))
        self.claim("the word of the watched cycle", (age != 1) | (read == ago(m, self.dut.read, 1, "before")))


@pytest.mark.parametrize(("offset", "outcome"), [(0, Outcome.PROVEN), (1, Outcome.FAILED)])
def test_words_of_memories(offset: int, outcome: Outcome) -> None:
    item = TableBench.proves("table", "words", Induction(2), offset)
    assert item.claim == "A word of the memory is the word that was written last."
    result = prove(item)
    assert result.outcome is outcome
    assert offset == 0 or result.how.startswith("the word in cycle")


def test_out_of_time_is_not_proven() -> None:
    """Factoring a prime of 40 bits: no solver refutes it in a second."""

    def watch(bench: CounterBench, m: Module) -> None:
        a, b = bench.constant(m, 20, "a"), bench.constant(m, 21, "b")
        bench.claim("prime", (a < 2) | (b < 2) | (a * b != 1_099_511_627_689))

    result = of(watch, seconds=1)
    assert result.outcome is Outcome.UNDECIDED
    assert not result.good
    assert not result.folder


def test_results_are_cached() -> None:
    first, second = of(below(10)), of(below(10))
    assert first == second
    assert first.folder
    assert of(below(11)).folder != first.folder
