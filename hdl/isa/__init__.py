"""Instruction set, register map, and the hardware configuration that both depend on."""

from weft.hdl.errors import IsaError
from weft.hdl.isa.config import PARAMETER_VECTORS, Feature
from weft.hdl.isa.encoding import (
    BASES,
    INSTRUCTIONS,
    PROGRAM_REGISTERS,
    SEMAPHORE_MAX,
    SEMAPHORES,
    WORD_BITS,
    WORD_BYTES,
    Instruction,
    Opcode,
    Place,
    Queue,
    decode,
    kinds_of,
    limits,
    places,
    register_fields,
    required_features,
    used_bits,
)
from weft.hdl.isa.instructions import (
    COORDINATE_MAX,
    FILL_MAX,
    INT4_RUN_MAX,
    PAGE_ENTRY,
    End,
    Load,
    Mm,
    Store,
)
from weft.hdl.isa.kernel import Kernel, Microcode, MicroOp
from weft.hdl.isa.loops import LoopNext, LoopStart, Mode, ReadRegisters, SetRegisters, SlotInstruction
from weft.hdl.isa.operands import Bound, Count, Loop, Memory, Operand
from weft.hdl.isa.vector import (
    Lookup,
    Normalise,
    Reduce,
    Softmax,
    Source,
    Table,
    Vec,
    VectorInstruction,
)

__all__ = [
    "BASES", "COORDINATE_MAX", "FILL_MAX", "INSTRUCTIONS", "INT4_RUN_MAX", "PAGE_ENTRY", "PARAMETER_VECTORS",
    "PROGRAM_REGISTERS", "SEMAPHORES", "SEMAPHORE_MAX", "WORD_BITS", "WORD_BYTES", "Bound", "Count", "End", "Feature",
    "Instruction", "IsaError", "Kernel", "Load", "Lookup", "Loop", "LoopNext", "LoopStart", "Memory", "MicroOp",
    "Microcode", "Mm", "Mode", "Normalise", "Opcode", "Operand", "Place", "Queue", "ReadRegisters", "Reduce",
    "SetRegisters", "SlotInstruction", "Softmax", "Source", "Store", "Table", "Vec", "VectorInstruction", "decode",
    "kinds_of", "limits", "places", "register_fields", "required_features", "used_bits",
]  # fmt: skip
