"""Programs with large extents: sums of long rows of scores, columns of long rows, fields of loads, transfers of more
than 64 KiB, and many transfers that memory is slow to take."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from support.core_cases import Benches, Core, Scenario, compare_memory
from support.core_observed import Observed, four_bytes
from support.random_instructions import BLOCKS, DUMP, MEMORY, block_of
from support.random_programs import Generator
from weft.hdl.isa import (
    PARAMETER_VECTORS,
    Instruction,
    Kernel,
    Load,
    MicroOp,
    Normalise,
    Softmax,
    Source,
    Store,
    Vec,
)
from weft.hdl.isa.config import Config
from weft.hdl.isa.kernel import Op

COLUMNS = (0x2A, 0x155, 0x2AA, 0x555, 0xAAA)
"""Columns of a row, in vectors."""
FAR = 0xF0F8
"""Bytes between the starts of four pixels, whose row is most of memory."""
LOADS = 120
"""Loads that are drawn; for some no valid one exists."""
OVERLAPPING = (0x55, 0xAA, 0x155, 0x1AA)
"""Bytes of pixels that start a third of a pixel apart: each of their vectors takes a pass over the row."""
PIXELS = (0xAAAA, 0xAAAA - 32, 0xAAAA - 512)
"""Pixels of large transfers, each of two bytes."""
MOST = 4095
"""Largest number of vectors that an instruction can give a row."""
WHOLE_PARTS = 5
"""Parts of a row, each of `MOST` vectors: with N = 4 its sum of probabilities exceeds 32 bits."""
LARGEST_SUM = (1 << 32) - 1
SHORT_STORES = 40
LATE: dict[str, dict[str, Any]] = {"short stores": {"latency": 200}}
"""Memory that confirms writes late, by program."""
SUMS = 4
"""Sums of each number of columns."""
NORMALISED = 4
"""Stored results of each sum."""


class Large(Observed):
    """Builder of a program of one of four kinds. Parameters as in `Observed`.

    Attributes
    ----------
    columns : tuple of int
        See `COLUMNS`.
    """

    columns: tuple[int, ...] = COLUMNS

    def parameters(self) -> bytes:
        """Map bytes to scores that are a part of an octave apart, or many octaves."""
        r, bits, words = self.random, self.config.mantissa_bits, []
        scale = r.randrange(-8, 3)
        for _ in range(self.config.n):
            mantissa = r.randrange(1 << bits - 1, 1 << bits)
            words.append(r.randrange(-64, 64) & 0xFFFFFFFF | mantissa << 32 | max(0, bits + scale) << 56)
        return block_of(words)

    def build_sums(self) -> None:
        """Add rows in three parts, each of which may bring a new maximum, and results of their sums."""
        self.prologue()
        self.observe()
        for turn, columns in enumerate(SUMS * self.columns):
            state = {"state": turn % self.config.row_states}
            for part in range(3):
                row = {"ob": columns, "oy": 1, "ox": 1, "first": int(part == 0), "final": 0, "causal": 0}
                row |= state | {"relative": 0, "length": (1 << 15) - 1}
                row |= {"source": Source.SCRATCHPAD, "params": self.block()}
                self._draw_with(Softmax, row, "ob")
            self._quotients(state["state"], -(turn % 8))

    def build_whole_sums(self) -> None:
        """Add rows whose sums grow to their limit, in parts as long as an instruction allows. One sum wraps, with keys
        far below the maximum on the way; one reaches the largest number and exceeds it."""
        self.prologue()
        self.observe()
        for turn in range(WHOLE_PARTS):
            self._row(0, turn == 0, MOST)
            self._row(0, False, 2, equal=False)
            self._quotients(0, -turn)
        one = 256 * whole(self.config)
        vectors = LARGEST_SUM // one
        for part in range(0, vectors, MOST):
            self._row(1, part == 0, min(MOST, vectors - part))
        self._row(1, False, (LARGEST_SUM - vectors * one) // (one >> octaves(self.config)), equal=False)
        self._quotients(1, 0)
        self._row(1, False, 1)
        self._quotients(1, 0)

    def _row(
        self, state: int, first: bool, vectors: int, *, equal: bool = True, length: int = 1 << 14
    ) -> None:
        """Add a part of a row, all of whose scores are `equal`, or lower."""
        params = self.scratchpad + (0 if equal else PARAMETER_VECTORS)
        fields = {"ob": vectors, "oy": 1, "ox": 1, "state": state, "first": int(first)}
        fields |= {
            "final": 0,
            "length": 1 << 14,
            "causal": 0,
            "relative": 0,
            "source": Source.SCRATCHPAD,
            "params": params,
        }
        self._draw_with(Softmax, fields, "ob")

    def _quotients(self, state: int, exponent: int) -> None:
        for _ in range(NORMALISED):
            fields = {"state": state, "ob": 1, "oy": 1, "ox": 1, "scaled": 0, "exponent": exponent}
            self._draw_with(Normalise, fields, "oy")
        self.observe()

    def build_columns(self) -> None:
        """Store the element numbers of long rows; the last column's remain."""
        self.prologue()
        index = MicroOp(op=Op.INDEX, b_immediate=1, immediate=0, d=1)
        self.put([index, *again(four_bytes(a=1))], 0)
        for columns in self.columns:
            assert self.append(
                Kernel(start=0, ox=columns, dst=0, dst2=2, with_dst2=1, dst_vectors=2, dst2_vectors=2)
            )
            self.observe()

    def build_loads(self) -> None:
        """Add loads with large extents, as far as the scratchpad and the region of inputs allow."""
        self.prologue()
        for turn in range(LOADS):
            drawn = (Generator.draw(self, Load) for _ in range(30))
            any(self.append(dataclasses.replace(item, **self._large(item))) for item in drawn)
            if turn % 8 == 7:
                self.observe()
        for length in OVERLAPPING:
            vectors = -(-length // self.config.n)
            places = {"dst_vector": 1, "dst_pixel": vectors, "pixels": min(3, self.scratchpad // vectors)}
            fields = places | {"length": length, "pitch": length // 3, "before": length // 4, "run": length}
            if places["pixels"] > 1:
                assert self.append(Load(base=0, offset=length, fill=length % 100, **fields))
        far = {
            "pixels": 4,
            "pitch": FAR,
            "run": 3 * FAR + self.config.n,
            "dst_pixel": 1,
            "length": self.config.n,
        }
        assert self.append(Load(base=7, **far))
        for power in range(
            3, (MEMORY - 1).bit_length()
        ):  # each bit of a count, with less than a vector beside it
            assert self.append(Load(base=7, dst=power, run=(1 << power) + 1, length=self.config.n))
        self.observe()
        size, n = self.config.scratchpad_size, self.config.n
        # Fill the scratchpad: with two pixels that share almost all bytes, and with as many rows as fit.
        half = {"length": size // 2 * n, "run": size * n, "dst_vector": 1, "dst_pixel": size // 2}
        assert self.append(Load(base=7, pixels=2, pitch=(size // 2 - 1) * n, **half))
        assert self.append(dataclasses.replace(self.dump(), offset=self.stored))
        assert self.append(Load(base=7, rows=size, row_pitch=n + 1, run=n, length=n, dst_row=1))
        self.observe()

    def build_store(self) -> None:
        """Add one transfer of contiguous pixels, over 64 KiB, with odd and even numbers of bursts."""
        self.prologue()
        for source, pixels in enumerate(PIXELS):
            assert 2 * pixels < MEMORY - DUMP
            assert self.append(Store(base=6, src=source, pixels=pixels, length=2, pitch=2))

    def build_short_stores(self) -> None:
        """Add stores of a few bytes each, one after the other."""
        self.prologue()
        for turn in range(SHORT_STORES):
            place = turn * (self.config.bus_bytes + 1)
            assert self.append(Store(base=6, offset=place, src=turn, length=1 + turn % self.config.n))

    def _draw_with(self, kind: type[Softmax] | type[Normalise], fields: dict[str, int], loop: str) -> None:
        """Draw a valid instruction with these fields; along the loop its address does not move."""
        for _ in range(300):
            drawn = self.draw(kind)
            strides = [name for name in vars(drawn) if name.endswith(f"_{loop}")]
            if self.append(dataclasses.replace(drawn, **dict.fromkeys(strides, 0) | fields)):
                return
        raise AssertionError(f"no {kind.__name__} with {fields} is valid")


class WholeSums(Large):
    """`Large` whose first parameter block makes every score 0, and whose second lowers scores by `octaves`. Parameters
    as in `Observed`."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._blocks = iter(range(BLOCKS))

    def parameters(self) -> bytes:
        """Keep bytes of elements too small to change what is rounded."""
        bits = self.config.mantissa_bits
        lower = -(octaves(self.config) << 17) & 0xFFFFFFFF | 1 << 32 + bits - 1 | bits + 9 << 56
        return block_of([lower * next(self._blocks)] * self.config.n)


def whole(config: Config) -> int:
    """Return the amount that a vector of keys at the maximum adds to a row's sum, which has 8 fractional bits."""
    return config.n * config.exp2_table[0]


def octaves(config: Config) -> int:
    """Return by how many octaves keys must be lower for a vector of them to add 64 to 127 to a sum's bits."""
    return whole(config).bit_length() + 1


def again(ops: list[MicroOp], target: int = 0) -> list[MicroOp]:
    """Return a kernel whose end jumps back to one of its micro-operations for each column."""
    return [*ops[:-1], dataclasses.replace(ops[-1], again=1, target=target)]


def large(core: Core) -> Iterator[Scenario]:
    """Yield a program of each kind that the core has."""
    kinds: list[tuple[str, type[Instruction], type[Large], Callable[[Any], None]]] = [
        ("store", Store, Large, Large.build_store),
        ("loads", Load, Large, Large.build_loads),
    ]
    kinds += [("sums", Softmax, Large, Large.build_sums)] if core.config.softmax else []
    kinds += [("columns", Kernel, Large, Large.build_columns)] if core.config.kernel else []
    if not core.sequential:  # which has one access at a time, and takes some hundred cycles for each column
        kinds += [("short stores", Store, Large, Large.build_short_stores)]
        kinds += [("whole sums", Softmax, WholeSums, Large.build_whole_sums)] if core.config.softmax else []
    for name, kind, of, build in kinds:
        bench = Benches(core).of(LATE.get(name, {"latency": 2}))
        bench.fresh = False
        made = of(core.config, 6000, (Load, Vec, kind))
        if core.sequential:
            made.columns = COLUMNS[:2]
        build(made)
        step = compare_memory(f"large {name}", made, made.program, bench)
        yield Scenario(step.name, bench, [step])
