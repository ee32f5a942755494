"""Random configurations: each is refused with a sentence, or its Verilog passes Verilator and runs programs
bit-exactly."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from fuzz import programs
from fuzz.files import Edit
from fuzz.outcome import Failure, Outcome, check_sentence

from weft.hdl.errors import ConfigError
from weft.hdl.isa.config import PRESETS, Config
from weft.hdl.sequential.core import check_config
from weft.sim.verilate import BuildError

FIELDS: dict[str, tuple[int, ...]] = {
    "n": (2, 4, 8), "lanes": (1, 2, 4, 8), "scratchpad_banks": (2, 4, 8, 16), "scratchpad_depth": (64, 128, 256),
    "accumulator_banks": (2, 4, 8), "accumulator_depth": (16, 32, 64), "bus_bytes": (4, 8, 16, 32, 64, 128),
    "mantissa_bits": (16, 24), "queue_depth": (1, 2, 4, 8, 16, 64), "probability_bits": (0, 7, 8),
    "row_states": (4, 16, 64), "alignments": (16, 64, 256), "table_depth": (256, 512, 1024, 2048),
    "lookup_tables": (0, 1, 2, 4, 8), "multiply": (0, 1), "kernel": (0, 32, 64, 256), "depthwise_taps": (0, 2, 3, 5, 8),
    "int4": (0, 1, 2), "loops": (0, 1), "parity": (0, 1), "descriptors": (0, 1),
}  # fmt: skip
"""Values of each field. Larger arrays and memories are left to other tests, because their models take minutes to
compile."""
SECONDS = 300.0
"""Processor seconds of an input, without the C++ compiler."""
PROGRAMS = 4


def draw(rng: np.random.Generator) -> list[Edit]:
    """Draw the core, and the fields that differ from a small configuration: a few, or nearly all."""
    core = {"sequential": bool(rng.random() < 0.4), "seed": int(rng.integers(1 << 30))}
    share = rng.choice([0.2, 0.8])
    changes = [
        ["field", name, int(rng.choice(values))] for name, values in FIELDS.items() if rng.random() < share
    ]
    return [["configuration", core], *changes]


def run(edits: list[Edit], folder: Path) -> Outcome:
    (_, about), *changes = edits
    fields = {name: value for _, name, value in changes}
    try:
        config = configuration(fields, about["sequential"])
    except ConfigError as error:
        check_sentence(str(error))
        return Outcome("refused", str(error))
    os.environ["WEFT_CACHE"] = str(folder / "cache")  # which goes with the input
    core = programs.Core(config, about["sequential"])
    for number in range(PROGRAMS):
        settings: dict[str, Any] = {
            "seed": about["seed"] + number, "count": 15, "serial": number == 0, "large": False, "timed": number == 1,
            "renamed": number % 2 == 1, "full": False, "traffic": number == 2, "turns": 2, "latency": 5 * number + 1,
            "rate": 0.0 if number < 3 else 1.5, "stalls": 0.5 * (number == 3), "reordered": number > 1,
            "fails": number,
        }  # fmt: skip
        generator = programs.build(core, settings, list(range(settings["count"])))
        try:
            programs.compare(core, generator, generator.program, settings)
        except BuildError as error:
            raise Failure("wrong", f"{config}: {error}", "build") from None
    return Outcome("done")


def configuration(fields: dict[str, int], sequential: bool) -> Config:
    """Return a small configuration with `fields`. Raises `ConfigError` if they contradict each other."""
    config = PRESETS["tiny"].replace(**({"depthwise_taps": 0} if sequential else {}) | fields)
    if sequential:
        check_config(config)
    return config


def random_configuration(rng: np.random.Generator, *, sequential: bool, **choices: tuple[int, ...]) -> Config:
    """Draw all fields from `FIELDS`, or from a field's `choices`, until they fit each other and the core."""
    while True:
        fields = {name: int(rng.choice(values)) for name, values in (FIELDS | choices).items()}
        if sequential:
            fields |= dict.fromkeys(("loops", "descriptors", "depthwise_taps"), 0)
        with suppress(ConfigError):
            return configuration(fields, sequential)
