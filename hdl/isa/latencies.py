"""Latencies in cycles that more than one part of weft counts with: units keep them, tests hold the units to them, and
the cycle model and the compiler's estimates are built on them.
"""

from __future__ import annotations

from weft.hdl.isa.config import Config

READ_LATENCY = 3
"""From a granted read request to its data, for scratchpad and accumulator alike."""
LOOKUP = 2
"""Of look-up tables behind the vector unit's results, whether an instruction uses them or not."""
DIVISION = 8
"""Of a division in the vector unit: two bits of the quotient, one of the product each."""

KERNEL_RESULT = 10
"""Of the kernel engine: from the cycle in which an element is read, or would be, to its result."""
KERNEL_SPACING = 8
"""From a result of the kernel engine being issued to an operation that reads it: registers are read 3 cycles after the
issue, and written in the cycle of `KERNEL_RESULT`."""

KERNEL_DIVISION = 20
"""Of a reciprocal in the kernel engine: 16 bits, and 4 cycles around them."""
KERNEL_ROOT = 16
"""Of the square root before it."""


def kernel_least(groups: int) -> int:
    """Cycles of a micro-operation at least: with ``swap`` it reads other lane groups than it writes."""
    return KERNEL_SPACING + groups - 1


def kernel_serial(elements: int, groups: int, *, root: bool) -> int:
    """Cycles of a reciprocal of `elements` lanes, one by one, whose results go to `groups` lane groups: 5 until
    the element is there, less the 3 after which the next operation reads it, and one more."""
    return 3 + elements * (KERNEL_DIVISION + (KERNEL_ROOT if root else 0)) + groups


def lookup_latency(config: Config) -> int:
    """What look-up tables add to the way of results."""
    return LOOKUP if config.lookup_tables else 0


def vec_overhead(config: Config) -> int:
    """From accepting a `Vec` to accepting the next instruction of the queue, beyond one for each read that it issues
    and each element that is out of range, when no read is refused."""
    return 23 + lookup_latency(config)


VEC_EARLY = 9
"""The same where the next instruction is a `Vec` of the accumulator without a second operand, and this one a `Vec`: its
parameter block is read while the results of this one leave. Not with the sequential requantisation of
`weft.hdl.vector.requantise_serial`."""


def aligning(config: Config) -> int:
    """Choosing which of a sum and a product to shift, and shifting it, on the way into the accumulator."""
    return 2 if config.softmax else 0


def rmw_latency(config: Config) -> int:
    """From a row of products at the accumulator until reads see it: a read granted then, or a row that adds to it
    arriving then, finds the sum. No tile of the array takes less, whatever its rows."""
    return READ_LATENCY + 1 + aligning(config)
