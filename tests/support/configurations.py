"""Every configuration in use: presets, boards' own configurations, and their narrow arrays."""

from __future__ import annotations

from weft.boards.registry import BOARDS
from weft.hdl.isa.config import PRESETS, Config


def every() -> dict[str, Config]:
    """Return presets, boards' own configurations, and presets with 7-bit probabilities, each configuration under one
    name."""
    named = PRESETS | {name: board.config for name, board in BOARDS.items()}
    named |= {f"{name}, 7 bits": config.replace(probability_bits=7) for name, config in PRESETS.items()}
    return {
        name: config for config, name in {config: name for name, config in reversed(named.items())}.items()
    }
