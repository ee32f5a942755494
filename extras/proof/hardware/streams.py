"""Contracts of interfaces: stable payloads, bounded waits, order, and answers to requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from amaranth.hdl import Cat, Module, Mux, Signal, Value

from weft.extras.proof.hardware.property import Bench


@dataclass(frozen=True)
class Channel:
    """Valid/ready handshake with any value as its payload, for contracts that expect a stream."""

    valid: Value
    ready: Value
    payload: Value


def axi_channel(interface: Any, prefix: str, but: tuple[str, ...] = ()) -> Channel:
    """Return the channel of AXI4 or AXI4-Lite whose signals begin with `prefix`, such as ``ar`` or ``s_axi_w``.

    Its payload consists of all members but ready, valid and those that `but` names, as in ``last``.
    """
    left_out = {prefix + name for name in ("valid", "ready", *but)}
    payload = [
        getattr(interface, name)
        for name in interface.signature.members
        if name.startswith(prefix) and name not in left_out
    ]
    return Channel(getattr(interface, f"{prefix}valid"), getattr(interface, f"{prefix}ready"), Cat(payload))


def transfer(stream: Any) -> Value:
    """Return whether a word of `stream` is transferred in this cycle."""
    transferred: Value = stream.valid & stream.ready
    return transferred


def stable(m: Module, bench: Bench, stream: Any, name: str) -> Signal:
    """Claim that `stream` keeps valid and payload until the word is taken, as Amaranth's RFC 61 and AXI require.

    Returns whether a word was offered and not taken in the cycle before.
    """
    waited, stays = _stability(m, stream, name)
    bench.claim(f"{name} stays", stays)
    bench.cover(f"{name} waits", stream.valid & ~stream.ready)
    return waited


def assume_stable(m: Module, bench: Bench, stream: Any, name: str, unless: Value | int = 0) -> None:
    """Assume that `stream` keeps its word until it is taken, but for cycles after those with `unless`."""
    _, stays = _stability(m, stream, name, unless)
    bench.assume(stays)


def _stability(m: Module, stream: Any, name: str, unless: Value | int = 0) -> tuple[Signal, Value]:
    payload = Value.cast(stream.payload)
    waited = Signal(name=f"{name}_waited")
    before = Signal.like(payload, name=f"{name}_before", reset_less=True)
    m.d.sync += [waited.eq(stream.valid & ~stream.ready), before.eq(payload)]
    return waited, ~waited | unless | (stream.valid & (payload == before))


def within(m: Module, bench: Bench, waits: Value, cycles: int, name: str) -> None:
    """Claim that `waits` is high in at most `cycles` consecutive cycles."""
    waited = Signal(range(cycles + 2), name=f"{name.replace(' ', '_')}_waited")
    m.d.sync += waited.eq(Mux(waits, waited + (waited <= cycles), 0))
    bench.claim(f"{name} within {cycles} cycles", ~waits | (waited < cycles))


def count(m: Module, name: str, limit: int, up: Value, down: Value) -> Signal:
    """Return a counter below `limit` that starts at 0 and changes by ``up - down`` in each cycle."""
    counter = Signal(range(limit), name=name)
    m.d.sync += counter.eq(counter + up - down)
    return counter


def assume_answers(
    m: Module, bench: Bench, name: str, *, asked: Value, answer: Any, limit: int, taken: Value | None = None
) -> Signal:
    """Assume that an answer comes only while one is owed, and return how many are owed, which is below `limit`.

    Parameters
    ----------
    asked : value
        Number of answers that a request of this cycle wants.
    answer : value or stream
        An answer is offered.
    taken : value
        The answer is taken; by default as soon as it is offered, or when its stream takes it.
    """
    offered = answer if isinstance(answer, Value) else answer.valid
    if taken is None:
        taken = answer if isinstance(answer, Value) else transfer(answer)
    owed = count(m, name, limit, asked, taken)
    bench.assume(~offered | (owed != 0))
    return owed


class WatchedItem:
    """One item, which may be any, on its way through a unit that keeps items in order.

    A free input chooses the item, so claims about it hold for all items.

    Parameters
    ----------
    m, bench
    name : str
    push, pop : value
        An item enters, or leaves, in this cycle.
    most : int
        Maximum number of items in the unit.
    shown : value
        The oldest item is visible outside; by default when it leaves.
    drops : value
        All items, and one that enters, are dropped in this cycle.

    Attributes
    ----------
    inside, ahead : Signal
        Number of items in the unit, and of those before the watched item.
    watched : Signal
        The watched item is in the unit.
    starts : value
        The watched item enters in this cycle.
    oldest : value
        The watched item is the next to leave.
    """

    def __init__(
        self,
        m: Module,
        bench: Bench,
        name: str,
        *,
        push: Value,
        pop: Value,
        most: int,
        shown: Value | None = None,
        drops: Value | int = 0,
    ) -> None:
        prefix = f"{name}_".replace(" ", "_").lstrip("_")
        mark = bench.free(1, f"{prefix}mark")
        self.inside = inside = Signal(range(most + 2), name=f"{prefix}inside")
        self.ahead = ahead = Signal(range(most + 2), name=f"{prefix}ahead")
        self.watched = watched = Signal(name=f"{prefix}watched")
        self.starts: Value = mark & push & ~watched
        self.oldest: Value = watched & (ahead == 0)
        m.d.sync += inside.eq(inside + push - pop)
        with m.If(watched & pop):
            m.d.sync += [ahead.eq(ahead - 1), watched.eq(ahead != 0)]
        with m.If(self.starts):
            m.d.sync += [watched.eq(1), ahead.eq(inside - pop)]
        with m.If(drops):
            m.d.sync += [inside.eq(0), watched.eq(0)]
        prefix = f"{name} " if name else ""
        bench.claim(f"{prefix}out of nothing", ~(pop if shown is None else shown) | (inside != 0))
        bench.claim(f"{prefix}no more than there is room for", inside <= most)


class Order(WatchedItem):
    """Claim that words come out once, unchanged, and in the order in which they went in.

    The watched word is compared when it comes out (for data-independent units see Wolper, POPL 1986; here data is
    compared as well).

    Parameters
    ----------
    i, o : stream or (value, value)
        Stream that enters, and stream that leaves; or whether a word enters or leaves, and that word.
    """

    def __init__(
        self, m: Module, bench: Bench, *, i: Any, o: Any, most: int, name: str = "", drops: Value | int = 0
    ) -> None:
        (push, coming), (pop, leaving) = _events(i), _events(o)
        super().__init__(m, bench, name, push=push, pop=pop, most=most, drops=drops)
        prefix = f"{name} " if name else ""
        self.word = word = Signal.like(coming, name=f"{name}_word".replace(" ", "_").lstrip("_"))
        with m.If(self.starts):
            m.d.sync += word.eq(coming)
        leaves = self.oldest & pop
        bench.claim(f"{prefix}order", ~leaves | (leaving == word))
        bench.cover(f"{prefix}full", self.inside == most)
        bench.cover(f"{prefix}through", leaves & (leaving != 0))


def _events(stream: Any) -> tuple[Value, Value]:
    event, word = stream if isinstance(stream, tuple) else (transfer(stream), stream.payload)
    return event, Value.cast(word)


def queue(
    m: Module, bench: Bench, i: Any, o: Any, *, most: int, takes: int, latency: int, name: str = "output"
) -> Order:
    """Claim that a unit is a queue from stream `i` to stream `o`: `o` is stable, and words keep their order.

    The queue holds at most `most` words, accepts one while it holds fewer than `takes`, and offers the first after at
    most `latency` cycles.
    """
    stable(m, bench, o, name)
    order = Order(m, bench, i=i, o=o, most=most, name=f"{name} words")
    bench.claim(f"{name} takes while there is room", i.ready | (order.inside >= takes))
    within(m, bench, (order.inside != 0) & ~o.valid, latency, f"{name} comes")
    return order
