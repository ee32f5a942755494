"""Choosing the block sizes of fused attention: how the memories are divided, and in what steps it runs.

A *tile* is the rows of Q (positions of one or several heads that share their keys) whose outputs are accumulated
together; a *block* is the keys and values that are loaded together; a *step* is the part of a block that a tile is
multiplied with at once: all of it, or, along the diagonal of a causal mask, a few columns and the rows that see them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from weft.compiler.ir.graph import Attention
from weft.compiler.machine import target as overheads
from weft.compiler.machine.emit import ceil_div
from weft.compiler.machine.target import COUNT_MAX, Target
from weft.hdl.isa import PARAMETER_VECTORS
from weft.hdl.isa.config import Config
from weft.hdl.isa.operands import rmw_latency

LAST_PARTS = 4
"""Parts of the last block's values, where the bus sets the pace: each is multiplied while the next one is loaded."""
PIECES = 4
"""Parts of a tile's last pass through the vector unit, so that the next tile's softmax comes in between."""
PIECE_ROWS = 8
"""Rows of such a part, at least: fewer take no less time."""
_TILES = 8  # that are looked at, the others taken to be like them
_ATTENTION_COST_BLOCKS = 12  # of a tile that are looked at, at most


@dataclass(frozen=True)
class AttentionCost:
    """What tiles of `heads` x `positions` rows cost, with blocks of `block` keys, `span` of them along the diagonal."""

    op: Attention
    target: Target
    heads: int
    positions: int
    block: int
    span: int

    @property
    def _rows(self) -> int:
        return self.heads * self.positions

    @property
    def config(self) -> Config:
        return self.target.config

    @cached_property
    def _fewest(self) -> int:
        """Cycles of a tile at least, however few its rows: to load the next weights, and to add to a row again."""
        return max(self.config.n, rmw_latency(self.config))

    def _scores(self, rows: int, columns: int) -> int:
        """Cycles of the array for the scores of a step."""
        n = self.config.n
        return columns // n * ceil_div(self.op.head_size, n) * (max(rows, self._fewest) + overheads.SWAP)

    def _sums(self, rows: int, columns: int) -> int:
        n = self.config.n
        return columns // n * ceil_div(self.op.v_size, n) * (max(rows, self._fewest) + overheads.SWAP)

    def _softmax(self, rows: int, columns: int) -> int:
        """Cycles of the vector unit for the probabilities of a step, and to requantise its scores before."""
        passes = 1 if self.op.rounding is None else 2
        return passes * (rows * (columns // self.config.n) * self.config.groups + overheads.ATTENTION_VEC)

    @property
    def _normalise(self) -> int:
        vectors = ceil_div(self.op.v_size, self.config.n) * self.config.groups
        return self._rows * max(overheads.DIVIDE, vectors) + PIECES * overheads.ATTENTION_VEC

    def _steps(self, start: int) -> tuple[list[tuple[int, int]], int, int]:
        """(rows, columns) of the steps of the tile from position `start` on; blocks left out; columns altogether."""
        seen = clear = ceil_div(self.op.keys, self.block) * self.block
        if self.op.causal and not self.op.page:
            clear = min(max(start + self.op.offset + 1, 0), self.op.keys)
            seen = min(max(start + self.positions + self.op.offset, 1), self.op.keys)
        whole = clear // self.block
        steps = [(self._rows, self.block)] * min(whole, _ATTENTION_COST_BLOCKS)
        for first in range(whole * self.block, seen, self.span):
            hidden = max(first - self.op.offset - start, 0)
            steps.append((self.heads * max(self.positions - hidden, 1), self.span))
        return steps, max(whole - _ATTENTION_COST_BLOCKS, 0), seen

    def cycles(self, resident: bool, ahead: bool, alone: bool) -> tuple[float, bool]:
        """The slower of array with vector unit, and bus, each with what is not hidden under it; whether the bus has
        hardly a rest.

        `resident` says whether the keys and values of a head stay on chip from tile to tile, `ahead` whether those of a
        block are loaded while others are in use, and `alone` whether a tile waits for the sums of the one before.
        """
        op, config = self.op, self.config
        starts = range(0, op.q.shape[2], self.positions)
        chosen = starts[:: ceil_div(len(starts), _TILES)]
        groups = op.images * op.kv_heads * ceil_div(op.heads // op.kv_heads, self.heads)
        busy, columns = self._run([self._steps(start) for start in chosen])
        scale = groups * len(starts) / len(chosen)
        first = self.target.moved((self._rows + self.block) * op.head_size)
        wait = (
            config.table_depth
            + self._softmax(self._rows, self.block)
            - 2 * self._scores(self._rows, self.block)
        )
        loads = self._loads(op.keys * op.images * op.kv_heads if resident else columns * scale)
        last = self._sums(self._rows, self.block) / LAST_PARTS
        array = busy * scale + first + max(0, wait) + (self._normalise * groups * len(starts) if alone else 0)
        longer = max(array, loads + last) if ahead else array + loads
        return longer + self._normalise, loads > 0.8 * array

    def _loads(self, keys: float) -> float:
        """Cycles of the bus for so many keys and their values. Behind the values of a block, keys wait until the last
        group that is transposed has left."""
        n, op = self.config.n, self.op
        group = min(self.config.transposed_vectors, ceil_div(op.v_size, n)) * n
        beside = [
            overheads.ATTENTION_RUN if size % self.config.bus_bytes else 0
            for size in (op.head_size, op.v_size)
        ]
        bursts = sum(
            self.target.run(size, more) for size, more in zip((op.head_size, op.v_size), beside, strict=True)
        )
        return bursts * keys + keys / self.block * (group + 2 * overheads.LOAD)

    def _run(self, tiles: list[tuple[list[tuple[int, int]], int, int]]) -> tuple[float, int]:
        """Cycles of the array for the steps of all tiles, in the order in which they are emitted; and all columns.

        The scores of a step wait for their buffer, its sums for its probabilities. Blocks that `_steps` left out take
        as long as the slower of the two units.
        """
        array = vector = 0.0
        way = 2 * self.config.n + overheads.HANDOVER
        ready: list[float] = [0.0, 0.0]  # when the probabilities of the last two steps are there
        earlier: tuple[int, int] | None = None
        total = 0
        for steps, more, columns in tiles:
            total += columns
            for index, step in enumerate(steps):
                array = max(array, ready[0]) + self._scores(*step)
                scored = array
                if earlier is not None:
                    array = max(array, ready[1]) + self._sums(*earlier)
                vector = max(vector, scored + way) + self._softmax(*step)
                ready = [ready[1], vector]
                vector += self._normalise / PIECES if index < PIECES and earlier is not None else 0
                earlier = step
            extra = more * max(
                self._scores(self._rows, self.block) + self._sums(self._rows, self.block),
                self._softmax(self._rows, self.block) + way,
            )
            array, vector, ready = array + extra, vector + extra, [time + extra for time in ready]
        assert earlier is not None
        return max(array, ready[1]) + self._sums(*earlier), total


_ROWS = (512, 256, 128, 64, 32, 16, 8, 6, 4, 2, 1)
_BLOCKS, _SPANS = 7, 5  # powers of two of N keys
_PAIRS = (
    4  # blocks of keys and values on chip, at least, for two steps together: the next two are being loaded
)
_CONSTANTS = 2  # vectors that stand for a zero point of K
_PACKED = 1.3  # what it costs if the units meet in an accumulator bank, an estimate


@dataclass(frozen=True)
class Step:
    """Columns ``[first, first + columns)`` of the scores for the positions from `position` to the end of a tile.

    `tile` is the tile's index; `start` and `end` mark its first and its last step.
    """

    tile: int
    first: int
    columns: int
    position: int
    start: bool
    end: bool


@dataclass(frozen=True)
class Tile:
    """Query positions ``[position, position + positions)`` of heads ``[head, head + heads)`` of an image."""

    image: int
    head: int
    heads: int
    position: int
    positions: int


@dataclass(frozen=True)
class AttentionPlan:
    """Blocks of one attention.

    `heads` and `positions` are those of a full tile, `block` the keys of a block, `span` the columns of a step along
    the diagonal. `q`, `kv`, `p`, `out` are (first vector, size of a slot, slots) in the scratchpad, where a slot of
    `kv` holds the keys and then the values of a block; `scores` and `sums` the same in rows of the accumulator,
    `states` and `alignments` in theirs; `params`, `constants` and `table` are first vectors (the table only passes).
    Where scores are requantised, `rounded` is a zone for them, and the parameters for it lie behind those of softmax.
    The values of the very last block come in `last_parts`. With `pairs`, two steps are carried out together,
    of which the second may be the first one of the next tile.
    """

    heads: int
    positions: int
    block: int
    span: int
    q: tuple[int, int, int]
    kv: tuple[int, int, int]
    p: tuple[int, int, int]
    out: tuple[int, int, int]
    scores: tuple[int, int, int]
    sums: tuple[int, int, int]
    states: tuple[int, int, int]
    alignments: tuple[int, int, int]
    params: int
    constants: int
    table: int
    cycles: float
    rounded: tuple[int, int, int]
    last_parts: int
    pairs: bool

    @property
    def rows(self) -> int:
        return self.heads * self.positions

    @property
    def ahead(self) -> bool:
        """Whether there is room for the scores of the next step beside those of this one."""
        return self.scores[2] > 1 and self.kv[2] > 1


def tiles(op: Attention, plan: AttentionPlan) -> Iterator[Tile]:
    """All tiles, those that share keys one after the other."""
    group = op.heads // op.kv_heads
    for image in range(op.images):
        for kv_head in range(op.kv_heads):
            for position in range(0, op.q.shape[2], plan.positions):
                for head in range(0, group, plan.heads):
                    yield Tile(
                        image, kv_head * group + head, min(plan.heads, group - head),
                        position, min(plan.positions, op.q.shape[2] - position),
                    )  # fmt: skip


def steps(op: Attention, plan: AttentionPlan, config: Config, tile: Tile, index: int) -> list[Step]:
    """The steps of one tile, in order of columns. What the mask hides from the whole tile is left out."""
    n, last = config.n, tile.position + tile.positions - 1
    stop = op.lengths[tile.image]
    diagonal = op.causal and not op.page
    if diagonal:
        stop = min(stop, last + op.offset + 1)
    stop = max(ceil_div(max(stop, 1), n) * n, n)
    clear = tile.position + op.offset + 1 if diagonal else stop  # columns that every row of the tile sees
    found: list[tuple[int, int, int]] = []
    for block in range(0, stop, plan.block):
        end = min(block + plan.block, stop)
        width = plan.block if end <= clear else plan.span
        for first in range(block, end, width):
            position = max(tile.position, first - op.offset) if diagonal and first else tile.position
            found.append((first, min(width, end - first), position))
    return [
        Step(index, first, columns, position, number == 0, number == len(found) - 1)
        for number, (first, columns, position) in enumerate(found)
    ]


def plan(op: Attention, target: Target) -> AttentionPlan | None:
    """The best plan found, or None if not even the smallest tile fits."""
    best: AttentionPlan | None = None
    config = target.config
    group, n = op.heads // op.kv_heads, config.n
    for rows in _ROWS:
        positions = min(op.q.shape[2], rows)
        heads = max(1, min(group, rows // positions))
        if best is not None and heads * positions == best.rows:
            continue
        for block in (n << k for k in range(_BLOCKS)):
            if (op.page and block % op.page and op.page % block) or (block > n and block // 2 >= op.keys):
                continue
            spans = (
                [n << k for k in range(_SPANS) if n << k <= block] if op.causal and not op.page else [block]
            )
            for span in spans:
                for candidate in _candidates(op, target, (heads, positions), block, span):
                    if best is None or candidate.cycles < best.cycles:
                        best = candidate
    return best


def _candidates(
    op: Attention, target: Target, tile: tuple[int, int], block: int, span: int
) -> Iterator[AttentionPlan]:
    """Plans with tiles of (heads, positions) that fit: with room for the scores of two steps and the sums of two tiles,
    or of one."""
    heads, positions = tile
    config = target.config
    n, rows, groups = config.n, heads * positions, block // config.n
    if rows > COUNT_MAX:
        return
    several = op.images * op.heads * op.q.shape[2] > rows
    k_vectors, v_vectors = ceil_div(op.head_size, n), ceil_div(op.v_size, n)
    parameters = PARAMETER_VECTORS * (1 if op.rounding is None else 2)
    cost = AttentionCost(op, target, heads, positions, block, span)
    for slots, tiles_ in ((2, 2), (2, 1), (1, 2), (1, 1)) if several else ((2, 1), (1, 1)):
        scores, sums = (rows * groups, slots), (rows * v_vectors, tiles_)
        accumulators = _accumulators(config, scores, sums)
        chip = _scratchpad(
            config,
            rows * k_vectors,
            block * (k_vectors + v_vectors),
            (rows * groups, slots),
            rows * v_vectors,
            parameters,
            0 if op.rounding is None else rows * groups,
        )
        fits = rows * sums[1] <= config.row_states and rows * groups * slots <= config.alignments
        if accumulators is None or chip is None or not fits:
            continue
        packed, score_zone, sum_zone = accumulators
        resident = chip.kv[2] >= ceil_div(op.keys, block)
        alone = several and tiles_ == 1
        cycles, waits = cost.cycles(resident, chip.kv[2] > 1, alone)
        yield AttentionPlan(
            heads, positions, block, span, chip.q, chip.kv, chip.p, chip.out, score_zone, sum_zone,
            (0, rows, sums[1]), (0, rows * groups, slots), chip.params, chip.params + parameters, chip.table,
            cycles * (_PACKED if packed or slots == 1 else 1), chip.rounded, LAST_PARTS if waits else 1,
            waits and slots > 1 and not alone and chip.kv[2] >= _PAIRS,
        )  # fmt: skip


def _accumulators(
    config: Config, scores: tuple[int, int], sums: tuple[int, int]
) -> tuple[bool, tuple[int, int, int], tuple[int, int, int]] | None:
    """Whether slots share banks, and where scores and sums lie; None if they do not fit. Sizes are (rows, slots)."""
    depth = config.accumulator_depth
    for unit in (depth, 1):
        size = [ceil_div(rows, unit) * unit for rows, _ in (scores, sums)]
        start = size[0] * scores[1]
        if start + size[1] * sums[1] <= config.accumulator_size:
            return unit == 1, (0, size[0], scores[1]), (start, size[1], sums[1])
    return None


_Zone = tuple[int, int, int]


@dataclass(frozen=True)
class _Zones:
    """Zones of the scratchpad, as in `AttentionPlan`."""

    q: _Zone
    kv: _Zone
    p: _Zone
    out: _Zone
    rounded: _Zone
    params: int
    table: int


def _scratchpad(
    config: Config, q: int, kv: int, p: tuple[int, int], out: int, parameters: int, rounded: int
) -> _Zones | None:
    """Where everything lies; None if it does not fit. `q`, `kv`, `out` are sizes of a slot, `p` size and slots.

    In banks of their own: what the array reads as rows in every cycle (Q and P), what the vector unit and STORE read
    meanwhile (parameters, `rounded` scores and outputs), and keys and values, which get all banks that are left. The
    table waits behind the last of them.
    """
    size, table = config.scratchpad_size, config.table_depth // config.n
    for slots in (2, 1):
        for unit in (config.scratchpad_depth, 1):
            at_params = ceil_div(slots * q + p[0] * p[1], unit) * unit
            fixed = at_params + parameters + _CONSTANTS
            at_kv = ceil_div(fixed + slots * out + rounded, unit) * unit
            count = (size - at_kv) // kv
            if count >= slots:
                return _Zones(
                    (0, q, slots), (at_kv, kv, count), (slots * q, p[0], p[1]), (fixed, out, slots),
                    (fixed + slots * out, rounded, 1), at_params,
                    size - table,
                )  # fmt: skip
    return None
