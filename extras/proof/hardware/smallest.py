"""The smallest configuration: what benches vary where only a parameter or two change the unit."""

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
