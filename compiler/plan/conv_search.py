"""Search for a convolution's best plan: all candidates are scored at once, as columns of numbers.

A *frame* is a tile of outputs, a block of output tiles whose sums are accumulated together, and whether inputs are
chunked. Each frame has a cheap lower bound of cycles. Frames are scored in its order, with all other choices (zones,
chunk sizes, resident data); frames whose bound exceeds the best plan so far are skipped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from weft.compiler.machine import target
from weft.compiler.machine.target import LENGTH_MAX, STRIDE_MAX, SequentialCosts
from weft.compiler.plan.conv_parts import Array, Parts, Zone, last_rows, room_penalty, row_parts, weight_parts
from weft.compiler.plan.conv_shape import ConvShape
from weft.hdl.isa import PARAMETER_VECTORS

_PLANS = 4000
"""Approximate number of frames times zones to score at a time."""
_FRAMES = 16, 128
"""Least and most frames to score at a time."""
_TIMES = np.array([1, 2, 3]).reshape(-1, 1)
_SLOTS_A, _SLOTS_B = np.array([0, 1, 1, 2]), np.array([0, 1, 2, 2])
"""Numbers of slots for which chunks are sized, as indices of `_TIMES`."""
_MAX_SLOTS = 64  # of a ring


class ScoredPlan(NamedTuple):
    """A plan as numbers; `zone` is an index, and `a`, `b`, `c` and `o` are (slot size, slots)."""

    tile: tuple[int, int]
    zone: int
    block: int
    chunked: bool
    chunk: int
    group: int
    store: int
    params: int
    a: tuple[int, int]
    b: tuple[int, int]
    c: tuple[int, int]
    o: tuple[int, int]
    cycles: float
    traffic: float


class Search:
    """Candidates for one convolution with given divisions of the scratchpad."""

    def __init__(self, shape: ConvShape, zones: Sequence[Zone]) -> None:
        self.parts = Parts(shape, zones)

    def best(self) -> ScoredPlan | None:
        """Return the plan with the fewest cycles; None if not even the smallest tile fits."""
        best_plan: ScoredPlan | None = None
        for bound, batch in self._batches():
            if best_plan is not None and bound >= best_plan.cycles:
                break
            scored = batch()
            if scored.cycles.size:
                index = int(np.argmin(scored.cycles))
                if best_plan is None or scored.cycles[index] < best_plan.cycles:
                    best_plan = scored.plan_at(index)
        return best_plan

    def all(self, most: int) -> list[ScoredPlan]:
        """Return at most `most` plans, best first: half are the best, the others are spread over the rest."""
        scored = [item for item in (batch() for _, batch in self._batches()) if item.cycles.size]
        if not scored:
            return []
        cycles = np.concatenate([item.cycles for item in scored])
        starts = np.cumsum([0, *(item.cycles.size for item in scored)])
        order = np.argsort(cycles, kind="stable")
        if order.size > most:
            # The other half is spread over the ranking, so that tuning sees other kinds of plans.
            spread = np.linspace(most // 2, order.size - 1, most - most // 2).astype(np.int64)
            order = np.concatenate([order[: most // 2], order[spread]])
        which = np.searchsorted(starts, order, side="right") - 1
        return [scored[at].plan_at(int(index - starts[at])) for at, index in zip(which, order, strict=True)]

    def _batches(self) -> Iterator[tuple[float, Callable[[], _Scored]]]:
        """Yield batches of frames: the least bound of all remaining frames, and a function that scores the batch."""
        tile, block, chunked, bound = self.parts.frames()
        least, most = _FRAMES
        size = min(max(_PLANS // len(self.parts.zones), least), most)
        for first in range(0, len(tile), size):
            part = slice(first, first + size)
            yield float(bound[first]), partial(_Scored, self.parts, tile[part], block[part], chunked[part])


_CUT = ("size", "block", "chunked", "zone", "chunk", "count", "b_slot", "b_count", "a_slot", "a_load", "a_count",
        "blocks", "spatial", "shared_fraction", "per_block", "c_slot", "c_count", "group")  # fmt: skip
_ALL = (*_CUT, "params", "store", "o_slot", "o_count")
"""Columns of `_Scored` at the end; `_CUT` has those before groups are chosen."""


class _Scored:
    """All plans of some frames; `cycles` has those of the plans that fit.

    Numbers are columns with a row for each plan. Plans that do not fit are removed as early as possible. Plans keep
    their order: by frame, zones, slots for which chunks are sized, and groups.
    """

    def __init__(self, parts: Parts, size: Array, block: Array, chunked: Array) -> None:
        self.parts, self.shape = parts, parts.shape
        frame, self.zone, self.chunk = self._chunks(size, block, chunked)
        self.size, self.block, self.chunked = size[frame], block[frame], chunked[frame]
        self._hold_inputs()
        self._hold_weights()
        self._divide()
        self._keep(_ALL, np.flatnonzero(self._cut_outputs()))
        self.cycles, self._traffic = (np.broadcast_to(values, self.size.shape) for values in self._estimate())

    def _keep(self, names: Sequence[str], rows: Array) -> None:
        """Keep only the plans `rows`. Values that all plans share are no columns."""
        for name in names:
            values = np.asarray(getattr(self, name))
            if values.ndim:
                setattr(self, name, values[rows])

    def _chunks(self, size: Array, block: Array, chunked: Array) -> tuple[Array, Array, Array]:
        """Choose the largest chunks of which 1, 2 or 3 fit; return frames, zones and chunks."""
        parts, chunks, n = self.parts, self.parts.chunks, self.parts.config.n
        pieces = block[:, None] if parts.shape.has_piece_per_tile else np.int64(1)
        # Slots of weights grow with chunk sizes, so counting those that fit gives the last that fits.
        slots = chunks.limit * block[:, None] + parts.shape.around
        fits = slots[:, None, None, :] * _TIMES <= parts.zone_b.values[:, None, None]
        last = (fits.sum(axis=-1) - 1)[:, parts.zone_b.which][:, :, _SLOTS_B]
        if chunked.any():
            inputs = parts.chunk_input[0][size] * pieces
            room = chunks.kc * n * pieces <= LENGTH_MAX
            if parts.shape.has_piece_per_tile:  # one LOAD for adjacent pieces, with all their channels
                room = room & ((block[:, None] == 1) | (parts.shape.aligned & (chunks.kc == chunks.kc.max())))
            loads = (inputs[:, None, None, :] * _TIMES <= parts.zone_a.values[:, None, None]) & np.reshape(
                room, (-1, 1, 1, len(chunks.kc))
            )
            upto = np.maximum.accumulate(np.where(loads, np.arange(len(chunks.kc)), -1), axis=-1)
            at = (
                np.arange(len(size))[:, None, None],
                parts.zone_a.which[:, None],
                _SLOTS_A,
                np.maximum(last, 0),
            )
            last = np.where(chunked[:, None, None], np.where(last >= 0, upto[at], -1), last)
        chunk = np.maximum(last, 0)
        other = np.ones(chunk.shape, bool)
        other[:, :, 1:] = chunk[:, :, 1:] != chunk[:, :, :-1]
        chosen = np.nonzero((last >= 0) & other)
        return chosen[0], chosen[1], chunk[chosen]

    def _hold_inputs(self) -> None:
        """Choose slots of inputs in zone A; remove plans in which not even one fits."""
        parts = self.parts
        if not parts.inputs:
            self.a_slot, self.a_load, self.a_count = np.int64(0), np.float64(0), np.int64(1)
            return
        pieces = self.block if parts.shape.has_piece_per_tile else np.int64(1)
        at = self.size, self.chunk
        uncut = parts.whole_input[1][self.size]
        self.a_slot, load = (
            np.where(self.chunked, by[at] * pieces, all_[self.size])
            for by, all_ in zip(parts.chunk_input, parts.whole_input, strict=True)
        )
        self.a_load = np.minimum(load, uncut)
        zone = parts.zone_a.values[parts.zone_a.which[self.zone]]
        self.a_count = np.minimum(zone // np.maximum(self.a_slot, 1), _MAX_SLOTS)
        names = ("size", "block", "chunked", "zone", "chunk", "a_slot", "a_load", "a_count")
        self._keep(names, np.flatnonzero(self.a_slot <= zone))

    def _hold_weights(self) -> None:
        """Choose slots of weights in zone B."""
        parts, chunks = self.parts, self.parts.chunks
        self.count = chunks.count[self.chunk]
        self.b_slot = chunks.limit[self.chunk] * self.block + parts.shape.around
        self.b_count = parts.zone_b.values[parts.zone_b.which[self.zone]] // self.b_slot
        self.blocks = -(-parts.tiles // self.block)
        self.spatial = parts.spatial[self.size]
        self.shared_fraction = parts.shared_fraction[self.zone]

    def _divide(self) -> None:
        """Choose groups of output tiles, and slots of the accumulator."""
        config, blocks = self.parts.config, self.blocks
        self.per_block = np.ceil(self.shape.weight_passes * self.count).astype(np.int64)
        fitting = np.minimum(self.b_count // self.per_block, blocks)
        rows = self.parts.rows[self.size] * self.block
        depth = config.accumulator_depth
        # Slots are whole banks, so that the vector unit reads one while the array writes another.
        self.c_slot = -(-rows // depth) * depth
        self.c_count = np.minimum(config.accumulator_size // self.c_slot, 4)
        # Weights of all blocks, of as many as fit, or of half as many for double buffering.
        groups = np.stack([blocks, fitting, np.maximum(fitting // 2, np.minimum(fitting, 1))], axis=1)
        some = fitting < blocks
        fits = np.stack([np.ones_like(some), some, some & (fitting > 1)], axis=1) & (groups > 0)
        fits &= (groups == blocks[:, None]) | (self.shape.tiles_least == 1)
        fits &= (self.c_count > 0)[:, None]
        chosen = np.nonzero(fits)
        self._keep(_CUT[:-1], chosen[0])
        self.group = groups[chosen]

    def _cut_outputs(self) -> Array:
        """Choose the tiles per STORE; return whether outputs and residual fit."""
        shape, n = self.shape, self.parts.config.n
        height, width = self.parts.sizes[self.size].T
        zone = self.parts.zone_o[self.zone]
        tiles = np.minimum(self.group * self.block, self.parts.tiles)
        epilogue, buffered = shape.op.epilogue is not None, shape.slots > 0
        blocks = zone // PARAMETER_VECTORS
        self.params = np.minimum(tiles, np.maximum(4, blocks // 4 if buffered else blocks - epilogue))
        room = zone - (self.params + epilogue) * PARAMETER_VECTORS
        slots = height * width * shape.slots
        self.store = np.ones_like(tiles)
        if shape.uniform and buffered:
            most = np.minimum(tiles, np.maximum(LENGTH_MAX // n, 1))
            # The step from row to row is `width` times as many vectors as tiles, and must fit its field.
            most = np.where(height > 1, np.minimum(most, np.maximum(STRIDE_MAX // width, 1)), most)
            # Two slots: one is stored while the next is filled.
            most = np.maximum(np.minimum(most, room // slots // 2), 1)
            # Equal sizes: a short STORE in between hides nothing.
            leave = -(-tiles // most)
            self.store = -(-tiles // leave)
        self.o_slot = height * width * self.store
        slots = np.maximum(slots * self.store, 1) if buffered else np.int64(1)
        self.o_count = np.maximum(np.minimum(room // slots, 4), 1)
        return np.asarray((room >= slots) if buffered else (room >= 0))

    def _estimate(self) -> tuple[Array, Array]:
        """Return cycles, and cycles of the bus for data."""
        parts, shape, blocks, spatial = self.parts, self.shape, self.blocks, self.spatial
        groups, chunks = -(-blocks // self.group), parts.chunks
        # Rows and weights in one bank are read in turn.
        both = self.shared_fraction * shape.weight_values / parts.config.n * spatial
        compute = parts.compute[self.size] + both
        inputs_stay = self.a_count >= np.where(self.chunked, self.count, 1) * spatial
        per_box = np.where(inputs_stay, 1, groups)
        if parts.inputs:
            reused = per_box * len(shape.pieces) if not shape.has_piece_per_tile else blocks
            again = np.where(self.a_count >= self.count, reused, blocks)
            per_box = np.where(self.chunked, again, per_box)
        in_box = np.where(self.chunked, self.count, 1)
        a_loads = self.a_load * in_box * per_box * spatial
        b_held = self.group * self.per_block <= self.b_count
        b_times = np.where(b_held, 1, spatial)
        b_loads = shape.weight_cycles * b_times
        p_times = np.where(self.params >= np.minimum(self.group * self.block, parts.tiles), 1, spatial)
        stores, added = parts.store_cycles(self.store), parts.residual_cycles(self.store)
        work, starts = parts.vector
        vec = work + starts[self.size]
        traffic = a_loads + b_loads + parts.tiles * 12.0 * p_times + added + stores
        in_slots, in_box = in_box, in_box * (1 if shape.aligned or shape.folded else len(shape.pieces))
        instructions = (
            blocks * self.per_block * (spatial + b_times)
            + in_box * per_box * spatial * parts.inputs
            + parts.tiles * (spatial * (1 + (shape.op.epilogue is not None)) + p_times)
            + spatial * -(-parts.tiles // self.store) * (1 + (shape.residual is not None))
        ) * parts.instruction
        if parts.target.sequential_costs is not None:
            a_times = in_box * per_box * spatial, in_slots * per_box * spatial
            return self._in_turn(parts.target.sequential_costs, a_times, b_times, p_times), traffic
        # The next box's inputs load while this box's are used, which needs as many further slots.
        used = np.where(self.a_count >= in_slots, in_slots, 1)
        late = 1 - np.clip((self.a_count - used) / used, 0, 1)
        penalty = np.where(inputs_stay, 0.0, a_loads * late)
        # LOADs keep their order: whole inputs wait until the previous tile's last weights are loading.
        hidden = np.minimum(self.b_count / (self.group * self.per_block), 1.0) * compute / spatial / groups
        exposed = np.maximum(self.a_load - hidden, 0.0) * spatial * groups
        penalty = penalty + np.where(self.chunked | inputs_stay | b_held, 0.0, exposed)
        penalty = penalty + np.where(
            b_held & (groups > 1) & (self.b_count < 2 * self.group * self.per_block), b_loads, 0.0
        )
        penalty = penalty + np.where(
            self.c_count < 2, vec + target.BLOCK_SWITCH_CYCLES * spatial * blocks, 0.0
        )
        penalty = penalty + np.where(self.o_count < 2, stores + added, 0.0)
        # The residual waits for a slot, and all later LOADs with it, unless there is room for two blocks.
        short = np.clip(2 - self.o_count * self.store / self.block, 0, 1)
        penalty = penalty + np.where((self.o_count > 1) & (added > 0), short * (stores + added), 0.0)
        # The first block loads inputs that the others reuse.
        first = self.a_load * self.count + shape.weight_cycles / blocks - compute / spatial / blocks
        first = np.where(self.chunked & (per_box < blocks), np.maximum(first, 0.0), 0.0)
        # With two slots, one is free only when the other is in use: that hides neither latency nor uneven chunks.
        uneven = self.count * chunks.limit[self.chunk] / shape.words / parts.depth * shape.weight_passes - 1
        close = ~(b_held & (groups == 1)) & (self.b_count == 2)
        waits = np.where(
            close, target.SLOT_REFILL_CYCLES * blocks * self.per_block * b_times + uneven * b_loads, 0.0
        )
        # A single slot is free only after its products have passed the array. With two slots, the first part's weights
        # effectively have one if the small later parts take the other.
        least = 2 + (shape.weight_passes % 1 > 0)
        alone = ~(b_held & (groups == 1)) & (self.b_count < least)
        drain = target.SLOT_REFILL_CYCLES + target.BLOCK_SWITCH_CYCLES + 2 * parts.config.n
        penalty = penalty + np.where(alone, b_loads + drain * blocks * self.per_block * b_times, 0.0)
        waits = waits + np.where(
            self.chunked & (self.a_count == 2), target.SLOT_REFILL_CYCLES * in_slots * per_box * spatial, 0.0
        )
        if shape.tiles_least > 1:  # with another operator beside it small parts matter, the ends do not
            paced = np.maximum(np.maximum(compute, traffic + instructions + waits), vec)
            start = self.a_load + shape.weight_cycles / blocks / self.per_block + first
            tail = (vec / blocks + stores / np.maximum(1, parts.tiles // self.store)) / spatial
            ends = start + tail + 2 * target.RAMP_CYCLES
            return paced + ends + room_penalty(traffic, vec, instructions) + penalty, traffic
        start = self._start(compute / spatial / blocks, instructions) + first
        # If the bus is the bottleneck, the products of its last data remain; if the vector unit is, it waits for the
        # first block.
        block = compute / spatial / blocks
        last_products = np.where(b_held & (spatial > 1), compute / spatial / groups, block / self.per_block)
        moved = traffic + instructions + waits + np.minimum(last_products, compute)
        requantise, last_store = self._tail(vec, stores)
        paced = np.maximum(
            np.maximum(compute + start, moved + target.RAMP_CYCLES) + requantise, vec + start + block
        )
        return paced + last_store + room_penalty(traffic, vec, instructions) + penalty, traffic

    def _in_turn(
        self, costs: SequentialCosts, a_times: tuple[Array, Array], b_times: Array, p_times: Array
    ) -> Array:
        """Return cycles on the sequential core, where nothing overlaps.

        `a_times` are LOADs of inputs, and slots that they fill; `b_times` and `p_times` are the numbers of loads of
        weights and parameters.
        """
        parts, shape, spatial = self.parts, self.shape, self.spatial
        rows, columns = (item[self.size] for item in parts.convs)
        products, steps = self.blocks * self.per_block, shape.steps * spatial
        total = costs.mm(products * spatial, steps, steps * rows, columns)
        if parts.inputs:
            total = total + self._loads_in_turn(costs, *a_times)
        # Weights are often in flash, which is slower than DRAM.
        b_loads, vectors = products * b_times, 2 * shape.weight_values / parts.config.n * b_times
        total = total + costs.load(b_loads, b_loads, b_loads, vectors)
        p_loads = parts.tiles * p_times
        total = total + costs.load(p_loads, p_loads, p_loads, p_loads * PARAMETER_VECTORS)
        starts = parts.tiles * spatial * (1 + (shape.op.epilogue is not None))
        lines = starts * parts.sizes[self.size][:, 0]
        total = total + costs.vec(starts, lines, parts.vector[0] / parts.config.groups)
        leave = -(-parts.tiles // self.store)
        pixels = parts.h * parts.w * shape.src.n
        moved = spatial * leave, spatial * leave, pixels * leave, pixels * parts.tiles
        if shape.residual is not None and shape.residual.resident is None:
            total = total + costs.load(*moved)
        if shape.dst.resident is None:
            total = total + costs.store(*moved)
        return np.asarray(total, float)

    def _loads_in_turn(self, costs: SequentialCosts, loads: Array, slots: Array) -> Array:
        """Return cycles to load inputs on the sequential core."""
        parts, kernel = self.parts, self.shape.kernel
        height, width = (
            parts.reach_back(axis, parts.convs[axis], kernel[axis])[self.size] for axis in (0, 1)
        )
        pixels = loads * height * width
        # A part of a pixel's channels is a row of its own.
        some = self.chunked & (parts.chunks.kc[self.chunk] * parts.config.n < self.shape.src.c)
        lines = np.where(some, pixels, loads * height)
        return np.asarray(costs.load(loads, lines, pixels, slots * self.a_slot), float)

    def _start(self, cycles: Array, instructions: Array) -> Array:
        """Return cycles until the array works without pause; it takes `cycles` for a block."""
        parts, shape = self.parts, self.shape
        weights, chunk = shape.weight_cycles / self.blocks, cycles / self.per_block
        at_once = shape.lines is not None  # their weights are loaded at once
        most = (
            np.maximum(parts.chunks.limit[self.chunk] // parts.config.n // 2, 1)
            if not at_once
            else np.int64(1)
        )
        cut = weight_parts(chunk, most, parts.target)
        by_rows = parts.inputs and shape.pointwise
        rows = np.where((self.block == 1) & ~self.chunked & by_rows, parts.rows[self.size], 0)
        first = self.a_load / row_parts(chunk, rows, parts.target) + weights / self.per_block / cut
        # Loads of the first box, up to its first or last block, beyond what the array hides.
        group = np.minimum(self.group, self.blocks)
        waiting = weights - cycles + instructions / self.spatial / self.blocks
        each = np.where(self.chunked, 0.0, self.a_load) + np.maximum(waiting, waiting * group)
        each = each + chunk / np.maximum(cut, row_parts(chunk, rows, parts.target))
        return np.maximum(first, each) + target.RAMP_CYCLES

    def _tail(self, vec: Array, stores: Array) -> tuple[Array, Array]:
        """Return cycles after the last product: for the last block's requantisation, and then for the last STORE.

        The last part has half of the remaining tiles; its STORE starts when it is requantised.
        """
        parts, tiles = self.parts, self.parts.tiles
        tile, out = vec / tiles / self.spatial, stores / tiles / self.spatial
        before = np.zeros_like(tile)
        if self.shape.pointwise and self.shape.parts == 1:
            rows = parts.rows[self.size]
            apart = ~self.chunked & (self.a_count > 1) & (self.group * self.per_block <= self.b_count)
            last = last_rows(rows, self.spatial, self.shape)
            share = np.where(apart, last, rows) / rows
            # With few tiles the vector unit is not done with the other rows either when the array finishes.
            array = self.shape.steps * parts.config.n
            before = np.where(share < 1, np.maximum((tile + out) * (1 - share) - array, 0.0), 0.0)
            tile, out = tile * share, out * share
        if not self.shape.leaves_in_parts:
            return before + tile * self.block, out * self.store + target.RAMP_CYCLES
        left = out * self.store - tile * self.store / 2
        return before + tile * self.block, np.maximum(out, left) + target.RAMP_CYCLES

    def plan_at(self, index: int) -> ScoredPlan:
        """Return the plan number `index`."""

        def value(values: Array | np.integer[Any] | float) -> int:
            return int(np.broadcast_to(values, self.size.shape)[index])

        height, width = self.parts.sizes[self.size[index]]
        chunks = self.parts.chunks
        return ScoredPlan(
            tile=(int(height), int(width)),
            zone=int(self.zone[index]),
            block=value(self.block),
            chunked=bool(value(self.chunked)),
            chunk=int(chunks.limit[value(self.chunk)]),
            group=min(value(self.group * self.block), self.parts.tiles),
            store=value(self.store),
            params=value(self.params),
            a=(value(self.a_slot), value(self.a_count)),
            b=(value(self.b_slot), value(self.b_count)),
            c=(value(self.c_slot), value(self.c_count)),
            o=(value(self.o_slot), value(self.o_count)),
            cycles=float(self.cycles[index]),
            traffic=float(self._traffic[index]),
        )
