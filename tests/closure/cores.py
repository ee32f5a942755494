"""Small cores for coverage and mutation, which together have every unit."""

from __future__ import annotations

from support.core_cases import Core

from weft.hdl.core import Core as Pipelined
from weft.hdl.isa.config import Config
from weft.hdl.sequential.core import SequentialCore

FULL = Config(
    n=4, lanes=2, scratchpad_banks=2, scratchpad_depth=128, accumulator_banks=2, accumulator_depth=32, bus_bytes=4,
    queue_depth=2, row_states=16, alignments=32, table_depth=256, lookup_tables=2, kernel=64, depthwise_taps=2, int4=2,
    loops=1,
)  # fmt: skip
"""Every optional feature of a configuration."""
SMALL = Config(
    n=2, lanes=1, scratchpad_banks=2, scratchpad_depth=128, accumulator_banks=2, accumulator_depth=16, bus_bytes=8,
    queue_depth=1, mantissa_bits=16, probability_bits=7, row_states=4, alignments=16, table_depth=256, lookup_tables=1,
    int4=1,
)  # fmt: skip
"""One lane, queues of one instruction, and a bus wider than a vector."""
CORES = {
    "pipelined": {"full": Core(FULL), "small": Core(SMALL)},
    "sequential": {
        "full": Core(FULL.replace(loops=0, int4=1, depthwise_taps=0), sequential=True),
        "small": Core(SMALL.replace(probability_bits=0, lookup_tables=0, int4=0, kernel=32), sequential=True),
    },
}
"""Configurations whose coverage is merged, by core; the first is mutated."""


def component(core: Core) -> Pipelined | SequentialCore:
    """Return the hardware of a core."""
    return (SequentialCore if core.sequential else Pipelined)(core.config)
