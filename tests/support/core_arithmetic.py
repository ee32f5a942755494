"""Operations on numbers at which arithmetic has its corners, whose results are all stored.

Random programs compute with random numbers, of which few are 0, at a limit, or halfway between two results.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Iterable, Iterator
from typing import Any

from support.core_cases import Benches, Core, Scenario, compared
from support.core_observed import Observed, four_bytes
from support.random_instructions import block_of
from support.random_programs import Generator
from weft.hdl.isa import Instruction, Kernel, MicroOp, Source, Vec
from weft.hdl.isa.kernel import SERIAL, Op

PROGRAMS, HALVES, KERNELS = 4, 2, 60
"""Programs, others whose products are halfway between two results, and kernels of each: all of their results have room
in the scratchpad."""
REQUANTISED = 40
"""Instructions whose results are halfway."""
NUMBERS = (0, 1, 2, 3, 4, 7, 8, 127, 128, 0x5555, 0x2AAAAA, 0x555555, (1 << 23) - 4)
"""From which first operands count on, one for each element; their negatives as well."""
FACTORS = (0, 1, 2, 3, 5, 0xAAAA, 0x15555, (1 << 17) - 1, 1 << 16, 1 << 17)
PLACES = (0, 1, 2, 3, 5, 8, 16, 17, 24, 31, 32, 33, 47, 48, 63)
HIGHEST = (0x400000, 0x555555, (1 << 23) - 8, -(1 << 23), -0x555555)
"""Numbers that are moved up by 8 places, up to where 32 bits end; `LOWEST` are added to them."""
LOWEST = (0, 1, 170)
LIMITS = ((65537, 65535, 1), (65537, -65535, 1), (599479, 14329, 2), (599479, -14329, 2))
"""Numbers, factors, and places of products that are 2**31 - 1/2 and 2**31 - 1/4, and the negatives of these."""
POWERS = (*range(5, 32, 2), *range(4, 31, 2), 0, 1)
OPERATIONS = (*[Op.MUL] * 6, *[Op.RECIPROCAL, Op.RSQRT] * 2, Op.ADD, Op.SUB, Op.RSUB, Op.MIN, Op.MAX)


class Halfway(Observed):
    """Programs of `Vec` whose results are often halfway between two numbers. Parameters are those of `Observed`."""

    def parameters(self) -> bytes:
        """Mantissas that are powers of two, and numbers that are moved by few places more."""
        r, words = self.random, []
        for _ in range(self.config.n):
            power, bias = r.randrange(self.config.mantissa_bits), r.randrange(-64, 64)
            words.append(bias & 0xFFFFFFFF | 1 << 32 + power | power + r.randrange(1, 5) << 56)
        return block_of(words)

    def draw(self, kind: type[Instruction]) -> Instruction:
        """From the scratchpad, without a second operand or a limit."""
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
    """A program of requantisations, and for a core that has the kernel engine programs of kernels."""
    bench = Benches(core).of({"latency": 1})
    bench.fresh = False
    made = Halfway(core.config, 5000, (Vec,))
    made.build(REQUANTISED)
    yield Scenario("halfway", bench, [compared("halfway", made, made.program, bench)])
    if not core.config.kernel:
        return
    for seed in range(PROGRAMS + HALVES):
        pick = random.Random(5000 + seed)
        kernels = (_kernel(pick, seed >= PROGRAMS) for _ in range(KERNELS))
        yield _computed(core, f"arithmetic {seed}", 5000 + seed, 1 + 4 * seed, kernels)
    quotients = itertools.product(sorted(SERIAL), HIGHEST, LOWEST)
    yield _computed(core, "large quotients", 5100, 1, itertools.starmap(_quotient, quotients))
    yield _computed(
        core,
        "quotients of powers of two",
        5200,
        1,
        itertools.starmap(_of_power, itertools.product(SERIAL, POWERS)),
    )
    limits = itertools.product(LIMITS, range(core.config.n))
    yield _computed(core, "products at the limit", 5400, 1, itertools.starmap(_at_limit, limits))
    pick = random.Random(5300)
    yield _computed(core, "products with exponents", 5300, 1, (_scaled(pick) for _ in range(KERNELS)))


def _computed(core: Core, name: str, seed: int, latency: int, kernels: Iterable[list[MicroOp]]) -> Scenario:
    """Kernels one after the other, as many as have room in the scratchpad, and all that they write."""
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
    return Scenario(name, bench, [compared(name, made, made.program, bench)])


def _quotient(op: Op, number: int, lowest: int, places: int = 8) -> list[MicroOp]:
    """A number that is moved up for each element, what a division makes of it, and the four bytes of that."""
    return [
        MicroOp(op=Op.INDEX, b_immediate=1, immediate=number, d=1),
        MicroOp(op=Op.ADD, a=1, shift=places, b_immediate=1, immediate=lowest, d=2),
        MicroOp(op=op, a=2, d=4),
        *four_bytes(a=4),
    ]


def _of_power(op: Op, power: int) -> list[MicroOp]:
    """That of a power of two, or of the least of all numbers."""
    if power == 31:
        return _quotient(op, -(1 << 23), 0)
    low = min(power, 22)
    return _quotient(op, 1 << low, 0, power - low)


def _at_limit(limit: tuple[int, int, int], element: int) -> list[MicroOp]:
    """A product of which that of one element is rounded to 2**31, and the four bytes of that."""
    number, factor, places = limit
    return [
        MicroOp(op=Op.INDEX, b_immediate=1, immediate=number - element, d=1),
        MicroOp(op=Op.MUL, a=1, b_immediate=1, immediate=factor, shift=places, d=4),
        *four_bytes(a=4),
    ]


def _scaled(pick: random.Random) -> list[MicroOp]:
    """A number times the quotient of another one, with its exponent, and the four bytes of that."""
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
    """A number, an operation on it, and the four bytes of its result; with `halves` a product that is often halfway."""
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
