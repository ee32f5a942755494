"""An estimate of the cycles of fused attention, by which its block sizes are chosen: a small event model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from weft.compiler.ir.graph import Attention
from weft.compiler.machine import overheads
from weft.compiler.machine.emit import ceil_div
from weft.compiler.machine.target import Target
from weft.hdl.isa.config import Config
from weft.hdl.isa.latencies import rmw_latency

LAST_PARTS = 4
"""Parts of the last block's values, where the bus sets the pace: each is multiplied while the next one is loaded."""
PIECES = 4
"""Parts of a tile's last pass through the vector unit, so that the next tile's softmax comes in between."""
PIECE_ROWS = 8
"""Rows of such a part, at least: fewer take no less time."""
_TILES = 8  # that are looked at, the others taken to be like them
_BLOCKS = 12  # of a tile that are looked at, at most


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
        steps = [(self._rows, self.block)] * min(whole, _BLOCKS)
        for first in range(whole * self.block, seen, self.span):
            hidden = max(first - self.op.offset - start, 0)
            steps.append((self.heads * max(self.positions - hidden, 1), self.span))
        return steps, max(whole - _BLOCKS, 0), seen

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
