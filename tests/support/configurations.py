"""Every configuration that somebody may have: the presets, what the boards are given, and the narrow arrays of each."""

from __future__ import annotations

from weft.boards.registry import BOARDS
from weft.hdl.isa.config import PRESETS, Config


def every() -> dict[str, Config]:
    """Presets, boards' own configurations, and presets with 7-bit probabilities; each configuration under one name."""
    named = PRESETS | {name: board.config for name, board in BOARDS.items()}
    named |= {f"{name}, 7 bits": config.replace(probability_bits=7) for name, config in PRESETS.items()}
    return {
        name: config for config, name in {config: name for name, config in reversed(named.items())}.items()
    }
