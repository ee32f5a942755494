"""The systolic array: N x N multipliers, weight-stationary, with double-buffered weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from amaranth.hdl import Cat, Instance, Module, Mux, Signal, Value, signed
from amaranth.lib import data, wiring
from amaranth.lib.wiring import In, Out

from weft.hdl.isa.config import Config
from weft.hdl.lib.arithmetic import INFERRED, Multipliers
from weft.hdl.matrix.pe import DualRow, PackedRow, PairRow, PeRow

FLAGS = ("valid", "depthwise", "start")
"""Flags that enter with a row of A, in this order."""
_VALID, _DEPTHWISE, _START = range(3)


def delay(m: Module, value: Value, cycles: int, name: str) -> Value:
    """Delay `value` by `cycles` in one packed shift register."""
    if not cycles:
        return value
    line = Signal(len(value) * cycles, name=name, reset_less=True)
    m.d.sync += line.eq(Cat(value, line))
    return line[-len(value) :]


class _Flags:
    """Delay line of `FLAGS`, whose input is already `least` cycles old."""

    def __init__(self, m: Module, flags: Value, least: int, most: int, name: str) -> None:
        self.width, self.least = len(flags), least
        # No reset: undefined flags only affect sums that are not read.
        line = Signal(self.width * (most - least), name=name, reset_less=True)
        self.line = Cat(flags, line)
        if len(line):
            m.d.sync += line.eq(Cat(flags, line))

    def at(self, cycles: int, flag: int) -> Value:
        return self.line[(cycles - self.least) * self.width + flag]

    def all(self, cycles: int) -> Value:
        return self.line.word_select(cycles - self.least, self.width)


def sums_along_rows(
    m: Module, rows: Sequence[PeRow | PairRow], flags: Value, leaving: Sequence[Value], taps: int
) -> list[Value]:
    """Add the depthwise path, which sums along the rows of the array instead of along its columns.

    Parameters
    ----------
    m : Module
        Already connects the rows to each other; assignments that are added here take precedence.
    rows : sequence of PeRow or PairRow
    flags : Value
        `FLAGS` of the row of A that enters the first row.
    leaving : sequence of Value
        The sums of each group of columns as they leave the last row.
    taps : int

    Returns
    -------
    list of Value
        `leaving`, or for a depthwise row of A the sums along the rows, where row k of the array replaces column k.
    """
    first = rows[0]
    step = 2 // first.width
    # The groups of columns N - 2T, N - 2T + 2 and so on, in which `depthwise` of `weft.hdl.isa.Mm` finds its weights.
    groups = [first.groups - (taps - tap) * step for tap in range(taps)]
    end = len(rows) - 1 + first.groups - 1 + first.cycles
    passing = _Flags(m, flags, 0, end, "flags")
    sums: list[Value] = []
    for r, row in enumerate(rows):
        # Each row of the array has its own registers, which keeps fan-out low.
        least = r + groups[0] + first.due
        near = Signal(len(flags), name=f"near{r}", reset_less=True)
        m.d.sync += near.eq(passing.all(least - 1))
        along = _Flags(m, near, least, r + groups[-1] + first.due + 2, f"along{r}")
        for tap, g in enumerate(groups):
            _add_from_left(m, rows, r, (g, step if tap else 0), along)
        last = row.sums(m, groups[-1])[0]
        # Row k replaces column k, so its sum waits until the group with column k leaves the last row.
        lateness = len(rows) - 1 - r - groups[-1] + r // first.width
        sums.append(delay(m, last, lateness, f"wait{r}"))
    return [
        Mux(
            passing.at(len(rows) - 1 + g + first.cycles, _DEPTHWISE),
            Cat(*sums[g * first.width : (g + 1) * first.width]),
            value,
        )
        for g, value in enumerate(leaving)
    ]


def _add_from_left(
    m: Module, rows: Sequence[PeRow | PairRow], r: int, place: tuple[int, int], flags: _Flags
) -> None:
    """Make group g of row `r` add to the sum that group ``g - step`` had for the previous row of A.

    It adds to 0 if `step` is 0, or if the previous row of A was in another line.
    """
    (g, step), row = place, rows[r]
    entry = r + g + row.due
    parts = row.even(row.above[g])
    north = row.even(rows[r - 1].below[g]) if r else [(Value.cast(0), lag) for _, lag in parts]
    west = row.even(row.below[g - step]) if step else parts
    for index, ((into, lag), (down, _), (along, _)) in enumerate(zip(parts, north, west, strict=True)):
        earlier: Value = Value.cast(0)
        if step:
            # The sum is valid `step - 1` cycles before this group needs it, and belongs to the previous row of A.
            stages = [
                Signal(len(along), name=f"held{r}_{g}_{index}_{stage}", reset_less=True)
                for stage in range(step)
            ]
            with m.If(flags.at(entry + lag + 1 - step, _VALID)):
                m.d.sync += Cat(*stages).eq(Cat(along, *stages[:-1]))
            earlier = Mux(flags.at(entry + lag, _START), 0, stages[-1])
        m.d.comb += into.eq(Mux(flags.at(entry + lag, _DEPTHWISE), earlier, down))


def _row_of(
    multipliers: Multipliers,
) -> tuple[type[PeRow] | type[PairRow], tuple[Callable[..., Instance], ...]]:
    """Return the class of the array's rows, and as its further arguments the multiplier block, if there is any."""
    if multipliers.wide:
        return PackedRow, (multipliers.wide,)
    if multipliers.dual:
        return DualRow, (multipliers.dual,)
    return PeRow, ()


