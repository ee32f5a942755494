"""Random programs kept for features that no other program has (`fuzz.features`), reduced to the necessary instructions.
`run` starts with them, and draws some of its programs from them, on other memories and with instructions removed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from fuzz import programs
from fuzz.features import SETTINGS, features, of

from weft.hdl.errors import WeftError

KIND = "programs"
SHARE = 0.3
"""Share of programs that are drawn from the corpus, if there is one."""
Edits = list[Any]


class CorpusError(WeftError, ValueError):
    """An invalid corpus file; the message names the line."""


class Corpus:
    """Programs of a corpus file, which may be missing. Raises `CorpusError` if it is invalid.

    Attributes
    ----------
    cases : list
        Edits of each program.
    known : set of str
        Features of all programs.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cases: list[Edits] = []
        self.known: set[str] = set()
        for number, line in enumerate(path.read_text().splitlines() if path.exists() else (), 1):
            try:
                case = json.loads(line)
                self.cases.append(case["edits"])
                self.known |= set(case["features"])
            except (ValueError, LookupError, TypeError) as error:
                raise CorpusError(
                    f"{path}, line {number} is no program of a corpus ({error}); take the file away"
                ) from None

    def add(self, edits: Edits, found: set[str]) -> bool:
        """Keep the parts of a program that have new features; return whether there are any."""
        new = found - self.known
        if not new:
            return False
        fewer = reduce(edits, new)
        still = features_of(fewer)
        if not new <= still:  # what is left is another program, as instructions depend on those ahead
            fewer, still = edits, frozenset(found)
        self.known |= still
        self.cases.append(fewer)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps({"edits": fewer, "features": sorted(still)}) + "\n")
        return True

    def draw(self, rng: np.random.Generator) -> Edits:
        """Draw a program of the corpus, on another memory and without some of its instructions."""
        (name, settings), *steps = self.cases[int(rng.integers(len(self.cases)))]
        (_, other), *_ = programs.draw(rng)
        kept = rng.random(len(steps)) >= rng.choice([0, 0.1, 0.4])
        changed = settings | {key: other[key] for key in SETTINGS}
        return [[name, changed], *(step for step, stays in zip(steps, kept, strict=True) if stays)]


def reduce(edits: Edits, needed: set[str]) -> Edits:
    """Reduce `edits` to the first step with each needed feature, and the step before it."""
    first, *steps = edits
    settings = first[1]
    drawn = programs.steps_of(programs.CORES[settings["core"]], settings)
    config, name = programs.CORES[settings["core"]].config, settings["core"]
    left, taken = set(needed), set()
    for at, (_, step) in enumerate(steps):
        own = {f"{name} {feature}" for feature in of(drawn[step], config)} & left
        if own:
            left -= own
            taken |= {at - 1, at}
    pairs = any(", " in feature for feature in needed)
    return edits if pairs else [first, *(step for at, step in enumerate(steps) if at in taken)]


def features_of(edits: Edits) -> frozenset[str]:
    """Build a program and return its features."""
    (_, settings), *steps = edits
    core = programs.CORES[settings["core"]]
    made = programs.build(core, settings, [step for _, step in steps])
    return features(made.program, core.config, settings)
