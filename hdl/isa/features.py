"""What instructions need that not every configuration has."""

from __future__ import annotations

from weft.hdl.isa import Instruction, Load, Mm, Normalise, Softmax, Table
from weft.hdl.isa.config import Config

_SOFTMAX_FIELDS: dict[type[Instruction], tuple[str, ...]] = {
    Load: ("transpose", "paged", "table", "page"),
    Mm: ("zero", "align", "alignment"),
}
"""Fields that are 0 without softmax."""


def lacking(instruction: Instruction, config: Config) -> str | None:
    """Why a configuration does not have an instruction or its fields, as a sentence; None if it has."""
    if not config.softmax:
        if isinstance(instruction, (Softmax, Normalise, Table)):
            return "the configuration has no softmax ('probability_bits' is 0)"
        for field in _SOFTMAX_FIELDS.get(type(instruction), ()):
            if getattr(instruction, field):
                return f"{field!r} must be 0, as the configuration has no softmax ('probability_bits' is 0)"
    if isinstance(instruction, Mm) and instruction.zero and not config.wide_activations:
        return f"'zero' must be 0, as 'probability_bits' is {config.probability_bits} and not 8"
    return None
