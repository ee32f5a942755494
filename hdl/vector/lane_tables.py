"""Tables that every lane of the vector unit reads in every cycle."""

from __future__ import annotations

from collections.abc import Sequence

from amaranth.hdl import Module, Mux, Signal, Value
from amaranth.lib import memory


def lane_tables(
    m: Module,
    depth: int,
    indices: Sequence[Value],
    fill: Value,
    entry: Value,
    byte: Value,
    *,
    exclusive: bool = False,
) -> list[Signal]:
    """Put a table of `depth` bytes into `m`, with a read port for every lane. Two lanes share a copy, which is written
    through the port of one of them.

    Returns what stood at the lanes' `indices` two cycles ago, from registers. In a cycle with `fill`, `byte` is written
    to `entry`, and reads return anything. With `exclusive` there are none in such a cycle, which shows synthesis that
    both ports of a copy may be those of one block RAM.
    """
    outputs = []
    for pair in range(0, len(indices), 2):
        m.submodules[f"copy_{pair}"] = ram = memory.Memory(shape=8, depth=depth, init=[])
        store = ram.write_port()
        m.d.comb += [store.en.eq(fill), store.data.eq(byte)]
        for lane in range(pair, min(pair + 2, len(indices))):
            fetch = ram.read_port()
            m.d.comb += [fetch.en.eq(~fill if exclusive else 1), fetch.addr.eq(indices[lane])]
            if lane == pair:
                m.d.comb += [
                    fetch.addr.eq(Mux(fill, entry, indices[lane])),
                    store.addr.eq(fetch.addr),
                    fetch.en.eq(~fill),
                ]
            output = Signal(8, name=f"output_{lane}", reset_less=True)
            m.d.sync += output.eq(fetch.data)
            outputs.append(output)
    return outputs
