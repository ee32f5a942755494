"""Smallest configurations, which benches change in a parameter or two."""

from collections.abc import Iterator

from weft.hdl.isa.config import Config

SMALLEST = Config(
    n=2,
    lanes=2,
    scratchpad_banks=2,
    scratchpad_depth=16,
    accumulator_banks=2,
    accumulator_depth=16,
    bus_bytes=4,
    probability_bits=0,
    row_states=4,
    alignments=16,
)
KERNEL_SMALLEST = SMALLEST.replace(kernel=16, lookup_tables=2)
"""The smallest configuration with the kernel engine."""


def kernel_sizes() -> Iterator[tuple[Config, str]]:
    """Yield configurations of the kernel engine with one and with two lane groups, and their names."""
    for lanes in (2, 1):
        config = KERNEL_SMALLEST.replace(lanes=lanes)
        yield config, f"{config.groups} lane group{'s' if config.groups > 1 else ''}"
