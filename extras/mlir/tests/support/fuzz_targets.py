"""MLIR text for fuzzers: printed by weft and by JAX."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

from fuzz.files import offer_model
from fuzz.targets import Target
from support import tflite_networks

import weft


@cache
def _texts() -> dict[str, bytes]:
    return {
        "convolutions": weft.convert(tflite_networks.convolutions(softmax=False)).encode(),
        "rows": weft.convert(tflite_networks.rows()).encode(),
        "attention": Path(__file__).parents[1].joinpath("jax_rows.mlir").read_bytes(),
    }


TARGETS = {"mlir": Target(5, lambda model: _texts()[model], partial(offer_model, suffix="mlir"))}
