"""Lowering of fused attention: scores, probabilities and sums, step by step; scores stay on chip.

The array computes the scores of step j + 1 and then the sums of step j, while the vector unit turns the scores of
step j into probabilities. Tasks are emitted in that order. The algorithm is FlashAttention (Dao et al., 2022,
arXiv:2205.14135) with queries in the outer loop and keys in the inner; grouped heads share a tile as further rows.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterator

import numpy as np

from weft.compiler.ir.graph import Attention, Rounding
from weft.compiler.ir.scales import (
    NEGLIGIBLE_SHIFT,
    k_zero_shift,
    negative_parts,
    normaliser,
    quantise_scale,
    score_multiplier,
)
from weft.compiler.machine import target
from weft.compiler.machine.areas import LENGTH
from weft.compiler.machine.emit import Box, Emitter, ceil_div
from weft.compiler.machine.memory import Ring
from weft.compiler.machine.tasks import Task
from weft.compiler.machine.tensors import TensorRef
from weft.compiler.plan.attention_plan import PIECE_ROWS, PIECES, AttentionPlan, Step, Tile, steps, tiles
from weft.compiler.plan.site import Site
from weft.hdl import isa
from weft.hdl.isa import PARAMETER_VECTORS, Mm, Normalise, Softmax, Table, Vec
from weft.hdl.isa import config as parameters


def lower_attention(op: Attention, site: Site, plan: AttentionPlan, emit: Emitter) -> Iterator[Task]:
    """Yield the tasks of one attention in sequential order."""
    return _AttentionLowering(op, site, plan, emit).tasks()


def table_tasks(emit: Emitter, at: int) -> Iterator[Task]:
    """Yield the tasks that load the table of powers of two via `at` into the softmax unit, if the program has not
    yet."""
    config = emit.config
    if emit.constants.contains(config.exp2_table):
        return
    vectors = config.table_depth // config.n
    yield emit.load_constant(config.exp2_table, at)
    yield Task(Table(src=at, vectors=vectors), emit.layer, config.table_depth)


def _clip(value: int) -> int:
    # Bounds of the mask have 16 bits. A step has fewer columns, so that a clipped bound hides the same ones.
    return min(max(value, -(1 << 15)), (1 << 15) - 1)


class _AttentionLowering:
    def __init__(self, op: Attention, site: Site, chosen: AttentionPlan, emit: Emitter) -> None:
        self.op, self.plan, self.emit = op, chosen, emit
        self.config, self.layer = site.config, emit.layer
        self.q, self.k, self.v = site.sources[:3]
        self.table = site.sources[3] if op.page else None
        self.dst = site.dst
        self.rings = {
            name: Ring(*getattr(chosen, name))
            for name in ("q", "kv", "p", "out", "scores", "sums", "states", "alignments")
        }
        self.k_vectors, self.v_vectors = (ceil_div(size, site.config.n) for size in (op.head_size, op.v_size))
        self.octaves = op.score_scale * math.log2(math.e)
        self.pending: deque[tuple[int, Task]] = deque()
        self.loaded: set[tuple[str, object]] = set()

    # --- order of tasks

    def tasks(self) -> Iterator[Task]:
        op, chosen = self.op, self.plan
        self.tiles = list(tiles(op, chosen))
        yield from table_tasks(self.emit, chosen.table)
        yield from self._load_parameters()
        yield from self._load_k_zero()
        order = (
            step for i, tile in enumerate(self.tiles) for step in steps(op, chosen, self.config, tile, i)
        )
        yield from self._in_pairs(order) if chosen.pairs else self._ahead(order)
        while self.pending:
            yield self.pending.popleft()[1]

    def _in_pairs(self, order: Iterator[Step]) -> Iterator[Task]:
        """Run two steps at a time, so that the bus brings the keys of both and then the values of both."""
        while pair := list(itertools.islice(order, 2)):
            for part in (self._scores, self._softmax):
                for step in pair:
                    yield from part(step)
            for step in pair:
                yield from self._sums(step)
                if step.end:
                    self._finish(step)

    def _ahead(self, order: Iterator[Step]) -> Iterator[Task]:
        """Run steps one by one; if the plan has room for two, emit the next step's scores early."""
        chosen = self.plan
        step: Step | None = next(order)
        assert step is not None
        if chosen.ahead:
            yield from self._scores(step)
        while step is not None:
            following = next(order, None)
            if not chosen.ahead:
                yield from self._scores(step)
            elif following is not None:
                yield from self._scores(following)
            yield from self._softmax(step)
            yield from self._sums(step)
            if step.end:
                self._finish(step)
            step = following

    def _slot(self, ring: str, key: object) -> int:
        return self.rings[ring].get(key)[0]

    # --- loads

    def _head(self, source: TensorRef, image: int, head: int, heads: int) -> TensorRef:
        """Return one head of an operand, its rows as the pixels of one image row."""
        return source.matrix(image, head, (source.n if self.op.page else self.op.images, heads))

    def _load_parameters(self) -> Iterator[Task]:
        """LOAD softmax's parameters, and those of the scores' own requantisation after them."""
        bits, to, offset = self.config.mantissa_bits, self.op.rounding, self._offset()
        softmax = score_multiplier(self.octaves, bits)
        if to is None:
            yield self._load_block_of(softmax, offset, self.plan.params)
            return
        # Softmax ignores a common offset of a row: centre the range of scores, to stay clear of the clamp.
        yield self._load_block_of(softmax, -((to.low + to.high) // 2), self.plan.params)
        yield self._load_block_of(
            quantise_scale(to.scale, bits), offset, self.plan.params + PARAMETER_VECTORS
        )

    def _load_block_of(self, multiplier: tuple[int, int], bias: int, at: int) -> Task:
        (mantissa, shift), n = multiplier, self.config.n
        block = parameters.parameter_block(np.full(n, bias), np.full(n, mantissa), np.full(n, shift), n)
        return self.emit.load_constant(block, at)

    def _offset(self) -> int:
        """Return the bias of all scores: the zero points' product, if the array multiplies queries with their zero
        point."""
        op = self.op
        return (
            0 if self.config.wide_activations or not self._k_zero() else op.q_zero * op.k_zero * op.head_size
        )

    def _k_zero(self) -> list[int]:
        """Return values of K that stand for minus its zero point, as extra steps of the contraction.

        K's zero point shifts all scores of a row alike, which softmax ignores. So it is left out unless scores come
        near a clamp.
        """
        op = self.op
        # With rounding the absolute value of a score matters, so the zero point counts.
        near = k_zero_shift(op.k_zero, op.head_size, op.score_scale) > NEGLIGIBLE_SHIFT
        return negative_parts(op.k_zero) if near or op.rounding is not None else []

    def _load_k_zero(self) -> Iterator[Task]:
        values = self._k_zero()
        if values:
            payload = np.repeat(np.array(values, np.int8), self.config.n).tobytes()
            yield self.emit.load_constant(payload, self.plan.constants)

    def _load_q(self, step: Step, tile: Tile) -> Iterator[Task]:
        slot, is_loaded = self.rings["q"].get(step.tile)
        if is_loaded:
            return
        wide = self.config.wide_activations
        for index in range(tile.heads):
            source = self._head(self.q, tile.image, tile.head + index, self.op.heads)
            yield self.emit.load_rows(
                source,
                (tile.position, tile.positions),
                (0, self.op.head_size),
                slot + index * tile.positions * self.k_vectors,
                self.k_vectors,
                self.op.q_zero if wide else 0,
            )

    def _load_block(self, operand: str, step: Step, tile: Tile) -> Iterator[Task]:
        """LOAD the keys or values of a step's block, unless they are on chip."""
        op, block = self.op, step.first // self.plan.block
        kv_head = tile.head // (op.heads // op.kv_heads)
        key = (tile.image, kv_head, block)
        slot, is_loaded = self.rings["kv"].get(key)
        if not is_loaded:
            # A new block replaces both the keys and the values of its slot.
            self.loaded -= {("k", slot), ("v", slot)}
        if (operand, slot) in self.loaded:
            return
        self.loaded.add((operand, slot))
        first = block * self.plan.block
        count = min(self.plan.block, op.keys - first)
        source = self.k if operand == "k" else self.v
        if not op.page:
            head = self._head(source, tile.image, kv_head, op.kv_heads)
            yield from self._load_rows(operand, head, first, count, slot, None)
            return
        head = self._head(source, 0, kv_head, op.kv_heads)
        for row in range(first, first + count, min(op.page, count)):
            part = min(op.page, count)
            yield from self._load_rows(operand, head, row % op.page, part, slot, row // op.page, row - first)

    def _load_rows(
        self,
        operand: str,
        source: TensorRef,
        first: int,
        count: int,
        slot: int,
        page: int | None,
        at: int = 0,
    ) -> Iterator[Task]:
        """LOAD rows of one head to a block's rows from `at` on; values are transposed."""
        block = self.plan.block
        table = None if page is None or self.table is None else (self.table, page)
        if operand == "k":
            yield self.emit.load_rows(
                source,
                (first, count),
                (0, self.op.head_size),
                slot + at * self.k_vectors,
                self.k_vectors,
                0,
                table,
            )
            return
        values = slot + block * self.k_vectors
        yield from self.emit.load_transposed(
            source, (first, count), (0, self.op.v_size), values + at, block, table
        )

    # --- the array

    def _rows(self, step: Step, tile: Tile) -> tuple[int, int]:
        """Return where a step's rows start within the tile, and its number of positions."""
        skipped = step.position - tile.position
        return skipped, tile.positions - skipped

    def _scores(self, step: Step) -> Iterator[Task]:
        tile, n = self.tiles[step.tile], self.config.n
        yield from self._load_q(step, tile)
        yield from self._load_block("k", step, tile)
        skipped, positions = self._rows(step, tile)
        q, kv = self._slot("q", step.tile), self._kv(step, tile)
        k = kv + (step.first % self.plan.block) * self.k_vectors
        c = self._slot("scores", step)
        rows, groups = tile.heads * positions, step.columns // n
        common = {
            "nt": groups,
            "oy": tile.heads,
            "ox": positions,
            "a": q + skipped * self.k_vectors,
            "a_oy": tile.positions * self.k_vectors,
            "a_ox": self.k_vectors,
            "c": c,
            "c_nt": rows,
            "c_oy": positions,
            "c_ox": 1,
        }
        zero = self.op.q_zero if self.config.wide_activations else 0
        main = Mm(
            **common,
            kc=self.k_vectors,
            a_kc=1,
            zero=zero,
            b=k,
            b_nt=n * self.k_vectors,
            b_kc=1,
            b_row=self.k_vectors,
        )
        yield self._mm(main, rows)
        if not self.config.wide_activations:
            # Add minus the zero point times the keys: rows in the padding, in parts that fit a byte.
            for part in (-self.op.q_zero // 2, -self.op.q_zero - -self.op.q_zero // 2):
                if part:
                    correction = Mm(
                        **common | {"a": 0, "a_oy": 0, "a_ox": 0},
                        kc=self.k_vectors,
                        accumulate=1,
                        y=-1,
                        pad=part,
                        b=k,
                        b_nt=n * self.k_vectors,
                        b_kc=1,
                        b_row=self.k_vectors,
                    )
                    yield self._mm(correction, rows)
        for index, _ in enumerate(self._k_zero()):
            correction = Mm(
                **common, kc=self.k_vectors, a_kc=1, zero=zero, accumulate=1, b=self.plan.constants + index
            )
            yield self._mm(correction, rows)

    def _kv(self, step: Step, tile: Tile) -> int:
        kv_head = tile.head // (self.op.heads // self.op.kv_heads)
        return self._slot("kv", (tile.image, kv_head, step.first // self.plan.block))

    def _mm(self, instruction: Mm, rows: int) -> Task:
        cycles = instruction.nt * instruction.kc * max(rows, self.config.n)
        return Task(instruction, self.layer, cycles, paces=True)

    def _sums(self, step: Step) -> Iterator[Task]:
        tile, groups = self.tiles[step.tile], step.columns // self.config.n
        values = self._kv(step, tile) + self.plan.block * self.k_vectors
        if not self._is_last(step):
            yield from self._load_block("v", step, tile)
            yield self._sums_of(step, (0, groups), values + step.first % self.plan.block, self.plan.block)
            return
        # The last values: multiply each part while the next one loads.
        size = ceil_div(groups, self.plan.last_parts)
        for group in range(0, groups, size):
            part = group, min(size, groups - group)
            at, panel = values + group * self.config.n * self.v_vectors, part[1] * self.config.n
            yield from self._load_part(step, tile, part, at, panel)
            yield self._sums_of(step, part, at, panel)

    def _is_last(self, step: Step) -> bool:
        """Return whether this is the last step of all, and its values are not on chip: they then arrive in parts."""
        if self.plan.last_parts == 1 or self.op.page or not step.end or step.tile < len(self.tiles) - 1:
            return False
        return step.first % self.plan.block == 0 and ("v", self._kv(step, self.tiles[-1])) not in self.loaded

    def _load_part(
        self, step: Step, tile: Tile, part: tuple[int, int], at: int, panel: int
    ) -> Iterator[Task]:
        """LOAD the values of `part` (first, count) groups of N keys of a step."""
        n, kv_head = self.config.n, tile.head // (self.op.heads // self.op.kv_heads)
        first = step.first + part[0] * n
        rows = first, min(part[1] * n, self.op.keys - first)
        source = self._head(self.v, tile.image, kv_head, self.op.kv_heads)
        yield from self.emit.load_transposed(source, rows, (0, self.op.v_size), at, panel)

    def _sums_of(self, step: Step, part: tuple[int, int], v: int, panel: int) -> Task:
        """Return the MM of probabilities and values for `part` (first, count) groups of N keys of a step.

        Values lie at `v`, panels of N columns `panel` addresses apart.
        """
        tile, n, (group, groups) = self.tiles[step.tile], self.config.n, part
        skipped, positions = self._rows(step, tile)
        rows = tile.heads * positions
        p, alignments = self._slot("p", step), self._slot("alignments", step)
        sums = self._slot("sums", step.tile)
        return Task(
            Mm(
                accumulate=int(group > 0 or not step.start), nt=self.v_vectors, kc=groups, oy=tile.heads, ox=positions,
                a=p + group * rows, a_kc=rows, a_oy=positions, a_ox=1,
                zero=-128 if self.config.wide_activations else 0,
                b=v, b_nt=panel, b_kc=n, b_row=1,
                c=sums + skipped, c_nt=tile.heads * tile.positions, c_oy=tile.positions, c_ox=1,
                align=1, alignment=alignments + group * rows,
            ),
            self.layer,
            self.v_vectors * groups * max(rows, n),
            paces=True,
        )  # fmt: skip

    # --- the vector unit

    def _softmax(self, step: Step) -> Iterator[Task]:
        """Yield the VEC of a step's probabilities, after normalisations of earlier tiles whose sums the tile
        overwrites."""
        op, tile, n = self.op, self.tiles[step.tile], self.config.n
        # The tile's sums reuse slots: earlier tiles in them must be normalised first.
        while step.start and self.pending and self.pending[0][0] <= step.tile - self.rings["sums"].count:
            yield self.pending.popleft()[1]
        skipped, positions = self._rows(step, tile)
        rows, groups = tile.heads * positions, step.columns // n
        src, p = self._slot("scores", step), self._slot("p", step)
        alignments = self._slot("alignments", step)
        source = isa.Source.ACCUMULATOR
        if op.rounding is not None:
            rounded = self.plan.rounded[0]
            yield self._requantise(op.rounding, src, rounded, (groups, tile.heads, positions))
            source, src = isa.Source.SCRATCHPAD, rounded
        # With pages, the length register is the origin of columns and rows.
        length = 0 if op.page else op.lengths[tile.image]
        yield Task(
            Softmax(
                source=source,
                ob=groups, oy=tile.heads, ox=positions, src=src, src_ob=rows, src_oy=positions, src_ox=1,
                dst=p, dst_ob=rows, dst_oy=positions, dst_ox=1, params=self.plan.params, first=int(step.start),
                causal=int(op.causal), relative=int(op.page > 0), register=LENGTH if op.page else 0,
                length=_clip(length - step.first), diagonal=_clip(step.position + op.offset - step.first),
                state=self._slot("states", step.tile) + skipped, state_oy=tile.positions, state_ox=1,
                alignment=alignments, alignment_ob=rows, alignment_oy=positions, alignment_ox=1,
            ),
            self.layer,
            rows * groups * self.config.groups,
        )  # fmt: skip
        if self.pending:
            yield self.pending.popleft()[1]

    def _requantise(self, to: Rounding, src: int, dst: int, loops: tuple[int, int, int]) -> Task:
        """Return the VEC that rounds scores of (groups, heads, positions) to 8 bits, as the model does."""
        groups, heads, positions = loops
        rows, params = heads * positions, self.plan.params + PARAMETER_VECTORS
        return Task(
            Vec(
                ob=groups, oy=heads, ox=positions, src=src, src_ob=rows, src_oy=positions, src_ox=1,
                dst=dst, dst_ob=rows, dst_oy=positions, dst_ox=1, params=params,
                zero=to.zero, low=to.low, high=to.high,
            ),
            self.layer,
            rows * groups * self.config.groups,
        )  # fmt: skip

    def _finish(self, step: Step) -> None:
        """Queue the normalisation of a tile, in pieces, and its stores."""
        op, tile = self.op, self.tiles[step.tile]
        rows = tile.heads * tile.positions
        out, sums, states = (self._slot(ring, step.tile) for ring in ("out", "sums", "states"))
        scale, exponent = normaliser(op.scale)
        size = max(ceil_div(rows, PIECES), min(rows, PIECE_ROWS))
        for first in range(0, rows, size):
            count = min(size, rows - first)
            self.pending.append((step.tile, Task(
                Normalise(
                    oy=count, ox=self.v_vectors, src=sums + first, src_oy=1, src_ox=rows,
                    dst=out + first * self.v_vectors, dst_oy=self.v_vectors, dst_ox=1,
                    scale=scale, exponent=exponent, v_zero=op.v_zero, state=states + first, state_oy=1,
                    zero=op.y_zero, low=op.low, high=op.high,
                ),
                self.layer,
                count * max(target.NORMALISE_ROW_CYCLES, self.v_vectors * self.config.groups),
            )))  # fmt: skip
        for index in range(tile.heads):
            head = self._head(self.dst, tile.image, tile.head + index, op.heads)
            box = Box(0, tile.position, 1, tile.positions)
            at = out + index * tile.positions * self.v_vectors
            stores = self.emit.store_box(head, 0, box, (0, op.v_size), at, self.v_vectors)
            self.pending += [(step.tile, store) for store in stores]
