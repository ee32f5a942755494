"""Requantisations and quotients whose results depend on every bit of the operands.

With random parameters most results saturate, or are so small that few bits of the operands count. Here both terms of a
sum are equally large, and shifts leave a byte. 4-bit values and their factors are at their limits.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from support.core_cases import Benches, Core, Scenario, compare_memory
from support.core_large import Large
from support.core_observed import Observed
from support.random_instructions import BLOCKS, DUMP, MEMORY, block_of
from weft.hdl.isa import PARAMETER_VECTORS, Instruction, Load, Mm, Normalise, Reduce, Softmax, Source, Vec
from weft.sim.device import DeviceError
from weft.sim.golden.interpreter import EXECUTE

FIRST = 0x1000
"""Address of parameter blocks in memory, and of other loads' data."""
LIMITS = (0x88, 0x80, 0x7F, 0x77, 0x08, 0x78)
"""Bytes that are factors, or pairs of values, at their limits."""
SUMS, LOADS, VECS = 50, 30, 80
"""Instructions, or pairs of them, of a program."""
SEQUENTIAL = 4
"""Divides the number of instructions on the sequential core, which takes some hundred cycles for a vector."""
EXPONENTS = range(-4, 20)
"""Exponents of `Normalise`."""
TRIES = 300


class Balanced(Large):
    """Builds programs of one kind each. Parameters are those of `Large`.

    Attributes
    ----------
    share : int
        One in `share` instructions is drawn.
    """

    share = 1

    def build_sums(self) -> None:
        """Add sums of two terms in `Vec`, each after a load of its parameters; the second is 0 beside powers of two."""
        self.prologue()
        n, totals = self.config.n, itertools.cycle(range(self.config.mantissa_bits + 30))
        size = BLOCKS * PARAMETER_VECTORS * n
        for turn in range(VECS // self.share):
            most, alone = self.config.mantissa_bits, turn % 2 == 0
            width = 0 if alone else self.random.randrange(most + 1)
            words = [
                powers(self.random, most, next(totals)) if alone else column(self.random, most, width)
                for _ in range(BLOCKS * n)
            ]
            place = {"base": 7, "offset": FIRST + size * turn, "dst": self.scratchpad, "dst_vector": 1}
            self._to_memory(FIRST + size * turn, block_of(words[:n]) + block_of(words[n:]))
            assert self.append(Load(run=size, length=size, **place))
            b_mantissa = self.random.randrange(1 << width >> 1, 1 << width)
            self._one(Vec, b_mantissa=b_mantissa, params=self.scratchpad)

    def build_quotients(self) -> None:
        """Add sums of few probabilities, one for each row state, and many results of each."""
        self.prologue()
        for _ in range(SUMS // self.share):
            self._one(Mm)
            self._one(Softmax)
            self._best_normalise()

    def build_blocks(self) -> None:
        """Add block loads of 4-bit values at their limits, with factors at their limits."""
        self.prologue()
        pick = self.random
        self._to_memory(0, bytes(pick.choice((*LIMITS, pick.randrange(256))) for _ in range(0x7000)))
        for _ in range(LOADS // self.share):
            self._one(Load, lambda drawn: drawn.blocks)

    def vec(self) -> dict[str, Any]:
        whole = {
            "low": -128,
            "high": 127,
            "source": Source.SCRATCHPAD,
            "reduce": Reduce.NONE,
            "ry": 1,
            "rx": 1,
        }
        return super().vec() | whole | {"add": 1, "multiply": 0, "ob": BLOCKS, "oy": 2, "ox": 9}

    def softmax(self) -> dict[str, Any]:
        rows = min(self.config.row_states, 16)
        counts = {"ob": self.random.choice([2, 9, 33]), "oy": rows, "ox": 1}
        return super().softmax() | counts | {"first": 1, "final": 0, "params": self.block()}

    def normalise(self) -> dict[str, Any]:
        rows = min(self.config.row_states, 16)
        whole = {"ob": 1, "oy": rows, "ox": 12, "low": -128, "high": 127, "source": Source.ACCUMULATOR}
        return super().normalise() | whole | {"scaled": 0}

    def _best_normalise(self) -> None:
        """Return an instruction, with the exponent that gives the most different results, and its observation."""
        for _ in range(TRIES):
            drawn = self.draw(Normalise)
            ways = [dataclasses.replace(drawn, **{"exponent": exponent}) for exponent in EXPONENTS]
            if self.append(max(ways, key=self._results)):
                self._observe_all()
                return
        raise AssertionError("no Normalise is valid")

    def _results(self, instruction: Instruction) -> int:
        """Count the different bytes that an instruction writes."""
        trial, before = copy.deepcopy(self.memories), self.memories.scratchpad
        with contextlib.suppress(DeviceError):
            EXECUTE[Normalise](trial, instruction)
        return len(np.unique(trial.scratchpad[trial.scratchpad != before]))

    def draw(self, kind: type[Instruction]) -> Instruction:
        """Draw an instruction without long loops."""
        return super(Observed, self).draw(kind)

    def _one(
        self, kind: type[Instruction], wanted: Callable[[Any], Any] = lambda drawn: True, **fields: int
    ) -> None:
        """Draw an instruction with these fields that is valid and `wanted`, and its observation."""
        for _ in range(TRIES):
            drawn = self.draw(kind)
            if wanted(drawn) and self.append(dataclasses.replace(drawn, **fields)):
                if kind is not Mm and kind is not Softmax:
                    self._observe_all()
                return
        raise AssertionError(f"no {kind.__name__} with {fields} is valid")

    def _observe_all(self) -> None:
        if self.stored + self._size() <= MEMORY - DUMP:
            self.observe()

    def _to_memory(self, address: int, content: bytes) -> None:
        """Put bytes into memory before the program starts."""
        self.memories.dram[address : address + len(content)] = list(content)
        image = bytearray(self.image)
        image[address : address + len(content)] = content
        self.image = bytes(image)


def column(pick: random.Random, most: int, width: int) -> int:
    """Return a column's word: a bias of any size, and a mantissa of at most `most` bits. Both terms, a byte times a
    number of `width` bits, are equally large; the shift leaves about a byte."""
    size = pick.randrange(32)
    bits = min(most, max(0, width + 8 - max(8, size) + pick.randrange(-3, 4)))
    shift = min(63, max(0, max(width + 8, max(8, size) + bits) - 8 + pick.randrange(-2, 4)))
    bias, mantissa = pick.randrange(1 << size), pick.randrange(1 << bits)
    return pick.choice((1, -1)) * bias & 0xFFFFFFFF | mantissa << 32 | shift << 56


def powers(pick: random.Random, most: int, total: int) -> int:
    """Return a column's word whose bias and mantissa are powers of two with the product ``2**total``. The shift removes
    the mantissa's power: one bit shows saturation, and the rest is a byte."""
    power = pick.randrange(max(0, total - 30), min(most - 1, total) + 1)
    return 1 << total - power | 1 << 32 + power | power + pick.randrange(3) << 56


def balanced_scenarios(core: Core) -> Iterator[Scenario]:
    """Yield a program of each kind that the core has."""
    config = core.config
    kinds = [("sums of terms", Balanced.build_sums, True)]
    kinds += [("quotients", Balanced.build_quotients, bool(config.softmax))]
    kinds += [("blocks at their limits", Balanced.build_blocks, bool(config.blocks))]
    for name, build, there in kinds:
        if there:
            bench = Benches(core).of({"latency": 3})
            bench.fresh = False
            made = Balanced(config, 9000, (Vec,))
            made.share = SEQUENTIAL if core.sequential else 1
            build(made)
            yield Scenario(name, bench, [compare_memory(name, made, made.program, bench)])
