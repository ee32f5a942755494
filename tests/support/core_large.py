"""Programs with what is large: sums of long rows of scores, columns of long rows, fields of loads, transfers of more
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
"""Of a row, in vectors."""
FAR = 0xF0F8
"""Bytes from one to the next of four pixels, of a row that is most of memory."""
LOADS = 120
"""That are drawn; for some none is valid."""
OVERLAPPING = (0x55, 0xAA, 0x155, 0x1AA)
"""Bytes of pixels of which the next one begins a third further on: there is a pass over the row for each vector."""
PIXELS = (0xAAAA, 0xAAAA - 32, 0xAAAA - 512)
"""Of large transfers, each of two bytes."""
MOST = 4095
"""Vectors of a row, as many as an instruction has."""
WHOLE_PARTS = 5
"""Of a row, each of `MOST` vectors: with N = 4 its sum of probabilities is beyond 32 bits."""
LARGEST_SUM = (1 << 32) - 1
SHORT_STORES = 40
LATE: dict[str, dict[str, Any]] = {"short stores": {"latency": 200}}
"""By program a memory that confirms late."""
SUMS = 4
"""Of each number of columns."""
NORMALISED = 4
"""Results of each sum that are kept."""


class Large(Observed):
    """Builds a program of one of four kinds. Parameters are those of `Observed`.

    Attributes
    ----------
    columns : tuple of int
        See `COLUMNS`.
    """

    columns: tuple[int, ...] = COLUMNS

    def parameters(self) -> bytes:
        """Bytes become scores that are a part of an octave apart, or many octaves."""
        r, bits, words = self.random, self.config.mantissa_bits, []
        scale = r.randrange(-8, 3)
        for _ in range(self.config.n):
            mantissa = r.randrange(1 << bits - 1, 1 << bits)
            words.append(r.randrange(-64, 64) & 0xFFFFFFFF | mantissa << 32 | max(0, bits + scale) << 56)
        return block_of(words)

    def build_sums(self) -> None:
        """Rows in three parts, each of which may bring a new maximum, and results of their sums."""
        self.prologue()
        self.observe()
        for turn, columns in enumerate(SUMS * self.columns):
            state = {"state": turn % self.config.row_states}
            for part in range(3):
                row = {"ob": columns, "oy": 1, "ox": 1, "first": int(part == 0), "final": 0, "causal": 0}
                row |= state | {"relative": 0, "length": (1 << 15) - 1}
                row |= {"source": Source.SCRATCHPAD, "params": self.block()}
                self._drawn(Softmax, row, "ob")
            self._quotients(state["state"], -(turn % 8))

    def build_whole_sums(self) -> None:
        """Rows whose sums grow as far as they can, in parts as long as an instruction's: one until it wraps, with
        keys far below the maximum on the way, and one to the largest number that there is, and beyond."""
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
        """A part of a row, all of whose scores are `equal`, or lower."""
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
        self._drawn(Softmax, fields, "ob")

    def _quotients(self, state: int, exponent: int) -> None:
        for _ in range(NORMALISED):
            fields = {"state": state, "ob": 1, "oy": 1, "ox": 1, "scaled": 0, "exponent": exponent}
            self._drawn(Normalise, fields, "oy")
        self.observe()

    def build_columns(self) -> None:
        """The numbers of elements of long rows, of which the last column's stay."""
        self.prologue()
        index = MicroOp(op=Op.INDEX, b_immediate=1, immediate=0, d=1)
        self.put([index, *again(four_bytes(a=1))], 0)
        for columns in self.columns:
            assert self.append(
                Kernel(start=0, ox=columns, dst=0, dst2=2, with_dst2=1, dst_vectors=2, dst2_vectors=2)
            )
            self.observe()

    def build_loads(self) -> None:
        """Loads of which some numbers are large, as many as the scratchpad and the region of inputs allow."""
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
        # All of the scratchpad: by two pixels that have almost all bytes in common, and by as many rows as it has.
        half = {"length": size // 2 * n, "run": size * n, "dst_vector": 1, "dst_pixel": size // 2}
        assert self.append(Load(base=7, pixels=2, pitch=(size // 2 - 1) * n, **half))
        assert self.append(dataclasses.replace(self.dump(), offset=self.stored))
        assert self.append(Load(base=7, rows=size, row_pitch=n + 1, run=n, length=n, dst_row=1))
        self.observe()

    def build_store(self) -> None:
        """Pixels that follow each other in memory are one transfer, here of more than 64 KiB, and of odd and even
        numbers of bursts."""
        self.prologue()
        for source, pixels in enumerate(PIXELS):
            assert 2 * pixels < MEMORY - DUMP
            assert self.append(Store(base=6, src=source, pixels=pixels, length=2, pitch=2))

    def build_short_stores(self) -> None:
        """Of a few bytes each, one after the other."""
        self.prologue()
        for turn in range(SHORT_STORES):
            place = turn * (self.config.bus_bytes + 1)
            assert self.append(Store(base=6, offset=place, src=turn, length=1 + turn % self.config.n))

    def _drawn(self, kind: type[Softmax] | type[Normalise], fields: dict[str, int], loop: str) -> None:
        """One with these fields that is valid; along the loop it stays where it is."""
        for _ in range(300):
            drawn = self.draw(kind)
            strides = [name for name in vars(drawn) if name.endswith(f"_{loop}")]
            if self.append(dataclasses.replace(drawn, **dict.fromkeys(strides, 0) | fields)):
                return
        raise AssertionError(f"no {kind.__name__} with {fields} is valid")


class WholeSums(Large):
    """`Large` whose first parameter block makes 0 of every score, and whose second makes them lower by `octaves`.
    Parameters are those of `Observed`."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._blocks = iter(range(BLOCKS))

    def parameters(self) -> bytes:
        """Bytes of elements are too small to change what is rounded."""
        bits = self.config.mantissa_bits
        lower = -(octaves(self.config) << 17) & 0xFFFFFFFF | 1 << 32 + bits - 1 | bits + 9 << 56
        return block_of([lower * next(self._blocks)] * self.config.n)


def whole(config: Config) -> int:
    """What a vector of keys that are all at the maximum adds to a row's sum, which has 8 bits behind the point."""
    return config.n * config.exp2_table[0]


def octaves(config: Config) -> int:
    """So many octaves lower, a vector of keys adds less than 128 to the bits of a sum, and more than 63."""
    return whole(config).bit_length() + 1


def again(ops: list[MicroOp], target: int = 0) -> list[MicroOp]:
    """A kernel whose end goes back to one of its micro-operations for each column."""
    return [*ops[:-1], dataclasses.replace(ops[-1], again=1, target=target)]


def large(core: Core) -> Iterator[Scenario]:
    """A program of each kind that the core has."""
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
