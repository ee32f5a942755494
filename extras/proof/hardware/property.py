# amaranth: UnusedElaboratable=no
# A path that names no signal raises while its bench is elaborated, which leaves modules unused.
"""Properties: a unit with free inputs, assumptions about them, and claims."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeVar

from amaranth.hdl import (
    Array,
    Assert,
    Assume,
    Elaboratable,
    Fragment,
    Module,
    Mux,
    ResetSignal,
    ShapeLike,
    Signal,
    Value,
)
from amaranth.lib import wiring
from amaranth.lib.memory import Memory

from weft.extras.proof.engine.names import Names
from weft.extras.proof.hardware.pipelines import connect_all, implies

BenchType = TypeVar("BenchType", bound="Bench")
CLAIM, COVER = "claim_", "cover_"
"""Prefixes of the signals of claims and covers."""


@dataclass(frozen=True)
class Invariant:
    """Proven for all times, by an inductive invariant that property directed reachability finds (IC3: Bradley, VMCAI
    2011; PDR: Een, Mishchenko and Brayton, FMCAD 2011)."""


@dataclass(frozen=True)
class Induction:
    """Proven for all times by k-induction with `depth` cycles at most (Sheeran, Singh and Stalmarck, FMCAD 2000)."""

    depth: int


@dataclass(frozen=True)
class Bounded:
    """Proven for the first `depth` cycles after a reset only."""

    depth: int


Method = Invariant | Induction | Bounded


@dataclass(frozen=True)
class Property:
    """A property of one unit.

    Parameters
    ----------
    unit : str
        The unit's source, such as ``lib/skid_buffer`` or ``boards/arbiter``.
    name : str
        Subject and parameters, such as ``order of 4``.
    claim : str
        Statement that is proven, in one or a few sentences.
    bench : callable
        Creates the `Bench`. It is called only for a proof.
    method : Method
    cover : int
        Number of cycles within which every cover of the bench is reached.
    part : bool
        The property claims little of its unit, at parameters at which more cannot be proven. Other properties of the
        unit detect its faults.
    proven : tuple of str
        Submodules whose faults other properties detect.
    """

    unit: str
    name: str
    claim: str
    bench: Callable[[], Bench]
    method: Method = Invariant()
    cover: int = 24
    part: bool = False
    proven: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return f"{self.unit}: {self.name}"

    @property
    def source(self) -> str:
        """Path of the unit's source."""
        return self.unit if self.unit.startswith("boards/") else f"hdl/{self.unit}"


def proves(
    unit: str, cases: str | Mapping[str, Any], method: Method, /, *arguments: Any, **options: Any
) -> Callable[[type[BenchType]], type[BenchType]]:
    """Register a property that the decorated bench proves, or several properties; see `Bench.proves`.

    `cases` is the name of one property, or the names of several: each comes with its own arguments of the bench, a
    tuple or one argument. Several decorators register their properties from top to bottom.
    """
    named = {cases: ()} if isinstance(cases, str) else cases

    def register(bench: type[BenchType]) -> type[BenchType]:
        own = [
            bench.proves(
                unit, name, method, *arguments, *(own if isinstance(own, tuple) else (own,)), **options
            )
            for name, own in named.items()
        ]
        bench.registered = own + bench.__dict__.get("registered", [])
        return bench

    return register


