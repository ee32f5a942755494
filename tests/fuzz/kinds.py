"""Kinds of fuzzing inputs: each draws edits from random numbers, and runs them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from fuzz import configurations, files, graphs, models, programs, sandbox, values
from fuzz.outcome import Outcome


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of input. `draw` returns edits (JSON values; the first names their subject), and `run` applies them in a
    folder within `seconds` of processor time. `share` successive inputs are of this kind."""

    draw: Callable[[np.random.Generator], list[Any]]
    run: Callable[[list[Any], Path], Outcome]
    share: int
    seconds: float = sandbox.SECONDS


KINDS = {
    "files": Kind(files.draw, files.run, 3),
    "values": Kind(values.draw, values.run, 2),
    "models": Kind(models.draw, models.run, 3),
    "graphs": Kind(graphs.draw, graphs.run, 4),
    "programs": Kind(programs.draw, programs.run, 3),
    "mutants": Kind(programs.draw_mutant, programs.run_mutant, 3),
    "configurations": Kind(configurations.draw, configurations.run, 0, configurations.SECONDS),
}
RARE = "configurations"
"""A kind that takes a minute an input: one in `RARELY` inputs."""
RARELY = 200
