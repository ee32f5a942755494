"""Facts about the sequential core for its cycle model: the microprogram, and what its words mean."""

from __future__ import annotations

import enum
from functools import lru_cache

import numpy as np

from weft.hdl.isa.config import Config
from weft.hdl.isa.kernel import MULTIPLIER_BITS, REGISTERS
from weft.hdl.sequential import lanes, micro, processor, tables
from weft.hdl.sequential.microprogram import Microprogram
from weft.sim.timing.hardware import struct

_ENUMERATIONS: dict[str, type[enum.IntEnum]] = {
    "FUNCTION": micro.Function,
    "SOURCE": micro.Source,
    "PORT": micro.Port,
    "OUT": micro.Out,
    "TO_MEMORY": micro.MemoryOut,
    "CONDITION": micro.Condition,
    "PART": micro.Part,
}
"""What numbers in words mean, by the prefix of their names in C++."""
_CONSTANTS = {
    "FUNCTION_WIDTH": micro.FUNCTION_BITS,
    "SOURCE_WIDTH": micro.SOURCE_BITS,
    "OUT_WIDTH": micro.OUT_BITS,
    "CONDITION_WIDTH": micro.CONDITION_BITS,
    "PART_WIDTH": micro.PART_BITS,
    "OPERAND_LOW": micro.OPERAND_LOW,
    "COMPARED_WIDTH": processor.COMPARED_BITS,
    "LANE_REGISTERS": REGISTERS,
    "LANE_ROW_BITS": lanes.ROW_BITS,
    "LANE_PREDICATES": lanes._PREDICATES,
    "LANE_STAGED": lanes._STAGED,
}


@lru_cache(maxsize=8)
def microprogram(config: Config) -> tuple[np.ndarray, np.ndarray]:
    """The words of the microprogram (uint64), and all of data memory as it is at first (uint32)."""
    program = Microprogram(config)
    memory = np.zeros(program.depth, np.uint32)
    memory[: len(program.constants)] = program.constants
    return np.array(program.words, np.uint64), memory


def core_parameters(config: Config) -> dict[str, int]:
    """Parameters of the model of the sequential core for a configuration."""
    kernel = bool(config.kernel)
    return {
        "n": config.n,
        "bus_bytes": config.bus_bytes,
        "operand_bits": Microprogram(config).operand_bits,
        "scratchpad_size": config.scratchpad_size,
        "accumulator_size": config.accumulator_size,
        "mantissa_bits": config.mantissa_bits,
        "multiplier_bits": MULTIPLIER_BITS,
        "signed_bits": MULTIPLIER_BITS if kernel else 0,
        "wide_activations": int(config.wide_activations),
        "table_entries": tables.entries(config),
        "table_step": tables.address_step(config),
        "lanes": config.n if kernel else 0,
    }


def header() -> str:
    """C++ for what `weft.hdl.sequential` defines: numbers in words, and names of `core_parameters`."""
    enumerations = [
        f"enum {''.join(part.title() for part in prefix.split('_'))}Number "
        f"{{ {', '.join(f'{prefix}_{item.name} = {int(item)}' for item in kind)} }};\n"
        for prefix, kind in _ENUMERATIONS.items()
    ]
    constants = ", ".join(f"{name} = {value}" for name, value in _CONSTANTS.items())
    return "".join([
        "namespace weft {\n",
        struct("CoreParameters", list(core_parameters(Config(depthwise_taps=0)))),
        "namespace sequential {\n",
        *enumerations,
        f"constexpr unsigned {constants};\n",
        f"constexpr uint8_t FIELD_WIDTHS[] = {{ {', '.join(map(str, micro.WIDTHS))} }};\n",
        "}  // namespace sequential\n}  // namespace weft\n",
    ])  # fmt: skip