class Bench(Elaboratable):
    """A unit, `dut`, with free inputs, and the logic that watches it. A property's own bench overrides `watch`.

    Every input takes any value in every cycle, and so does the reset: claims hold after a reset at any time. A subclass
    may name the class of its unit: it then takes the arguments of that class, mostly a configuration. Otherwise it
    takes the unit.
    """

    UNIT: ClassVar[Any] = None
    """Class of the unit; None if the bench takes the unit."""
    DRIVES: ClassVar[tuple[str, ...]] = ()
    """Inputs of the unit that `watch` connects."""
    DUT = "dut"
    """The unit's name in the design."""
    registered: ClassVar[list[Property]]
    """Properties of a bench with the decorator `proves`."""

    def __init_subclass__(cls, *, unit: Any = None, drives: tuple[str, ...] = ()) -> None:
        super().__init_subclass__()
        cls.UNIT, cls.DRIVES = unit or cls.UNIT, drives or cls.DRIVES

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.dut: Any = self.UNIT(*arguments, **options) if self.UNIT else arguments[0]
        self.config: Any = getattr(self.dut, "config", next(iter(arguments), None))
        self.inputs: list[Signal] = []
        self.peeks: dict[str, Signal] = {}
        """Inputs that are connected to signals inside the unit, by path."""
        self.claims: dict[str, Signal] = {}
        self.covers: dict[str, Signal] = {}
        self.assumptions: list[Value] = []
        self.covering = False
        """Covers are outputs, and nothing is claimed."""
        self._values: list[tuple[Signal, Value]] = []
        self._guard: Value | None = None
        self._unit: Any = None
        self._inside: Names | None = None

    @classmethod
    def proves(
        cls,
        unit: str,
        name: str,
        method: Method,
        /,
        *arguments: Any,
        claim: str = "",
        cover: int = 24,
        part: bool = False,
        proven: tuple[str, ...] = (),
        **options: Any,
    ) -> Property:
        """Return the property that a bench with these arguments proves.

        Its claim is by default the first paragraph of the bench's docstring. For other parameters see `Property`.
        """
        claim = claim or " ".join((inspect.getdoc(cls) or "").split("\n\n")[0].split())
        return Property(unit, name, claim, partial(cls, *arguments, **options), method, cover, part, proven)

    def watch(self, m: Module) -> None:
        """Connect the inputs that the bench drives, and state assumptions and claims."""
        raise NotImplementedError

    def middle(self) -> Elaboratable | Fragment:
        """Return the unit, or a replacement for it."""
        return self.dut

    def free(self, shape: ShapeLike, name: str) -> Any:
        """Return a signal of any value in every cycle."""
        signal = Signal(shape, name=name)
        self.inputs.append(Value.cast(signal))
        return signal

    def constant(self, m: Module, shape: ShapeLike, name: str) -> Signal:
        """Return a signal of any value that is constant over all cycles and resets."""
        any_value = self.free(shape, f"{name}_any")
        later = Signal(name=f"{name}_later", reset_less=True)
        kept = Signal(shape, name=f"{name}_kept", reset_less=True)
        chosen = Signal(shape, name=name)
        m.d.sync += [later.eq(1), kept.eq(chosen)]
        m.d.comb += chosen.eq(Mux(later, kept, any_value))
        return chosen

    def _free_inputs(self, m: Module) -> None:
        """Give every input of the unit that `watch` does not connect any value in every cycle."""
        for path, member, value in self.dut.signature.flatten(self.dut):
            if path[0] not in self.DRIVES and member.flow is wiring.In:
                m.d.comb += Value.cast(value).eq(self.free(len(Value.cast(value)), "_".join(map(str, path))))

    def peek(self, path: str) -> Signal:
        """Return the signal at `path` inside the unit, such as ``ram.level`` or ``ram[3]``, with its width and sign.

        See `weft.extras.proof.engine.names.Names.wire`. Raises `weft.extras.proof.engine.names.NetlistError` if there
        is no such signal.
        """
        if path not in self.peeks:  # a signal inside the unit can be connected to one input only
            if self._inside is None:
                self._inside = Names.of_unit(self._unit, self.DUT)
            name = "peek_" + re.sub(r"[.#\[\]]", "_", path)
            self.peeks[path] = self.free(self._inside.shape(path), name)
        return self.peeks[path]

    def peek_word(self, memory: str, index: Value, depth: int) -> Value:
        """Return the word at `index` of a memory of `depth` words inside the unit, at the path of its submodule."""
        return Array(self.peek(f"{memory}[{number}]") for number in range(depth))[index]

    def claim(self, name: str, value: Value) -> None:
        """Claim that `value` is 1 in every cycle, or in those of `during`."""
        self._named(self.claims, CLAIM, name, value if self._guard is None else implies(self._guard, value))

    @contextmanager
    def during(self, condition: Value) -> Iterator[None]:
        """Claim whatever the block claims for cycles in which `condition` is 1. Blocks do not nest."""
        assert self._guard is None
        self._guard = condition
        yield
        self._guard = None

    def claim_equal(self, name: str, actual: Any, expected: Any) -> None:
        """Claim that the bits of `actual` are those of `expected`, which is cut to its width if it is wider."""
        actual, expected = Value.cast(actual), Value.cast(expected)
        if len(expected) >= len(actual):
            actual, expected = actual.as_unsigned(), expected[: len(actual)]
        self.claim(name, actual == expected)

    def claim_registers(self, values: Mapping[str, Value], name: str = "{}") -> None:
        """Claim that the signals at these paths inside the unit have these values, cut to the signal's width.

        Induction needs the contents of the unit's registers. `name` is the pattern of the claims' names.
        """
        for path, value in values.items():
            self.claim_equal(name.format(path), self.peek(path), value)

    def cover(self, name: str, value: Value) -> None:
        """Cover a cycle in which `value` is 1: without such a cycle, the claims may be vacuous."""
        self._named(self.covers, COVER, name, value)

    def assume(self, value: Value) -> None:
        """Assume that `value` is 1 in every cycle; other inputs are not considered."""
        self.assumptions.append(value)

    def _named(self, group: dict[str, Signal], kind: str, name: str, value: Value) -> None:
        if name in group:
            raise ValueError(f"{name!r} is defined twice")
        # Yosys takes a list of signals where a name has a comma.
        group[name] = Signal(name=f"{kind}{name.replace(' ', '_').replace(',', '')}")
        self._values.append((group[name], Value.cast(value).bool()))

    def elaborate(self, platform: object) -> Module:
        m = Module()
        m.submodules[self.DUT] = self._unit = Fragment.get(self.middle(), platform)
        self._free_inputs(m)
        self.watch(m)
        m.d.comb += [signal.eq(value) for signal, value in self._values]
        m.d.comb += [Assume(value) for value in self.assumptions]
        if not self.covering:
            # ABC gives no verdict on constant claims. This claim holds, but is not constant to ABC.
            never = Signal()
            m.d.sync += never.eq(never & ResetSignal())
            m.d.comb += [Assert(signal) for signal in (*self.claims.values(), ~never)]
        return m


class CutMemories:
    """Amaranth platform on which a read of a memory returns any value in every cycle.

    Properties that are proven with it hold for any contents of memories. They do not cover that a read returns the word
    that was written last, which is a property of Amaranth's memories.
    """

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.cut: list[Memory] = []
        """The memories, in the order of elaboration. Benches use their ports."""

    def get_memory(self, memory: Memory) -> Module:
        """Return the replacement of a memory; `Memory` calls this when it is elaborated."""
        m = Module()
        self.cut.append(memory)
        for port in memory.read_ports:
            value = Value.cast(port.data)
            read = self._bench.free(len(value), f"read_{len(self._bench.inputs)}")
            m.d.comb += value.eq(read)
        return m


class CutBench(Bench):
    """Bench of a unit whose memories are cut.

    All outputs of the unit are connected, so all benches have an equal netlist of it, and share mutants.
    """

    def middle(self) -> Elaboratable | Fragment:
        cutting = CutMemories(self)
        self.memories = cutting.cut
        return Fragment.get(self.dut, cutting)

    def _free_inputs(self, m: Module) -> None:
        super()._free_inputs(m)
        connect_all(m, self.dut, "outputs")
