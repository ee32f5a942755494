"""Programs with operands at the corner cases of arithmetic, whose results are all stored.

Random programs compute with random numbers: few are 0, at a limit, or halfway between two results.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterable, Iterator
from typing import Any

from support.core_cases import Benches, Core, Scenario, compare_memory
from support.core_observed import Observed, four_bytes
from support.random_instructions import block_of
from support.random_programs import Generator
from weft.hdl.isa import Instruction, Kernel, MicroOp, Source, Vec
from weft.hdl.isa.kernel import SERIAL, Op

PROGRAMS, HALVES, KERNELS = 4, 2, 60
"""Programs of kernels, programs with results halfway, and kernels of each: all results fit the scratchpad."""
REQUANTISED = 40
"""Instructions with halfway results."""
NUMBERS = (0, 1, 2, 3, 4, 7, 8, 127, 128, 0x5555, 0x2AAAAA, 0x555555, (1 << 23) - 4)
"""First operands start at these numbers and their negatives, and count up, one for each element."""
FACTORS = (0, 1, 2, 3, 5, 0xAAAA, 0x15555, (1 << 17) - 1, 1 << 16, 1 << 17)
PLACES = (0, 1, 2, 3, 5, 8, 16, 17, 24, 31, 32, 33, 47, 48, 63)
HIGHEST = (0x400000, 0x555555, (1 << 23) - 8, -(1 << 23), -0x555555)
"""Numbers that are shifted left by 8, up to the end of 32 bits; `LOWEST` are added to them."""
LOWEST = (0, 1, 170)
LIMITS = ((65537, 65535, 1), (65537, -65535, 1), (599479, 14329, 2), (599479, -14329, 2))
"""Numbers, factors and shifts whose products are 2**31 - 1/2 and 2**31 - 1/4, and their negatives."""
POWERS = (*range(5, 32, 2), *range(4, 31, 2), 0, 1)
OPERATIONS = (*[Op.MUL] * 6, *[Op.RECIPROCAL, Op.RSQRT] * 2, Op.ADD, Op.SUB, Op.RSUB, Op.MIN, Op.MAX)


class Halfway(Observed):
    """Builder of `Vec` programs whose results are often halfway between two numbers. Parameters as in `Observed`."""

    def parameters(self) -> bytes:
        """Draw mantissas that are powers of two, and small shifts."""
        r, words = self.random, []
        for _ in range(self.config.n):
            power, bias = r.randrange(self.config.mantissa_bits), r.randrange(-64, 64)
            words.append(bias & 0xFFFFFFFF | 1 << 32 + power | power + r.randrange(1, 5) << 56)
        return block_of(words)

    def draw(self, kind: type[Instruction]) -> Instruction:
        """Draw from the scratchpad, without a second operand or a limit."""
        whole: dict[str, Any] = {
            "source": Source.SCRATCHPAD,
            "params": self.block(),
            "add": 0,
            "multiply": 0,
            "low": -128,
            "high": 127,
            "ox": 9,
        }
        return dataclasses.replace(Generator.draw(self, kind), **whole)


def arithmetic(core: Core) -> Iterator[Scenario]:
    """Yield a program of requantisations, and programs of kernels if the core has the kernel engine."""
    bench = Benches(core).of({"latency": 1})
    bench.fresh = False
    made = Halfway(core.config, 5000, (Vec,))
    made.build(REQUANTISED)
    yield Scenario("halfway", bench, [compare_memory("halfway", made, made.program, bench)])
    if not core.config.kernel:
        return
    for seed in range(PROGRAMS + HALVES):
        pick = random.Random(5000 + seed)
        kernels = (_kernel(pick, seed >= PROGRAMS) for _ in range(KERNELS))
        yield _compute(core, f"arithmetic {seed}", 5000 + seed, 1 + 4 * seed, kernels)
    quotients = itertools.product(sorted(SERIAL), HIGHEST, LOWEST)
    yield _compute(core, "large quotients", 5100, 1, itertools.starmap(_quotient, quotients))
    yield _compute(
        core,
        "quotients of powers of two",
        5200,
        1,
        itertools.starmap(_of_power, itertools.product(SERIAL, POWERS)),
    )
    limits = itertools.product(LIMITS, range(core.config.n))
    yield _compute(core, "products at the limit", 5400, 1, itertools.starmap(_at_limit, limits))
    pick = random.Random(5300)
    yield _compute(core, "products with exponents", 5300, 1, (_scale(pick) for _ in range(KERNELS)))


def _compute(core: Core, name: str, seed: int, latency: int, kernels: Iterable[list[MicroOp]]) -> Scenario:
    """Build as many kernels as fit the scratchpad, and store all that they write."""
    bench = Benches(core).of({"latency": latency})
    bench.fresh = False
    made = Generator(core.config, seed, serial=True)
    made.prologue()
    for number, ops in enumerate(itertools.islice(kernels, made.scratchpad // 4)):
        made.put(ops, 0)
        assert made.append(
            Kernel(start=0, dst=4 * number, dst2=4 * number + 2, with_dst2=1, dst_vectors=2, dst2_vectors=2)
        )
    assert made.append(made.dump())
    return Scenario(name, bench, [compare_memory(name, made, made.program, bench)])


def _quotient(op: Op, number: int, lowest: int, places: int = 8) -> list[MicroOp]:
    """Return micro-operations that shift each element's number left, divide, and store the result's four bytes."""
    return [
        MicroOp(op=Op.INDEX, b_immediate=1, immediate=number, d=1),
        MicroOp(op=Op.ADD, a=1, shift=places, b_immediate=1, immediate=lowest, d=2),
        MicroOp(op=op, a=2, d=4),
        *four_bytes(a=4),
    ]


def _of_power(op: Op, power: int) -> list[MicroOp]:
    """Return micro-operations on a power of two, or on the least number."""
    if power == 31:
        return _quotient(op, -(1 << 23), 0)
    low = min(power, 22)
    return _quotient(op, 1 << low, 0, power - low)


def _at_limit(limit: tuple[int, int, int], element: int) -> list[MicroOp]:
    """Return micro-operations of products, where one element's product rounds to 2**31, and their four bytes."""
    number, factor, places = limit
    return [
        MicroOp(op=Op.INDEX, b_immediate=1, immediate=number - element, d=1),
        MicroOp(op=Op.MUL, a=1, b_immediate=1, immediate=factor, shift=places, d=4),
        *four_bytes(a=4),
    ]


