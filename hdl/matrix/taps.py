"""A path for sums along the rows of the array, for convolutions of each channel by itself.

A row of the array has one channel, and activations pass along it. So the products that a convolution adds up, of
neighbouring activations, can be made by neighbours in a row: each takes the sum of the one ahead of it, as it was for
the activation before, adds its own product, and the last one has the sum over all taps. A depthwise convolution of
three taps a row takes a third of the cycles so, and the path only costs a multiplexer and two registers for each tap
and channel. The array stays as it is otherwise. (HeSA, 10.1109/TPDS.2021.3129647, has a second path in each element.)

Taps are in every second column, as some rows have columns in pairs that share what they hand down, up to the last ones:
then the sums of row k leave the array when those of column k do, or before.
"""

from __future__ import annotations

from collections.abc import Sequence

from amaranth.hdl import Cat, Module, Mux, Signal, Value

from weft.hdl.matrix.pe import PeRow
from weft.hdl.matrix.pe_pairs import PairRow

FLAGS = ("valid", "depthwise", "start")
"""What comes with a row of A, in this order."""
_VALID, _DEPTHWISE, _START = range(3)


def delayed(m: Module, value: Value, cycles: int, name: str) -> Value:
    """`value`, `cycles` later, through one packed shift register."""
    if not cycles:
        return value
    line = Signal(len(value) * cycles, name=name, reset_less=True)
    m.d.sync += line.eq(Cat(value, line))
    return line[-len(value) :]


class _Flags:
    """`FLAGS` of the rows of A that are in the array: what they were so many cycles ago, from `least` on."""

    def __init__(self, m: Module, flags: Value, least: int, most: int, name: str) -> None:
        self.width, self.least = len(flags), least
        # Stray values would only be taken into sums that nobody reads.
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
    """Add the path to the array's `rows`.

    Parameters
    ----------
    m : Module
        Where rows are connected to each other already; what is added here takes precedence.
    rows : sequence of PeRow or PairRow
    flags : Value
        `FLAGS` of the row of A that enters the first row.
    leaving : sequence of Value
        The sums of each group of columns as they leave the last row.
    taps : int

    Returns
    -------
    list of Value
        The same, or the sums of the rows with these numbers where a row of A is for this path.
    """
    first = rows[0]
    step = 2 // first.width
    groups = [first.groups - (taps - tap) * step for tap in range(taps)]
    end = len(rows) - 1 + first.groups - 1 + first.cycles
    passing = _Flags(m, flags, 0, end, "flags")
    sums: list[Value] = []
    for r, row in enumerate(rows):
        # Registers of its own for each row of the array keep fan-out low.
        least = r + groups[0] + first.due
        near = Signal(len(flags), name=f"near{r}", reset_less=True)
        m.d.sync += near.eq(passing.all(least - 1))
        along = _Flags(m, near, least, r + groups[-1] + first.due + 2, f"along{r}")
        for tap, g in enumerate(groups):
            _from_the_left(m, rows, r, (g, step if tap else 0), along)
        last = row.sums(m, groups[-1])[0]
        lateness = len(rows) - 1 - r - groups[-1] + r // first.width
        sums.append(delayed(m, last, lateness, f"wait{r}"))
    return [
        Mux(
            passing.at(len(rows) - 1 + g + first.cycles, _DEPTHWISE),
            Cat(*sums[g * first.width : (g + 1) * first.width]),
            value,
        )
        for g, value in enumerate(leaving)
    ]


def _from_the_left(
    m: Module, rows: Sequence[PeRow | PairRow], r: int, place: tuple[int, int], flags: _Flags
) -> None:
    """Let a group of row `r` add to what the group `step` ahead of it had for the row of A before; to nothing if `step`
    is 0, or if that was in another line."""
    (g, step), row = place, rows[r]
    entry = r + g + row.due
    parts = row.even(row.above[g])
    north = row.even(rows[r - 1].below[g]) if r else [(Value.cast(0), lag) for _, lag in parts]
    west = row.even(row.below[g - step]) if step else parts
    for index, ((into, lag), (down, _), (along, _)) in enumerate(zip(parts, north, west, strict=True)):
        held: Value = Value.cast(0)
        if step:
            # The sum stands `step - 1` cycles ahead of the one in which this group wants that of the row of A before.
            stages = [
                Signal(len(along), name=f"held{r}_{g}_{index}_{stage}", reset_less=True)
                for stage in range(step)
            ]
            with m.If(flags.at(entry + lag + 1 - step, _VALID)):
                m.d.sync += Cat(*stages).eq(Cat(along, *stages[:-1]))
            held = Mux(flags.at(entry + lag, _START), 0, stages[-1])
        m.d.comb += into.eq(Mux(flags.at(entry + lag, _DEPTHWISE), held, down))
