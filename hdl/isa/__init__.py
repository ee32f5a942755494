"""The instruction set, the register map, and the configuration that both depend on."""

from weft.hdl.isa.encoding import (
    INSTRUCTIONS,
    SEMAPHORE_MAX,
    SEMAPHORES,
    WORD_BITS,
    WORD_BYTES,
    Instruction,
    IsaError,
    Opcode,
    Place,
    Queue,
    decode,
    limits,
    places,
    used_bits,
)
from weft.hdl.isa.instructions import (
    BASES,
    COORDINATE_MAX,
    FILL_MAX,
    PARAMETER_VECTORS,
    End,
    Load,
    Mm,
    Normalise,
    Reduce,
    Softmax,
    Source,
    Store,
    Table,
    Vec,
    VectorInstruction,
)

__all__ = [
    "BASES", "COORDINATE_MAX", "FILL_MAX", "INSTRUCTIONS", "PARAMETER_VECTORS", "SEMAPHORES", "SEMAPHORE_MAX",
    "WORD_BITS", "WORD_BYTES", "End", "Instruction", "IsaError", "Load", "Mm", "Normalise", "Opcode", "Place",
    "Queue", "Reduce", "Softmax", "Source", "Store", "Table", "Vec", "VectorInstruction", "decode", "limits",
    "places", "used_bits",
]  # fmt: skip