def _scale(pick: random.Random) -> list[MicroOp]:
    """Return micro-operations of a number times another's quotient, with its exponent, and their four bytes."""
    first, second = (pick.randrange(1, 1 << pick.randrange(4, 23)) for _ in range(2))
    fields = {"shift": pick.randrange(16), "scaled": 1, "floor": pick.randrange(2)}
    return [
        MicroOp(op=Op.INDEX, b_immediate=1, immediate=first, d=1),
        MicroOp(op=Op.INDEX, b_immediate=1, immediate=second, d=2),
        MicroOp(op=pick.choice(SERIAL), a=2, d=3),
        MicroOp(op=Op.MUL, a=1, b=3, d=4, **fields),
        *four_bytes(a=4),
    ]


def _kernel(pick: random.Random, halves: bool) -> list[MicroOp]:
    """Return micro-operations on a number and their four bytes; with `halves` a product that is often halfway."""
    op, sign = pick.choice(OPERATIONS), pick.choice((1, -1))
    number = sign * pick.choice(NUMBERS)
    second = pick.choice((1, -1)) * pick.choice(FACTORS if op is Op.MUL else NUMBERS)
    places: tuple[int, ...] = PLACES
    if halves:
        op, places = Op.MUL, (pick.randrange(1, 18),)
        number, second = sign * (2 * pick.randrange(1 << 12) + 1), 1 << places[0] - 1
    numbers = [
        MicroOp(op=Op.INDEX, b_immediate=1, immediate=number, d=1),
        MicroOp(
            op=Op.ADD,
            a=1,
            shift=pick.choice((0, 0, 1, 6, 8)),
            b_immediate=1,
            immediate=pick.randrange(-2, 3),
            d=2,
        ),
        MicroOp(op=Op.INDEX, b_immediate=1, immediate=second, d=3),
    ]
    if op in SERIAL:
        computed = MicroOp(op=op, a=2, unsigned=pick.randrange(2), d=4)
    else:
        fields = {"floor": pick.randrange(2), "scaled": int(pick.random() < 0.2)} if op is Op.MUL else {}
        computed = MicroOp(op=op, a=2, b=3, shift=pick.choice(places) if op is Op.MUL else 0, d=4, **fields)
    return [*numbers, computed, *four_bytes(a=4)]
