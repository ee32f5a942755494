"""The systolic array: N x N multipliers, weight stationary, weights double buffered."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from amaranth.hdl import Cat, Instance, Module, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.isa.config import Config
from weft.hdl.lib.multipliers import INFERRED, Multipliers
from weft.hdl.matrix.pe import PeRow
from weft.hdl.matrix.pe_pairs import DualRow, PackedRow, PairRow
from weft.hdl.matrix.taps import FLAGS, delayed, sums_along_rows


def _row_of(
    multipliers: Multipliers,
) -> tuple[type[PeRow] | type[PairRow], tuple[Callable[..., Instance], ...]]:
    """The class of the array's rows, and the block that it takes if synthesis does not infer its multipliers."""
    if multipliers.wide:
        return PackedRow, (multipliers.wide,)
    if multipliers.dual:
        return DualRow, (multipliers.dual,)
    return PeRow, ()


def array_latency(config: Config, multipliers: Multipliers = INFERRED) -> int:
    """Cycles from a row of A to its row of C."""
    row, _ = _row_of(multipliers)
    # Element N-1 enters N-1 cycles late, and the last group is as many cycles behind the first as there are others.
    return config.n - 1 + config.n // row.width - 1 + row.cycles


class Array(wiring.Component):
    """Multiplies rows of A by a tile of weights: ``c[j] = sum_k a[k] * B[j][k]``.

    A tile's N words of B enter in N consecutive cycles, word 0 with `latch`. Rows of A enter in any cycles, the first
    one of a tile with `swap`; from that row on, products use the weights that were sent last. With word 0 of tile t
    in cycle w(t) and the first row of tile t in cycle s(t)::

        s(t) >= w(t) + N      the weights have arrived in every column before the swap
        w(t+1) >= s(t)        the weights before them have been taken

    With `Config.depthwise_taps` there is another path, see `weft.hdl.matrix.taps`: for rows with `depthwise`, row k of
    the array adds up the products of element k with the words of B for taps, of this row of A and of those ahead of it
    since the last one with `start`, and that is element k of the row of C.

    Parameters
    ----------
    config : Config
    multipliers : Multipliers
        `weft.hdl.isa.config.ConfigError` if they cannot make up the array.

    Attributes
    ----------
    latency : int
        Cycles from a row of A to its row of C: ``2 * N + 1``, for pairs of columns ``3/2 * N`` and a few.

    Members
    -------
    a : In(config.widths.activation * N)
        Row of A: element k is field k, signed, -255 at least.
    swap : In(1)
        The row is the first one of a tile.
    valid, depthwise, start : In(1)
        With `Config.depthwise_taps` only: there is a row; it is one for the other path; it is the first one of a line.
    b : In(8 * N)
        Word of B: element k is byte k, signed.
    latch : In(1)
        The word is word 0 of a tile.
    c : Out(ArrayLayout(signed(config.widths.psum), N))
        Row of C, exact.
    """

    def __init__(self, config: Config, multipliers: Multipliers = INFERRED) -> None:
        multipliers.check(config)
        self.config = config
        self.multipliers = multipliers
        self.latency = array_latency(config, multipliers)
        members = {
            "a": In(config.widths.activation * config.n),
            "swap": In(1),
            "b": In(8 * config.n),
            "latch": In(1),
            "c": Out(data.ArrayLayout(signed(config.widths.psum), config.n)),
        }
        super().__init__(members | (dict.fromkeys(FLAGS, In(1)) if config.depthwise_taps else {}))

    def elaborate(self, platform: object) -> Module:
        m = Module()
        n, widths = self.config.n, self.config.widths
        kind, blocks = _row_of(self.multipliers)
        rows = [kind(n, widths.activation, widths.psum, *blocks) for _ in range(n)]
        for r, row in enumerate(rows):
            m.submodules[f"row{r}"] = row
            entry = Cat(self.a.word_select(r, widths.activation), self.b.word_select(r, 8))
            m.d.comb += Cat(row.a, row.b).eq(delayed(m, entry, r, f"skew{r}"))
        m.d.comb += [rows[0].latch.eq(self.latch), rows[0].swap.eq(self.swap)]
        for row, below in pairwise(rows):
            m.d.comb += [below.latch.eq(row.latch_below), below.swap.eq(row.swap_below)]
            m.d.comb += [below.above[g].eq(row.below[g]) for g in range(row.groups)]
        leaving: list[Value] = [Cat(*rows[-1].sums(m, g)) for g in range(rows[-1].groups)]
        if self.config.depthwise_taps:
            flags = Cat(self.valid, self.depthwise, self.start)
            leaving = sums_along_rows(m, rows, flags, leaving, self.config.depthwise_taps)
        columns = [delayed(m, value, len(leaving) - 1 - g, f"deskew{g}") for g, value in enumerate(leaving)]
        m.d.comb += self.c.as_value().eq(Cat(*columns))
        return m
