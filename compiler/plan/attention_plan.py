"""Planning of fused attention: division of the memories, and sizes of tiles, blocks and steps.

A *tile* is the rows of Q (positions of one or several heads with common keys) whose outputs are accumulated together.
A *block* is keys and values that are loaded together. A *step* is the part of a block that a tile is multiplied with
at once: the whole block, or, along the diagonal of a causal mask, a few columns and the rows that see them.
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
"""Parts of the last block's values if the bus is the bottleneck: each is multiplied while the next is loaded."""
PIECES = 4
"""Parts of a tile's normalisation, between which the next tile's softmax can run."""
PIECE_ROWS = 8
"""Least rows of such a part: fewer take no less time."""
_TILES = 8  # tiles to simulate; the others are assumed to be like them
_ATTENTION_COST_BLOCKS = 12  # most blocks of a tile to simulate


@dataclass(frozen=True)
class AttentionCost:
    """Cost model of tiles of `heads` x `positions` rows and blocks of `block` keys, `span` of them per step on the
    diagonal."""

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
        """Least cycles of an array tile: it loads the next weights, and accumulates into a row again."""
        return max(self.config.n, rmw_latency(self.config))

    def _scores(self, rows: int, columns: int) -> int:
        """Return the array's cycles for the scores of a step."""
        n = self.config.n
        return (
            columns
            // n
            * ceil_div(self.op.head_size, n)
            * (max(rows, self._fewest) + overheads.WEIGHT_SWAP_CYCLES)
        )

    def _sums(self, rows: int, columns: int) -> int:
        n = self.config.n
        return (
            columns
            // n
            * ceil_div(self.op.v_size, n)
            * (max(rows, self._fewest) + overheads.WEIGHT_SWAP_CYCLES)
        )

    def _softmax(self, rows: int, columns: int) -> int:
        """Return the vector unit's cycles for a step's probabilities, and for requantising its scores before that."""
        passes = 1 if self.op.rounding is None else 2
        return passes * (
            rows * (columns // self.config.n) * self.config.groups + overheads.ATTENTION_VEC_CYCLES
        )

    @property
    def _normalise(self) -> int:
        vectors = ceil_div(self.op.v_size, self.config.n) * self.config.groups
        return (
            self._rows * max(overheads.NORMALISE_ROW_CYCLES, vectors)
            + PIECES * overheads.ATTENTION_VEC_CYCLES
        )

    def _steps(self, start: int) -> tuple[list[tuple[int, int]], int, int]:
        """Return (rows, columns) of the steps of a tile, the number of blocks left out, and the number of all
        columns."""
        seen = clear = ceil_div(self.op.keys, self.block) * self.block
        if self.op.causal and not self.op.page:
            clear = min(max(start + self.op.offset + 1, 0), self.op.keys)
            seen = min(max(start + self.positions + self.op.offset, 1), self.op.keys)
        # Blocks that all rows of the tile see in full; after them come steps along the diagonal.
        full_blocks = clear // self.block
        steps = [(self._rows, self.block)] * min(full_blocks, _ATTENTION_COST_BLOCKS)
        for first in range(full_blocks * self.block, seen, self.span):
            hidden = max(first - self.op.offset - start, 0)
            steps.append((self.heads * max(self.positions - hidden, 1), self.span))
        return steps, max(full_blocks - _ATTENTION_COST_BLOCKS, 0), seen

    def cycles(self, resident: bool, ahead: bool, alone: bool) -> tuple[float, bool]:
        """Return the estimated cycles, and whether the bus is nearly always busy.

        The estimate is the slower of array (with vector unit) and bus, each with its part that cannot overlap.

        Parameters
        ----------
        resident : bool
            Whether a head's keys and values stay on chip from tile to tile.
        ahead : bool
            Whether a block's keys and values are loaded while others are in use.
        alone : bool
            Whether a tile waits for the previous tile's sums.
        """
        op, config = self.op, self.config
        starts = range(0, op.q.shape[2], self.positions)
        chosen = starts[:: ceil_div(len(starts), _TILES)]
        groups = op.images * op.kv_heads * ceil_div(op.heads // op.kv_heads, self.heads)
        busy, columns = self._run([self._steps(start) for start in chosen])
        scale = groups * len(starts) / len(chosen)
        first = self.target.transfer_cycles((self._rows + self.block) * op.head_size)
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
        """Return the bus cycles for `keys` keys and their values.

        After a block's values, keys wait until the last transposed group has left.
        """
        n, op = self.config.n, self.op
        group = min(self.config.transposed_vectors, ceil_div(op.v_size, n)) * n
        beside = [
            overheads.ATTENTION_RUN_CYCLES if size % self.config.bus_bytes else 0
            for size in (op.head_size, op.v_size)
        ]
        bursts = sum(
            self.target.run(size, more) for size, more in zip((op.head_size, op.v_size), beside, strict=True)
        )
        return bursts * keys + keys / self.block * (group + 2 * overheads.LOAD_GAP_CYCLES)

    def _run(self, tiles: list[tuple[list[tuple[int, int]], int, int]]) -> tuple[float, int]:
        """Return the array's cycles for all tiles' steps, in the order of emission, and the number of all columns.

        A step's scores wait for their buffer, its sums for its probabilities. Blocks that `_steps` left out take as
        long as the slower of the two units.
        """
        array = vector = 0.0
        # A row of scores crosses N rows and N columns of the array before the vector unit can read it.
        way = 2 * self.config.n + overheads.HANDOVER_CYCLES
        ready: list[float] = [0.0, 0.0]  # times at which the last two steps' probabilities are ready
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
_PAIRS = 4  # least blocks of keys and values on chip to run steps in pairs: two are loading
_CONSTANTS = 2  # vectors that stand for K's zero point
_PACKED = 1.3  # estimated slowdown if units share an accumulator bank


@dataclass(frozen=True)
class Step:
    """Columns ``[first, first + columns)`` of the scores, for the positions from `position` to the end of a tile.

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
    """Tiling of one attention.

    Attributes
    ----------
    heads, positions : int
        Size of a full tile.
    block : int
        Keys of a block.
    span : int
        Columns of a step along the diagonal.
    q, kv, p, out : tuple of int
        (first vector, size of a slot, slots) in the scratchpad. A slot of `kv` holds a block's keys, then its values.
    scores, sums : tuple of int
        Zones of the accumulator, in rows.
    states, alignments : tuple of int
        Zones of row states and of alignments.
    params, constants, table : int
        First vectors; the table only passes through.
    cycles : float
        Estimate.
    rounded : tuple of int
        Zone of requantised scores, if the model requantises them; their parameters follow those of softmax.
    last_parts : int
        Parts in which the very last block's values arrive.
    pairs : bool
        Whether two steps run together; the second may be the next tile's first.
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
        """True if the next step's scores have room beside this step's."""
        return self.scores[2] > 1 and self.kv[2] > 1


def tiles(op: Attention, plan: AttentionPlan) -> Iterator[Tile]:
    """Yield all tiles; those with common keys are consecutive."""
    group = op.heads // op.kv_heads
    for image in range(op.images):
        for kv_head in range(op.kv_heads):
            for position in range(0, op.q.shape[2], plan.positions):
                for head in range(0, group, plan.heads):
                    yield Tile(
                        image,
                        kv_head * group + head,
                        min(plan.heads, group - head),
                        position,
                        min(plan.positions, op.q.shape[2] - position),
                    )


def steps(op: Attention, plan: AttentionPlan, config: Config, tile: Tile, index: int) -> list[Step]:
    """Return the steps of one tile in order of columns, without columns that the mask hides from the whole tile."""
    n, last = config.n, tile.position + tile.positions - 1
    stop = op.lengths[tile.image]
    diagonal = op.causal and not op.page
    if diagonal:
        stop = min(stop, last + op.offset + 1)
    stop = max(ceil_div(max(stop, 1), n) * n, n)
    clear = tile.position + op.offset + 1 if diagonal else stop  # columns that every row of the tile sees
    pieces: list[tuple[int, int, int]] = []
    for block in range(0, stop, plan.block):
        end = min(block + plan.block, stop)
        width = plan.block if end <= clear else plan.span
        for first in range(block, end, width):
            position = max(tile.position, first - op.offset) if diagonal and first else tile.position
            pieces.append((first, min(width, end - first), position))
    return [
        Step(index, first, columns, position, number == 0, number == len(pieces) - 1)
        for number, (first, columns, position) in enumerate(pieces)
    ]


def plan(op: Attention, target: Target) -> AttentionPlan | None:
    """Return the best plan found; None if not even the smallest tile fits."""
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
    """Yield plans with tiles of (heads, positions) that fit: for the scores of two steps or one, the sums of two tiles
    or one."""
    heads, positions = tile
    config = target.config
    n, rows, groups = config.n, heads * positions, block // config.n
    if rows > COUNT_MAX:
        return
    several = op.images * op.heads * op.q.shape[2] > rows
    k_vectors, v_vectors = ceil_div(op.head_size, n), ceil_div(op.v_size, n)
    parameters = PARAMETER_VECTORS * (1 if op.rounding is None else 2)
    cost = AttentionCost(op, target, heads, positions, block, span)
    # Largest buffers first: double-buffered scores, then double-buffered sums.
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
        # Each row of the tiles in progress has a row state, and each vector of their scores an alignment.
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
    """Return whether slots share banks, and the zones of scores and sums, from (rows, slots); None if they do not
    fit."""
    depth = config.accumulator_depth
    # Separate banks if there is room, else share them.
    for unit in (depth, 1):
        size = [ceil_div(rows, unit) * unit for rows, _ in (scores, sums)]
        start = size[0] * scores[1]
        if start + size[1] * sums[1] <= config.accumulator_size:
            return unit == 1, (0, size[0], scores[1]), (start, size[1], sums[1])
    return None


_Zone = tuple[int, int, int]


@dataclass(frozen=True)
class _Zones:
    """Zones of the scratchpad (see `AttentionPlan`)."""

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
    """Return the zones of the scratchpad; None if they do not fit.

    `q`, `kv` and `out` are slot sizes, `p` is (slot size, slots). Banks are separate for rows that the array reads in
    every cycle (Q and P); for what the vector unit and STORE read meanwhile (parameters, `rounded` scores and
    outputs); and for keys and values, which get all other banks. The table passes through their last vectors.
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
                    (0, q, slots),
                    (at_kv, kv, count),
                    (slots * q, p[0], p[1]),
                    (fixed, out, slots),
                    (fixed + slots * out, rounded, 1),
                    at_params,
                    size - table,
                )
    return None