def array_latency(config: Config, multipliers: Multipliers = INFERRED) -> int:
    """Return the cycles from a row of A to its row of C."""
    row, _ = _row_of(multipliers)
    # Element N-1 enters N-1 cycles after element 0, and each group of columns is one cycle behind the previous group.
    return config.n - 1 + config.n // row.width - 1 + row.cycles


class Array(wiring.Component):
    """Systolic array that multiplies rows of A by a tile of weights: ``c[j] = sum_k a[k] * B[j][k]``.

    The N words of B of a tile enter in N consecutive cycles, word 0 with `latch`. Rows of A enter in any cycle, the
    first row of a tile with `swap`; from that row on, products use the weights that were sent last. With word 0 of
    tile t in cycle w(t) and the first row of tile t in cycle s(t)::

        s(t) >= w(t) + N      the weights have arrived in every column before the swap
        w(t+1) >= s(t)        the previous weights have been taken

    With `Config.depthwise_taps` there is a second path, see `sums_along_rows`. For rows with `depthwise`, row k of the
    array sums the products of element k and the words of B of the taps, over this row of A and the rows before it, back
    to the last row with `start`. The sum is element k of the row of C.

    Parameters
    ----------
    config : Config
    multipliers : Multipliers
        Raises `weft.hdl.errors.ConfigError` if they do not support the configuration.

    Attributes
    ----------
    latency : int
        Cycles from a row of A to its row of C: ``2 * N + 1``; for pairs of columns ``3/2 * N`` plus a constant.

    Members
    -------
    a : In(config.widths.activation * N)
        Row of A: element k is field k, signed, at least -255.
    swap : In(1)
        The row is the first row of a tile.
    valid, depthwise, start : In(1)
        Only with `Config.depthwise_taps`: there is a row; it takes the second path; it is the first row of a line.
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
        # Row r multiplies element r of the contraction, so its operands enter r cycles late.
        rows = [kind(n, widths.activation, widths.psum, *blocks) for _ in range(n)]
        for r, row in enumerate(rows):
            m.submodules[f"row{r}"] = row
            entry = Cat(self.a.word_select(r, widths.activation), self.b.word_select(r, 8))
            m.d.comb += Cat(row.a, row.b).eq(delay(m, entry, r, f"skew{r}"))
        m.d.comb += [rows[0].latch.eq(self.latch), rows[0].swap.eq(self.swap)]
        for row, below in pairwise(rows):
            m.d.comb += [below.latch.eq(row.latch_below), below.swap.eq(row.swap_below)]
            m.d.comb += [below.above[g].eq(row.below[g]) for g in range(row.groups)]
        leaving: list[Value] = [Cat(*rows[-1].sums(m, g)) for g in range(rows[-1].groups)]
        if self.config.depthwise_taps:
            flags = Cat(self.valid, self.depthwise, self.start)
            leaving = sums_along_rows(m, rows, flags, leaving, self.config.depthwise_taps)
        # Earlier groups wait for the last group, so that a row of C leaves in one cycle.
        columns = [delay(m, value, len(leaving) - 1 - g, f"deskew{g}") for g, value in enumerate(leaving)]
        m.d.comb += self.c.as_value().eq(Cat(*columns))
        return m
