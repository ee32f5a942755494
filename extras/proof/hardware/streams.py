"""What is claimed of streams again and again: they are stable, and words come out as they went in."""

from __future__ import annotations

from typing import Any

from amaranth.hdl import Module, Mux, Signal, Value

from weft.extras.proof.hardware.property import Bench


def stable(m: Module, bench: Bench, stream: Any, name: str) -> None:
    """Claim that `stream` keeps its word until it is taken, as Amaranth's RFC 61 and AXI want it."""
    bench.claim(f"{name} stays", _stays(m, stream, name))
    bench.cover(f"{name} waits", stream.valid & ~stream.ready)


def assume_stable(m: Module, bench: Bench, stream: Any, name: str) -> None:
    """Assume the same of an input."""
    bench.assume(_stays(m, stream, name))


def _stays(m: Module, stream: Any, name: str) -> Value:
    payload = Value.cast(stream.payload)
    waited = Signal(name=f"{name}_waited")
    before = Signal.like(payload, name=f"{name}_before", reset_less=True)
    m.d.sync += [waited.eq(stream.valid & ~stream.ready), before.eq(payload)]
    return ~waited | (stream.valid & (payload == before))


def within(m: Module, bench: Bench, waits: Value, cycles: int, name: str) -> None:
    """Claim that `waits` is 1 in at most `cycles` cycles behind one another."""
    waited = Signal(range(cycles + 2), name=f"{name.replace(' ', '_')}_waited")
    m.d.sync += waited.eq(Mux(waits, waited + (waited <= cycles), 0))
    bench.claim(f"{name} within {cycles} cycles", ~waits | (waited < cycles))


class Order:
    """Watches one word, any one, on its way through a unit: behind all that went in before it, it comes out as it was.

    As the word is any one, this is so for all: none is lost, doubled, changed or overtaken. (Wolper, POPL 1986, for
    what does not look at data; here data is compared as well.)

    Parameters
    ----------
    m, bench
    push, pop : value
        A word goes in, comes out, in this cycle.
    i, o : value
        The word.
    most : int
        Words inside the unit at most.
    drops : value
        All words inside, and one that goes in, are dropped in this cycle.
    """

    def __init__(
        self,
        m: Module,
        bench: Bench,
        *,
        push: Value,
        i: Value,
        pop: Value,
        o: Value,
        most: int,
        name: str = "",
        drops: Value | int = 0,
    ) -> None:
        prefix = f"{name} " if name else ""
        mark = bench.free(1, f"{name}_mark".lstrip("_"))
        self.inside = inside = Signal(range(most + 2), name=f"{name}_inside".lstrip("_"))
        self.ahead = ahead = Signal(range(most + 2), name=f"{name}_ahead".lstrip("_"))
        self.watched = watched = Signal(name=f"{name}_watched".lstrip("_"))
        self.word = word = Signal.like(Value.cast(i), name=f"{name}_word".lstrip("_"))
        m.d.sync += inside.eq(inside + push - pop)
        with m.If(watched & pop):
            m.d.sync += [ahead.eq(ahead - 1), watched.eq(ahead != 0)]
        with m.If(mark & push & ~watched):
            m.d.sync += [watched.eq(1), word.eq(i), ahead.eq(inside - pop)]
        with m.If(drops):
            m.d.sync += [inside.eq(0), watched.eq(0)]
        bench.claim(f"{prefix}out of nothing", ~pop | (inside != 0))
        bench.claim(f"{prefix}no more than there is room for", inside <= most)
        bench.claim(f"{prefix}order", ~(watched & pop & (ahead == 0)) | (Value.cast(o) == word))
        bench.cover(f"{prefix}full", inside == most)
        bench.cover(f"{prefix}through", watched & pop & (ahead == 0) & (Value.cast(o) != 0))
