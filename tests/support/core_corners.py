"""Programs in which every bit of rarely used operands affects the result: limits of masks, lines of loads, steps of
windows, rows of accumulators beside each other, operands and words of kernels, the last bits of quotients, and
transfers that memory far away refuses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from support.core_cases import Benches, Core, Scenario, compare_counters, compare_memory
from support.core_directed import ORIGINS
from support.core_large import again
from support.core_observed import Observed, four_bytes
from support.random_instructions import block_of
from weft.hdl.isa import (
    Bound,
    Instruction,
    Kernel,
    Load,
    Microcode,
    MicroOp,
    Mm,
    Normalise,
    Reduce,
    Softmax,
    Source,
    Store,
    Vec,
)
from weft.hdl.isa.kernel import MICRO_OPS, Op
from weft.sim.golden.memories import round_half_even
from weft.sim.golden.vector import reciprocal

TRIES = 300
MASKS, WINDOWS, OPERANDS, WORDS = 40, 40, 24, 12
"""Instructions of a program of each kind."""
LINES = (17, 20, 27, 31)
"""Rows of a line; there are three lines."""
RUNS = (257, 300, 426, 511, 700, 1025, 2730, 5461)
"""Words of runs of four vectors that follow each other without a gap."""
BESIDE = [(ox, step) for step in (1, 2, 4, 8, 16) for ox in range(2, 10)]
"""Successive rows of accumulators, and how many rows later an equal number of rows lies."""
TRIED = 40
"""Scales tried; the one whose quotients show most is used."""
SUMS, PARTS, SCALES = 36, 2, 4
"""Sums of rows with hundreds of keys in each part; hundreds of quotients of each scale are taken of them."""
FAR = 24
"""Rows of a transfer, each a burst of its own."""


Fields = dict[str, Any]


class Corners(Observed):
    """Builder of a program of one kind. Parameters as in `Observed`.

    Attributes
    ----------
    octaves : int
        Log2 of the factor from bytes to scores.
    """

    octaves = 0

    def parameters(self) -> bytes:
        """Keep bytes about as they are, so that none of their bits is lost."""
        r, bits, words = self.random, self.config.mantissa_bits, []
        for _ in range(self.config.n):
            mantissa, places = r.randrange(1 << bits - 1, 1 << bits), bits - r.randrange(2) - self.octaves
            words.append(r.randrange(-20, 20) & 0xFFFFFFFF | mantissa << 32 | places << 56)
        return block_of(words)

    def coordinates(self, bound: Bound) -> dict[str, int]:
        """Draw steps of both signs over a range of which a part is within the bounds."""
        r = self.random
        steps = {f"{bound.name}_{name}": r.choice([-3, -2, -1, 1, 2, 3]) for name in bound.loops}
        return steps | {bound.name: r.randrange(10), bound.limit: r.randrange(4, 12)}

    def draw_valid(
        self, kind: type[Instruction], change: Fields | Callable[[], Fields], *, observe: bool = True
    ) -> None:
        """Return a valid instruction of a kind, its fields drawn and then set by `change`, and its observation."""
        tried = (
            dataclasses.replace(self.draw(kind), **(change() if callable(change) else change))
            for _ in range(TRIES)
        )
        assert any(self.append(item) for item in tried), f"no {kind.__name__} is valid"
        if observe:
            self.observe(accumulators=kind is Mm)

    def draw(self, kind: type[Instruction]) -> Instruction:
        return super(Observed, self).draw(kind)

    def build_masks(self) -> None:
        """Add diagonals that begin before the first column, and lengths that end in any of very many columns."""
        self.prologue()
        r = self.random

        def change() -> dict[str, Any]:
            causal, base = r.randrange(2), self.bases[register := r.randrange(8)]
            fields = {"oy": 1, "first": 1, "final": 0, "causal": causal, "register": register, "src_ob": 1}
            if causal:
                length, diagonal = 100, r.randrange(-9, 2)
                fields |= {"ob": 3, "ox": 9, "dst": 0, "dst_ob": 9, "dst_ox": 1}
            else:
                length, diagonal = (1 << r.randrange(2, 10)) + r.randrange(-3, 4), 0
                groups = min(-(-length // self.config.n) + 2, 60)
                fields |= {"ob": max(1, groups), "ox": 1, "dst": 0, "dst_ob": 1, "alignment_ob": 0}
            relative = r.randrange(2)
            limits = {"length": length - relative * base, "diagonal": diagonal - relative * base}
            return fields | limits | {"relative": relative}

        for _ in range(MASKS):
            self.draw_valid(Softmax, change)

    def build_lines(self) -> None:
        """Add loads with lines of many rows, and rows with many words, which fill the time up to the next row."""
        self.prologue()
        r, n, bus = self.random, self.config.n, self.config.bus_bytes
        whole = {"base": 7, "length": n, "dst_row": 1, "dst_pixel": 1}
        for line in LINES:
            skip, pitch = r.randrange(100, 200), r.randrange(n, 40)
            rows = {"rows": 3 * line, "line": line, "row_pitch": pitch, "skip": skip, "run": n}
            assert self.append(Load(**whole | rows))
            self.observe()
        for words in RUNS:
            pitch = words // 3 * bus
            row = {"rows": 3, "line": 3, "row_pitch": bus * r.randrange(1, 2000), "dst_row": 4}
            assert self.append(Load(**whole | row | {"pixels": 4, "pitch": pitch, "run": 3 * pitch + bus}))
            self.observe()

    def build_windows(self) -> None:
        """Add windows with steps of both signs from one position to the next."""
        self.prologue()
        for _ in range(WINDOWS):
            self.draw_valid(Vec, self._window)

    def build_products(self) -> None:
        """Add products with window steps of both signs."""
        self.prologue()
        for _ in range(WINDOWS):
            self.draw_valid(Mm, {})

    def _window(self) -> dict[str, Any]:
        r = self.random
        counts = {"ry": r.randrange(1, 4), "rx": r.randrange(2, 4), "ob": 1, "oy": r.randrange(1, 3)}
        fields = {"source": Source.SCRATCHPAD, "multiply": 0, "add": 0, "params": self.block()}
        return counts | fields | {"reduce": r.choice([Reduce.MAX, Reduce.SUM])}

    def build_beside(self) -> None:
        """Add products that accumulate rows while rows a power of two higher are written."""
        self.prologue()
        for ox, step in BESIDE:
            if 3 * step + ox > self.config.accumulator_size:
                continue
            place = {"c": 0, "c_nt": 0, "nt": 1, "kc": 2, "ky": 1, "kx": 1}
            if step > 2:
                place |= {"oy": 3, "c_oy": step, "ox": min(ox, step), "c_ox": 1}
            else:  # the other way round
                place |= {"oy": 1, "c_oy": 1, "ox": ox, "c_ox": step}
            self.draw_valid(Mm, place | {"accumulate": 1, "align": 0, "depthwise": 0})

    def build_operands(self) -> None:
        """Add kernels that read all vectors of all operands in every column, and write a number that depends on all."""
        self.prologue()
        r = self.random
        for _ in range(OPERANDS):
            ops = [MicroOp(op=Op.INDEX, b_immediate=1, immediate=r.randrange(-100, 100), d=1)]
            for operand in range(8):
                ops.append(MicroOp(op=Op.ADD, a_memory=1, a=operand, shift=r.randrange(24), b=1, d=1))
            self.put(again([*ops, *four_bytes(a=1)]), 0)
            # Read bytes of the scratchpad, as all other operands do.
            self.draw_valid(Kernel, {"start": 0, "source": Source.SCRATCHPAD})

    def build_words(self) -> None:
        """Add kernels whose micro-operations have large numbers, and kernels written from the last micro-operation to
        the first, one at a time."""
        self.prologue()
        for number in range(WORDS):
            ops = self._wide(2 * MICRO_OPS)
            self._put_backwards(ops) if number % 2 else self.put(ops, 0)
            self.draw_valid(Kernel, {"start": 0})
        self.draw_valid(Kernel, {"start": 0, "dst2": 0})  # which in most kernels is behind other operands

    def _wide(self, count: int) -> list[MicroOp]:
        """Return micro-operations that sum 24-bit numbers and store their bytes; other columns start one later."""
        r = self.random
        ops = [MicroOp(op=Op.INDEX, b_immediate=1, immediate=r.randrange(-(1 << 23), 1 << 23), d=1)]
        while len(ops) < count:
            op, number = r.choice([Op.ADD, Op.SUB, Op.RSUB]), r.randrange(-(1 << 23), 1 << 23)
            ops.append(MicroOp(op=op, a=1, shift=r.randrange(3), b_immediate=1, immediate=number, d=1))
        return again([*ops, *four_bytes(a=1)], r.choice([0b0010, 0b0101, 0b0110, 0b1011, 0b1101]))

    def _put_backwards(self, ops: Sequence[MicroOp]) -> None:
        kernels, self.kernels = self.kernels, []
        for entry, op in reversed(list(enumerate(ops))):
            assert self.append(Microcode(entry=entry, count=1, op0=op.encode()))
        self.kernels = kernels

    def build_quotients(self) -> None:
        """Add hundreds of bytes and accumulators divided by each of several sums; results have no more bits than are
        stored."""
        self.prologue()
        r, half = self.random, self.scratchpad // 2
        result = {"ob": 1, "oy": 1, "scaled": 0, "zero": 0, "low": -128, "high": 127}
        for turn in range(SUMS):
            result["state"] = state = turn % self.config.row_states
            self._sum(state)
            places = {
                "source": Source.SCRATCHPAD,
                "ox": half,
                "src": 0,
                "src_ox": 1,
                "dst": half,
                "dst_ox": 1,
            }
            size = {"v_zero": 0, "exponent": 17 - int(self.memories.sums[state]).bit_length()}
            many = result | places | size
            for _ in range(SCALES):
                tried = (r.randrange(1 << 15, 1 << 16) for _ in range(TRIED))
                scale = {"scale": max(tried, key=lambda number: self._sharpness(state, number, half))}
                self.draw_valid(Normalise, many | scale, observe=False)
                self._store(half, half)
            few = result | {"ox": 8, "v_zero": r.randrange(-128, 0), "exponent": 8 + turn % 2}
            self.draw_valid(Normalise, few)

    def _sharpness(self, state: int, scale: int, vectors: int) -> int:
        """Count the bytes whose quotient changes with the last bit of their common factor."""
        _, factor = reciprocal(self.memories.sums[[state]], scale)
        offset = 128 if self.config.probability_bits == 8 else 0
        elements = self.memories.scratchpad[:vectors].astype(np.int8).astype(np.int64) + offset
        quotients = [
            round_half_even(elements * (factor + other), np.full_like(elements, 17)) for other in (-1, 0, 1)
        ]
        return int(sum((quotients[1] != other).sum() for other in (quotients[0], quotients[2])))

    def _store(self, first: int, vectors: int) -> None:
        """Store a part of the scratchpad."""
        length = vectors * self.config.n
        assert self.append(Store(base=6, offset=self.stored, src=first, src_vector=1, length=length))
        self.stored += length

    def _sum(self, state: int) -> None:
        """Sum a row of scores in parts, each of which may raise the maximum and so shift the earlier parts."""
        still = {"oy": 1, "ox": 1, "src_ob": 0, "dst_ob": 0, "alignment_ob": 0, "final": 0, "causal": 0}
        still |= {"state": state, "relative": 0, "length": (1 << 15) - 1}
        for part in range(PARTS):
            count = self.random.randrange(2, 400)
            row = still | {"ob": count, "first": int(part == 0)}
            self.draw_valid(Softmax, row, observe=False)

    def build_far(self) -> None:
        """Add transfers of many bursts, one after the other."""
        self.prologue()
        vectors = -(-self.config.bus_bytes // self.config.n)
        for turn in range(4):
            row = {"rows": FAR, "row_pitch": 300 + turn, "length": self.config.bus_bytes}
            place = {"dst_vector": 1, "dst_row": vectors, "run": self.config.bus_bytes}
            assert self.append(Load(base=7, offset=97 * turn, **row, **place))
            assert self.append(Store(base=6, offset=0x4000 * turn, src_vector=1, src_row=vectors, **row))

    def build_narrow(self) -> None:
        """Add pixels of less than a vector that are contiguous in memory, so that several make up a word."""
        self.prologue()
        for turn, length in enumerate((1, 2, 3) * 2):
            pixels = {"pixels": 150, "length": length, "pitch": length, "src_pixel": 1}
            assert self.append(Store(base=6, offset=0x1000 * turn + turn // 3, **pixels))


class Apart(Corners):
    """`Corners` with scores that are many octaves apart."""

    octaves = 4


@dataclass(frozen=True)
class Kind:
    """A name of programs: the instruction that a core must have, the method that builds them, and its class."""

    name: str
    needs: type[Instruction]
    build: Callable[[Corners], None]
    made: type[Corners] = Corners


KINDS = (
    Kind("masks", Softmax, Corners.build_masks),
    Kind("lines", Load, Corners.build_lines),
    Kind("windows", Vec, Corners.build_windows),
    Kind("windows of products", Mm, Corners.build_products),
    Kind("rows beside each other", Mm, Corners.build_beside),
    Kind("operands of kernels", Kernel, Corners.build_operands),
    Kind("words of kernels", Kernel, Corners.build_words),
    Kind("quotients", Normalise, Corners.build_quotients, Apart),
)


def corners(core: Core, kinds: Iterable[Kind] = KINDS) -> Iterator[Scenario]:
    """Yield a program of each kind that the core has, and transfers in memory that lies elsewhere and stalls. Not for
    the sequential core, which takes some hundred cycles for a vector."""
    if core.sequential:
        return
    for kind in kinds:
        if not kind.needs().unsupported(core.config):
            yield _scenario(core, kind, {"latency": 2})
    narrow = Kind("narrow pixels", Store, Corners.build_narrow)
    yield _scenario(core, narrow, {"latency": 5, "bandwidth": 1.5}, timed=True)
    for origin in ORIGINS:
        memory = {
            "latency": 3,
            "origin": origin,
            "stall_probability": 0.6,
            "stall_seed": 5,
            "reordered": True,
        }
        yield _scenario(core, Kind(f"transfers at {origin:#x}", Store, Corners.build_far), memory)


def _scenario(core: Core, kind: Kind, memory: dict[str, Any], *, timed: bool = False) -> Scenario:
    """Build a scenario; with `timed` its counters must match the cycle model as well."""
    bench = Benches(core).of(memory)
    bench.fresh = False
    made = kind.made(core.config, 7000, (Load,))
    kind.build(made)
    given = (kind.name, made, made.program, bench)
    return Scenario(kind.name, bench, [compare_counters(core, *given) if timed else compare_memory(*given)])
