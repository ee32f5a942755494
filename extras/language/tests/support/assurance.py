"""Decoder proofs for the table of docs/assurance.md (see benchmarks/assurance.py)."""

from __future__ import annotations

import argparse
import time
from typing import Any

import weft.extras.language.run.lm
from weft.extras.language import example


def certificates(options: argparse.Namespace) -> dict[str, Any]:
    with weft.extras.language.run.lm.load(example.model(), "default") as model:
        start = time.process_time()
        program, prompts = (item.proven for item in model.certify(lambda done: None))
        seconds = time.process_time() - start
    subject = (
        f"the example's language model on `default`: {program.instructions:,} instructions, and "
        f"{prompts.instructions:,} of its program for prompts, compute the decoder at all {program.places:,} places of "
        "a text, proven in"
    )
    rows = [[subject, f"{seconds:.0f} s of processor time"]]
    return {"with": "python benchmarks/assurance.py measure certificates_language", "rows": rows}


PARTS = {"certificates_language": certificates}
